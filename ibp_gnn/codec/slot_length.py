"""How long slots are, and how much of one a GPU fetches first: what is counted over all rows' payload lengths."""

from __future__ import annotations

import numpy as np
import torch

from .. import _native
from . import dispatch
from .forms import Form, Minimize


def payload_histogram(payload_bytes: torch.Tensor, row_bytes: int) -> torch.Tensor:
    """payload_bytes: int32 [n]. Returns int64 [row_bytes + 1] on the CPU: rows per payload length; lengths of
    row_bytes or more, which are stored raw, share the last count."""
    if payload_bytes.is_cuda:
        return torch.bincount(payload_bytes.clamp(max=row_bytes), minlength=row_bytes + 1).cpu()
    # torch's own takes 100 times as long on a busy CPU, as its threads spin.
    return torch.from_numpy(np.bincount(np.minimum(payload_bytes.numpy(), row_bytes), minlength=row_bytes + 1))


def assign_overflow(
    payload_bytes: torch.Tensor | np.ndarray, slot_bytes: int, row_bytes: int, first: int = 0
) -> tuple[torch.Tensor, int]:
    """payload_bytes: integers [n], each row's payload length; a tensor on any device, or an array. first: how many rows
    overflow before these. Returns each row's index in the overflow area, int64 [n] on that device, -1 for a row that
    fits its slot; and how many rows have overflowed after the last of these."""
    if isinstance(payload_bytes, torch.Tensor) and payload_bytes.is_cuda:
        overflows = payload_bytes > min(slot_bytes, row_bytes)
        if slot_bytes >= row_bytes:
            overflows.zero_()
        return torch.where(overflows, first + torch.cumsum(overflows, 0) - 1, -1), first + int(overflows.sum())
    lengths = payload_bytes.numpy() if isinstance(payload_bytes, torch.Tensor) else payload_bytes
    overflowing = (lengths > slot_bytes) & (slot_bytes < row_bytes)
    ends = first + np.cumsum(overflowing, dtype=np.int64)
    return torch.from_numpy(np.where(overflowing, ends - 1, -1)), int(ends[-1]) if len(ends) else first


def best_slot_bytes(histogram: torch.Tensor, row_bytes: int) -> int:
    """The slot length for which slots and overflow rows take the fewest bytes, or nearly so in whole memory sectors
    (csrc/cpu/slot_choice.h). histogram: from `payload_histogram`."""
    length: int = _native.cpu.best_slot_bytes(histogram.numpy(), row_bytes)
    return length


def count_overflow(histogram: torch.Tensor, slot_bytes: int) -> int:
    """How many rows overflow slots of this length: none where it is that of a row. histogram: from
    `payload_histogram`."""
    return int(histogram[slot_bytes + 1 :].sum())


def compact_bytes(histogram: torch.Tensor, slot_bytes: int, row_bytes: int) -> int:
    """What slots of this length and the overflow rows take. histogram: from `payload_histogram`."""
    return int(histogram.sum()) * slot_bytes + count_overflow(histogram, slot_bytes) * row_bytes


def best_lead_bytes(form: Form, histogram: torch.Tensor, slot_bytes: int) -> int:
    """How many bytes of a slot a GPU should fetch before it knows the payload's length (csrc/cpu/slot_choice.h).
    histogram: from `payload_histogram`."""
    fitting = np.zeros(slot_bytes + 1, np.int64)
    counts = histogram[: slot_bytes + 1].numpy()
    fitting[: len(counts)] = counts
    lead: int = _native.cpu.best_lead_bytes(fitting, slot_bytes, form.fetches_once)
    return lead


def least_lead_bytes(form: Form, rows: torch.Tensor, slot_bytes: int) -> int:
    """rows: uint8 [n, row_bytes]. Returns what lead_bytes must be at least in a store that has these rows, or 0: see
    `best_lead_bytes`."""
    if not form.fetches_once:
        return 0
    payload_bytes = dispatch.measure(form, rows)
    stored = payload_bytes[payload_bytes <= min(slot_bytes, form.row_bytes - 1)]
    return int(stored.max()) if len(stored) else 0


def size_to_minimize(form: Form, rows: torch.Tensor, minimize: Minimize) -> int:
    """Bytes of what is to be small, of rows: uint8 [n, row_bytes]."""
    if minimize == "payloads":
        return dispatch.stored_bytes(form, rows)
    histogram = payload_histogram(dispatch.measure(form, rows), form.row_bytes)
    return compact_bytes(histogram, best_slot_bytes(histogram, form.row_bytes), form.row_bytes)

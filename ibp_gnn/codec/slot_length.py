"""How long slots are, and how much of one a GPU fetches first: what is counted over all rows' payload lengths."""

from __future__ import annotations

import math

import numpy as np
import torch

from .. import _native
from . import dispatch
from .forms import Form, Minimize

_SECTOR_BYTES = 32


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
    """The slot length, a multiple of 4 below row_bytes or row_bytes itself, for which slots and overflow rows take the
    fewest bytes; or a multiple of a memory sector (32 bytes) if that takes at most 3 % more, and no more than it saves
    of what a gather fetches, which is whole sectors. histogram: from `payload_histogram`.

    A slot that starts a sector shares none with its neighbours: on an H200, rows of 128 float32 in slots of 448 bytes
    came 7 % faster from GPU memory than in slots of 436 or 444, and 5 % faster over PCIe.
    """
    counts = histogram.numpy().astype(np.int64)
    num_rows, fitting = int(counts.sum()), np.cumsum(counts)

    def best(align: int) -> tuple[int, int]:
        lengths = np.append(np.arange(align, row_bytes, align), row_bytes)
        overflow = np.where(lengths < row_bytes, num_rows - fitting[lengths], 0)
        total = num_rows * lengths + overflow * row_bytes
        return int(lengths[np.argmin(total)]), int(total.min())

    (shortest, fewest), (aligned, total) = best(_native.cpu.OVERFLOW_INDEX_BYTES), best(_SECTOR_BYTES)
    fetched = shortest + _SECTOR_BYTES - math.gcd(shortest, _SECTOR_BYTES)  # on average, when all offsets are as likely
    worth = total * aligned <= fewest * fetched and 100 * total <= 103 * fewest
    return aligned if worth else shortest


def count_overflow(histogram: torch.Tensor, slot_bytes: int) -> int:
    """How many rows overflow slots of this length: none where it is that of a row. histogram: from
    `payload_histogram`."""
    return int(histogram[slot_bytes + 1 :].sum())


def compact_bytes(histogram: torch.Tensor, slot_bytes: int, row_bytes: int) -> int:
    """What slots of this length and the overflow rows take. histogram: from `payload_histogram`."""
    return int(histogram.sum()) * slot_bytes + count_overflow(histogram, slot_bytes) * row_bytes


def best_lead_bytes(form: Form, histogram: torch.Tensor, slot_bytes: int) -> int:
    """How many bytes of a slot a GPU should fetch before it knows the payload's length: few enough not to fetch
    what it does not need, enough that a second fetch, whose latency is counted as 64 bytes, is rare."""
    counts = histogram[: slot_bytes + 1].numpy().astype(np.int64)
    counts = np.append(counts, np.zeros(slot_bytes + 1 - len(counts), np.int64))
    if counts.sum() == 0:
        return slot_bytes
    if form.fetches_once:
        return int(np.flatnonzero(counts)[-1])
    leads = np.unique(np.append(np.arange(16, slot_bytes, 16), slot_bytes))
    lengths = np.arange(slot_bytes + 1)
    rows_up_to, bytes_up_to = np.cumsum(counts), np.cumsum(counts * lengths)
    longer = rows_up_to[-1] - rows_up_to[leads]
    fetched = leads * rows_up_to[leads] + (bytes_up_to[-1] - bytes_up_to[leads]) + 64 * longer
    return int(leads[np.argmin(fetched)])


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

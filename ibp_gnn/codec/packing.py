"""Rows end to end (csrc/core/packed_rows.h): what is chosen for them, and their directory."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch

from .. import _native


class Packing(NamedTuple):
    """How the lengths of packed rows are written.

    Example:
        >>> ibp_gnn.codec.packing.Packing(unit_bytes=1, least_bytes=160).least_bytes
        160
    """

    unit_bytes: int
    """All rows start at multiples of it."""
    least_bytes: int
    """What the shortest payload takes."""


class PackingChoice(NamedTuple):
    """What suits the lengths of all payloads."""

    packing: Packing
    slot_bytes: int
    """Of the longest payload; rows with longer ones are raw."""
    data_bytes: int
    """Of all rows, end to end."""


# Where the fast kernels want payloads to start. It takes 1.5 bytes a row. Rows that start at any byte would have to be
# moved down on their way to shared memory: hits of dense rows were then 8 to 16 % slower than those of slots.
LEAST_UNIT_BYTES = 4


def best_packing(histogram: torch.Tensor, row_bytes: int) -> PackingChoice:
    """The choice with which the rows take the fewest bytes, or nearly so (csrc/cpu/packing.h). histogram: from
    `payload_histogram`."""
    slot, unit, least, total = _native.cpu.best_packing(histogram.numpy(), row_bytes, LEAST_UNIT_BYTES)
    return PackingChoice(Packing(unit, least), slot, total)


def lay_out(
    payload_bytes: torch.Tensor, row_bytes: int, slot_bytes: int, packing: Packing, first_start: int = 0
) -> tuple[torch.Tensor, int]:
    """payload_bytes: int32 [n] on the CPU; of raw rows, row_bytes or more. first_start: where the first row is to
    start. Returns the directory, uint8 [directory_bytes(n)], and where the last row ends."""
    with torch.inference_mode(False):  # tensors of inference mode could not be written outside of it
        directory = torch.empty(_native.cpu.directory_bytes(len(payload_bytes)), dtype=torch.uint8, device="cpu")
    end: int = _native.cpu.lay_out(
        payload_bytes=payload_bytes,
        row_bytes=row_bytes,
        slot_bytes=slot_bytes,
        unit_bytes=packing.unit_bytes,
        least_bytes=packing.least_bytes,
        first_start=first_start,
        directory=directory,
    )
    return directory, end


def packed_store_bytes(histogram: torch.Tensor, row_bytes: int) -> int:
    """What packed rows and their directory take. histogram: from `payload_histogram`."""
    directory: int = _native.cpu.directory_bytes(int(histogram.sum()))
    return best_packing(histogram, row_bytes).data_bytes + directory


def as_lengths(payload_bytes: torch.Tensor | np.ndarray) -> torch.Tensor:
    """payload_bytes: integers [n] on the CPU. Returns them as `lay_out` takes them."""
    tensor = payload_bytes if isinstance(payload_bytes, torch.Tensor) else torch.from_numpy(payload_bytes.astype("i4"))
    return tensor.to(torch.int32).contiguous()

"""Writing encoded rows over others, in place, on any device."""

from __future__ import annotations

import dataclasses

import torch

from .codec import Codec
from .compressed_rows import CompressedRows, index_bytes
from .forms import DictForm

_LEAST_GROWTH = 16  # overflow rows; so that the first few updates of single rows do not all move the area
_MAX_OVERFLOW = 1 << 32  # what an overflow index can tell apart


@dataclasses.dataclass(frozen=True)
class RowPatch:
    """What to copy where; all on the device of the rows to be changed.

    rows: those to be changed; with another overflow area if theirs has no room
    slots: int64 [n], and slot_rows: uint8 [n, slot_bytes]
    overflow: int64 [m], and overflow_rows: uint8 [m, row_bytes]
    mask_at: int64 [b], and mask_bytes: uint8 [b], of the bitmask
    free: int64, the overflow rows that are not in use after
    """

    rows: CompressedRows
    slots: torch.Tensor
    slot_rows: torch.Tensor
    overflow: torch.Tensor
    overflow_rows: torch.Tensor
    mask_at: torch.Tensor
    mask_bytes: torch.Tensor
    free: torch.Tensor

    def write_bitmask(self, bitmask: torch.Tensor) -> None:
        """bitmask: that of the rows, or a copy of it on another device."""
        bitmask.index_copy_(0, self.mask_at.to(bitmask.device), self.mask_bytes.to(bitmask.device))


class RowWriter:
    """Writes rows of `rows`, and keeps account of the overflow rows that are not in use. CUDA work is enqueued on the
    current stream. One thread at a time."""

    def __init__(self, rows: CompressedRows) -> None:
        """rows: all of its overflow rows are in use."""
        self.rows = rows
        self._free = torch.empty(0, dtype=torch.int64, device=rows.device)

    def prepare(self, slots: torch.Tensor, new: CompressedRows) -> RowPatch:
        """slots: int64 [n], distinct and in range; new: n rows with slots of the same length; both on the device of
        the rows. Returns what the next `write` needs. Nothing changes: all that may fail is here, the allocations among
        it. Waits for the device. Raises ValueError if there cannot be as many overflow rows."""
        raw = torch.nonzero(new.overflows()).flatten()
        freed = self.rows.overflow_indices(slots[self.rows.overflows(slots)])
        reused = min(len(raw), len(freed))
        missing = len(raw) - reused
        rows, free = self.rows, self._free
        if missing > len(free):
            rows = rows.with_overflow(self._larger(missing - len(free)))
            free = torch.cat([free, torch.arange(self.rows.num_overflow, rows.num_overflow, device=rows.device)])
        overflow, free = torch.cat([freed[:reused], free[:missing]]), free[missing:]
        if reused < len(freed):
            free = torch.cat([freed[reused:], free])
        slot_rows = new.slot_matrix()
        if len(raw):
            slot_rows = slot_rows.clone()
            at = index_bytes(overflow)
            slot_rows[raw, : at.shape[1]] = at
        overflow_rows = new.overflow_matrix().index_select(0, new.overflow_indices(raw))
        return RowPatch(rows, slots, slot_rows, overflow, overflow_rows, *self._bitmask_after(slots, new), free)

    def write(self, patch: RowPatch) -> None:
        """patch: from the last `prepare`. Nobody may be reading the rows. `rows` is patch.rows then."""
        self.rows, self._free = patch.rows, patch.free
        if len(patch.overflow):
            self.rows.overflow_matrix().index_copy_(0, patch.overflow, patch.overflow_rows)
        self.rows.slot_matrix().index_copy_(0, patch.slots, patch.slot_rows)
        patch.write_bitmask(self.rows.bitmask)

    def _larger(self, missing: int) -> int:
        """How many overflow rows to have when so many are missing: at least a quarter more, so that the area is not
        copied at every update."""
        before = self.rows.num_overflow
        most = min(self.rows.num_rows, _MAX_OVERFLOW)
        if before + missing > most:
            raise ValueError(f"overflow rows: want at most {most}, got {before + missing}")
        return min(before + max(missing, before // 4, _LEAST_GROWTH), most)

    def _bitmask_after(self, slots: torch.Tensor, new: CompressedRows) -> tuple[torch.Tensor, torch.Tensor]:
        """Which bytes of the bitmask are written, int64 [b], and with what, uint8 [b]. Several slots share a byte."""
        mask_at, which = torch.unique(slots >> 3, return_inverse=True)
        bits = torch.ones_like(slots) << (slots & 7)
        # Slots are distinct, so that sums of their bits are unions.
        touched = torch.zeros_like(mask_at).index_add_(0, which, bits)
        ones = torch.zeros_like(mask_at).index_add_(0, which, bits * new.is_compressed())
        before = self.rows.bitmask[mask_at].to(torch.int64)
        return mask_at, ((before & ~touched) | ones).to(torch.uint8)


def least_lead_bytes(codec: Codec, rows: torch.Tensor, slot_bytes: int) -> int:
    """What lead_bytes must be at least in a store that has these rows, or 0: see `best_lead_bytes`."""
    if not isinstance(codec.form, DictForm) or codec.form.zero_code:
        return 0  # kernels fetch again for a longer payload; the others do not, and would call it damaged
    payload_bytes = codec.measure(rows)
    stored = payload_bytes[payload_bytes <= min(slot_bytes, codec.row_bytes - 1)]
    return int(stored.max()) if len(stored) else 0

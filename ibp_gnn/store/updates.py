"""Writing encoded rows over others, in place, on any device: all of them or none."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import torch

from .. import _native
from ..codec.compressed_rows import CompressedRows, index_bytes
from ..codec.gather import Remap
from .pinned import PinnedRows

_LEAST_GROWTH = 16  # overflow rows; so that the first few updates of single rows do not all move the area
_MAX_OVERFLOW = 1 << 32  # what an overflow index can tell apart


@dataclasses.dataclass(frozen=True)
class Overwrite:
    """target[at[i]] = rows[i], and what was there before. All on one device.

    target, rows, before: uint8 [m, width], [n, width], [n, width]; at: int64 [n], distinct and in range.
    """

    target: torch.Tensor
    at: torch.Tensor
    rows: torch.Tensor
    before: torch.Tensor

    @classmethod
    def prepare(cls, target: torch.Tensor, at: torch.Tensor, rows: torch.Tensor) -> Overwrite:
        """at, rows: on any device."""
        at = at.to(target.device)
        return cls(target, at, rows.to(target.device).contiguous(), target.index_select(0, at))

    def write(self) -> None:
        _scatter(self.target, self.at, self.rows)

    def undo(self) -> None:
        _scatter(self.target, self.at, self.before)


def write_all(overwrites: Sequence[Overwrite]) -> None:
    """Writes them all, or none. CUDA work is enqueued on the current stream of its device; this call waits for it.
    Nobody may be reading the targets. Raises what a write raises, when all targets are as they were; or UndoError."""
    try:
        for overwrite in overwrites:
            overwrite.write()
        _wait_for(overwrites)
    except BaseException as error:
        try:
            # Also what was not written yet: what is there is written over itself.
            for overwrite in reversed(overwrites):
                overwrite.undo()
            _wait_for(overwrites)
        except BaseException as second:
            raise UndoError(f"rows could not be written ({error!r}), nor put back ({second!r})") from error
        raise


class UndoError(RuntimeError):
    """An update failed half-way, and so did taking it back: the rows are neither the old nor the new ones."""


@dataclasses.dataclass(frozen=True)
class RowPatch:
    """What to write where, once.

    rows: those to be changed; with another overflow area if theirs has no room
    overwrites: of their slots, bitmask and overflow area
    mask_at: int64 [b], and mask_bytes: uint8 [b, 1], what is written to the bitmask, for copies of it elsewhere
    free: int64, the overflow rows that are not in use after
    """

    rows: CompressedRows
    overwrites: list[Overwrite]
    mask_at: torch.Tensor
    mask_bytes: torch.Tensor
    free: torch.Tensor

    def of_bitmask(self, bitmask: torch.Tensor) -> Overwrite:
        """bitmask: that of the rows, or a copy of it on another device."""
        return Overwrite.prepare(bitmask.view(-1, 1), self.mask_at, self.mask_bytes)


class StoreOnGpu(NamedTuple):
    """What GPUs read of a store after an update."""

    pinned: PinnedRows
    lead_bytes: int


class CacheUpdate(NamedTuple):
    """An update of the store as it concerns one cache."""

    patch: RowPatch
    overwrites: list[Overwrite]  # those of the patch, and of the copy of the store's bitmask
    remap: Remap


class StoreCache(Protocol):
    """What a store asks of each cache of its rows (ibp_gnn/gpu/cache.py)."""

    device: torch.device

    @property
    def plan(self) -> Any: ...

    def prepare_update(
        self, ids: torch.Tensor, slots: torch.Tensor, new: CompressedRows, of_store: RowPatch, store: StoreOnGpu
    ) -> CacheUpdate: ...

    def commit_update(self, update: CacheUpdate) -> None: ...

    def prepare_move(self, store: StoreOnGpu) -> Remap: ...

    def release(self) -> None: ...


class RowWriter:
    """Plans what is written over rows of `rows`, and keeps account of the overflow rows that are not in use. One thread
    at a time."""

    def __init__(self, rows: CompressedRows, grow: Callable[[int], CompressedRows] | None = None) -> None:
        """rows: all of its overflow rows are in use. grow: what to call for rows with more overflow rows; None: their
        own `with_overflow`."""
        self.rows, self._grow = rows, grow
        self._free = torch.empty(0, dtype=torch.int64, device=rows.device)

    def prepare(self, slots: torch.Tensor, new: CompressedRows) -> RowPatch:
        """slots: int64 [n], distinct and in range; new: n rows with slots of the same length; both on the device of
        the rows. Returns what is to be written. Changes nothing: all that may fail but the writing is here, the
        allocations among it. Waits for the device. Raises ValueError if there cannot be as many overflow rows."""
        raw = torch.nonzero(new.overflows()).flatten()
        freed = self.rows.overflow_indices(slots[self.rows.overflows(slots)])
        reused = min(len(raw), len(freed))
        missing = len(raw) - reused
        rows, free = self.rows, self._free
        if missing > len(free):
            rows = (self._grow or rows.with_overflow)(self._larger(missing - len(free)))
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
        mask_at, mask_bytes = self._bitmask_after(slots, new)
        overwrites = [
            Overwrite.prepare(rows.overflow_matrix(), overflow, overflow_rows),
            Overwrite.prepare(rows.slot_matrix(), slots, slot_rows),
            Overwrite.prepare(rows.bitmask.view(-1, 1), mask_at, mask_bytes),
        ]
        return RowPatch(rows, overwrites, mask_at, mask_bytes, free)

    def commit(self, patch: RowPatch) -> None:
        """patch: from the last `prepare`, written. Does not fail."""
        self.rows, self._free = patch.rows, patch.free

    def move(self, rows: CompressedRows, grow: Callable[[int], CompressedRows]) -> None:
        """rows: the same bytes in another place; grow: as for the constructor. Does not fail."""
        self.rows, self._grow = rows, grow

    def _larger(self, missing: int) -> int:
        """How many overflow rows to have when so many are missing: at least a quarter more, so that the area is not
        copied at every update."""
        before = self.rows.num_overflow
        most = min(self.rows.num_rows, _MAX_OVERFLOW)
        if before + missing > most:
            raise ValueError(f"overflow rows: want at most {most}, got {before + missing}")
        return min(before + max(missing, before // 4, _LEAST_GROWTH), most)

    def _bitmask_after(self, slots: torch.Tensor, new: CompressedRows) -> tuple[torch.Tensor, torch.Tensor]:
        """Which bytes of the bitmask are written, int64 [b], and with what, uint8 [b, 1]. Several slots share a
        byte."""
        mask_at, which = torch.unique(slots >> 3, return_inverse=True)
        bits = torch.ones_like(slots) << (slots & 7)
        # Slots are distinct, so that sums of their bits are unions.
        touched = torch.zeros_like(mask_at).index_add_(0, which, bits)
        ones = torch.zeros_like(mask_at).index_add_(0, which, bits * new.is_compressed())
        before = self.rows.bitmask[mask_at].to(torch.int64)
        return mask_at, ((before & ~touched) | ones).to(torch.uint8).view(-1, 1)


def _scatter(target: torch.Tensor, at: torch.Tensor, rows: torch.Tensor) -> None:
    """Allocates nothing: putting rows back has to work when memory is what ran out."""
    if target.is_cuda:
        with torch.cuda.device(target.device):
            _native.cuda().scatter_rows(rows, at, target, torch.cuda.current_stream(target.device).cuda_stream)
    else:
        target.index_copy_(0, at, rows)


def _wait_for(overwrites: Sequence[Overwrite]) -> None:
    for device in {overwrite.target.device for overwrite in overwrites}:
        if device.type == "cuda":
            torch.cuda.current_stream(device).synchronize()

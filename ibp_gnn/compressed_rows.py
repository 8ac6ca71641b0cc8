"""Rows in the slot format (csrc/core/format.h), wherever they lie."""

from __future__ import annotations

import dataclasses

import torch

from . import _native


@dataclasses.dataclass(frozen=True)
class CompressedRows:
    """num_rows rows in slots of slot_bytes bytes, on one device; what they decode to is up to the codec.

    slots: uint8 [num_rows * slot_bytes + SLACK_BYTES]
    bitmask: uint8 [bitmask_bytes(num_rows)], bit i = 1: slot i holds a payload, 0: a raw row or an overflow index
    overflow: uint8 [num_overflow * row_bytes + SLACK_BYTES], raw rows that do not fit their slot
    """

    num_rows: int
    row_bytes: int
    slot_bytes: int
    slots: torch.Tensor
    bitmask: torch.Tensor
    overflow: torch.Tensor

    @classmethod
    def empty(
        cls,
        num_rows: int,
        row_bytes: int,
        slot_bytes: int,
        num_overflow: int,
        device: torch.device | str = "cpu",
    ) -> CompressedRows:
        """Room for the rows: the slack is zeroed, the rest is for an encoder to fill."""

        def room(length: int) -> torch.Tensor:
            buffer = torch.empty(length + _native.cpu.SLACK_BYTES, dtype=torch.uint8, device=device)
            buffer[length:] = 0
            return buffer

        bitmask = torch.empty(_native.cpu.bitmask_bytes(num_rows), dtype=torch.uint8, device=device)
        slots, overflow = room(num_rows * slot_bytes), room(num_overflow * row_bytes)
        return cls(num_rows, row_bytes, slot_bytes, slots, bitmask, overflow)

    @property
    def device(self) -> torch.device:
        return self.slots.device

    @property
    def num_overflow(self) -> int:
        return (self.overflow.numel() - _native.cpu.SLACK_BYTES) // self.row_bytes

    @property
    def nbytes(self) -> int:
        """Every byte held: slots, bitmask, overflow and slack."""
        return self.slots.numel() + self.bitmask.numel() + self.overflow.numel()

    @property
    def raw_nbytes(self) -> int:
        return self.num_rows * self.row_bytes

    def to(self, device: torch.device | str) -> CompressedRows:
        parts = {name: getattr(self, name).to(device) for name in ("slots", "bitmask", "overflow")}
        return dataclasses.replace(self, **parts)

    def is_compressed(self, ids: torch.Tensor | None = None) -> torch.Tensor:
        """bool [n]: whether the rows (all of them by default) are held as payloads."""
        if ids is None:
            ids = torch.arange(self.num_rows, device=self.device)
        return ((self.bitmask[ids >> 3] >> (ids & 7).to(torch.uint8)) & 1).bool()

    def select(self, ids: torch.Tensor) -> CompressedRows:
        """ids: [n] int64 in range, on this device. Returns the same rows, copied, in the order of ids; overflow
        rows get new indices."""
        out_slots = self._slot_matrix().index_select(0, ids)
        compressed = self.is_compressed(ids)
        overflow = self.overflow[:0]
        if self.slot_bytes < self.row_bytes:
            raw = torch.nonzero(~compressed).flatten()
            index_bytes = _native.cpu.OVERFLOW_INDEX_BYTES
            old = out_slots[raw, :index_bytes].contiguous().view(torch.int32).flatten().to(torch.int64) & 0xFFFFFFFF
            overflow = self.overflow[: self.num_overflow * self.row_bytes].view(-1, self.row_bytes)
            overflow = overflow.index_select(0, old).flatten()
            new = torch.arange(len(raw), dtype=torch.int32, device=self.device)
            out_slots[raw, :index_bytes] = new.view(torch.uint8).view(-1, index_bytes)
        rows = CompressedRows.empty(
            len(ids), self.row_bytes, self.slot_bytes, overflow.numel() // self.row_bytes, self.device
        )
        rows._slot_matrix().copy_(out_slots)
        rows.overflow[: overflow.numel()] = overflow
        rows.bitmask.copy_(pack_bits(compressed))
        return rows

    def _slot_matrix(self) -> torch.Tensor:
        return self.slots[: self.num_rows * self.slot_bytes].view(self.num_rows, self.slot_bytes)


def pack_bits(bits: torch.Tensor) -> torch.Tensor:
    """bits: bool [n]. Returns uint8 [bitmask_bytes(n)], bit i % 8 of byte i / 8 = bits[i], zero padded."""
    padded = bits.new_zeros(8 * _native.cpu.bitmask_bytes(len(bits)))
    padded[: len(bits)] = bits
    weights = torch.tensor([1, 2, 4, 8, 16, 32, 64, 128], dtype=torch.uint8, device=bits.device)
    return (padded.view(-1, 8) * weights).sum(1, dtype=torch.uint8)

"""Rows in the slot format (csrc/core/format.h), wherever they lie."""

from __future__ import annotations

import dataclasses

import numpy as np
import torch

from .. import _native

# Of each value of a byte.
_ONES = np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1).sum(axis=1, dtype=np.uint8)
_COPY_BYTES = 64 << 20  # bounds the temporaries of `select`


@dataclasses.dataclass(frozen=True)
class CompressedRows:
    """num_rows rows in slots of slot_bytes bytes, on one device; what they decode to is up to the codec.

    The words, here and in all that holds such rows:
    id: what users call a row. slot: where it lies here; the id itself, but for a store with an order.
    order: the ids by slot, hottest first: order[slot] = id. slot_of, its inverse: slot_of[id] = slot.
    overflow: rows that do not fit their slot, in an area of their own; overflow index: where a row lies there.
    place: what a gather reads of a row on a GPU, where a cache and its store are counted in one (GpuGather).
    position: where an id stands among the ids that were given.
    rank: how many rows of several stores are hotter (gpu/budget.py).

    slots: uint8 [num_rows * slot_bytes + SLACK_BYTES]
    bitmask: uint8 [bitmask_bytes(num_rows)], bit i = 1: slot i holds a payload, 0: a raw row or an overflow index
    overflow: uint8 [num_overflow * row_bytes + SLACK_BYTES], raw rows that do not fit their slot

    Example:
        >>> codec = ibp_gnn.Codec.fit(torch.zeros(100, 16))
        >>> compressed = codec.compress(torch.zeros(100, 16))
        >>> compressed.num_rows, compressed.row_bytes, compressed.num_overflow
        (100, 64, 0)
    """

    num_rows: int
    row_bytes: int
    slot_bytes: int
    slots: torch.Tensor
    bitmask: torch.Tensor
    overflow: torch.Tensor

    def __post_init__(self) -> None:
        """Raises FormatError for buffers that are too short: GPU kernels get addresses and cannot check."""
        for name, wanted_bytes in (
            ("slots", self.num_rows * self.slot_bytes + _native.cpu.SLACK_BYTES),
            ("bitmask", _native.cpu.bitmask_bytes(self.num_rows)),
            ("overflow", _native.cpu.SLACK_BYTES),
        ):
            buffer = getattr(self, name)
            if buffer.ndim != 1 or buffer.dtype != torch.uint8 or not buffer.is_contiguous():
                got = f"{list(buffer.shape)} {buffer.dtype}{'' if buffer.is_contiguous() else ', not contiguous'}"
                raise ValueError(f"{name}: want contiguous bytes [n] torch.uint8, got {got}")
            if buffer.device != self.slots.device:
                raise ValueError(f"{name}: want a tensor on {self.slots.device} like slots, got {buffer.device}")
            if len(buffer) < wanted_bytes:
                raise _native.FormatError(f"{name}: want at least {wanted_bytes} bytes, got {len(buffer)}")

    @classmethod
    def empty(
        cls,
        num_rows: int,
        row_bytes: int,
        slot_bytes: int,
        num_overflow: int,
        device: torch.device | str = "cpu",
    ) -> CompressedRows:
        """Room for rows: the slack is zeroed, the rest is for an encoder to fill.

        Args:
            num_rows: how many.
            row_bytes: of a raw row.
            slot_bytes: length of a slot.
            num_overflow: rows in the overflow area.
            device: where the buffers are to be.

        Returns:
            The rows, not yet written.

        Raises:
            ValueError: the slots are too short for an overflow index that they need, or too long.
        """
        if not isinstance(slot_bytes, int) or slot_bytes > _native.cpu.MAX_ROW_BYTES:
            wanted = f"an int of at most {_native.cpu.MAX_ROW_BYTES}"
            raise ValueError(f"slot_bytes: want {wanted}, got {slot_bytes!r}")
        shortest = _native.cpu.OVERFLOW_INDEX_BYTES if slot_bytes < row_bytes else 1
        if slot_bytes < shortest:
            raise ValueError(
                f"slot_bytes: want {row_bytes} (a raw row) or at least {shortest} (an overflow index), got {slot_bytes}"
            )

        def room(length: int) -> torch.Tensor:
            buffer = torch.empty(length + _native.cpu.SLACK_BYTES, dtype=torch.uint8, device=device)
            if not buffer.is_cuda:
                _native.cpu.advise_huge_pages(buffer)
            buffer[length:] = 0
            return buffer

        # Tensors of inference mode could not be written outside of it.
        with torch.inference_mode(False):
            bitmask = torch.empty(_native.cpu.bitmask_bytes(num_rows), dtype=torch.uint8, device=device)
            slots, overflow = room(num_rows * slot_bytes), room(num_overflow * row_bytes)
        return cls(num_rows, row_bytes, slot_bytes, slots, bitmask, overflow)

    @property
    def device(self) -> torch.device:
        """Where the rows are."""
        return self.slots.device

    @property
    def num_overflow(self) -> int:
        """How many rows the overflow area has room for."""
        return (self.overflow.numel() - _native.cpu.SLACK_BYTES) // self.row_bytes

    @property
    def nbytes(self) -> int:
        """Every byte held: slots, bitmask, overflow and slack."""
        return self.slots.numel() + self.bitmask.numel() + self.overflow.numel()

    @property
    def raw_nbytes(self) -> int:
        """Bytes of the same rows, uncompressed."""
        return self.num_rows * self.row_bytes

    def to(self, device: torch.device | str) -> CompressedRows:
        """The same rows on another device.

        Args:
            device: where to.

        Returns:
            A copy there; buffers that are there already are shared.
        """
        parts = {name: getattr(self, name).to(device) for name in ("slots", "bitmask", "overflow")}
        return dataclasses.replace(self, **parts)

    def view(self, first: int, count: int) -> CompressedRows:
        """Rows [first, first + count), sharing memory, for an encoder.

        Args:
            first: a multiple of 32.
            count: how many.

        Returns:
            These rows. The overflow area is the whole one, since overflow indices count from its start.
        """
        end = first + count
        return dataclasses.replace(
            self,
            num_rows=count,
            slots=self.slots[first * self.slot_bytes : end * self.slot_bytes + _native.cpu.SLACK_BYTES],
            bitmask=self.bitmask[first // 8 : first // 8 + _native.cpu.bitmask_bytes(count)],
        )

    def with_overflow(self, num_overflow: int) -> CompressedRows:
        """These rows, sharing slots and bitmask, with a copy of the overflow area that has another length.

        Args:
            num_overflow: rows that it is to have room for.

        Returns:
            The rows. What is new in a longer overflow area is for an encoder to fill; a shorter one has the first rows.
        """
        room = CompressedRows.empty(0, self.row_bytes, self.slot_bytes, num_overflow, self.device).overflow
        used = min(self.num_overflow, num_overflow) * self.row_bytes
        room[:used] = self.overflow[:used]
        return dataclasses.replace(self, overflow=room)

    def is_compressed(self, ids: torch.Tensor | None = None) -> torch.Tensor:
        """Which rows are held as payloads.

        Args:
            ids: [n] int64 in range, None means all.

        Returns:
            bool [n].
        """
        if ids is None:
            ids = torch.arange(self.num_rows, device=self.device)
        return ((self.bitmask[ids >> 3] >> (ids & 7).to(torch.uint8)) & 1).bool()

    def overflows(self, ids: torch.Tensor | None = None) -> torch.Tensor:
        """Which rows lie in the overflow area.

        Args:
            ids: [n] int64 in range, None means all.

        Returns:
            bool [n].
        """
        compressed = self.is_compressed(ids)
        return ~compressed if self.slot_bytes < self.row_bytes else torch.zeros_like(compressed)

    def count_overflows(self) -> int:
        """How many rows lie in the overflow area. Rows on the CPU."""
        if self.slot_bytes >= self.row_bytes:
            return 0
        whole, bits = divmod(self.num_rows, 8)
        bitmask = self.bitmask.numpy()
        compressed = int(_ONES[bitmask[:whole]].sum(dtype=np.int64))
        if bits:
            compressed += int(_ONES[bitmask[whole] & ((1 << bits) - 1)])
        return self.num_rows - compressed

    def select(
        self, ids: torch.Tensor, device: torch.device | str | None = None, *, first_overflow: int = 0
    ) -> CompressedRows:
        """A copy of some rows. Temporary memory is bounded: 64 MiB, or 32 rows if they take more.

        Args:
            ids: [n] int64 in range, on this device.
            device: where the copy is to be; None: this one.
            first_overflow: overflow rows are renumbered from it on.

        Returns:
            The rows, in the order of ids.

        Raises:
            FormatError: an overflow index is damaged.
        """
        # Multiples of 32 rows keep bitmask words whole. A row's temporaries are its slot, its overflow row and int64s.
        rows_per_copy = max(32, _COPY_BYTES // (self.slot_bytes + self.row_bytes + 64) // 32 * 32)
        num_overflow = sum(int(self.overflows(part).sum()) for part in ids.split(rows_per_copy))
        out = CompressedRows.empty(
            len(ids), self.row_bytes, self.slot_bytes, num_overflow, self.device if device is None else device
        )
        first, overflowed = 0, 0
        for part in ids.split(rows_per_copy):
            slots, raw = self.slot_matrix().index_select(0, part), torch.nonzero(self.overflows(part)).flatten()
            rows = self.overflow_matrix().index_select(0, self._overflow_indices(slots[raw]))
            if len(raw):
                renumbered = first_overflow + overflowed + torch.arange(len(raw), device=self.device)
                slots[raw, : _native.cpu.OVERFLOW_INDEX_BYTES] = index_bytes(renumbered)
            bits = pack_bits(self.is_compressed(part))
            out.slot_matrix()[first : first + len(part)].copy_(slots)
            out.overflow_matrix()[overflowed : overflowed + len(raw)].copy_(rows)
            out.bitmask[first // 8 : first // 8 + len(bits)].copy_(bits)
            first, overflowed = first + len(part), overflowed + len(raw)
        return out

    def overflow_indices(self, ids: torch.Tensor) -> torch.Tensor:
        """Where in the overflow area rows lie.

        Args:
            ids: int64 [n] in range, of rows that overflow, on this device.

        Returns:
            int64 [n].

        Raises:
            FormatError: an index is damaged.
        """
        return self._overflow_indices(self.slot_matrix()[:, : _native.cpu.OVERFLOW_INDEX_BYTES].index_select(0, ids))

    def _overflow_indices(self, slots: torch.Tensor) -> torch.Tensor:
        """slots: uint8 [n, slot_bytes] of rows that overflow. Returns the indices in them, int64 [n]."""
        index = slots[:, : _native.cpu.OVERFLOW_INDEX_BYTES].to(torch.int64)
        indices = (index << torch.arange(index.shape[1], device=slots.device) * 8).sum(1)
        if len(indices) and int(indices.max()) >= self.num_overflow:
            raise _native.FormatError(f"want overflow indices below {self.num_overflow}, got {int(indices.max())}")
        return indices

    def slot_matrix(self) -> torch.Tensor:
        """uint8 [num_rows, slot_bytes], sharing memory."""
        return self.slots[: self.num_rows * self.slot_bytes].view(self.num_rows, self.slot_bytes)

    def overflow_matrix(self) -> torch.Tensor:
        """uint8 [num_overflow, row_bytes], sharing memory."""
        return self.overflow[: self.num_overflow * self.row_bytes].view(self.num_overflow, self.row_bytes)


def index_bytes(indices: torch.Tensor) -> torch.Tensor:
    """indices: int64 [n]. Returns uint8 [n, OVERFLOW_INDEX_BYTES], little endian."""
    shifts = torch.arange(_native.cpu.OVERFLOW_INDEX_BYTES, device=indices.device) * 8
    return ((indices[:, None] >> shifts) & 255).to(torch.uint8)


def pack_bits(bits: torch.Tensor) -> torch.Tensor:
    """bits: bool [n]. Returns uint8 [bitmask_bytes(n)], bit i % 8 of byte i / 8 = bits[i], zero padded."""
    padded = bits.new_zeros(8 * _native.cpu.bitmask_bytes(len(bits)))
    padded[: len(bits)] = bits
    weights = torch.tensor([1, 2, 4, 8, 16, 32, 64, 128], dtype=torch.uint8, device=bits.device)
    return (padded.view(-1, 8) * weights).sum(1, dtype=torch.uint8)

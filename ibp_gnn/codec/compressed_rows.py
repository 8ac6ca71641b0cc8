"""Compressed rows, in slots or end to end (csrc/core/format.h), wherever they lie."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import torch

from .. import _native
from .packing import Packing, lay_out

# Of each value of a byte.
_ONES = np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1).sum(axis=1, dtype=np.uint8)
_COPY_BYTES = 64 << 20  # bounds the temporaries of `select`
_KIND_BIT = 40  # of a record's first word, of its first row (csrc/core/packed_rows.h)


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
    packing: None, or how packed rows lie (csrc/core/packed_rows.h). Then `slots` has them end to end, slot_bytes is the
        length of the longest payload, `bitmask` is their directory, and no row overflows. They cannot be updated.

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
    packing: Packing | None = dataclasses.field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        """Raises FormatError for buffers that are too short: GPU kernels get addresses and cannot check."""
        slots = self.num_rows * self.slot_bytes if self.packing is None else self.slot_bytes
        for name, wanted_bytes in (
            ("slots", slots + _native.cpu.SLACK_BYTES),
            ("bitmask", bitmask_bytes(self.num_rows, self.packing)),
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

        # Tensors of inference mode could not be written outside of it.
        with torch.inference_mode(False):
            bitmask = torch.empty(_native.cpu.bitmask_bytes(num_rows), dtype=torch.uint8, device=device)
        slots, overflow = _room(num_rows * slot_bytes, device), _room(num_overflow * row_bytes, device)
        return cls(num_rows, row_bytes, slot_bytes, slots, bitmask, overflow)

    @classmethod
    def packed(
        cls,
        payload_bytes: torch.Tensor,
        row_bytes: int,
        slot_bytes: int,
        packing: Packing,
        *,
        first_start: int = 0,
        device: torch.device | str = "cpu",
    ) -> CompressedRows:
        """Room for packed rows, with their directory.

        Args:
            payload_bytes: int32 [n] on the CPU, what each payload takes; of raw rows, row_bytes or more.
            row_bytes: of a raw row.
            slot_bytes: of the longest payload; rows with longer ones are raw.
            packing: how their lengths are written.
            first_start: where the first row starts, as the directory counts; `slots` has no rows before it.
            device: where the buffers are to be.

        Returns:
            The rows, not yet written.

        Raises:
            ValueError: they do not fit such a directory.
        """
        directory, end = lay_out(payload_bytes, row_bytes, slot_bytes, packing, first_start)
        slots, overflow = _room(end - first_start, device, slack=slot_bytes), _room(0, device)
        return cls(len(payload_bytes), row_bytes, slot_bytes, slots, directory.to(device), overflow, packing=packing)

    @property
    def device(self) -> torch.device:
        """Where the rows are."""
        return self.slots.device

    @property
    def num_overflow(self) -> int:
        """How many rows the overflow area has room for."""
        return (self.overflow.numel() - _native.cpu.SLACK_BYTES) // self.row_bytes

    @property
    def data_bytes(self) -> int:
        """Bytes of `slots` before its slack."""
        if self.packing is None:
            return self.num_rows * self.slot_bytes
        return self.slots.numel() - self.slot_bytes - _native.cpu.SLACK_BYTES

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
            first: a multiple of 32; of packed rows, of ROWS_PER_RECORD.
            count: how many.

        Returns:
            These rows. The overflow area is the whole one, since overflow indices count from its start.
        """
        end = first + count
        if self.packing is not None:
            start = _native.cpu.directory_bytes(first)
            directory = self.bitmask[start : start + _native.cpu.directory_bytes(count)]
            return dataclasses.replace(self, num_rows=count, bitmask=directory)
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
        if self.packing is not None:
            per_record = _native.cpu.ROWS_PER_RECORD
            kinds = self.bitmask.view(torch.int64)[:: _native.cpu.directory_bytes(1) // 8]
            return ((kinds[ids // per_record] >> (_KIND_BIT + ids % per_record)) & 1).bool()
        return ((self.bitmask[ids >> 3] >> (ids & 7).to(torch.uint8)) & 1).bool()

    def overflows(self, ids: torch.Tensor | None = None) -> torch.Tensor:
        """Which rows lie in the overflow area.

        Args:
            ids: [n] int64 in range, None means all.

        Returns:
            bool [n].
        """
        compressed = self.is_compressed(ids)
        has_overflow = self.slot_bytes < self.row_bytes and self.packing is None
        return ~compressed if has_overflow else torch.zeros_like(compressed)

    def count_overflows(self) -> int:
        """How many rows lie in the overflow area. Rows on the CPU."""
        if self.slot_bytes >= self.row_bytes or self.packing is not None:
            return 0
        whole, bits = divmod(self.num_rows, 8)
        bitmask = self.bitmask.numpy()
        compressed = int(_ONES[bitmask[:whole]].sum(dtype=np.int64))
        if bits:
            compressed += int(_ONES[bitmask[whole] & ((1 << bits) - 1)])
        return self.num_rows - compressed

    def select(
        self,
        ids: torch.Tensor,
        device: torch.device | str | None = None,
        *,
        first_overflow: int = 0,
        first_start: int = 0,
    ) -> CompressedRows:
        """A copy of some rows. Temporary memory is bounded: 64 MiB, or 32 rows if they take more.

        Args:
            ids: [n] int64 in range, on this device.
            device: where the copy is to be; None: this one.
            first_overflow: overflow rows are renumbered from it on.
            first_start: of packed rows, where the first one starts, as for `packed`.

        Returns:
            The rows, in the order of ids.

        Raises:
            FormatError: an overflow index, or the directory of packed rows, is damaged.
        """
        if self.packing is not None:
            return self._select_packed(ids, self.device if device is None else device, first_start)
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

    def _select_packed(self, ids: torch.Tensor, device: torch.device | str, first_start: int) -> CompressedRows:
        if self.packing is None or self.device.type != "cpu":
            raise ValueError(f"select: want packed rows in CPU memory, got rows on {self.device}")
        ids = ids.to(torch.int64).contiguous()
        _, lengths = self.packed_places(ids)
        out = CompressedRows.packed(
            lengths, self.row_bytes, self.slot_bytes, self.packing, first_start=first_start, device=device
        )
        directory = out.bitmask.cpu()
        per_record = _native.cpu.ROWS_PER_RECORD
        rows_per_copy = max(1, _COPY_BYTES // (max(self.slot_bytes, self.row_bytes) * per_record)) * per_record
        at = 0
        for first in range(0, len(ids), rows_per_copy):
            part = slice(first, first + rows_per_copy)
            records = slice(_native.cpu.directory_bytes(first), _native.cpu.directory_bytes(first + rows_per_copy))
            rows = (
                out
                if out.device.type == "cpu"
                else CompressedRows.packed(lengths[part], self.row_bytes, self.slot_bytes, self.packing)
            )
            _native.cpu.copy_packed(
                **self._packed_arguments(),
                slots=ids[part],
                out_rows=rows.slots,
                out_directory=directory[records] if rows is out else rows.bitmask,
                first_start=first_start if rows is out else 0,
                threads=_native.threads(),
            )
            if rows is not out:
                out.slots[at : at + rows.data_bytes].copy_(rows.slots[: rows.data_bytes])
                at += rows.data_bytes
        return out

    def packed_places(self, ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Of packed rows in CPU memory, where some lie.

        Args:
            ids: [n] int64 in range, on the CPU.

        Returns:
            Where in `slots` each starts, int64 [n]; and the length of each payload, row_bytes for a raw row, int32 [n].

        Raises:
            FormatError: the directory is damaged.
        """
        starts = torch.empty(len(ids), dtype=torch.int64, device="cpu")
        lengths = torch.empty(len(ids), dtype=torch.int32, device="cpu")
        ids = ids.to(torch.int64).contiguous()
        _native.cpu.find_packed(**self._packed_arguments(), slots=ids, starts=starts, payload_bytes=lengths)
        return starts, lengths

    def _packed_arguments(self) -> dict[str, Any]:
        if self.packing is None:
            raise ValueError("want packed rows, got rows in slots")
        return {
            "rows": self.slots,
            "row_bytes": self.row_bytes,
            "slot_bytes": self.slot_bytes,
            "unit_bytes": self.packing.unit_bytes,
            "least_bytes": self.packing.least_bytes,
            "directory": self.bitmask,
            "num_rows": self.num_rows,
        }

    def bytes_of_each(self, ids: torch.Tensor) -> torch.Tensor:
        """What rows take, without their share of bitmask or directory.

        Args:
            ids: int64 [n] in range, on this device, which is the CPU if rows are packed.

        Returns:
            int64 [n].

        Raises:
            FormatError: the directory of packed rows is damaged.
        """
        if self.packing is None:
            return self.slot_bytes + self.overflows(ids).to(torch.int64) * self.row_bytes
        _, lengths = self.packed_places(ids)
        raw = -(-self.row_bytes // self.packing.unit_bytes) * self.packing.unit_bytes
        return torch.where(lengths == self.row_bytes, raw, lengths.to(torch.int64))

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
        """uint8 [num_rows, slot_bytes], sharing memory. Raises ValueError for packed rows, which have no slots."""
        if self.packing is not None:
            raise ValueError("want rows in slots, got packed rows; build the store with layout='compact'")
        return self.slots[: self.num_rows * self.slot_bytes].view(self.num_rows, self.slot_bytes)

    def overflow_matrix(self) -> torch.Tensor:
        """uint8 [num_overflow, row_bytes], sharing memory."""
        return self.overflow[: self.num_overflow * self.row_bytes].view(self.num_overflow, self.row_bytes)


def _room(length: int, device: torch.device | str, slack: int = 0) -> torch.Tensor:
    """uint8 [length + slack + SLACK_BYTES], zeros from `length` on."""
    with torch.inference_mode(False):  # tensors of inference mode could not be written outside of it
        buffer = torch.empty(length + slack + _native.cpu.SLACK_BYTES, dtype=torch.uint8, device=device)
        if not buffer.is_cuda:
            _native.cpu.advise_huge_pages(buffer)
        buffer[length:] = 0
    return buffer


def bitmask_bytes(num_rows: int, packing: Packing | None) -> int:
    """Of `CompressedRows.bitmask`."""
    length: int = _native.cpu.bitmask_bytes(num_rows) if packing is None else _native.cpu.directory_bytes(num_rows)
    return length


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

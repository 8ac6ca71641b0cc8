"""Gathering rows to one GPU: the kernel's plan, its counters, and how its errors reach the host without waiting."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch

from . import _native
from .codec import Codec
from .compressed_rows import CompressedRows


@dataclasses.dataclass(frozen=True)
class GatherStats:
    """Counted since the last reset. hits: rows from GPU memory; misses: rows from CPU memory; pcie_bytes: bytes of
    compressed rows read from CPU memory; raw_bytes: bytes that the misses are when decoded, which is what fetching
    them uncompressed would have moved."""

    hits: int = 0
    misses: int = 0
    pcie_bytes: int = 0
    raw_bytes: int = 0

    @property
    def miss_rate(self) -> float:
        """Share of rows that were not in GPU memory; 0 if none were asked for."""
        return self.misses / max(1, self.hits + self.misses)

    def __add__(self, other: GatherStats) -> GatherStats:
        return GatherStats(
            *(getattr(self, field.name) + getattr(other, field.name) for field in dataclasses.fields(self))
        )


@dataclasses.dataclass(frozen=True)
class MappedRows:
    """Compressed rows whose slots and overflow a GPU can read at these addresses, whether they lie in its memory or
    in mapped host memory; the bitmask is always in its memory."""

    rows: CompressedRows
    slots_address: int
    overflow_address: int
    bitmask: torch.Tensor

    @classmethod
    def on_device(cls, rows: CompressedRows) -> MappedRows:
        return cls(rows, rows.slots.data_ptr(), rows.overflow.data_ptr(), rows.bitmask)

    def native(self) -> Any:
        return _native.cuda().RowBuffers(
            self.slots_address,
            self.rows.slots.numel(),
            self.bitmask.data_ptr(),
            self.bitmask.numel(),
            self.overflow_address,
            self.rows.overflow.numel(),
            self.rows.num_rows,
        )


class GpuGather:
    """Gathers rows of `store`, and of `cache` where cache_slot (int32 [num_rows] on the device) is not -1, to
    `device`. Holds references to all the memory that the kernel reads."""

    def __init__(
        self,
        codec: Codec,
        device: torch.device,
        store: MappedRows,
        *,
        lead_bytes: int,
        cache: CompressedRows | None = None,
        cache_slot: torch.Tensor | None = None,
    ) -> None:
        self._native = _native.cuda()  # first: says how to get it where it is missing
        self.codec, self.device, self.num_rows = codec, device, store.rows.num_rows
        self._counters = torch.zeros(self._native.NUM_COUNTERS, dtype=torch.int64, device=device)
        # Pinned memory is mapped: the kernel writes what went wrong, the host reads it without waiting.
        self._error = torch.zeros(2, dtype=torch.int64).pin_memory()
        mapped_cache = MappedRows.on_device(cache) if cache is not None else None
        self._memory = (store, mapped_cache, cache_slot)
        with torch.cuda.device(device):
            self._plan = self._native.make_gather_plan(
                codec.form.on_device(device).native,
                store.native(),
                mapped_cache.native() if mapped_cache is not None else None,
                cache_slot,
                store.rows.slot_bytes,
                lead_bytes,
                self._counters,
                self._error.data_ptr(),
            )

    def gather(
        self,
        ids: torch.Tensor,
        out_bytes: torch.Tensor,
        *,
        positions: torch.Tensor | None = None,
        max_blocks: int = 0,
    ) -> None:
        """ids: [n] int32/int64 on the device; out_bytes: uint8 [n, row_bytes] on it; positions: int64 [n], where in
        out_bytes each row goes (None: in order). Enqueued on the current stream; no host sync. Raises the error of
        an earlier gather, if its kernel has reported one by now."""
        self.raise_reported()
        with torch.cuda.device(self.device):
            stream = torch.cuda.current_stream(self.device).cuda_stream
            self._plan.gather(ids, positions, out_bytes, max_blocks, stream)

    def raise_reported(self) -> None:
        """Raises IndexError or FormatError if a kernel that has run has reported one. Does not wait."""
        kind = int(self._error[0])
        if kind == 0:
            return
        bad_id = int(self._error[1])
        self._error.zero_()
        self._counters[-1] = 0  # the next error may be reported again
        if kind == self._native.ID_OUT_OF_RANGE:
            raise IndexError(
                f"ids: want 0 <= id < {self.num_rows}, got {bad_id} in an earlier gather, which gave zeros for it"
            )
        raise _native.FormatError(f"row {bad_id} is damaged: its payload or overflow index does not fit the store")

    def check(self) -> None:
        """Waits for the device, then raises what any gather so far has reported."""
        torch.cuda.synchronize(self.device)
        self.raise_reported()

    def stats(self) -> GatherStats:
        """Waits for the current stream."""
        hits, misses, pcie_bytes = self._counters[:-1].tolist()
        return GatherStats(hits, misses, pcie_bytes, misses * self.codec.row_bytes)

    def reset_stats(self) -> None:
        self._counters[:-1] = 0

"""Gathering rows to one GPU: the kernel's plan, its counters, and how its errors reach the host without waiting."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from torch.utils.dlpack import to_dlpack

from . import _native
from .codec import Codec
from .compressed_rows import CompressedRows
from .forms import DictForm


@dataclasses.dataclass(frozen=True)
class GatherStats:
    """Counted since the last reset. hits: rows from GPU memory; misses: rows from CPU memory; pcie_bytes: bytes of
    compressed rows read from CPU memory; raw_bytes: bytes that the misses are when decoded, which is what fetching
    them uncompressed would have moved; unique: how many different rows they were, on each GPU, if that is counted."""

    hits: int = 0
    misses: int = 0
    pcie_bytes: int = 0
    raw_bytes: int = 0
    unique: int | None = None

    @property
    def miss_rate(self) -> float:
        """Share of rows that were not in GPU memory; 0 if none were asked for."""
        return self.misses / max(1, self.hits + self.misses)

    def __add__(self, other: GatherStats) -> GatherStats:
        unique = [one.unique for one in (self, other) if one.unique is not None]
        return GatherStats(
            self.hits + other.hits,
            self.misses + other.misses,
            self.pcie_bytes + other.pcie_bytes,
            self.raw_bytes + other.raw_bytes,
            sum(unique) if unique else None,
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


# Random rows over more than about 0.8 GB of mapped memory are bound by address translation, not by bytes; ordered
# they are not. Ordering a small batch costs more than it saves.
_ORDER_FOOTPRINT_BYTES = 3 << 28
_ORDER_MIN_MISSES = 4096
_MOST_PLACES = 2**32 - 2  # that can be ordered
# Few blocks saturate the link, keep the addresses in flight close together, and leave the GPU to training. Payloads
# whose offsets are not known beforehand take more decoding for each byte that crosses the link: those of codec "dict"
# with a zero code, and more so those of "ibp".
_MISS_BLOCKS, _MISS_BLOCKS_ZERO_CODE, _MISS_BLOCKS_IBP = 16, 32, 64
_SEE_EVERY_IDS = 32768  # so many are gathered before the miss rate is looked at again


class GpuGather:
    """Gathers rows of `store`, and of `cache` where they are cached, to `device`. Holds references to all the memory
    that the kernel reads.

    place: int32 [num_rows] on the device: where the row of each id lies; None: the id itself. Places below the number
    of cached rows are slots of the cache, others are slots of the store after taking store_offset away (0 where the
    cache is a prefix of the store, else the number of cached rows).
    """

    def __init__(
        self,
        codec: Codec,
        device: torch.device,
        store: MappedRows,
        *,
        lead_bytes: int,
        cache: CompressedRows | None = None,
        place: torch.Tensor | None = None,
        store_offset: int = 0,
    ) -> None:
        self._native = _native.cuda()  # first: says how to get it where it is missing
        self.codec, self.device, self.num_rows = codec, device, store.rows.num_rows
        self._counters = torch.zeros(self._native.NUM_COUNTERS, dtype=torch.int64, device=device)
        # Pinned memory is mapped: the kernel writes what went wrong, the host reads it without waiting.
        self._error = torch.zeros(2, dtype=torch.int64).pin_memory()
        self._reported = self._error.numpy()
        # What the counters were when the last gather that has run had run: read without waiting.
        self._seen = torch.zeros_like(self._counters, device="cpu").pin_memory()
        self._unseen_ids = 0  # gathered since then
        self._seen_hits_misses = self._seen.numpy()[:2]
        self._last_hits_misses = (0, 0)
        if isinstance(codec.form, DictForm):
            self._miss_blocks = _MISS_BLOCKS_ZERO_CODE if codec.form.zero_code else _MISS_BLOCKS
        else:
            self._miss_blocks = _MISS_BLOCKS_IBP
        self._touched: torch.Tensor | None = None
        self._miss_rate = 1.0 if cache is None or cache.num_rows < self.num_rows else 0.0
        self.remap(store, lead_bytes=lead_bytes, cache=cache, place=place, store_offset=store_offset)

    def remap(
        self,
        store: MappedRows,
        *,
        lead_bytes: int,
        cache: CompressedRows | None = None,
        place: torch.Tensor | None = None,
        store_offset: int = 0,
    ) -> None:
        """What gathers from now on read, of the same rows; arguments as for the constructor. Counters go on. Those
        under way must be done before what they read is freed."""
        mapped_cache = MappedRows.on_device(cache) if cache is not None else None
        self._memory = (store, mapped_cache, place)
        # Misses are spread over it.
        footprint_rows = self.num_rows - (cache.num_rows if cache is not None and store_offset == 0 else 0)
        self._ordering_pays = (
            footprint_rows * store.rows.slot_bytes >= _ORDER_FOOTPRINT_BYTES
            and self.num_rows + store_offset <= _MOST_PLACES
        )
        self._num_places = self.num_rows + store_offset
        self._plan_arguments = {"store_offset": store_offset, "lead_bytes": lead_bytes}
        self._make_plan()

    def _make_plan(self) -> None:
        store, cache, place = self._memory
        with torch.cuda.device(self.device):
            self._plan = self._native.make_gather_plan(
                self.codec.form.on_device(self.device).native,
                store.native(),
                cache.native() if cache is not None else None,
                place,
                slot_bytes=store.rows.slot_bytes,
                counters=self._counters,
                error=self._error.data_ptr(),
                touched=self._touched,
                **self._plan_arguments,
            )

    def count_unique(self) -> None:
        """From now on `stats` says how many different rows were read: a bit of GPU memory for each row."""
        if self._touched is None:
            self._touched = torch.zeros(-(-self._num_places // 32), dtype=torch.int32, device=self.device)
            self._make_plan()

    def gather(
        self,
        ids: torch.Tensor,
        out_bytes: torch.Tensor,
        *,
        ordered: bool | None = None,
        max_blocks: int | None = None,
    ) -> None:
        """ids: [n] int32/int64 on the device; out_bytes: uint8 [n, row_bytes] on it. Enqueued on the current stream; no
        host sync. Raises the error of an earlier gather, if its kernel has reported one by now.

        ordered: whether to fetch in order of where the rows lie; max_blocks: of the kernel, in order those that fetch
        misses; 0 = all that the GPU holds. None: as suits the miss rate that gathers had lately.
        """
        self.raise_reported()
        miss_rate = self._miss_rate_lately()
        if ordered is None:
            ordered = self._ordering_pays and miss_rate * len(ids) >= _ORDER_MIN_MISSES
        if max_blocks is None:
            max_blocks = self._miss_blocks if ordered or miss_rate == 1.0 else 0
        with torch.cuda.device(self.device):
            scratch = None
            if ordered:
                num_bytes = self._plan.order_scratch_bytes(len(ids))
                scratch = to_dlpack(torch.empty(num_bytes, dtype=torch.uint8, device=self.device))
            stream = torch.cuda.current_stream(self.device).cuda_stream
            # As capsules: exporting a tensor through its __dlpack__ makes torch 2.9's default stream wait for this one.
            self._plan.gather(to_dlpack(ids), scratch, to_dlpack(out_bytes), max_blocks, stream)
            if self._memory[1] is not None:
                self._unseen_ids += len(ids)
                if self._unseen_ids >= _SEE_EVERY_IDS:
                    self._seen.copy_(self._counters, non_blocking=True)
                    self._unseen_ids = 0

    def _miss_rate_lately(self) -> float:
        """Of the gathers since it was asked last, as far as they have run; of earlier ones if none has."""
        hits, misses = self._seen_hits_misses.tolist()
        new_hits, new_misses = hits - self._last_hits_misses[0], misses - self._last_hits_misses[1]
        if new_hits >= 0 and new_misses >= 0 and new_hits + new_misses > 0:
            self._miss_rate = new_misses / (new_hits + new_misses)
        self._last_hits_misses = (hits, misses)
        return self._miss_rate

    def raise_reported(self) -> None:
        """Raises IndexError or FormatError if a kernel that has run has reported one. Does not wait."""
        kind = int(self._reported[0])
        if kind == 0:
            return
        bad_id = int(self._reported[1])
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
        unique = None if self._touched is None else _count_bits(self._touched)
        return GatherStats(hits, misses, pcie_bytes, misses * self.codec.row_bytes, unique)

    def reset_stats(self) -> None:
        self._counters[:-1] = 0
        if self._touched is not None:
            self._touched.zero_()


def _count_bits(words: torch.Tensor) -> int:
    """words: int32 [n]. Waits for the current stream."""
    bits_of_byte = torch.tensor([byte.bit_count() for byte in range(256)], device=words.device)
    counts = torch.stack([torch.bincount(part, minlength=256) for part in words.view(torch.uint8).split(1 << 24)])
    return int((counts.sum(0) * bits_of_byte).sum())

"""Gathering rows to one GPU: the kernel's plan, its counters, and how its errors reach the host without waiting."""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

import torch
from torch.utils.dlpack import to_dlpack

from .. import _native
from .compressed_rows import CompressedRows
from .forms import Form
from .values import check_ids_on_cpu


@dataclasses.dataclass(frozen=True)
class GatherStats:
    """Counted since the last reset. hits: rows from GPU memory; misses: rows from CPU memory; pcie_bytes: bytes of
    compressed rows read from CPU memory; raw_bytes: bytes that the misses are when decoded, which is what fetching them
    uncompressed would have moved; unique: how many different rows they were, on each GPU, if that is counted.

    Example:
        >>> first = ibp_gnn.GatherStats(hits=3, misses=1, pcie_bytes=48, raw_bytes=64)
        >>> both = first + first
        >>> both.hits, both.miss_rate
        (6, 0.25)
    """

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
    in mapped host memory; the bitmask is always in its memory. held_by: what keeps the mapping as it is."""

    rows: CompressedRows
    slots_address: int
    overflow_address: int
    bitmask: torch.Tensor
    held_by: object = None

    @classmethod
    def on_device(cls, rows: CompressedRows) -> MappedRows:
        return cls(rows, rows.slots.data_ptr(), rows.overflow.data_ptr(), rows.bitmask)

    def segment(self, *, first_place: int, origin: int, hits: bool) -> Any:
        """As a part of a plan: the places from first_place on are these rows, the one at place p is row p - origin.
        hits: whether they are counted as hits."""
        return _native.cuda().Segment(
            slots=self.slots_address,
            slots_bytes=self.rows.slots.numel(),
            bitmask=self.bitmask.data_ptr(),
            bitmask_bytes=self.bitmask.numel(),
            overflow=self.overflow_address,
            overflow_bytes=self.rows.overflow.numel(),
            num_rows=self.rows.num_rows,
            first_place=first_place,
            origin=origin,
            hits=hits,
        )


# Random rows over more than about 0.8 GB of mapped memory are bound by address translation, not by bytes; ordered
# they are not. Ordering a small batch costs more than it saves.
_ORDER_FOOTPRINT_BYTES = 3 << 28
_ORDER_MIN_MISSES = 4096


_MOST_INT32_ROWS = 2**31 - 1
_ID_DTYPES = (torch.int32, torch.int64)


class GpuGather:
    """Gathers rows of `store`, and of `cache` and `shared` where they are cached, to `device`.

    All that the kernel reads and writes is kept alive, by this object and then by its plan: a plan that is dropped
    first waits for the gathers that were launched, on whatever stream. (Not for graphs that are replayed later: they
    are captured with the memory as it is, and their owner keeps it.)

    place: int32 [num_rows] on the device: where the row of each id lies; None: the id itself. Places below the number
    of cached rows are slots of the cache, those behind it of `shared`, others are slots of the store after taking
    store_offset away (0 where the cache is a prefix of the store, else the number of cached and shared rows).
    shared: a cache in the memory of several GPUs, which this one reads.
    lead_bytes: how much of a slot to fetch at first; a hint.
    num_rows: ids are below; None: the rows of `store`.
    """

    def __init__(
        self,
        form: Form,
        device: torch.device,
        store: MappedRows,
        *,
        lead_bytes: int,
        cache: CompressedRows | None = None,
        shared: MappedRows | None = None,
        place: torch.Tensor | None = None,
        store_offset: int = 0,
        num_rows: int | None = None,
    ) -> None:
        self._native = _native.cuda()  # first: says how to get it where it is missing
        self.form, self.device = form, device
        self.num_rows = store.rows.num_rows if num_rows is None else num_rows
        with torch.cuda.device(device):
            self._counters = torch.zeros(self._native.NUM_COUNTERS, dtype=torch.int64, device=device)
            # What the kernel writes of errors and counters, the host reads without waiting.
            cached = sum(rows.num_rows for rows in (cache, shared.rows if shared else None) if rows is not None)
            misses = 1.0 if cached < self.num_rows else 0.0
            self._report = self._native.GatherReport(misses_at_first=misses)
        self._touched: torch.Tensor | None = None
        self._num_places = self.num_rows + store_offset
        self._reads = _Reads(store, cache, shared, place, store_offset, lead_bytes)
        self._plan = self.planned(self._reads)
        # The counters are zeros for every stream.
        torch.cuda.current_stream(device).synchronize()

    def planned(self, reads: _Reads) -> Any:
        """A plan for what is to be read of the same rows."""
        form, segments, num_cached = self.form.on_device(self.device), [], 0
        if reads.cache is not None:
            num_cached = reads.cache.num_rows
            segments.append(MappedRows.on_device(reads.cache).segment(first_place=0, origin=0, hits=True))
        if reads.shared is not None:
            segments.append(reads.shared.segment(first_place=num_cached, origin=num_cached, hits=True))
            num_cached += reads.shared.rows.num_rows
        segments.append(reads.store.segment(first_place=num_cached, origin=reads.store_offset, hits=False))
        rows = reads.store.rows
        slot_bytes, (unit_bytes, least_bytes) = rows.slot_bytes, rows.packing or (0, 0)
        return _native.cuda().make_gather_plan(
            codec=form.native,
            segments=segments,
            num_rows=self.num_rows,
            place=reads.place,
            slot_bytes=slot_bytes,
            lead_bytes=max(1, min(reads.lead_bytes, slot_bytes)),
            counters=self._counters,
            report=self._report,
            touched=self._touched,
            miss_blocks=self.form.miss_blocks,
            order_from_bytes=_ORDER_FOOTPRINT_BYTES,
            order_from_misses=_ORDER_MIN_MISSES,
            owners=(form, reads, self._counters, self._touched),
            unit_bytes=unit_bytes,
            least_bytes=least_bytes,
        )

    def remap(self, store: MappedRows, *, lead_bytes: int, cache: CompressedRows | None = None) -> Remap:
        """What gathers read after `Remap.commit`, of the same rows in the same places. Changes nothing."""
        reads = self._reads._replace(store=store, lead_bytes=lead_bytes, cache=cache)
        return Remap(self, reads, self.planned(reads))

    @property
    def num_cached(self) -> int:
        """Rows in GPU memory."""
        parts = (self._reads.cache, self.shared_rows)
        return sum(rows.num_rows for rows in parts if rows is not None)

    @property
    def shared_rows(self) -> CompressedRows | None:
        """Those of `shared`."""
        return None if self._reads.shared is None else self._reads.shared.rows

    @property
    def plan(self) -> Any:
        """The present one, for whoever wants it to be let go of later than a `Remap.commit` would."""
        return self._plan

    def wait(self) -> None:
        """Until all gathers that were launched so far have run, on whatever stream, those of replayed graphs too."""
        self._plan.wait()

    def count_unique(self) -> None:
        """From now on `stats` says how many different rows were read: a bit of GPU memory for each row. No gather may
        be under way in another thread."""
        if self._touched is None:
            self._touched = torch.zeros(-(-self._num_places // 32), dtype=torch.int32, device=self.device)
            torch.cuda.current_stream(self.device).synchronize()  # zeros for every stream
            self._plan = self.planned(self._reads)

    def gather(
        self,
        ids: torch.Tensor | range,
        out: torch.Tensor,
        *,
        ordered: bool | None = None,
        max_blocks: int | None = None,
        out_is_kept: bool = False,
    ) -> None:
        """ids: [n] int32/int64 on the device, or a range of step 1, for which nothing is read; out: n rows on the
        device; both contiguous. Enqueued on the current stream; no host sync. Raises the error of an earlier gather, if
        its kernel has reported one by now, and ValueError for an out that the rows of these ids do not fill.

        ordered: whether to fetch in order of where the rows lie; max_blocks: of the kernel, in order those that fetch
        misses; 0 = all that the GPU holds. None: as suits the miss rate that gathers had lately. out_is_kept: the
        caller sees to it that the memory of `out` is not used again before this stream has written it.
        """
        if self._report.error:
            self.raise_reported()
        device = self.device
        if isinstance(ids, range):
            if ids.step != 1 or out.device != device:
                raise ValueError(f"ids and out: want step 1 and {device}, got step {ids.step} and {out.device}")
            addressed = 0, True, ids.start, len(ids)
        else:
            if ids.device != device or out.device != device:
                raise ValueError(f"ids and out: want them on {device}, got {ids.device} and {out.device}")
            if ids.dtype not in _ID_DTYPES or not ids.is_contiguous():  # the kernel gets addresses
                raise ValueError(f"ids: want contiguous int32 or int64, got {ids.dtype} with strides {ids.stride()}")
            addressed = ids.data_ptr(), ids.dtype is torch.int64, 0, ids.numel()
        if not out.is_contiguous():
            raise ValueError(f"out: want it contiguous, got strides {out.stride()}")
        stream = current_stream(device)
        where = *addressed, out.data_ptr(), out.nbytes, ordered, max_blocks
        scratch_bytes = self._plan.gather(*where, 0, 0, stream.cuda_stream)
        while scratch_bytes:
            scratch = torch.empty(scratch_bytes, dtype=torch.uint8, device=device)
            scratch_bytes = self._plan.gather(*where, scratch.data_ptr(), scratch_bytes, stream.cuda_stream)
        # They may have been made on other streams, and are not handed out again before this one is done with them.
        if not isinstance(ids, range):
            ids.record_stream(stream)
        if not out_is_kept:
            out.record_stream(stream)

    def miss_rate_lately(self) -> float:
        """Of the gathers since it was asked last, by a gather for one, as far as they have run; of earlier ones if none
        has."""
        rate: float = self._report.miss_rate()
        return rate

    def raise_reported(self) -> None:
        """Raises IndexError or FormatError if a kernel that has run has reported one. Does not wait."""
        kind = self._report.error
        if kind == 0:
            return
        bad_id = self._report.error_id
        self._report.clear_error()
        self._counters[-1] = 0  # the next error may be reported again
        if kind == self._native.ID_OUT_OF_RANGE:
            raise IndexError(
                f"ids: want 0 <= id < {self.num_rows}, got {bad_id} in an earlier gather, which gave zeros for it"
            )
        raise _native.FormatError(
            f"row {bad_id} is damaged: its slot, payload or overflow index does not fit the store"
        )

    def check(self) -> None:
        """Waits for the device, then raises what any gather so far has reported."""
        torch.cuda.synchronize(self.device)
        self.raise_reported()

    def stats(self) -> GatherStats:
        """Waits for the current stream."""
        hits, misses, pcie_bytes = self._counters[:-1].tolist()
        unique = None if self._touched is None else _count_bits(self._touched)
        return GatherStats(hits, misses, pcie_bytes, misses * self.form.row_bytes, unique)

    def reset_stats(self) -> None:
        self._counters[:-1] = 0
        if self._touched is not None:
            self._touched.zero_()


class _Reads(NamedTuple):
    """What a plan's gathers read: see GpuGather."""

    store: MappedRows
    cache: CompressedRows | None
    shared: MappedRows | None
    place: torch.Tensor | None
    store_offset: int
    lead_bytes: int


class Remap(NamedTuple):
    """A plan that is ready to take the place of another one."""

    gather: GpuGather
    reads: _Reads
    plan: Any

    def commit(self) -> None:
        """No gather may be under way in another thread. Does not fail."""
        self.gather._reads, self.gather._plan = self.reads, self.plan


_streams: dict[tuple[int | None, int], torch.cuda.Stream] = {}


def current_stream(device: torch.device) -> torch.cuda.Stream:
    """As torch.cuda.current_stream, which makes a new object each time: that takes as long as half of a launch."""
    handle = device.index, torch._C._cuda_getCurrentRawStream(device.index)
    stream = _streams.get(handle)
    if stream is None:
        if len(_streams) >= 1024:  # of a process that makes streams of its own
            _streams.clear()
        stream = _streams[handle] = torch.cuda.current_stream(device)
    return stream


def ids_on_gpu(ids: torch.Tensor, device: torch.device) -> torch.Tensor:
    """ids: [n] on any device. Returns them on this GPU, on its current stream. A copy from CPU memory goes through
    page-locked memory of its own: the host does not wait, and the caller's ids may be overwritten at once. Raises
    RuntimeError where a CUDA graph would capture that copy, and read memory of others when it is replayed."""
    if ids.device == device:
        return ids
    if ids.is_cuda:
        return ids.to(device)
    if torch.cuda.is_current_stream_capturing():
        raise RuntimeError(f"ids: want ids on {device} while a CUDA graph is captured, got ids on {ids.device}")
    staged = torch.empty(ids.shape, dtype=ids.dtype, device="cpu", pin_memory=True)
    return staged.copy_(ids).to(device, non_blocking=True)


def checked_ids_on_gpu(ids: torch.Tensor, device: torch.device, num_rows: int) -> torch.Tensor:
    """ids: int32/int64 [n] on any device. As `ids_on_gpu`; those in CPU memory are checked on the way, in one pass by
    this thread, and arrive as int32 if there are few enough rows. Raises IndexError naming the first bad one."""
    if ids.is_cuda or len(ids) == 0 or num_rows > _MOST_INT32_ROWS or torch.cuda.is_current_stream_capturing():
        check_ids_on_cpu(ids, num_rows)
        return ids_on_gpu(ids, device)
    staged = torch.empty(ids.shape, dtype=torch.int32, device="cpu", pin_memory=True)
    contiguous = ids.contiguous()
    if num_rows == 0 or not _native.cpu.stage_ids(to_dlpack(contiguous), num_rows, to_dlpack(staged)):
        check_ids_on_cpu(contiguous, num_rows)  # says which
    return staged.to(device, non_blocking=True)


def _count_bits(words: torch.Tensor) -> int:
    """words: int32 [n]. Waits for the current stream."""
    bits_of_byte = torch.tensor([byte.bit_count() for byte in range(256)], device=words.device)
    counts = torch.stack([torch.bincount(part, minlength=256) for part in words.view(torch.uint8).split(1 << 24)])
    return int((counts.sum(0) * bits_of_byte).sum())

"""CompressedGPUCache: the hottest rows of a store, compressed, in GPU memory."""

from __future__ import annotations

import logging
import warnings
from typing import Any, NamedTuple

import numpy as np
import torch

from .. import _native
from ..codec.compressed_rows import CompressedRows, bitmask_bytes
from ..codec.gather import GatherStats, GpuGather, Remap, checked_ids_on_gpu
from ..codec.values import as_ids, check_ids_on_cpu, prepare_out, resolve_device
from ..store.compiled_gather import gather_by_name, is_compiling, name_source
from ..store.feature_store import CompressedFeatureStore
from ..store.order import hottest_first
from ..store.tensor_like import INDEX_ADVICE, TensorLike
from ..store.updates import CacheUpdate, RowPatch, RowWriter, StoreOnGpu
from .capacity import is_share, parse_capacity

_logger = logging.getLogger(__name__)
_MAX_PLACES = 2**31 - 1  # the table of places is int32


class CompressedGPUCache(TensorLike):
    """Serves the rows of `store` to one GPU: hits from its memory, misses from the store, in one kernel. A RowSource
    with the store's bits, also after `store.update`. Which rows are cached is decided once, here. A context manager;
    safe to use from several threads. Closed with its store.

    Example:
        >>> with ibp_gnn.CompressedGPUCache(store, "100 rows") as cache:
        ...     x = cache.gather(torch.tensor([3, 500]), device="cuda")
        ...     print(cache.stats().hits, bool((x.cpu() == features[[3, 500]]).all()))
        1 True
    """

    _INTERNAL = frozenset("prepare_update prepare_move commit_update release plan gather_to_kept".split())

    def __init__(
        self,
        store: CompressedFeatureStore,
        capacity: int | float | str,
        *,
        hotness: torch.Tensor | None = None,
        hot_ids: torch.Tensor | None = None,
        device: torch.device | str = "cuda",
    ) -> None:
        """Copies the hottest rows to the GPU.

        Args:
            store: what is cached.
            capacity: GPU memory for everything the cache holds (slots, overflow rows, bitmasks, slot table, codec):
                bytes, "4GB", a share of the store's bytes as a float in (0, 1], "100000 rows", or "auto" = what is free
                now less a reserve of 4 GiB (a quarter of the GPU if that is less). More than the store needs: a
                warning, and all rows are cached. Updates of cached rows that no longer fit their slots may take more:
                see `nbytes`.
            hotness: [num_rows] numbers, e.g. degrees; the rows with the highest go first (ties: lower id first).
            hot_ids: [k] distinct int32/int64 ids, hottest first; only these are cached. Neither: in the store's order,
                which for a store built with `order` is hottest first.
            device: the GPU.

        Raises:
            ValueError: not even one row fits, or a bad argument.
            TypeError: a capacity or ids of another type.
            RuntimeError: the store is not page-locked.
        """
        self.store = store
        self.device = resolve_device(device, torch.device("cuda"))
        if self.device.type != "cuda":
            raise ValueError(
                f"device: want cuda, got {self.device}; on the CPU the store itself is the source: store.gather(ids), "
                "ibp_gnn.attach(graph, key, store)"
            )
        self._capacity = capacity
        self._is_prefix = hotness is None and hot_ids is None
        self._name = name_source(self)
        order = hot_order(store, hotness, hot_ids)
        with store.lock:  # what is counted, copied and mapped here is the same rows
            limit, most_rows = parse_capacity(
                capacity, num_rows=len(store), store_bytes=store.nbytes, device=self.device
            )
            num_cached = rows_that_fit(store, order[:most_rows], limit, capacity, self._fixed_bytes())
            writer = RowWriter(store.rows.select(store.to_slots(order[:num_cached]), self.device))
            place = self._places(order[:num_cached])
            mapped = store.mapped_rows(self.device)
            gather = GpuGather(
                store.codec.form,
                self.device,
                mapped,
                lead_bytes=store.lead_bytes,
                cache=writer.rows,
                place=place,
                store_offset=0 if self._is_prefix else num_cached,
            )
            self._parts: Parts | None = Parts(writer, gather, mapped.bitmask, place)
            store.add_cache(self)
        _logger.debug("made %s", self)

    def _places(self, cached: torch.Tensor) -> torch.Tensor | None:
        """cached: the ids of the cached rows. Returns where the row of each id lies, for GpuGather."""
        place, num_rows, num_cached = self.store.slot_of, len(self.store), len(cached)
        if not self._is_prefix:
            if num_cached + num_rows > _MAX_PLACES:
                raise ValueError(
                    f"hotness, hot_ids: want at most {_MAX_PLACES} rows and cached rows, got {num_rows} and "
                    f"{num_cached}; build the store with order= instead"
                )
            if place is None:
                place = torch.arange(num_rows, dtype=torch.int32, device="cpu")
            place = torch.where(place < 0, -1, place + num_cached)  # a damaged table stays one
            place[cached] = torch.arange(num_cached, dtype=torch.int32, device="cpu")
        return None if place is None else place.to(self.device)

    def gather(
        self,
        ids: torch.Tensor | np.ndarray,
        device: torch.device | str | None = None,
        *,
        out: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """As CompressedFeatureStore.gather. To this cache's GPU: hits and misses in one kernel on the current stream,
        no host sync if the ids are on the device. To any other device: from the store alone.

        Args:
            ids: [n] int32/int64, on CPU or CUDA, repeats and n == 0 allowed.
            device: where the rows are put. None: the ids' device.
            out: where they are written: right shape, dtype, device; contiguous; no tensor that needs grad, but under
                torch.no_grad(). None: a new tensor.

        Returns:
            [n, *row_shape] on `device`.

        Raises:
            IndexError: names the first bad id; where ids are on a GPU, at the next gather or `check` after the kernel
                ran, rows of bad ids being zeros.
            TypeError: other ids.
            ValueError: an `out` that does not fit, or after `close`.
            RuntimeError: an `out` that needs grad.
        """
        if out is None and is_compiling():
            return gather_by_name(ids, self._name, device)
        ids = as_ids(ids, advice=INDEX_ADVICE)
        target = resolve_device(device, ids.device)
        if target != self.device:
            return self.store.gather(ids, device=target, out=out)
        with self.store.lock:
            gather = self._open.gather
            ids = checked_ids_on_gpu(ids, target, len(self.store))
            out = prepare_out(out, (ids.shape[0], *self.store.codec.row_shape), self.dtype, target)
            gather.gather(ids, out)
        return out

    def gather_to_kept(self, ids: torch.Tensor, out: torch.Tensor) -> None:
        """For the Prefetcher: as `gather`, with checked ids; out: on this cache's GPU or another one, and its memory is
        not used again before the current stream has written it."""
        if out.device != self.device:
            return self.store.gather_to_kept(ids, out)
        with self.store.lock:
            gather = self._open.gather
            gather.gather(checked_ids_on_gpu(ids, out.device, len(self.store)), out, out_is_kept=True)
        return None

    def gather_on(self, device: torch.device) -> GpuGather:
        """The kernel's plan for a device: this cache's, or the store's. Call it with the store's `lock` held."""
        return self._gather if device == self.device else self.store.gather_on(device)

    def prepare_update(
        self, ids: torch.Tensor, slots: torch.Tensor, new: CompressedRows, of_store: RowPatch, store: StoreOnGpu
    ) -> CacheUpdate:
        """For the store's `update`, which holds its lock alone and has waited for the GPU. ids: int64 [n], distinct;
        slots: int64 [n], where the store has them; new: their rows; all on the CPU. of_store: what the store will
        write; store: what GPUs read of it then. Changes nothing."""
        parts = self._open
        if self._is_prefix or parts.place is None:
            place = slots.to(self.device)
        else:
            place = parts.place[ids.to(self.device)].to(torch.int64)
        cached = torch.nonzero(place < self.num_cached).flatten()
        patch = parts.writer.prepare(place[cached], new.select(cached.cpu(), self.device))
        mapped = store.pinned.mapped(parts.bitmask)
        remap = parts.gather.remap(mapped, lead_bytes=store.lead_bytes, cache=patch.rows)
        return CacheUpdate(patch, [*patch.overwrites, of_store.of_bitmask(parts.bitmask)], remap)

    def prepare_move(self, store: StoreOnGpu) -> Remap:
        """For the store, whose rows are to lie in another place, unchanged; it holds its lock alone. Changes nothing
        before `Remap.commit`."""
        parts = self._open
        mapped = store.pinned.mapped(parts.bitmask)
        return parts.gather.remap(mapped, lead_bytes=store.lead_bytes, cache=parts.writer.rows)

    @property
    def plan(self) -> Any:
        """For the store: what gathers of this moment run with."""
        return self._gather.plan

    def commit_update(self, update: CacheUpdate) -> None:
        """update: from `prepare_update`, written. Does not fail."""
        self._open.writer.commit(update.patch)
        update.remap.commit()

    def rebuilt(self, store: CompressedFeatureStore) -> CompressedGPUCache:
        """A cache of another store, on the same GPU and of the same capacity. This one stays as it is.

        Args:
            store: the other one.

        Returns:
            The cache. It holds the rows of the same ids if the store has as many rows as this one's, else the first
            ones in the store's order.

        Raises:
            ValueError: as the constructor.
            RuntimeError: as the constructor.
        """
        hot_ids = self._cached_ids() if len(store) == len(self.store) else None
        capacity = self._capacity
        if isinstance(capacity, str) and capacity.strip().lower().rstrip("s").endswith("row"):
            capacity = f"{min(self.num_cached, len(store))} rows"
        return CompressedGPUCache(store, capacity, hot_ids=hot_ids, device=self.device)

    def _cached_ids(self) -> torch.Tensor | None:
        """int64 [num_cached] on the CPU, hottest first; None: the ids from 0 on."""
        place = self._open.place
        if place is None:
            return None
        return torch.argsort(place)[: self.num_cached].cpu()

    def close(self) -> None:
        """Waits for this cache's gathers, on whatever stream, and for those of other threads to be launched; then frees
        its GPU memory. Idempotent. Without it, the memory is freed in the same way when nobody holds the cache any
        more.

        Raises:
            IndexError, FormatError: as `check`.
        """
        try:
            if self._parts is not None:
                self.check()
        finally:
            with self.store.lock.exclusive():
                self.release()

    def release(self) -> None:
        """For `close`, and for the store's, which hold the store's lock alone."""
        if self._parts is not None:
            self._parts.gather.wait()
            self.store.remove_cache(self)
        self._parts = None

    def __enter__(self) -> CompressedGPUCache:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __reduce__(self) -> Any:
        raise TypeError(
            "a CompressedGPUCache belongs to its process; send its store, and make a cache of it in the other one"
        )

    @property
    def _open(self) -> Parts:
        if self._parts is None:
            raise ValueError("this CompressedGPUCache is closed")
        return self._parts

    @property
    def shape(self) -> tuple[int, ...]:
        """(num_rows, *row_shape) of the store, cached or not."""
        return self.store.shape

    @property
    def dtype(self) -> torch.dtype:
        """Of the rows."""
        return self.store.dtype

    @property
    def version(self) -> int:
        """How many updates the store has had."""
        return self.store.version

    @property
    def _cache(self) -> CompressedRows:
        return self._open.writer.rows

    @property
    def _gather(self) -> GpuGather:
        return self._open.gather

    @property
    def num_cached(self) -> int:
        """How many rows are in GPU memory."""
        return self._cache.num_rows

    @property
    def nbytes(self) -> int:
        """Bytes of GPU memory: all that `capacity` limits, and what the overflow area has grown by since: room for as
        many rows as updates made overflow, or a quarter of the area each time."""
        return self._cache.nbytes + self._fixed_bytes()

    def _fixed_bytes(self) -> int:
        return fixed_bytes(self.store, self._is_prefix)

    def stats(self) -> GatherStats:
        """Hits, misses and bytes since the last reset. Waits for the current stream.

        Returns:
            The counts.
        """
        return self._gather.stats()

    def count_unique(self) -> None:
        """From now on `stats` counts different rows, too: a bit of GPU memory for each row and cached row."""
        with self.store.lock.exclusive():
            self._gather.count_unique()

    def reset_stats(self) -> None:
        """From now on `stats` counts from zero. Does not wait."""
        self._gather.reset_stats()

    def check(self) -> None:
        """Waits for the GPU.

        Raises:
            IndexError: a gather so far met a bad id.
            FormatError: a gather so far met a damaged row.
        """
        self._gather.check()

    def __len__(self) -> int:
        return len(self.store)

    def __repr__(self) -> str:
        if self._parts is None:
            return "CompressedGPUCache(closed)"
        return (
            f"CompressedGPUCache({self.num_cached} of {len(self.store)} rows, {self.nbytes} bytes on {self.device}, "
            f"store={self.store})"
        )


class Parts(NamedTuple):
    """What an open cache holds on its GPU."""

    writer: RowWriter  # of the cached rows
    gather: GpuGather
    bitmask: torch.Tensor  # a copy of the store's
    place: torch.Tensor | None


def hot_order(
    store: CompressedFeatureStore, hotness: torch.Tensor | None, hot_ids: torch.Tensor | None
) -> torch.Tensor:
    """int64 ids on the CPU, hottest first."""
    if hotness is not None and hot_ids is not None:
        raise ValueError("hotness and hot_ids: want at most one of them, got both")
    if hot_ids is not None:
        ids = as_ids(hot_ids, "hot_ids").to("cpu", torch.int64)
        check_ids_on_cpu(ids, len(store))
        if len(torch.unique(ids)) != len(ids):
            raise ValueError(f"hot_ids: want distinct ids, got {len(ids) - len(torch.unique(ids))} repeats")
        return ids
    if hotness is None:
        slot_of = store.slot_of
        return torch.arange(len(store), device="cpu") if slot_of is None else torch.argsort(slot_of)
    return hottest_first(hotness, len(store))


def fixed_bytes(store: CompressedFeatureStore, is_prefix: bool) -> int:
    """GPU bytes of a cache that do not depend on how many rows it has: table of places, bitmask or directory of the
    store, codec."""
    table = 0 if is_prefix and store.slot_of is None else 4 * len(store)
    return table + store.rows.bitmask.numel() + store.codec.form.device_nbytes


def bytes_of_each(store: CompressedFeatureStore, ids: torch.Tensor) -> torch.Tensor:
    """ids: int64 [n] on the CPU. Returns int64 [n]: the bytes of slot and overflow row of each, or of packed ones."""
    return store.rows.bytes_of_each(store.to_slots(ids).to(torch.int64))


def bytes_of_first(store: CompressedFeatureStore, order: torch.Tensor) -> torch.Tensor:
    """order: int64 [n] on the CPU. Returns int64 [n]: the bytes of `CompressedRows` of its first 1, 2, ..., n rows."""
    rows, count = store.rows, torch.arange(1, len(order) + 1, device="cpu")
    empty = rows.select(order[:0]).nbytes
    per_word = 32 if rows.packing is None else _native.cpu.ROWS_PER_RECORD
    word_bytes = bitmask_bytes(1, rows.packing)
    words = (count + per_word - 1) // per_word * word_bytes
    return empty + torch.cumsum(bytes_of_each(store, order), 0) + words


def rows_that_fit(
    store: CompressedFeatureStore, order: torch.Tensor, limit: int | None, capacity: int | float | str, fixed: int
) -> int:
    """How many rows from the front of `order` take at most `limit` bytes, all that the cache holds counted."""
    if limit is None:
        return len(order)
    cost = fixed + bytes_of_first(store, order)
    fitting = int(torch.searchsorted(cost, limit, right=True))
    if fitting == 0:
        if len(cost) == 0:
            raise ValueError("hot_ids: want at least 1 id, got none")
        raise ValueError(f"capacity: want at least {int(cost[0])} bytes (one row), got {capacity!r} ({limit} bytes)")
    if fitting == len(order):
        warn_of_spare(capacity, limit, int(cost[-1]), len(order), stacklevel=4)
    return fitting


def warn_of_spare(
    capacity: int | float | str, limit: int | None, needed: int, num_rows: int, *, stacklevel: int
) -> None:
    """Called where all rows are cached. Warns if the user gave a number of bytes that is more than they take."""
    if limit is not None and limit > needed and not is_share(capacity) and capacity != "auto":
        warnings.warn(
            f"capacity {capacity!r} ({limit} bytes) is more than the {needed} bytes that caching {num_rows} rows "
            "takes; they are all cached",
            stacklevel=stacklevel,
        )

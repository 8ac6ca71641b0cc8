"""ShardedGPUCache: the hottest rows of a store in the memory of all GPUs of a machine, which each of them reads."""

from __future__ import annotations

import math
import warnings
from typing import Any, Literal, NamedTuple

import torch

from ..codec.compressed_rows import CompressedRows, pack_bits
from ..codec.gather import GpuGather, MappedRows, Remap
from ..codec.values import as_ids
from ..distributed.agreement import require_same_made, require_same_store
from ..gpu.cache import CompressedGPUCache, Parts, bytes_of_each, fixed_bytes, hot_order
from ..gpu.capacity import parse_capacity
from ..store.feature_store import CompressedFeatureStore
from ..store.updates import CacheUpdate, RowWriter, StoreOnGpu
from . import wholegraph
from .wholegraph import SharedTensor

Placement = Literal["auto", "replicate", "shard"]

# Bytes a nanosecond that a gather reads, of rows in its own memory, in a peer's, and in the host's. Measured on H200s
# with NVLink; what counts is how they compare.
_LOCAL, _PEER, _HOST = 1600.0, 360.0, 55.0
_CHOICES = 64  # how many splits "auto" compares
_SLACK_BYTES = 256  # of the buffers, and bitmasks of whole words
_MAX_PLACES = 2**31 - 1  # the table of places is int32


class Tiers(NamedTuple):
    """How many rows were read from where, by all processes together.

    Example:
        >>> cache = ibp_gnn.wholegraph.ShardedGPUCache(store, "100 rows")
        >>> cache.count_tiers()
        >>> x = cache.gather(torch.tensor([3, 500]), device="cuda")
        >>> cache.tiers()
        Tiers(local=1, peer=0, host=1)
    """

    local: int
    """From the GPU's own memory."""
    peer: int
    """From another GPU's."""
    host: int
    """From CPU memory."""


class Split(NamedTuple):
    """How many of the hottest rows each GPU has, and how many of the next ones all GPUs have together.

    Example:
        >>> ibp_gnn.wholegraph.ShardedGPUCache(store, "100 rows", placement="replicate").split
        Split(replicated=100, sharded=0)
    """

    replicated: int
    sharded: int


class ShardedGPUCache(CompressedGPUCache):
    """As CompressedGPUCache, for processes of torchrun with a GPU each: the hottest rows are in every GPU's memory, the
    next ones in one GPU's each. A gather reads own rows, those of peers (over NVLink) and misses, in one kernel. To
    make it is a collective call of all processes, which compare their stores; to close it, of those of a machine. It
    does not follow updates of the store.

    Example:
        >>> cache = ibp_gnn.wholegraph.ShardedGPUCache(store, "100 rows", placement="shard")
        >>> cache.gather(torch.tensor([3, 500]), device="cuda").shape, cache.num_cached
        (torch.Size([2, 16]), 100)
        >>> cache.close()
    """

    def __init__(
        self,
        store: CompressedFeatureStore,
        capacity_per_gpu: int | float | str,
        *,
        placement: Placement = "auto",
        hotness: torch.Tensor | None = None,
        hot_ids: torch.Tensor | None = None,
    ) -> None:
        """Copies this process's part to its current GPU. The store is one of all processes of the machine, shared, or
        the same in each.

        Args:
            store: what is cached.
            capacity_per_gpu: as CompressedGPUCache's, of each GPU; the table of places and the bitmasks, which every
                GPU has, count.
            placement: "replicate": all GPUs cache the same rows; "shard": each row is on one GPU, so that N times as
                many fit; "auto": the split that the hotness and the speeds of memory, NVLink and PCIe make fastest
                (without numbers: shard; where GPUs cannot read each other: replicate, with a warning).
            hotness: as CompressedGPUCache's; for "auto" numbers that rows are read in proportion to.
            hot_ids: as CompressedGPUCache's.

        Raises:
            ImportError: pylibwholegraph is not installed.
            ValueError: not even one row fits, a bad argument, or processes that have different stores or arguments.
            TypeError: a capacity or ids of another type.
            RuntimeError: no GPU, a store that is not page-locked, "shard" for GPUs that cannot read each other, or
                another process failed.
        """
        if placement not in ("auto", "replicate", "shard"):
            raise ValueError(f"placement: want auto, replicate or shard, got {placement!r}")
        wholegraph.require_slots(store)
        wholegraph.library()
        self.store, self.device = store, wholegraph.require_gpu()
        self._capacity, self._is_prefix = capacity_per_gpu, False
        self._placement: Placement = placement
        self._tiers: torch.Tensor | None = None
        require_same_store(store)
        communicator = wholegraph.of_machine()
        self._rank, self._size = communicator.get_rank(), communicator.get_size()
        with store.lock:
            chosen: list[torch.Tensor] = []

            def choose() -> str:
                order, self._split = self._choose(hotness, hot_ids)
                chosen.append(order)
                return f"{tuple(self._split)} {_digest(order)}"

            require_same_made(choose, "capacity_per_gpu, placement and hot rows")
            self._build(*chosen)

    def _choose(self, hotness: torch.Tensor | None, hot_ids: torch.Tensor | None) -> tuple[torch.Tensor, Split]:
        """Returns ids, hottest first, and how many of them to replicate and to shard."""
        store, size = self.store, self._size
        order = hot_order(store, hotness, hot_ids)
        limit, most_rows = parse_capacity(
            self._capacity, num_rows=len(store), store_bytes=store.nbytes, device=self.device
        )
        if limit is None:
            order = order[: most_rows * size]
        scores = None if hotness is None else torch.as_tensor(hotness, device="cpu")[order].double()
        available = None if limit is None else limit - fixed_bytes(store, is_prefix=False)
        each = (
            bytes_of_each(store, order)
            if available is not None
            else torch.ones(len(order), dtype=torch.int64, device="cpu")
        )
        room = most_rows if available is None else available
        placement = self._placement
        if placement == "auto" and not wholegraph.peers_are_readable():
            warnings.warn("these GPUs cannot read each other's memory: each caches the same rows", stacklevel=5)
            placement = "replicate"
        split = Split(0, 0)
        if len(order):
            split = choose_split(each, room, size, placement, scores, row_bits=available is not None)
        if sum(split) == 0:
            longest = int(each.max()) if len(each) else 0
            enough = fixed_bytes(store, is_prefix=False) + _SLACK_BYTES + 2 * longest + 1
            raise ValueError(
                "capacity_per_gpu: want at least one row beside the tables, for which "
                f"{enough} bytes are enough, got {self._capacity!r}"
            )
        return order, split

    def _build(self, order: torch.Tensor) -> None:
        store, (replicated, sharded), size = self.store, self._split, self._size
        per_gpu = -(-sharded // size)
        num_cached = replicated + per_gpu * size
        if num_cached + len(store) > _MAX_PLACES:
            raise ValueError(
                f"capacity_per_gpu: want at most {_MAX_PLACES} rows and cached rows, got {len(store)} and {num_cached}"
            )
        shards, self._held = None, list[SharedTensor]()
        if sharded:
            shards = self._share(order[replicated : replicated + sharded], per_gpu)
        writer = RowWriter(store.rows.select(store.to_slots(order[:replicated]), self.device))
        places = store.slot_of
        if places is None:
            places = torch.arange(len(store), dtype=torch.int32, device="cpu")
        places = torch.where(places < 0, -1, places + num_cached)  # a damaged table stays one
        places[order[:replicated]] = torch.arange(replicated, dtype=torch.int32, device="cpu")
        rank = torch.arange(sharded, device="cpu")
        at = replicated + rank % size * per_gpu + rank // size  # so that each GPU has as hot rows as the others
        places[order[replicated : replicated + sharded]] = at.to(torch.int32)
        place = places.to(self.device)
        mapped = store.mapped_rows(self.device)
        gather = GpuGather(
            store.codec.form,
            self.device,
            mapped,
            lead_bytes=store.lead_bytes,
            cache=writer.rows if replicated else None,
            shared=shards,
            place=place,
            store_offset=num_cached,
        )
        self._per_gpu = per_gpu
        self._parts = Parts(writer, gather, mapped.bitmask, place)
        self._hot = order[: replicated + sharded].clone()
        store.add_cache(self)

    def _share(self, ids: torch.Tensor, per_gpu: int) -> MappedRows:
        """A collective call. ids: int64 [n], hottest first. Every process writes per_gpu rows, the last of them perhaps
        another time."""
        store, rows, size = self.store, self.store.rows, self._size
        numbers = torch.arange(per_gpu * size, device="cpu")
        ranks = (numbers % per_gpu * size + numbers // per_gpu).clamp_(max=len(ids) - 1)
        slots = store.to_slots(ids[ranks])
        overflows = rows.overflows(slots)
        slack = CompressedRows.empty(0, rows.row_bytes, rows.slot_bytes, 0).overflow.numel()
        first = self._rank * per_gpu
        first_overflow = int(overflows[:first].sum())
        mine = rows.select(slots[first : first + per_gpu], first_overflow=first_overflow)
        shared = []
        for count, row_bytes, start, part in (
            (len(slots), rows.slot_bytes, first, mine.slot_matrix()),
            (int(overflows.sum()), rows.row_bytes, first_overflow, mine.overflow_matrix()),
        ):
            held = SharedTensor([count * row_bytes + slack], torch.int8, location="cuda")
            self._held.append(held)
            whole = held.whole.view(torch.uint8)
            whole[start * row_bytes : (start + len(part)) * row_bytes].copy_(part.flatten())
            whole[count * row_bytes :] = 0
            held.barrier()
            shared.append(whole)
        bitmask = pack_bits(rows.is_compressed(slots)).to(self.device)
        compressed = CompressedRows(len(slots), rows.row_bytes, rows.slot_bytes, shared[0], bitmask, shared[1])
        return MappedRows.on_device(compressed)

    def gather(
        self, ids: Any, device: torch.device | str | None = None, *, out: torch.Tensor | None = None
    ) -> torch.Tensor:
        """As CompressedGPUCache.gather.

        Args:
            ids: [n] int32/int64, on CPU or CUDA, repeats and n == 0 allowed.
            device: where the rows are put. None: the ids' device.
            out: where they are written: right shape, dtype, device; contiguous. None: a new tensor.

        Returns:
            [n, *row_shape] on `device`.

        Raises:
            IndexError: names the first bad id; where ids are on a GPU, at the next gather or `check` after the kernel
                ran, rows of bad ids being zeros.
            TypeError: other ids.
            ValueError: an `out` that does not fit, or after `close`.
        """
        rows = super().gather(ids, device=device, out=out)
        if self._tiers is not None and rows.device == self.device:
            self._count(as_ids(ids).to(self.device, torch.int64))
        return rows

    def _count(self, ids: torch.Tensor) -> None:
        place = self._open.place
        assert place is not None and self._tiers is not None
        at = place[ids.clamp(0, len(self.store) - 1)] - self._split.replicated
        is_shard = (at >= 0) & (at < self._per_gpu * self._size)
        is_peer = is_shard & (at // max(1, self._per_gpu) != self._rank)
        is_host = at >= self._per_gpu * self._size
        self._tiers += torch.stack([(~is_peer & ~is_host).sum(), is_peer.sum(), is_host.sum()])

    def count_tiers(self) -> None:
        """From now on gathers to this GPU count where their rows lay, for `tiers`: some small kernels more for each."""
        self._tiers = torch.zeros(3, dtype=torch.int64, device=self.device)

    def tiers(self) -> Tiers:
        """A collective call of all processes. Waits for the GPU.

        Returns:
            What was read since `count_tiers`, by all processes.

        Raises:
            ValueError: `count_tiers` was not called.
        """
        if self._tiers is None:
            raise ValueError("tiers: want count_tiers() called before the gathers, got none")
        counts = self._tiers.clone()
        if torch.distributed.is_initialized():
            torch.distributed.all_reduce(counts)
        return Tiers(*counts.tolist())

    def prepare_update(self, *_: Any, **__: Any) -> CacheUpdate:
        """For the store: refuses, before anything has changed."""
        raise RuntimeError(
            "a ShardedGPUCache does not follow updates of its store; close it in all processes, update, and make "
            "another"
        )

    def prepare_move(self, store: StoreOnGpu) -> Remap:
        """For the store, as CompressedGPUCache's."""
        parts = self._open
        mapped = store.pinned.mapped(parts.bitmask)
        cache = parts.writer.rows if self._split.replicated else None
        return parts.gather.remap(mapped, lead_bytes=store.lead_bytes, cache=cache)

    def release(self) -> None:
        """For `close`, and for the store's."""
        super().release()
        held, self._held = self._held, []
        for one in held:
            one.barrier()  # others may still be reading what lies here
            one.close()

    def rebuilt(self, store: CompressedFeatureStore) -> CompressedGPUCache:
        """A collective call. A cache of another store, of the same capacity and placement.

        Args:
            store: the other one.

        Returns:
            The cache, of the same ids if the store has as many rows as this one's, else in the store's order.

        Raises:
            ValueError: as the constructor.
            RuntimeError: as the constructor.
        """
        hot_ids = self._cached_ids() if len(store) == len(self.store) else None
        return ShardedGPUCache(store, self._capacity, placement=self._placement, hot_ids=hot_ids)

    def _cached_ids(self) -> torch.Tensor | None:
        return self._hot

    @property
    def split(self) -> Split:
        """How many rows each GPU has, and how many they have together."""
        return self._split

    @property
    def num_cached(self) -> int:
        """Different rows in the GPUs' memory."""
        return sum(self._split)

    @property
    def nbytes(self) -> int:
        """Bytes of this GPU's memory: its rows and its part of the shared ones, and the tables."""
        shards = self._open.gather.shared_rows
        shared = 0
        if shards is not None:
            bitmask = shards.bitmask.numel()
            shared = -(-(shards.nbytes - bitmask) // self._size) + bitmask
        return self._cache.nbytes + shared + self._fixed_bytes()

    def __repr__(self) -> str:
        if self._parts is None:
            return "ShardedGPUCache(closed)"
        return (
            f"ShardedGPUCache({self._split.replicated} rows on each of {self._size} GPUs and {self._split.sharded} on "
            f"all together, {self.nbytes} bytes on {self.device}, store={self.store})"
        )


def choose_split(
    each: torch.Tensor,
    room: int,
    size: int,
    placement: Placement,
    scores: torch.Tensor | None = None,
    *,
    row_bits: bool = True,
) -> Split:
    """How many rows to replicate and to shard.

    Args:
        each: int64 [n] on the CPU: the bytes that each row takes, hottest first.
        room: bytes of each GPU.
        size: how many GPUs.
        placement: as ShardedGPUCache's, GPUs being able to read each other.
        scores: float64 [n]: rows are read in proportion to them; None: not known.
        row_bits: whether a row's bit in the bitmask, which every GPU has of all shared rows, counts.

    Returns:
        The split.
    """
    until = torch.cat([torch.zeros(1, dtype=torch.int64, device="cpu"), torch.cumsum(each, 0)])
    slack = _SLACK_BYTES if row_bits else 0

    def fitting(replicated: int) -> int:
        """How many of the next rows fit beside so many replicated ones."""
        left = room - slack - int(until[replicated]) - (-(-replicated // 8) if row_bits else 0)
        if left <= 0:
            return 0
        numbers = torch.arange(len(until) - replicated, device="cpu")
        needed = -(-(until[replicated:] - until[replicated]) // size)
        if row_bits:
            needed = needed + (numbers + 7) // 8 + int(each.max())  # what is not shared out evenly
        return max(0, int(torch.searchsorted(needed, left, right=True)) - 1)

    bits = (
        (torch.arange(len(until), device="cpu") + 7) // 8
        if row_bits
        else torch.zeros(len(until), dtype=torch.int64, device="cpu")
    )
    most = max(0, int(torch.searchsorted(until + bits + slack, room, right=True)) - 1)
    if placement == "replicate" or (size == 1 and placement == "auto"):
        return Split(most, 0)
    if placement == "shard" or scores is None:
        return Split(0, fitting(0))
    read = torch.cat([torch.zeros(1, dtype=torch.float64, device="cpu"), torch.cumsum(scores, 0)])
    best, least = Split(0, fitting(0)), math.inf
    for choice in range(_CHOICES + 1):
        split = Split(most * choice // _CHOICES, fitting(most * choice // _CHOICES))
        hot, cached = float(read[split.replicated]), float(read[sum(split)])
        shard_cost = 1 / size / _LOCAL + (size - 1) / size / _PEER
        cost = hot / _LOCAL + (cached - hot) * shard_cost + (float(read[-1]) - cached) / _HOST
        if cost < least:
            best, least = split, cost
    return best


def _digest(ids: torch.Tensor) -> int:
    """Differs for other ids, or for the same in another order."""
    weights = torch.arange(1, len(ids) + 1, device="cpu") * 0x9E3779B1
    return int((ids * weights).sum())

"""One limit of GPU memory for the caches of several features: those of node types, or of edge types.

A cached row saves what it would take to read it from CPU memory, as often as it is read, and costs about the same
bytes of GPU memory. So rows are worth their memory in the order of how often they are read, whatever feature they are
of: the hottest of all are cached. A feature's table of places, bitmask and codec take memory, too, from its first
cached row on; where that is not worth it, the feature has no cache.
"""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Collection, Iterator, Mapping
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch

from ..codec.values import resolve_device
from ..store.feature_store import CompressedFeatureStore
from ..store.order import hottest_first
from .cache import CompressedGPUCache, bytes_of_each, bytes_of_first, fixed_bytes, warn_of_spare
from .capacity import parse_capacity

Key = TypeVar("Key")

_MOST_TO_TRY_ALL_SETS = 8  # features; of more, the set is improved by one feature at a time


def share_budget(
    stores: Mapping[Key, CompressedFeatureStore],
    capacity: int | float | str,
    *,
    hotness: Mapping[Key, torch.Tensor | np.ndarray] | None = None,
    device: torch.device | str = "cuda",
) -> dict[Key, CompressedGPUCache | CompressedFeatureStore]:
    """Caches of several features under one limit of GPU memory: the rows that are read most, whatever feature they are
    of.

    Args:
        stores: the features, by any key.
        capacity: GPU memory of all caches together, as for CompressedGPUCache: everything that they hold is counted. A
            float is a share of the bytes of all stores; "100000 rows" are the hottest of all stores. More than the
            stores need: a warning, and all rows are cached.
        hotness: for each key [num_rows] numbers >= 0, how often each row is expected to be read, in the same unit for
            all of them. Ties: lower id first, first key first. None: in the stores' order, from each the same share of
            its rows. A store built with the `order` of its hotness needs the least memory to cache.
        device: the GPU.

    Returns:
        A RowSource for each key, in the order of `stores`: a cache of its store's hottest rows, or the store itself if
        none of them is to be cached.

    Raises:
        ValueError: not even one row fits, or a bad argument.
        RuntimeError: a store to be cached is not page-locked.

    Example:
        >>> stores = {"paper": store, "author": ibp_gnn.CompressedFeatureStore.build(features, progress=False)}
        >>> sources = ibp_gnn.share_budget(stores, "200 rows")
        >>> [source.num_cached for source in sources.values()]
        [100, 100]
    """
    target = resolve_device(device, torch.device("cuda"))
    if target.type != "cuda":
        raise ValueError(f"device: want cuda, got {target}; on the CPU the stores themselves are the sources")
    num_rows, nbytes = sum(len(store) for store in stores.values()), sum(store.nbytes for store in stores.values())
    limit, most_rows = parse_capacity(capacity, num_rows=num_rows, store_bytes=nbytes, device=target)
    plans = plan_caches(stores, limit, most_rows, hotness=hotness)
    if num_rows and sum(len(plan.ids) for plan in plans.values()) == num_rows:
        warn_of_spare(capacity, limit, sum(plan.nbytes for plan in plans.values()), num_rows, stacklevel=3)
    sources: dict[Key, CompressedGPUCache | CompressedFeatureStore] = {}
    for key, plan in plans.items():
        sources[key] = stores[key]
        if len(plan.ids):
            hot_ids = None if plan.is_prefix else plan.ids
            sources[key] = CompressedGPUCache(stores[key], plan.nbytes, hot_ids=hot_ids, device=target)
    return sources


class CachePlan(NamedTuple):
    """What the cache of one feature will hold."""

    ids: torch.Tensor
    """int64 [n] on the CPU, hottest first; n may be 0."""
    is_prefix: bool
    """Whether they are the first ones in the store's order, which takes less memory and time."""
    nbytes: int
    """Of GPU memory, everything counted; 0 if there are no ids."""


def plan_caches(
    stores: Mapping[Key, CompressedFeatureStore],
    limit: int | None,
    most_rows: int,
    *,
    hotness: Mapping[Key, Any] | None = None,
) -> dict[Key, CachePlan]:
    """What `share_budget` caches; needs no GPU. limit: bytes, None for no limit. Raises ValueError.

    Of every set of features, the hottest rows are taken as long as they fit. The set is chosen with which most is
    saved: the sum of hotness times bytes of the cached rows.
    """
    features = _rank(stores, hotness)
    if limit is None:
        best = _Choice(features, most_rows)
    else:
        smallest = min((feature.nbytes(1) for feature in features if len(feature.ids)), default=0)
        if limit < smallest:
            raise ValueError(f"capacity: want at least {smallest} bytes (one row), got {limit} bytes")
        best = _best_choice(features, limit, most_rows)
    counts = best.counts()
    plans = {}
    for feature in features:
        count = counts.get(feature.key, 0)
        plans[feature.key] = CachePlan(feature.ids[:count], feature.is_prefix, feature.nbytes(count))
    return plans


class _Feature(NamedTuple):
    """The rows of one store, hottest first."""

    key: Any
    ids: torch.Tensor  # int64 [n]
    ranks: torch.Tensor  # int64 [n]: how many rows of all stores are before each
    is_prefix: bool
    fixed: int
    bytes_of_first: torch.Tensor  # int64 [n]
    saved_by_first: torch.Tensor  # float64 [n]

    def nbytes(self, count: int) -> int:
        """Of a cache of so many rows."""
        return self.fixed + int(self.bytes_of_first[count - 1]) if count else 0

    def saved(self, count: int) -> float:
        return float(self.saved_by_first[count - 1]) if count else 0.0


class _Choice(NamedTuple):
    """Of these features the rows among the `num_ranks` hottest of all."""

    features: Collection[_Feature]
    num_ranks: int

    def counts(self) -> dict[Any, int]:
        return {one.key: int(torch.searchsorted(one.ranks, self.num_ranks)) for one in self.features}

    def nbytes(self) -> int:
        counts = self.counts()
        return sum(feature.nbytes(counts[feature.key]) for feature in self.features)

    def worth(self) -> tuple[float, int]:
        """What is saved; then how many rows, since those that are never read may be read after all."""
        counts = self.counts()
        return sum(feature.saved(counts[feature.key]) for feature in self.features), sum(counts.values())


def _best_choice(features: list[_Feature], limit: int, most_rows: int) -> _Choice:
    def largest(of: Collection[_Feature]) -> _Choice:
        ranks = range(most_rows + 1)
        fitting = bisect.bisect_right(ranks, limit, key=lambda num_ranks: _Choice(of, num_ranks).nbytes())
        return _Choice(of, fitting - 1)

    if len(features) <= _MOST_TO_TRY_ALL_SETS:
        return max(map(largest, _sets(features)), key=_Choice.worth)
    best = max((largest([feature]) for feature in features), key=_Choice.worth)
    while True:
        changed = max((largest(of) for of in _sets_near(best.features, features)), key=_Choice.worth)
        if changed.worth() <= best.worth():
            return best
        best = changed


def _sets(features: list[_Feature]) -> Iterator[Collection[_Feature]]:
    """All but the empty one, the largest first."""
    for size in range(len(features), 0, -1):
        yield from itertools.combinations(features, size)


def _sets_near(chosen: Collection[_Feature], features: list[_Feature]) -> Iterator[Collection[_Feature]]:
    """Those with one feature more, or one less."""
    keys = {feature.key for feature in chosen}
    for changed in features:
        yield [feature for feature in features if (feature.key in keys) != (feature is changed)]


def _rank(stores: Mapping[Key, CompressedFeatureStore], hotness: Mapping[Key, Any] | None) -> list[_Feature]:
    if not stores:
        raise ValueError("stores: want at least 1, got none")
    if hotness is not None and set(hotness) != set(stores):
        raise ValueError(f"hotness: want the keys of stores, {list(stores)}, got {list(hotness)}")
    scores = {
        key: _scores_of_order(store) if hotness is None else _checked(key, hotness[key], len(store))
        for key, store in stores.items()
    }
    order = hottest_first(torch.cat(list(scores.values())), sum(len(part) for part in scores.values()))
    features, first = [], 0
    for key, store in stores.items():
        end = first + len(store)
        ranks = torch.nonzero((order >= first) & (order < end)).flatten()
        ids = order[ranks] - first
        with store.lock:
            is_prefix = torch.equal(store.to_slots(ids), torch.arange(len(store), device="cpu"))
            saved = torch.cumsum(scores[key][ids] * bytes_of_each(store, ids), 0)
            fixed, nbytes = fixed_bytes(store, is_prefix), bytes_of_first(store, ids)
        features.append(_Feature(key, ids, ranks, is_prefix, fixed, nbytes, saved))
        first = end
    return features


def _checked(key: Any, scores: Any, num_rows: int) -> torch.Tensor:
    """float64 [num_rows] on the CPU."""
    scores = torch.as_tensor(scores, dtype=torch.float64, device="cpu").detach()
    if tuple(scores.shape) != (num_rows,):
        raise ValueError(f"hotness of {key!r}: want shape [{num_rows}], got {list(scores.shape)}")
    bad = torch.nonzero(~(torch.isfinite(scores) & (scores >= 0)))
    if len(bad):
        raise ValueError(f"hotness of {key!r}: want finite numbers >= 0, got {float(scores[int(bad[0])])}")
    return scores


def _scores_of_order(store: CompressedFeatureStore) -> torch.Tensor:
    """float64 [num_rows]: 1 for the first row in the store's order, towards 0 for the last one."""
    slots = store.to_slots(torch.arange(len(store), device="cpu")).to(torch.float64)
    return 1 - slots / len(store)

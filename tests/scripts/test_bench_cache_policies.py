"""scripts/bench/cache_policies.py against policies written row by row, as they are defined, in plain Python."""

from __future__ import annotations

from collections import OrderedDict
from types import ModuleType
from typing import Any

import numpy as np
import pytest


@pytest.fixture(scope="module")
def sim(part: Any) -> ModuleType:
    return part("bench.cache_policies")


def trace(seed: int, nodes: int, batches: int = 60, skew: float = 1.2) -> list[np.ndarray]:
    """Distinct ids a batch, of which some are much more frequent than others."""
    generator = np.random.default_rng(seed)
    weights = 1 / np.arange(1, nodes + 1) ** skew
    weights /= weights.sum()
    sizes = generator.integers(0, nodes // 2 + 1, batches)
    return [generator.choice(nodes, size, replace=False, p=weights) for size in sizes]


def slow_lru(batches: list[np.ndarray], slots: int) -> list[int]:
    rows: OrderedDict[int, None] = OrderedDict()  # least recent first
    hits = []
    for batch in batches:
        hit = [row in rows for row in batch.tolist()]
        hits.append(sum(hit))
        misses = [row for row, is_hit in zip(batch.tolist(), hit, strict=True) if not is_hit][:slots]
        for row in batch.tolist():
            if row in rows:
                rows.move_to_end(row)
        while len(rows) + len(misses) > slots:
            rows.popitem(last=False)
        # The recency of a miss is its place in the batch, among the hits.
        stay = [row for row in rows if row not in set(batch.tolist())]
        used = [row for row in batch.tolist() if row in rows or row in set(misses)]
        rows = OrderedDict.fromkeys(stay + used)
    return hits


def slow_lfu(batches: list[np.ndarray], slots: int) -> list[int]:
    counts: dict[int, int] = {}
    rows: list[int] = []
    hits = []
    for batch in batches:
        hits.append(sum(row in rows for row in batch.tolist()))
        for row in batch.tolist():
            counts[row] = counts.get(row, 0) + 1
        rows = rows + [row for row in batch.tolist() if row not in rows]
        if len(rows) > slots:
            rows = sorted(rows, key=lambda row: -counts[row])[:slots]
    return hits


def slow_clock(batches: list[np.ndarray], slots: int) -> list[int]:
    ring: list[int] = []
    marks: list[bool] = []
    hand, hits = 0, []
    for batch in batches:
        hit = [row in ring for row in batch.tolist()]
        hits.append(sum(hit))
        for row, is_hit in zip(batch.tolist(), hit, strict=True):
            if is_hit:
                marks[ring.index(row)] = True
        for row in [row for row, is_hit in zip(batch.tolist(), hit, strict=True) if not is_hit][:slots]:
            if len(ring) < slots:
                ring.append(row)
                marks.append(False)
                continue
            while marks[hand]:
                marks[hand] = False
                hand = (hand + 1) % slots
            ring[hand] = row
            hand = (hand + 1) % slots
    return hits


def slow_sieve(batches: list[np.ndarray], slots: int) -> list[int]:
    queue: list[int] = []
    marks: dict[int, bool] = {}
    hand, hits = 0, []
    for batch in batches:
        hit = [row in marks for row in batch.tolist()]
        hits.append(sum(hit))
        for row, is_hit in zip(batch.tolist(), hit, strict=True):
            if is_hit:
                marks[row] = True
        misses = [row for row, is_hit in zip(batch.tolist(), hit, strict=True) if not is_hit][:slots]
        while len(queue) + len(misses) > slots:
            if hand == len(queue):
                hand = 0
            if marks[queue[hand]]:
                marks[queue[hand]] = False
                hand += 1
            else:
                del marks[queue.pop(hand)]
        if hand == len(queue):
            hand = 0
        queue += misses
        marks.update(dict.fromkeys(misses, False))
    return hits


SLOW = {"lru": slow_lru, "lfu": slow_lfu, "clock": slow_clock, "sieve": slow_sieve}


@pytest.mark.parametrize("policy", sorted(SLOW))
@pytest.mark.parametrize("slots", [1, 2, 7, 20, 39, 40])
@pytest.mark.parametrize("seed", range(6))
def test_hits_batch_by_batch(sim: ModuleType, policy: str, slots: int, seed: int) -> None:
    batches = trace(seed, nodes=40, skew=0.2 * seed)
    cache = sim.POLICIES[policy](40, slots)
    assert [cache.access(batch) for batch in batches] == SLOW[policy](batches, slots)


@pytest.mark.parametrize("policy", sorted(SLOW))
def test_counters_add_up(sim: ModuleType, policy: str) -> None:
    batches = trace(1, nodes=300)
    accesses = sum(len(batch) for batch in batches)
    hits = [sim.count_hits(sim.POLICIES[policy](300, slots), batches) for slots in (10, 30, 100, 300)]
    assert hits == sorted(hits) and hits[-1] < accesses
    assert hits[-1] == accesses - len(np.unique(np.concatenate(batches))), "all fit: each row misses once"


def test_no_slots(sim: ModuleType) -> None:
    with pytest.raises(ValueError, match="num_slots: want at least 1, got 0"):
        sim.Lru(10, 0)

"""What dynamic cache policies would hit, for bench_cache_hit.py: exact simulations, a mini-batch at a time.

A GPU cache sees whole batches: a gather looks all its ids up in the cache as the batches before have left it, and only
then are rows admitted and evicted. So does every policy here, whatever its order of admission: the ids of a batch are
distinct, its hits are noted, then its misses go in, in the order of the batch. Of a batch with more misses than the
cache has slots, the first go in, as many as there are slots.

Free slots are filled before anything is evicted. Costs O(slots + ids of the batch) a batch, in NumPy.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

import numpy as np

_ABSENT = -1


class DynamicCache(Protocol):
    """A cache of `num_slots` rows, empty at first."""

    num_slots: int

    def access(self, ids: np.ndarray) -> int:
        """ids: distinct int32/int64 [n], one batch. Returns the number of hits, and updates the cache."""


class Lru:
    """Evicts the row whose last access is longest ago; ties (rows of one batch) by their place in that batch."""

    def __init__(self, num_nodes: int, num_slots: int) -> None:
        self.num_slots = _check_slots(num_slots)
        self._last_access = np.zeros(num_nodes, np.int64)
        self._cached = np.zeros(num_nodes, bool)
        self._ids = np.empty(0, np.int64)  # what is cached, in no order
        self._clock = 1

    def access(self, ids: np.ndarray) -> int:
        hit = self._cached[ids]
        misses = ids[~hit][: self.num_slots]
        self._last_access[ids] = np.arange(self._clock, self._clock + len(ids))
        self._clock += len(ids)
        surplus = len(self._ids) + len(misses) - self.num_slots
        if surplus > 0:
            # Rows of this batch stay, if there are others: hits are in use, and misses have just been paid for.
            order = np.argpartition(self._last_access[self._ids], surplus - 1)
            self._cached[self._ids[order[:surplus]]] = False
            self._ids = self._ids[order[surplus:]]
        self._ids = np.concatenate([self._ids, misses])
        self._cached[misses] = True
        return int(hit.sum())


class Lfu:
    """Keeps the rows accessed most often since the start; a miss gets in only if it has been accessed more often than
    what it evicts. Counts of rows that are not cached are kept as well: this is counting as `presample` does, that
    never ends."""

    def __init__(self, num_nodes: int, num_slots: int) -> None:
        self.num_slots = _check_slots(num_slots)
        self._counts = np.zeros(num_nodes, np.int32)
        self._cached = np.zeros(num_nodes, bool)
        self._ids = np.empty(0, np.int64)

    def access(self, ids: np.ndarray) -> int:
        hit = self._cached[ids]
        self._counts[ids] += 1
        candidates = np.concatenate([self._ids, ids[~hit]])
        if len(candidates) > self.num_slots:
            # What is cached comes first, and so wins ties.
            order = np.argsort(-self._counts[candidates], kind="stable")
            self._cached[self._ids] = False
            candidates = candidates[order[: self.num_slots]]
        self._ids = candidates
        self._cached[candidates] = True
        return int(hit.sum())


class Clock:
    """Slots in a ring and a hand: the hand clears the mark of a row that was hit since it last came by, and evicts a
    row without a mark. New rows have none."""

    def __init__(self, num_nodes: int, num_slots: int) -> None:
        self.num_slots = _check_slots(num_slots)
        self._slot_of = np.full(num_nodes, _ABSENT, np.int32)
        self._ring = np.full(num_slots, _ABSENT, np.int64)
        self._marked = np.zeros(num_slots, bool)
        self._hand = self._used = 0

    def access(self, ids: np.ndarray) -> int:
        slots = self._slot_of[ids]
        hit = slots != _ABSENT
        self._marked[slots[hit]] = True
        misses = ids[~hit][: self.num_slots]
        free = min(len(misses), self.num_slots - self._used)
        self._place(np.arange(self._used, self._used + free), misses[:free])
        self._used += free
        misses = misses[free:]
        while len(misses):  # twice around at most: the first time clears all marks
            ring = np.roll(np.arange(self.num_slots), -self._hand)
            victims = ring[~self._marked[ring]][: len(misses)]
            all_placed = len(victims) == len(misses)
            # The hand stops behind the last victim, or goes round once.
            passed = int((victims[-1] - self._hand) % self.num_slots) + 1 if all_placed else self.num_slots
            self._marked[ring[:passed]] = False
            self._place(victims, misses[: len(victims)])
            self._hand = (self._hand + passed) % self.num_slots
            misses = misses[len(victims) :]
        return int(hit.sum())

    def _place(self, slots: np.ndarray, ids: np.ndarray) -> None:
        evicted = self._ring[slots]
        self._slot_of[evicted[evicted != _ABSENT]] = _ABSENT
        self._ring[slots] = ids
        self._slot_of[ids] = slots


class Sieve:
    """Rows in a queue, oldest first, and a hand (Zhang et al., "SIEVE is simpler than LRU", NSDI 2024): as Clock, but a
    new row goes to the end of the queue, not to where the hand is. Rows of the batch under way join when all its
    victims are found, so that the hand starts again at the oldest row and never meets them."""

    def __init__(self, num_nodes: int, num_slots: int) -> None:
        self.num_slots = _check_slots(num_slots)
        self._cached = np.zeros(num_nodes, bool)
        self._marked = np.zeros(num_nodes, bool)
        self._queue = np.empty(0, np.int64)
        self._hand = 0

    def access(self, ids: np.ndarray) -> int:
        hit = self._cached[ids]
        self._marked[ids[hit]] = True
        misses = ids[~hit][: self.num_slots]
        surplus = len(self._queue) + len(misses) - self.num_slots
        while surplus > 0:  # twice around at most
            ahead = self._queue[self._hand :]
            victims = np.flatnonzero(~self._marked[ahead])[:surplus]
            passed = int(victims[-1]) + 1 if len(victims) == surplus else len(ahead)
            self._marked[ahead[:passed]] = False
            self._cached[ahead[victims]] = False
            self._queue = np.delete(self._queue, self._hand + victims)
            self._hand += passed - len(victims)
            if self._hand >= len(self._queue):
                self._hand = 0
            surplus -= len(victims)
        self._queue = np.concatenate([self._queue, misses])
        self._cached[misses] = True
        return int(hit.sum())


POLICIES: dict[str, type] = {"lru": Lru, "clock": Clock, "sieve": Sieve, "lfu": Lfu}


def count_hits(cache: DynamicCache, batches: Iterable[np.ndarray]) -> int:
    """The hits of one batch after the other."""
    return sum(cache.access(batch) for batch in batches)


def _check_slots(num_slots: int) -> int:
    if num_slots < 1:
        raise ValueError(f"num_slots: want at least 1, got {num_slots}")
    return num_slots

"""Which rows an epoch of neighbour sampling reads. Needs no graph library; draws as DGL's NeighborSampler does."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import torch


class EpochSampler:
    """Neighbour sampling on a graph, uniform and without replacement: a node's in-edges lead to what it reads."""

    def __init__(self, src: torch.Tensor, dst: torch.Tensor, num_nodes: int) -> None:
        """src, dst: int64 [num_edges], sources and destinations."""
        by_dst = torch.argsort(dst, stable=True)
        self._sources = src[by_dst].numpy()
        self._first = np.zeros(num_nodes + 1, np.int64)
        np.cumsum(np.bincount(dst.numpy(), minlength=num_nodes), out=self._first[1:])
        self.num_nodes = num_nodes

    def batches(
        self,
        seeds: torch.Tensor,
        fanouts: Sequence[int],
        *,
        batch_size: int,
        rng: np.random.Generator,
        most: int | None = None,
    ) -> Iterator[torch.Tensor]:
        """One epoch in random order. seeds: int64 [n] nodes to train on. fanouts: neighbours of a node, input layer
        first; -1: all. most: batches, None: all of them. Yields the distinct nodes that each batch reads, int64 [m]."""
        order = seeds.numpy()[rng.permutation(len(seeds))]
        last = len(order) if most is None else min(len(order), most * batch_size)
        for start in range(0, last, batch_size):
            nodes = np.unique(order[start : start + batch_size])
            for fanout in reversed(fanouts):
                nodes = np.union1d(nodes, self._neighbours(nodes, fanout, rng))
            yield torch.from_numpy(nodes)

    def _neighbours(self, nodes: np.ndarray, fanout: int, rng: np.random.Generator) -> np.ndarray:
        """int64 [m], with repeats: up to `fanout` of each node."""
        first, degree = self._first[nodes], self._first[nodes + 1] - self._first[nodes]
        few = degree <= fanout if fanout >= 0 else np.ones(len(nodes), bool)
        every = degree[few]
        ends = np.cumsum(every)
        within = np.arange(ends[-1] if len(ends) else 0) - np.repeat(ends - every, every)
        taken = [self._sources[np.repeat(first[few], every) + within]]
        if not few.all():
            taken.append(self._sources[first[~few, None] + _draw(degree[~few], fanout, rng)].ravel())
        return np.concatenate(taken)


def _draw(size: np.ndarray, count: int, rng: np.random.Generator) -> np.ndarray:
    """size: int64 [n], each more than `count`. Returns int64 [n, count]: distinct numbers below each size, all subsets
    being equally likely (Floyd's algorithm)."""
    drawn = np.empty((len(size), count), np.int64)
    for at in range(count):
        highest = size - count + at
        number = (rng.random(len(size)) * (highest + 1)).astype(np.int64)
        repeated = (drawn[:, :at] == number[:, None]).any(axis=1)
        drawn[:, at] = np.where(repeated, highest, number)
    return drawn

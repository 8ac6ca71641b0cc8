"""Hotness: how often each row is expected to be read, which decides what a static cache holds.

Every policy returns scores [num_nodes], higher = hotter, for `CompressedGPUCache(hotness=...)`, or for
`row_order.hottest_first` and `CompressedFeatureStore.build(order=...)`. The sampling direction: a sampler that
expands node v draws among the edges u -> v and then reads u. No graph library is needed here;
`integrations/dgl_hotness.py` takes a DGLGraph.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Literal

import numpy as np
import torch

from ..codec.values import as_ids

Policy = Literal["degree", "presample", "reverse_pagerank"]
_EDGES_PER_PART = 1 << 24  # bounds the temporaries of one iteration to a few hundred MB, whatever the graph


def degree(src: torch.Tensor | np.ndarray, num_nodes: int) -> torch.Tensor:
    """Through how many edges a sampler can reach each node.

    Args:
        src: [num_edges] int32/int64, the source of every edge (in CSC form: `indices`).
        num_nodes: of the graph.

    Returns:
        int64 [num_nodes] on the CPU.

    Raises:
        IndexError: an id that is no node.

    Example:
        >>> from ibp_gnn import hotness
        >>> hotness.degree(torch.tensor([0, 2, 2]), 3)
        tensor([1, 0, 2])
    """
    src = _node_ids(src, "src", num_nodes)
    return _count(src, num_nodes)


def presample(batches: Iterable[Any], num_nodes: int, *, epochs: int = 1) -> torch.Tensor:
    """How often each node was read in some epochs of a loader.

    Args:
        batches: the input nodes ([n] int32/int64) of each mini-batch, or tuples that start with them, which is what
            DGL's DataLoader yields. They are gone through `epochs` times, so that a loader samples anew each time.
        num_nodes: of the graph.
        epochs: how many.

    Returns:
        int64 [num_nodes] on the CPU.

    Raises:
        IndexError: an id that is no node.
        ValueError: no batches, or epochs > 1 and `batches` is an iterator, which ends after one.

    Example:
        >>> from ibp_gnn import hotness
        >>> hotness.presample([torch.tensor([0, 1]), torch.tensor([1])], 3, epochs=2)
        tensor([2, 4, 0])
    """
    if epochs < 1:
        raise ValueError(f"epochs: want at least 1, got {epochs}")
    if epochs > 1 and isinstance(batches, Iterator):
        raise ValueError(f"batches: want a list or a loader, to go through {epochs} times, got an iterator")
    counts = torch.zeros(num_nodes, dtype=torch.int64, device="cpu")
    num_batches = 0
    for _ in range(epochs):
        for batch in batches:
            ids = _node_ids(batch[0] if isinstance(batch, (tuple, list)) else batch, "batches", num_nodes)
            counts += _count(ids, num_nodes)
            num_batches += 1
    if num_batches == 0:
        raise ValueError("batches: want at least 1, got none")
    return counts


def reverse_pagerank(
    src: torch.Tensor | np.ndarray,
    dst: torch.Tensor | np.ndarray,
    num_nodes: int,
    train_ids: torch.Tensor | np.ndarray | None = None,
    *,
    damping: float = 0.85,
    iterations: int = 10,
) -> torch.Tensor:
    """Weighted reverse PageRank (Min et al., "Graph Neural Network Training with Data Tiering", KDD 2022): where walks
    are that start at training nodes and, at every step, go to a random in-neighbour, as sampling does, or start again.
    Memory beyond the edges is bounded.

    Args:
        src: [num_edges] int32/int64, the source of every edge (from CSC form: `indices`).
        dst: [num_edges] int32/int64, its destination (`torch.repeat_interleave(indptr.diff())`).
        num_nodes: of the graph.
        train_ids: [k] ids where walks start, None: anywhere.
        damping: the probability to go on.
        iterations: how many.

    Returns:
        float64 [num_nodes] on the CPU.

    Raises:
        IndexError: an id that is no node.
        ValueError: arguments out of range.

    Example:
        >>> from ibp_gnn import hotness
        >>> scores = hotness.reverse_pagerank(torch.tensor([0, 1]), torch.tensor([1, 2]), 3, torch.tensor([2]))
        >>> scores.argmax()
        tensor(2)
    """
    src, dst = _node_ids(src, "src", num_nodes), _node_ids(dst, "dst", num_nodes)
    if len(src) != len(dst):
        raise ValueError(f"dst: want [{len(src)}] as src, got [{len(dst)}]")
    if not 0 <= damping < 1:
        raise ValueError(f"damping: want 0 <= damping < 1, got {damping}")
    if iterations < 1:
        raise ValueError(f"iterations: want at least 1, got {iterations}")
    start = torch.ones(num_nodes, dtype=torch.float64, device="cpu")
    if train_ids is not None:
        start = _count(_node_ids(train_ids, "train_ids", num_nodes), num_nodes).clamp(max=1).to(torch.float64)
        if not bool(start.any()):
            raise ValueError("train_ids: want at least 1 id, got none")
    start /= start.sum()
    in_degree = _count(dst, num_nodes).clamp(min=1)
    scores = start
    for _ in range(iterations):
        outgoing = scores / in_degree
        reached = torch.zeros_like(scores)
        for part_src, part_dst in zip(src.split(_EDGES_PER_PART), dst.split(_EDGES_PER_PART), strict=True):
            reached.index_add_(0, part_src, outgoing[part_dst])
        scores = (1 - damping) * start + damping * reached
    return scores


def _count(ids: torch.Tensor, num_nodes: int) -> torch.Tensor:
    """ids: [n] in range. Returns int64 [num_nodes]: how often each id occurs."""
    return torch.bincount(ids, minlength=num_nodes)


def _node_ids(ids: Any, name: str, num_nodes: int) -> torch.Tensor:
    """The ids on the CPU, all of them nodes."""
    ids = as_ids(ids, name).cpu()
    if len(ids) and (int(ids.min()) < 0 or int(ids.max()) >= num_nodes):
        position = int(torch.nonzero((ids < 0) | (ids >= num_nodes))[0])
        raise IndexError(f"{name}: want 0 <= id < {num_nodes}, got {int(ids[position])} at position {position}")
    return ids

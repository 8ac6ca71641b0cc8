"""Static policies: how hot they take rows to be, and what a cache of the hottest then hits."""

from __future__ import annotations

import torch

from ibp_gnn.gpu import hotness

from .traces import Structure, Trace


def hotness_of(policy: str, graph: Structure, trace: Trace) -> torch.Tensor:
    """[num_nodes]: scores of "degree", "reverse_pagerank", "presample_<epochs>" or "hindsight"."""
    if policy == "degree":
        return hotness.degree(graph.src, graph.num_nodes)
    if policy == "reverse_pagerank":
        return hotness.reverse_pagerank(graph.src, graph.dst, graph.num_nodes, graph.train_ids)
    if policy == "hindsight":
        batches = trace.measured_batches()
    else:
        batches = trace.warm_batches(int(policy.removeprefix("presample_")))
    return hotness.presample([torch.from_numpy(batch) for batch in batches], graph.num_nodes)


def hits_of_first(order: torch.Tensor, accesses: torch.Tensor) -> torch.Tensor:
    """order: int64 [n], accesses: int64 [n]. Returns int64 [n + 1]: the hits if the first k rows of the order are
    cached, for every k."""
    return torch.cat([torch.zeros(1, dtype=torch.int64), torch.cumsum(accesses[order], 0)])

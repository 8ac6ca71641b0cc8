"""Hotness of the nodes of a DGLGraph, also of a heterograph; see ibp_gnn/gpu/hotness.py for the policies.

`presample` needs no graph: give `ibp_gnn.hotness.presample` the DataLoader itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import torch

from ..gpu import hotness


def graph_hotness(
    graph: Any,
    policy: Literal["degree", "reverse_pagerank"],
    train_ids: torch.Tensor | Mapping[str, torch.Tensor] | None = None,
) -> torch.Tensor | dict[str, torch.Tensor]:
    """graph: a DGLGraph on the CPU. train_ids: for reverse_pagerank, [k] int32/int64, of a heterograph by node type;
    None: all nodes.

    Returns scores [num_nodes] on the CPU; of a graph with several node types a dict of them by type, comparable with
    each other. Raises ValueError for another policy, KeyError for a node type that the graph lacks, IndexError for an
    id that is no node.
    """
    if policy not in ("degree", "reverse_pagerank"):
        raise ValueError(f"policy: want 'degree' or 'reverse_pagerank', got {policy!r}")
    # Node types share one numbering: each starts where the one before ends.
    sizes = {ntype: graph.num_nodes(ntype) for ntype in graph.ntypes}
    first, num_nodes = {}, 0
    for ntype, size in sizes.items():
        first[ntype] = num_nodes
        num_nodes += size
    src, dst = [], []
    for etype in graph.canonical_etypes:
        part_src, part_dst = graph.edges(etype=etype)
        src.append(part_src + first[etype[0]])
        dst.append(part_dst + first[etype[2]])
    if policy == "degree":
        scores = hotness.degree(torch.cat(src), num_nodes)
    else:
        ids = _numbered(train_ids, first, sizes)
        scores = hotness.reverse_pagerank(torch.cat(src), torch.cat(dst), num_nodes, ids)
    if len(sizes) == 1:
        return scores
    return dict(zip(sizes, scores.split(list(sizes.values())), strict=True))


def _numbered(
    ids: torch.Tensor | Mapping[str, torch.Tensor] | None, first: dict[str, int], sizes: dict[str, int]
) -> torch.Tensor | None:
    """The ids in the numbering that node types share."""
    if ids is None:
        return None
    if not isinstance(ids, Mapping):
        if len(sizes) != 1:
            raise ValueError(f"train_ids: want a dict by node type {list(sizes)}, got {type(ids).__name__}")
        return ids
    unknown = ids.keys() - sizes.keys()
    if unknown:
        raise KeyError(f"train_ids: want node types among {list(sizes)}, got {sorted(unknown)}")
    for ntype, part in ids.items():
        if len(part) and not 0 <= int(part.min()) <= int(part.max()) < sizes[ntype]:
            raise IndexError(
                f"train_ids[{ntype!r}]: want 0 <= id < {sizes[ntype]}, got {int(part.min())} to {int(part.max())}"
            )
    return torch.cat([part + first[ntype] for ntype, part in ids.items()])

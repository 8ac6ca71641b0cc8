"""A neighbour sampler for PyG that needs torch alone, for where pyg-lib and torch-sparse are not installed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch_geometric.data import GraphStore, HeteroData
from torch_geometric.sampler import BaseSampler, HeteroSamplerOutput, NodeSamplerInput, SamplerOutput

__all__ = ["NeighborSampler"]

EdgeType = tuple[str, str, str]
_HOMOGENEOUS: Any = (None, None, None)  # stands for the edge type where there is none


class NeighborSampler(BaseSampler):
    """Samples up to a number of neighbours of each node, hop by hop, without replacement, as PyG's NeighborLoader does:

        loader = NodeLoader(data, NeighborSampler(graph, [10, 10]), input_nodes=ids, batch_size=1024)

    Every node that a hop reaches for the first time is expanded in the next. Nodes and edges come in the order of the
    hops, so that `torch_geometric.utils.trim_to_layer` applies. Draws from torch's global generator: the same seed and
    number of workers give the same batches.

    Example:
        >>> graph = Data(edge_index=torch.tensor([[0, 1, 2], [1, 2, 3]]), num_nodes=4)
        >>> sampler = ibp_gnn.pyg.NeighborSampler(graph, [10, 10])
        >>> next(iter(NodeLoader(graph, sampler, input_nodes=torch.tensor([3])))).n_id
        tensor([3, 2, 1])
    """

    def __init__(self, graph: GraphStore, num_neighbors: Sequence[int] | Mapping[EdgeType, Sequence[int]]) -> None:
        """Brings the graph's edges to CSC form.

        Args:
            graph: a Data, a HeteroData or any GraphStore; edges run from neighbours to nodes. Its tensors are copied or
                referenced in CSC form.
            num_neighbors: for every hop from the seed nodes on, how many; -1: all. Of a dict, one entry an edge type.

        Raises:
            TypeError: a graph that is no GraphStore, or num_neighbors that are no lists of whole numbers.
            ValueError: num_neighbors do not fit the graph.
        """
        if not isinstance(graph, GraphStore):
            raise TypeError(f"graph: want a GraphStore, such as Data or HeteroData, got {type(graph).__name__}")
        rows, colptrs, permutations = graph.csc()
        self.is_hetero = isinstance(rows, dict)
        if not self.is_hetero:
            rows, colptrs, permutations = ({_HOMOGENEOUS: part} for part in (rows, colptrs, permutations))
        self._permutations = permutations
        self._fanouts = _fanouts(num_neighbors, list(rows), self.is_hetero)
        self._num_hops = len(next(iter(self._fanouts.values())))
        num_nodes = _num_nodes(graph, rows, colptrs)
        self._relations = {
            edge_type: _Relation(row, _padded(colptrs[edge_type], num_nodes[edge_type[2]]))
            for edge_type, row in rows.items()
        }
        # Position of every node in the batch under way, else -1.
        self._positions = {name: torch.full((count,), -1, device="cpu") for name, count in num_nodes.items()}

    def sample_from_nodes(self, index: NodeSamplerInput, **kwargs: Any) -> SamplerOutput | HeteroSamplerOutput:
        """Samples for one batch.

        Args:
            index: the seed nodes, repeats allowed; they come first among the nodes of the output, in their order.
            kwargs: not used.

        Returns:
            Nodes and edges, hop by hop.

        Raises:
            IndexError: a seed that is no node of the graph.
            NotImplementedError: temporal sampling.
        """
        if index.time is not None:
            raise NotImplementedError("temporal sampling is left to PyG's own NeighborLoader")
        batch = _Batch(self._positions)
        try:
            edges = self._sample(batch, index.input_type, index.node.to(torch.int64))
        finally:
            batch.close()
        metadata = (index.input_id, index.time)
        if self.is_hetero:
            return HeteroSamplerOutput(
                node={name: torch.cat(parts) for name, parts in batch.nodes.items()},
                row={edge_type: torch.cat([hop.row for hop in hops]) for edge_type, hops in edges.items()},
                col={edge_type: torch.cat([hop.col for hop in hops]) for edge_type, hops in edges.items()},
                edge={edge_type: torch.cat([hop.edge for hop in hops]) for edge_type, hops in edges.items()},
                num_sampled_nodes={name: [len(part) for part in parts] for name, parts in batch.nodes.items()},
                num_sampled_edges={edge_type: [len(hop.edge) for hop in hops] for edge_type, hops in edges.items()},
                metadata=metadata,
            )
        (hops,), (parts,) = edges.values(), batch.nodes.values()
        return SamplerOutput(
            node=torch.cat(parts),
            row=torch.cat([hop.row for hop in hops]),
            col=torch.cat([hop.col for hop in hops]),
            edge=torch.cat([hop.edge for hop in hops]),
            num_sampled_nodes=[len(part) for part in parts],
            num_sampled_edges=[len(hop.edge) for hop in hops],
            metadata=metadata,
        )

    def sample_from_edges(self, *args: Any, **kwargs: Any) -> Any:
        """Left to PyG's own LinkNeighborLoader.

        Args:
            args: not used.
            kwargs: not used.

        Returns:
            Never.

        Raises:
            NotImplementedError: always.
        """
        raise NotImplementedError("sampling from edges is left to PyG's own LinkNeighborLoader")

    @property
    def edge_permutation(self) -> Any:
        """Number of every edge in the graph, by its number in CSC form; by edge type in a heterograph."""
        return self._permutations if self.is_hetero else self._permutations[_HOMOGENEOUS]

    def _sample(self, batch: _Batch, seed_type: str, seeds: torch.Tensor) -> dict[EdgeType, list[_Edges]]:
        """Fills the batch. Returns the edges of every hop."""
        frontier = {name: torch.empty(0, dtype=torch.int64, device="cpu") for name in self._positions}
        frontier[seed_type] = batch.add_seeds(seed_type, seeds)
        edges: dict[EdgeType, list[_Edges]] = {edge_type: [] for edge_type in self._relations}
        for hop in range(self._num_hops):
            batch.start_hop()
            for edge_type, relation in self._relations.items():
                src, _, dst = edge_type
                owner, edge = relation.sample(frontier[dst], self._fanouts[edge_type][hop])
                neighbors = relation.row[edge]
                batch.add(src, neighbors)
                row = self._positions[src][neighbors]
                edges[edge_type].append(_Edges(row, self._positions[dst][frontier[dst]][owner], edge))
            frontier = {name: parts[-1] for name, parts in batch.nodes.items()}
        return edges


class _Edges(NamedTuple):
    """The edges of one type and one hop, all [num_edges]."""

    row: torch.Tensor
    """Position of each edge's source in the batch."""
    col: torch.Tensor
    """Position of its destination."""
    edge: torch.Tensor
    """Its number in CSC form."""


class _Batch:
    """The nodes of one batch; `positions` is the sampler's, filled for the time of the batch."""

    def __init__(self, positions: dict[str, torch.Tensor]) -> None:
        self._positions = positions
        self.nodes: dict[str, list[torch.Tensor]] = {name: [] for name in positions}
        """By type, a tensor of new nodes for the seeds and for every hop."""

    def add_seeds(self, name: str, seeds: torch.Tensor) -> torch.Tensor:
        """Returns the distinct ones."""
        if name not in self._positions:
            raise ValueError(f"input_nodes: want a node type among {list(self._positions)}, got {name!r}")
        positions = self._positions[name]
        bad = seeds[(seeds < 0) | (seeds >= len(positions))]
        if len(bad):
            raise IndexError(f"input_nodes: want 0 <= id < {len(positions)}, got {int(bad[0])}")
        for other, parts in self.nodes.items():
            parts.append(seeds if other == name else seeds[:0])
        distinct, inverse = torch.unique(seeds, return_inverse=True)
        first = torch.full_like(distinct, len(seeds))
        positions[distinct] = first.scatter_reduce_(0, inverse, torch.arange(len(seeds), device="cpu"), "amin")
        return distinct

    def start_hop(self) -> None:
        for parts in self.nodes.values():
            parts.append(parts[0][:0])

    def add(self, name: str, nodes: torch.Tensor) -> None:
        """Gives those of `nodes` that are not in the batch a position each, in the current hop."""
        positions, parts = self._positions[name], self.nodes[name]
        new = torch.unique(nodes[positions[nodes] < 0])
        count = sum(len(part) for part in parts)
        positions[new] = torch.arange(count, count + len(new), device="cpu")
        parts[-1] = torch.cat([parts[-1], new])

    def close(self) -> None:
        for name, parts in self.nodes.items():
            for part in parts:
                self._positions[name][part] = -1


class _Relation(NamedTuple):
    """The edges of one type in CSC form."""

    row: torch.Tensor
    """[num_edges]: source of each edge."""
    colptr: torch.Tensor
    """[num_dst + 1]: node i has the edges colptr[i] to colptr[i + 1]."""

    def sample(self, nodes: torch.Tensor, fanout: int) -> tuple[torch.Tensor, torch.Tensor]:
        """nodes: [n]. Returns for each edge picked: the number of its node in `nodes`, ascending, and its own."""
        start = self.colptr[nodes]
        degree = self.colptr[nodes + 1] - start
        count = degree if fanout < 0 else degree.clamp(max=fanout)
        owner = torch.repeat_interleave(torch.arange(len(nodes), device="cpu"), count)
        # The first `count` edges of each node; of those that have more, some at random instead.
        edge = torch.arange(len(owner), device="cpu") + (start - count.cumsum(0) + count)[owner]
        if fanout >= 0:
            many = degree > fanout
            picks = _distinct_picks(degree[many], fanout)
            edge[many[owner]] = (start[many].unsqueeze(1) + picks).flatten()
        return owner, edge


def _distinct_picks(sizes: torch.Tensor, count: int) -> torch.Tensor:
    """[n, count]: for each size > count, so many distinct numbers below it, every set equally likely.

    R. W. Floyd's algorithm (Bentley and Floyd, "A sample of brilliance", 1987), for all sizes at once.
    """
    picks = torch.empty(len(sizes), count, dtype=torch.int64, device="cpu")
    for j in range(count):
        top = sizes - count + j
        pick = (torch.rand(len(sizes), dtype=torch.float64, device="cpu") * (top + 1)).to(torch.int64)
        taken = (picks[:, :j] == pick.unsqueeze(1)).any(1)
        picks[:, j] = torch.where(taken, top, pick)
    return picks


def _fanouts(
    num_neighbors: Sequence[int] | Mapping[EdgeType, Sequence[int]], edge_types: list[EdgeType], is_hetero: bool
) -> dict[EdgeType, list[int]]:
    if not edge_types:
        raise ValueError("graph: want at least one edge type")
    if isinstance(num_neighbors, Mapping):
        if not is_hetero or set(num_neighbors) != set(edge_types):
            wanted = edge_types if is_hetero else "a list, for a graph without edge types"
            raise ValueError(f"num_neighbors: want {wanted}, got {list(num_neighbors)}")
        fanouts = {edge_type: _hops(num_neighbors[edge_type]) for edge_type in edge_types}
    else:
        fanouts = {edge_type: _hops(num_neighbors) for edge_type in edge_types}
    hops = {len(fanout) for fanout in fanouts.values()}
    if len(hops) != 1 or 0 in hops or any(number < -1 for fanout in fanouts.values() for number in fanout):
        raise ValueError(f"num_neighbors: want one number >= -1 a hop, as many for each type, got {num_neighbors}")
    return fanouts


def _hops(numbers: Any) -> list[int]:
    """Raises TypeError."""
    wanted = "num_neighbors: want a list of whole numbers, one for each hop, such as [10, 10]"
    if isinstance(numbers, (torch.Tensor, np.ndarray)) and numbers.ndim == 1:
        numbers = numbers.tolist()
    if not isinstance(numbers, Sequence) or isinstance(numbers, str):
        advice = f"; for one hop: [{numbers}]" if isinstance(numbers, int) else ""
        raise TypeError(f"{wanted}, got {type(numbers).__name__} {numbers!r:.60}{advice}")
    for number in numbers:
        if isinstance(number, bool) or not isinstance(number, (int, np.integer)):
            raise TypeError(f"{wanted}, got {type(number).__name__} {number!r:.60} in it")
    return [int(number) for number in numbers]


def _num_nodes(
    graph: GraphStore, rows: dict[EdgeType, torch.Tensor], colptrs: dict[EdgeType, torch.Tensor]
) -> dict[str, int]:
    """By node type: what the graph says, and at least what its edges reach. Types without edges are among them."""
    known: list[tuple[str, int | None]] = []
    for (src, relation, dst), row in rows.items():
        known += [(src, int(row.max()) + 1 if len(row) else 0), (dst, len(colptrs[src, relation, dst]) - 1)]
    for attr in graph.get_all_edge_attrs():
        src, _, dst = attr.edge_type or _HOMOGENEOUS
        known += zip((src, dst), attr.size or (), strict=False)
    if isinstance(graph, HeteroData):
        for name, store in zip(graph.node_types, graph.node_stores, strict=True):
            known += [(name, store.num_nodes if store.can_infer_num_nodes else None)]
    counts = dict.fromkeys((name for name, _ in known), 0)
    for name, count in known:
        counts[name] = max(counts[name], count or 0)
    return counts


def _padded(colptr: torch.Tensor, num_nodes: int) -> torch.Tensor:
    """colptr for num_nodes nodes, those behind its end having no edges."""
    return torch.cat([colptr, colptr[-1:].expand(num_nodes + 1 - len(colptr))])

"""A graph in WholeGraph memory, and neighbours sampled from it on the GPU."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from ..codec.values import as_ids, check_ids_on_cpu
from . import wholegraph
from .csc_block import CscBlock
from .wholegraph import Location, SharedTensor


class Sampled(NamedTuple):
    """The neighbourhood of some nodes, on the GPU.

    Example:
        >>> sampled = graph.sample(torch.tensor([3, 500]), [10, 10])
        >>> x = store.gather(sampled.input_nodes)
        >>> x.shape[0] == sampled.input_nodes.shape[0], sampled.blocks[-1].num_dst
        (True, 2)
    """

    input_nodes: torch.Tensor
    """[num_src] int32/int64, the graph's dtype: the ids of the sources of the first block; the seeds come first."""
    blocks: list[CscBlock]
    """One a layer, input layer first."""


class Graph:
    """The in-edges of every node, in memory that all GPUs of this machine read. A context manager.

    Sampling is WholeGraph's: uniform, without replacement, on the GPU. To make and to close a graph is a collective
    call of the processes of this machine.

    Example:
        >>> with ibp_gnn.wholegraph.Graph.from_edges(src, dst, num_nodes) as graph:
        ...     sampled = graph.sample(torch.tensor([3, 500]), [10, 10])
        >>> sampled.input_nodes[:2].tolist(), [block.num_dst for block in sampled.blocks][1:]
        ([3, 500], [2])
    """

    def __init__(self, indptr: torch.Tensor, indices: torch.Tensor, *, location: Location = "cuda") -> None:
        """Copies the edges.

        Args:
            indptr: int64 [num_nodes + 1], on CPU or CUDA: node i has the in-edges `indptr[i]` to `indptr[i + 1]`.
            indices: int32/int64 [num_edges]: the nodes that they come from.
            location: "cuda": shared out over the GPUs' memory; "cpu": page-locked memory, which GPUs read in place.

        Raises:
            ImportError: pylibwholegraph is not installed.
            RuntimeError: no GPU, or GPUs that cannot read each other's memory.
            ValueError: tensors that are no graph.
        """
        if location not in ("cuda", "cpu"):
            raise ValueError(f"location: want cuda or cpu, got {location!r}")
        wholegraph.library()
        self.device = wholegraph.require_gpu()
        indptr, indices = as_ids(indptr, "indptr"), as_ids(indices, "indices")
        self.num_nodes, self.num_edges = len(indptr) - 1, len(indices)
        _check(indptr, indices)
        # Ids take half the bytes wherever they fit.
        dtype = torch.int32 if self.num_nodes < 2**31 else torch.int64
        self._held: list[SharedTensor] = []
        for values in (indptr.to(torch.int64), indices.to(dtype)):
            held = SharedTensor([len(values)], values.dtype, location=location)
            self._held.append(held)
            held.fill(values)
        self.id_dtype = dtype
        self._structure: Any = wholegraph.library().GraphStructure()
        self._structure.set_csr_graph(*(held.tensor for held in self._held))

    @classmethod
    def from_edges(cls, src: torch.Tensor, dst: torch.Tensor, num_nodes: int, *, location: Location = "cuda") -> Graph:
        """Sorts the edges by their destination, on the GPU, in about 40 bytes of its memory an edge. Where that is too
        much, sort elsewhere and use the constructor.

        Args:
            src: int32/int64 [num_edges], on CPU or CUDA: where each edge comes from.
            dst: the same, where it goes to.
            num_nodes: of the graph.
            location: as the constructor.

        Returns:
            The graph.

        Raises:
            IndexError: an id that is no node.
            ImportError, RuntimeError, ValueError: as the constructor.
        """
        wholegraph.library()
        device = wholegraph.require_gpu()
        src, dst = as_ids(src, "src"), as_ids(dst, "dst")
        if len(src) != len(dst):
            raise ValueError(f"src and dst: want equally many ids, got {len(src)} and {len(dst)}")
        for ids in (src, dst):
            check_ids_on_cpu(ids.cpu(), num_nodes)
        dst, order = torch.sort(dst.to(device), stable=True)
        indptr = torch.searchsorted(dst, torch.arange(num_nodes + 1, device=device, dtype=dst.dtype))
        return cls(indptr, src.to(device)[order], location=location)

    def sample(self, seeds: torch.Tensor, fanouts: Sequence[int]) -> Sampled:
        """Neighbours of neighbours, on the current stream; waits for it.

        Draws its seeds from torch's CPU generator: the same seed (`torch.manual_seed`) gives the same sample.

        Args:
            seeds: [n] int32/int64 distinct ids, on CPU or CUDA, n >= 1.
            fanouts: how many in-edges to take of each node, one number a layer, input layer first, as DGL's
                NeighborSampler; -1: all.

        Returns:
            The nodes to fetch and the blocks.

        Raises:
            IndexError: an id that is no node.
            ValueError: other fanouts, repeated seeds, or after `close`.
        """
        seeds = as_ids(seeds, "seeds")
        check_seeds(seeds, self.num_nodes)
        return self.sample_checked(seeds.to(self.device, self.id_dtype), check_fanouts(fanouts))

    def sample_checked(self, seeds: torch.Tensor, fanouts: Sequence[int]) -> Sampled:
        """As `sample`, of seeds on the graph's GPU, of its dtype, that are known to be right."""
        if self._structure is None:
            raise ValueError("this Graph is closed")
        nodes, blocks = seeds, []
        for fanout in reversed(fanouts):
            indptr, neighbors = self._structure.unweighted_sample_without_replacement_one_hop(
                nodes, fanout, random_seed=int(torch.randint(2**62, (), device="cpu"))
            )
            nodes, indices = _append(nodes, neighbors)
            blocks.append(CscBlock(indptr, indices))
        return Sampled(nodes, blocks[::-1])

    def close(self) -> None:
        """Frees the memory, when the GPU is done with it. Idempotent."""
        self._structure = None
        for held in self._held:
            held.close()

    def __enter__(self) -> Graph:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        if self._structure is None:
            return "Graph(closed)"
        return f"Graph({self.num_nodes} nodes, {self.num_edges} edges)"


def check_seeds(seeds: torch.Tensor, num_nodes: int) -> None:
    """seeds: [n] int32/int64 on any device. Raises IndexError and ValueError. Waits for a GPU that they are on."""
    if len(seeds) == 0:
        raise ValueError("seeds: want at least one, got none")
    check_ids_on_cpu(seeds.cpu(), num_nodes)
    repeats = len(seeds) - len(torch.unique(seeds))
    if repeats:
        raise ValueError(f"seeds: want distinct ids, got {repeats} repeats")


def check_fanouts(fanouts: Sequence[int]) -> list[int]:
    """Raises ValueError unless they are numbers from 1 on, or -1."""
    numbers = list(fanouts)
    whole = all(isinstance(number, int) and not isinstance(number, bool) for number in numbers)
    if not numbers or not whole or any(number < 1 and number != -1 for number in numbers):
        raise ValueError(f"fanouts: want whole numbers >= 1, or -1 for all, one a layer, got {numbers}")
    return numbers


def _check(indptr: torch.Tensor, indices: torch.Tensor) -> None:
    """Raises ValueError unless they are a graph."""
    if len(indptr) < 2:
        raise ValueError(f"indptr: want [num_nodes + 1] for at least one node, got [{len(indptr)}]")
    if int(indptr[0]) != 0 or int(indptr[-1]) != len(indices) or bool((indptr.diff() < 0).any()):
        raise ValueError(f"indptr: want numbers that rise from 0 to {len(indices)}, the number of edges, got others")
    if len(indices) == 0:
        raise ValueError("indices: want at least one edge, got none")
    lowest, highest = (int(bound) for bound in torch.aminmax(indices))
    if lowest < 0 or highest >= len(indptr) - 1:
        raise ValueError(f"indices: want nodes from 0 to {len(indptr) - 2}, got {lowest} to {highest}")


def _append(nodes: torch.Tensor, neighbors: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """nodes: [n] distinct ids; neighbors: [m] ids. Returns the nodes with all other neighbours behind them, by rising
    id, and int32 [m], the position of each neighbour among these.

    WholeGraph's append_unique numbers them in an order that differs from call to call. In the order of their ids the
    same seed gives the same batches, and the rows are fetched in order.
    """
    from pylibwholegraph.torch import graph_ops

    return renumber(len(nodes), *graph_ops.append_unique(nodes, neighbors, need_neighbor_raw_to_unique=True))


def renumber(count: int, found: torch.Tensor, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """found: [n] distinct ids, of which the first `count` stay where they are, and the others are sorted; positions:
    int32 [m], into these. Returns both as they are then. Host time counts here: few operations."""
    in_order, order = torch.sort(found[count:])
    numbers = torch.arange(len(found), dtype=torch.int32, device=found.device)
    moved = numbers.clone()
    moved[count:].scatter_(0, order, numbers[count:])
    return torch.cat([found[:count], in_order]), moved.index_select(0, positions)

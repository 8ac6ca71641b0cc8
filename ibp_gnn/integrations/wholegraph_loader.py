"""Mini-batches that are sampled and fetched on the GPU, beside the training step."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch

from ..codec.values import as_ids
from ..gpu.side_stream import SideStream
from ..store.row_source import RowSource, is_row_source
from .csc_block import CscBlock
from .wholegraph_graph import Graph, check_fanouts, check_seeds


class Batch(NamedTuple):
    """One mini-batch, on the graph's GPU.

    Example:
        >>> loader = ibp_gnn.wholegraph.NeighborLoader(graph, train_ids, [10, 10], batch_size=3, features=store)
        >>> batch = next(iter(loader))
        >>> batch.x.device.type, batch.blocks[-1].edge_index().shape[0]
        ('cuda', 2)
    """

    input_nodes: torch.Tensor
    """[num_src] int32/int64: the ids whose features are read; the output nodes come first."""
    output_nodes: torch.Tensor
    """[num_dst] int32/int64: the seeds."""
    blocks: list[CscBlock]
    """One a layer, input layer first: CSC tensors; `block.edge_index()` is what PyG's layers take."""
    x: torch.Tensor | None
    """[num_src, *row_shape]: the features of the input nodes; None without `features`."""


class NeighborLoader:
    """Samples the neighbourhoods of `ids`, batch by batch, and fetches their features, on a stream of its own: while
    the GPU trains on one batch, the next is made. The host waits for the sampler, which has to tell it how many nodes
    it found, and for nothing else.

    Draws from torch's CPU generator: the same seed (`torch.manual_seed`) gives the same batches.

    Example:
        >>> loader = ibp_gnn.wholegraph.NeighborLoader(graph, train_ids, [10, 10], batch_size=2, features=store)
        >>> for batch in loader: print(batch.output_nodes.tolist(), list(batch.x.shape[1:]), len(batch.blocks))
        [1, 7] [16] 2
        [500] [16] 2
    """

    def __init__(
        self,
        graph: Graph,
        ids: torch.Tensor,
        fanouts: Sequence[int],
        *,
        batch_size: int,
        features: RowSource | None = None,
        shuffle: bool = False,
        drop_last: bool = False,
    ) -> None:
        """Samples nothing yet.

        Args:
            graph: what is sampled.
            ids: [n] int32/int64 distinct ids of seeds, on CPU or CUDA.
            fanouts: how many in-edges to take of each node, one number a layer, input layer first; -1: all.
            batch_size: seeds of a batch.
            features: a store, a GPU cache or any other RowSource with a row for each node.
            shuffle: whether each pass takes the seeds in another order.
            drop_last: whether to leave out a last batch that is not full.

        Raises:
            IndexError: an id that is no node.
            TypeError: features that are no RowSource.
            ValueError: repeated ids, other fanouts or sizes, features of another number of nodes.
        """
        if isinstance(batch_size, bool) or not isinstance(batch_size, int) or batch_size < 1:
            raise ValueError(f"batch_size: want a whole number of at least 1, got {batch_size!r}")
        if features is not None and not is_row_source(features):
            raise TypeError(f"features: want a RowSource (shape, dtype and gather), got {type(features).__name__}")
        if features is not None and features.shape[0] != graph.num_nodes:
            raise ValueError(f"features: want {graph.num_nodes} rows, one a node, got {features.shape[0]}")
        ids = as_ids(ids)
        check_seeds(ids, graph.num_nodes)
        self._graph, self._fanouts, self._batch_size = graph, check_fanouts(fanouts), batch_size
        self._features, self._shuffle, self._drop_last = features, shuffle, drop_last
        self._ids = ids.to(graph.device, graph.id_dtype)

    def __len__(self) -> int:
        """Batches of a pass."""
        full, rest = divmod(len(self._ids), self._batch_size)
        return full + (rest > 0 and not self._drop_last)

    def __iter__(self) -> Iterator[Batch]:
        """Yields the batches. The stream that is current when one is asked for may use it."""
        ids, device = self._ids, self._graph.device
        if self._shuffle:
            ids = ids[torch.randperm(len(ids), device="cpu").to(device)]
        # Apart, so that the host, which waits for the sampler, does not wait for the fetch before it as well.
        sampling, fetching = SideStream(device, "sample"), SideStream(device, "fetch")
        for number in range(len(self)):
            seeds = ids[number * self._batch_size :][: self._batch_size]
            sampling.pace()
            with torch.cuda.stream(sampling.stream):
                nodes, blocks = self._graph.sample_checked(seeds, self._fanouts)
            x = None
            if self._features is not None:
                with torch.cuda.stream(fetching.stream):
                    sampling.hand_over([nodes])
                    x = self._features.gather(nodes, device=device)
                fetching.hand_over([x])
            sampling.hand_over([nodes, *(part for block in blocks for part in block)])
            yield Batch(nodes, seeds, blocks, x)

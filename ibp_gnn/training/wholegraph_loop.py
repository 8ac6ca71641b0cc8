"""`loop: wholegraph`: sampling and fetching on the GPU, beside the training step."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from ..datasets import NodeDataset
from ..wholegraph import Graph, NeighborLoader
from .config import TrainConfig
from .features import CompressedFeatures, RawFeatures
from .sage import Aggregation
from .step import Mark, Step


class WholeGraphLoop:
    """The next batch is sampled and fetched while the GPU trains on this one. What the training stream waits for it is
    the time of "sample"; nothing is left for "fetch"."""

    def __init__(
        self,
        data: NodeDataset,
        features: RawFeatures | CompressedFeatures,
        config: TrainConfig,
        device: torch.device,
        aggregation: Aggregation,
    ) -> None:
        """device: a GPU. Raises ImportError without WholeGraph."""
        del aggregation  # there is one kind of blocks
        self._features, self._config = features, config
        self._graph = Graph.from_edges(data.src, data.dst, data.num_nodes, location=config.graph_memory)
        self._labels = data.labels.to(device)

    def steps(self, ids: torch.Tensor, *, mark: Mark) -> Iterator[Step]:
        config = self._config
        loader = NeighborLoader(
            self._graph, ids, config.fanouts, batch_size=config.batch_size, features=self._features.source
        )
        for batch in loader:
            mark("sample")
            self._features.count(len(batch.input_nodes))
            labels = self._labels[batch.output_nodes]
            mark("fetch")
            yield Step(batch.x, labels, batch.blocks)

"""`loop: dgl`: DGL's DataLoader and its blocks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch

import ibp_gnn

from ..datasets import NodeDataset
from .config import TrainConfig
from .features import CompressedFeatures, RawFeatures
from .sage import Aggregation, copy_async, to_csc
from .sampling import make_loader
from .step import Mark, Step

KEY = "feat"


class DGLLoop:
    """Features are read from the graph: `g.ndata`, or a store attached to it."""

    def __init__(
        self,
        data: NodeDataset,
        features: RawFeatures | CompressedFeatures,
        config: TrainConfig,
        device: torch.device,
        aggregation: Aggregation,
    ) -> None:
        self._labels, self._features, self._config = data.labels, features, config
        self._device, self._aggregation = device, aggregation
        # Samplers read no other format; a large graph would not fit in three.
        self._graph = data.to_dgl().formats("csc")
        if isinstance(features, RawFeatures):
            self._graph.ndata[KEY] = features.rows
        else:
            ibp_gnn.attach(self._graph, KEY, features.source)
        self._prefetch_trial = ibp_gnn.PrefetchTrial()  # of all epochs
        # Made here, so that neither the first batch nor each worker pays for it.
        self._graph.create_formats_()

    def steps(self, ids: torch.Tensor, *, mark: Mark) -> Iterator[Step]:
        config = self._config
        loader = make_loader(
            self._graph,
            ids,
            config.fanouts,
            batch_size=config.batch_size,
            workers=config.workers,
        )
        batches = marked(loader, mark)
        for (input_nodes, output_nodes, blocks), x in self._with_features(batches):
            self._features.count(len(input_nodes))
            labels = copy_async(self._labels[output_nodes], self._device)
            blocks = to_device(blocks, self._device, self._aggregation)
            mark("fetch")
            yield Step(x, labels, blocks)

    def _with_features(self, batches: Iterable[Any]) -> Iterable[tuple[Any, torch.Tensor]]:
        if self._config.prefetch:
            return ibp_gnn.Prefetcher(batches, self._features.source, device=self._device, trial=self._prefetch_trial)
        return ((batch, self._fetch(batch[0], batch[2][0])) for batch in batches)

    def _fetch(self, input_nodes: torch.Tensor, block: Any) -> torch.Tensor:
        if self._device.type == "cpu":
            # What an unmodified DGL loop does; of an attached store, the block's lazy column decompresses here.
            return block.srcdata[KEY]
        if isinstance(self._features, RawFeatures):
            return copy_async(self._graph.ndata[KEY][input_nodes], self._device)
        return ibp_gnn.fetch(self._graph, KEY, copy_async(input_nodes, self._device), device=self._device)


def marked(loader: Iterable[Any], mark: Mark) -> Iterator[Any]:
    """The loader's batches; each time one is there, "sample" has ended."""
    for batch in loader:
        mark("sample")
        yield batch


def to_device(blocks: list[Any], device: torch.device, aggregation: Aggregation) -> list[Any]:
    """DGL blocks on the CPU as the aggregation takes them, on `device`."""
    if aggregation == "csc":
        return [to_csc(block, device) for block in blocks]
    return [block.to(device) for block in blocks]

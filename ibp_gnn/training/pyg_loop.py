"""`loop: pyg`: PyG's NodeLoader, with the sampler of `ibp_gnn.pyg`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from ..datasets import NodeDataset
from ..pyg import NeighborSampler, PyGFeatureStore  # before PyG: says how to get it
from .config import TrainConfig
from .features import CompressedFeatures, RawFeatures
from .sage import Aggregation, EdgeBlock, copy_async
from .step import Mark, Step

# isort: split
from torch_geometric.data import Data
from torch_geometric.loader import NodeLoader


class PyGLoop:
    """Features are read by the loader: from a Data, or from a feature store beside one without features."""

    def __init__(
        self,
        data: NodeDataset,
        features: RawFeatures | CompressedFeatures,
        config: TrainConfig,
        device: torch.device,
        aggregation: Aggregation,
    ) -> None:
        self._labels, self._features, self._config, self._device = data.labels, features, config, device
        graph = Data(edge_index=torch.stack([data.src, data.dst]), num_nodes=data.num_nodes)
        # PyG counts hops from the seed nodes, the config from the input layer.
        self._sampler = NeighborSampler(graph, config.fanouts[::-1])
        if isinstance(features, RawFeatures):
            self._data: Any = Data(x=features.rows, edge_index=graph.edge_index, num_nodes=data.num_nodes)
        else:
            self._data = (PyGFeatureStore({"x": features.source}, device=device), graph)

    def steps(self, ids: torch.Tensor, *, mark: Mark) -> Iterator[Step]:
        def sampled(output: Any) -> Any:
            mark("sample")
            return output

        loader = NodeLoader(
            self._data,
            self._sampler,
            input_nodes=ids,
            batch_size=self._config.batch_size,
            num_workers=self._config.workers,
            filter_per_worker=False,  # read features in this process: it counts, and workers cannot use the GPU
            transform_sampler_output=sampled,
        )
        for batch in loader:
            self._features.count(len(batch.n_id))
            x = copy_async(batch.x, self._device)
            labels = copy_async(self._labels[batch.n_id[: batch.batch_size]], self._device)
            blocks = to_blocks(batch, self._device)
            mark("fetch")
            yield Step(x, labels, blocks)


def to_blocks(batch: Data, device: torch.device) -> list[EdgeBlock]:
    """One block a layer, input layer first; each leaves out the hop that no later layer needs. Nodes and edges of a
    batch are in the order of the hops (what `torch_geometric.utils.trim_to_layer` relies on, too)."""
    edge_index = copy_async(batch.edge_index, device)
    blocks = []
    for hops in range(len(batch.num_sampled_edges), 0, -1):
        num_edges = sum(batch.num_sampled_edges[:hops])
        blocks.append(EdgeBlock(edge_index[:, :num_edges], sum(batch.num_sampled_nodes[:hops])))
    return blocks

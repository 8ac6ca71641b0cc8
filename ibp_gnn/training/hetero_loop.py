"""`loop: dgl` on a heterograph: DGL's DataLoader, whose blocks' CSC tensors a HeteroGraphSAGE takes on any device."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

import torch

import ibp_gnn

from ..datasets import HeteroNodeDataset
from .config import TrainConfig
from .dgl_loop import KEY
from .features import FeaturesByType, RawFeatures
from .hetero_sage import to_hetero_csc
from .sage import copy_async
from .sampling import make_loader
from .step import Mark, Step


class HeteroDGLLoop:
    """Features are read from the graph: `g.nodes[type].data`, or a store attached to it."""

    def __init__(
        self,
        data: HeteroNodeDataset,
        features: FeaturesByType,
        config: TrainConfig,
        device: torch.device,
        aggregation: Literal["csc"],
    ) -> None:
        self._labels, self._target = data.labels, data.target
        self._features, self._config, self._device = features.by_type, config, device
        # Samplers read no other format.
        self._graph = data.to_dgl().formats("csc")
        for node_type, part in self._features.items():
            if isinstance(part, RawFeatures):
                self._graph.nodes[node_type].data[KEY] = part.rows
            else:
                ibp_gnn.attach(self._graph, KEY, part.source, ntype=node_type)
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
            node_type=self._target,
        )
        for input_nodes, output_nodes, blocks in loader:
            mark("sample")
            x = {name: self._fetch(name, nodes, blocks[0]) for name, nodes in self._by_type(input_nodes).items()}
            labels = copy_async(self._labels[self._by_type(output_nodes)[self._target]], self._device)
            on_device = [to_hetero_csc(block, self._device) for block in blocks]
            mark("fetch")
            yield Step(x, labels, on_device)

    def _by_type(self, nodes: Any) -> dict[str, torch.Tensor]:
        """DGL leaves the dict out where there is one node type."""
        return nodes if isinstance(nodes, dict) else {self._target: nodes}

    def _fetch(self, node_type: str, nodes: torch.Tensor, block: Any) -> torch.Tensor:
        """Rows, or node ids of a type without."""
        part = self._features.get(node_type)
        if part is None:
            return copy_async(nodes, self._device)
        part.count(len(nodes))
        if self._device.type == "cpu":
            # What an unmodified DGL loop does; of an attached store, the block's lazy column decompresses here.
            return block.srcnodes[node_type].data[KEY]
        if isinstance(part, RawFeatures):
            return copy_async(self._graph.nodes[node_type].data[KEY][nodes], self._device)
        ids = copy_async(nodes, self._device)
        return ibp_gnn.fetch(self._graph, KEY, ids, device=self._device, ntype=node_type)

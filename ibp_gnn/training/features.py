"""The two ways that a run reads node features; the loop does not know which one it has."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import torch

import ibp_gnn
from ibp_gnn.training.config import CacheConfig, StoreConfig
from ibp_gnn.training.sage import copy_async

KEY = "feat"


@dataclass(frozen=True)
class Traffic:
    """What the fetches of an epoch read."""

    rows: int
    miss_rate: float
    """Share of the rows read from CPU memory: 1.0 without a GPU cache."""
    moved_bytes: int
    """Bytes read from CPU memory for these rows."""
    saved_bytes: int
    """What the same rows would have cost uncompressed and uncached, less `moved_bytes`."""


class Features(Protocol):
    """Node features of a DGL graph under the name `feat`."""

    store_bytes: int
    raw_bytes: int
    savings: float
    description: str

    def fetch(self, input_nodes: torch.Tensor, block: Any) -> torch.Tensor:
        """input_nodes: [n] on the CPU; block: the input block. Returns [n, d] on the training device."""

    def traffic(self) -> Traffic:
        """The fetches since the last call; on CUDA with a cache this waits for the GPU."""

    def close(self) -> None:
        """Free what was built; the features cannot be read any more."""


class RawFeatures:
    """Plain DGL: the tensor in `g.ndata`."""

    savings = 0.0

    def __init__(self, graph: Any, features: torch.Tensor, device: torch.device) -> None:
        graph.ndata[KEY] = features
        self._graph, self._device, self._rows = graph, device, 0
        self._row_bytes = features[0].numel() * features.element_size()
        self.raw_bytes = self.store_bytes = features.numel() * features.element_size()
        self.description = f"raw {list(features.shape)} {features.dtype}, {self.raw_bytes / 1e6:.1f} MB"

    def fetch(self, input_nodes: torch.Tensor, block: Any) -> torch.Tensor:
        self._rows += len(input_nodes)
        if self._device.type == "cpu":
            return block.srcdata[KEY]
        return copy_async(self._graph.ndata[KEY][input_nodes], self._device)

    def traffic(self) -> Traffic:
        rows, self._rows = self._rows, 0
        return Traffic(rows, 1.0, rows * self._row_bytes, 0)

    def close(self) -> None:
        del self._graph.ndata[KEY]


class CompressedFeatures:
    """A CompressedFeatureStore attached to the graph, with a GPU cache in front of it if asked for."""

    def __init__(
        self,
        graph: Any,
        features: torch.Tensor,
        device: torch.device,
        store_config: StoreConfig,
        cache_config: CacheConfig,
        progress: bool,
    ) -> None:
        store = ibp_gnn.CompressedFeatureStore.build(
            features,
            codec=store_config.codec,
            layout=store_config.layout,
            pin=store_config.pin,
            progress=progress,
        )
        self._graph, self._device, self._store, self._rows = graph, device, store, 0
        self._row_bytes = features[0].numel() * features.element_size()
        self._source: ibp_gnn.CompressedFeatureStore | ibp_gnn.CompressedGPUCache = store
        if cache_config.capacity is not None:
            # A node is sampled through its out-edges, so its out-degree predicts how often it is read.
            hotness = graph.out_degrees() if cache_config.hotness == "degree" else None
            self._source = ibp_gnn.CompressedGPUCache(store, cache_config.capacity, hotness=hotness, device=device)
        ibp_gnn.attach(graph, KEY, self._source)
        self.store_bytes, self.raw_bytes, self.savings = store.nbytes, store.raw_nbytes, store.savings
        self.description = (
            f"{store_config.codec}, {store_config.layout} slots, {list(store.shape)} {store.dtype}, "
            f"{store.nbytes / 1e6:.1f} MB instead of {store.raw_nbytes / 1e6:.1f} MB "
            f"(savings {store.savings:.1%})" + (f"; cache: {self._source}" if self._source is not store else "")
        )

    def fetch(self, input_nodes: torch.Tensor, block: Any) -> torch.Tensor:
        self._rows += len(input_nodes)
        if self._device.type == "cpu":
            # What an unmodified DGL loop does: the block's lazy column decompresses here.
            return block.srcdata[KEY]
        return ibp_gnn.fetch(self._graph, KEY, copy_async(input_nodes, self._device), device=self._device)

    def traffic(self) -> Traffic:
        rows, self._rows = self._rows, 0
        stats = self._source.stats()
        self._source.reset_stats()
        if stats.hits + stats.misses == rows:
            moved, miss_rate = stats.pcie_bytes, stats.miss_rate
        else:
            # Decoded on the CPU, or sent through a staging buffer: only the GPU's kernel counts bytes. This is
            # all that a row can take, but for the few that compact slots leave to the overflow area.
            moved, miss_rate = rows * self._store.slot_bytes, 1.0
        return Traffic(rows, miss_rate, moved, rows * self._row_bytes - moved)

    def close(self) -> None:
        ibp_gnn.detach(self._graph, KEY)
        self._store.close()

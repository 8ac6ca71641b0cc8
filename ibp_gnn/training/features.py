"""The two ways that a run reads node features, and what they count; no graph library in it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch

import ibp_gnn
from ibp_gnn.training.config import CacheConfig, StoreConfig


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
    """Node features of the run's graph. The loop that reads them counts the rows."""

    store_bytes: int
    raw_bytes: int
    savings: float
    description: str

    def count(self, rows: int) -> None:
        """So many rows are being read."""

    def traffic(self) -> Traffic:
        """The rows counted since the last call; on CUDA with a cache this waits for the GPU."""

    def close(self) -> None:
        """Free what was built; the features cannot be read any more."""


class RawFeatures:
    """The uncompressed tensor, for the plain loop."""

    savings = 0.0

    def __init__(self, rows: torch.Tensor) -> None:
        """rows: [num_nodes, d] on the CPU."""
        self.rows, self._counted = rows, 0
        self._row_bytes = rows[0].numel() * rows.element_size()
        self.raw_bytes = self.store_bytes = rows.numel() * rows.element_size()
        self.description = f"raw {list(rows.shape)} {rows.dtype}, {self.raw_bytes / 1e6:.1f} MB"

    def count(self, rows: int) -> None:
        self._counted += rows

    def traffic(self) -> Traffic:
        counted, self._counted = self._counted, 0
        return Traffic(counted, 1.0, counted * self._row_bytes, 0)

    def close(self) -> None:
        del self.rows


class CompressedFeatures:
    """A CompressedFeatureStore, with a GPU cache in front of it if asked for."""

    def __init__(
        self,
        rows: torch.Tensor,
        device: torch.device,
        store_config: StoreConfig,
        cache_config: CacheConfig,
        hotness: torch.Tensor,
        progress: bool,
    ) -> None:
        """rows: [num_nodes, d] on the CPU, not kept. hotness: [num_nodes], for `cache.hotness: degree`."""
        self._store = store = ibp_gnn.CompressedFeatureStore.build(
            rows,
            codec=store_config.codec,
            layout=store_config.layout,
            pin=store_config.pin,
            progress=progress,
        )
        self.source: ibp_gnn.CompressedFeatureStore | ibp_gnn.CompressedGPUCache = store
        self._counted, self._row_bytes = 0, rows[0].numel() * rows.element_size()
        if cache_config.capacity is not None:
            by_degree = hotness if cache_config.hotness == "degree" else None
            self.source = ibp_gnn.CompressedGPUCache(store, cache_config.capacity, hotness=by_degree, device=device)
        self.store_bytes, self.raw_bytes, self.savings = store.nbytes, store.raw_nbytes, store.savings
        self.description = (
            f"{store_config.codec}, {store_config.layout} slots, {list(store.shape)} {store.dtype}, "
            f"{store.nbytes / 1e6:.1f} MB instead of {store.raw_nbytes / 1e6:.1f} MB "
            f"(savings {store.savings:.1%})" + (f"; cache: {self.source}" if self.source is not store else "")
        )

    def count(self, rows: int) -> None:
        self._counted += rows

    def traffic(self) -> Traffic:
        counted, self._counted = self._counted, 0
        stats = self.source.stats()
        self.source.reset_stats()
        if stats.hits + stats.misses == counted:
            moved, miss_rate = stats.pcie_bytes, stats.miss_rate
        else:
            # Decoded on the CPU, or sent through a staging buffer: only the GPU's kernel counts bytes. So this is
            # what a row of the store takes on average, overflow and metadata included.
            moved, miss_rate = round(counted * self._store.nbytes / self._store.shape[0]), 1.0
        return Traffic(counted, miss_rate, moved, counted * self._row_bytes - moved)

    def close(self) -> None:
        self._store.close()

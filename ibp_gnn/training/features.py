"""The two ways that a run reads node features, and what they count; no graph library in it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import torch

import ibp_gnn
from ibp_gnn.config import ConfigError
from ibp_gnn.row_order import hottest_first
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


class FeaturesByType:
    """The features of several node types, counted together."""

    def __init__(self, by_type: Mapping[str, RawFeatures | CompressedFeatures]) -> None:
        """by_type: not empty."""
        self.by_type = by_type
        parts = by_type.values()
        self.store_bytes, self.raw_bytes = sum(p.store_bytes for p in parts), sum(p.raw_bytes for p in parts)
        self.savings = 1 - self.store_bytes / self.raw_bytes
        self.description = "; ".join(f"{name}: {part.description}" for name, part in by_type.items())

    def traffic(self) -> Traffic:
        parts = [part.traffic() for part in self.by_type.values()]
        rows = sum(part.rows for part in parts)
        return Traffic(
            rows,
            sum(part.miss_rate * part.rows for part in parts) / rows if rows else 1.0,
            sum(part.moved_bytes for part in parts),
            sum(part.saved_bytes for part in parts),
        )

    def close(self) -> None:
        for part in self.by_type.values():
            part.close()


def _open_store(
    rows: torch.Tensor, config: StoreConfig, order: torch.Tensor | None, progress: bool
) -> ibp_gnn.CompressedFeatureStore:
    """The file's store, or a new one in this order. Raises ConfigError for a file of other rows."""
    if config.path is None:
        return ibp_gnn.CompressedFeatureStore.build(
            rows, codec=config.codec, layout=config.layout, order=order, pin=config.pin, progress=progress
        )
    try:
        store = ibp_gnn.CompressedFeatureStore.load(config.path, pin=config.pin)
    except (OSError, ibp_gnn.FormatError) as error:
        raise ConfigError(f"store.path: {error}") from error
    if store.shape != tuple(rows.shape) or store.dtype != rows.dtype:
        wanted, got = f"{list(rows.shape)} {rows.dtype}", f"{list(store.shape)} {store.dtype}"
        store.close()
        raise ConfigError(f"store.path: want a store of {wanted} like the data set, got {got} in {config.path}")
    return store


class CompressedFeatures:
    """A CompressedFeatureStore, with a GPU cache in front of it if asked for."""

    def __init__(
        self,
        rows: torch.Tensor,
        device: torch.device,
        store_config: StoreConfig,
        cache_config: CacheConfig,
        hotness: torch.Tensor | None,
        progress: bool,
    ) -> None:
        """rows: [num_nodes, d] on the CPU, not kept. hotness: [num_nodes], for the cache; None: in the order of a store
        file, or lowest ids first."""
        order = None
        if cache_config.capacity is not None and hotness is not None and store_config.path is None:
            order, hotness = hottest_first(hotness, len(rows)), None  # the cache is then a prefix of the store
        self._store = store = _open_store(rows, store_config, order, progress)
        self.source: ibp_gnn.CompressedFeatureStore | ibp_gnn.CompressedGPUCache = store
        self._counted, self._row_bytes = 0, rows[0].numel() * rows.element_size()
        if cache_config.capacity is not None:
            self.source = ibp_gnn.CompressedGPUCache(store, cache_config.capacity, hotness=hotness, device=device)
        self.store_bytes, self.raw_bytes, self.savings = store.nbytes, store.raw_nbytes, store.savings
        self.description = (
            f"{store_config.path or store_config.codec}, {store.layout} slots, {list(store.shape)} {store.dtype}, "
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

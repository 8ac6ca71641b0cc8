"""The two ways that a run reads node features, and what they count; no graph library in it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch

import ibp_gnn
from ibp_gnn.config import ConfigError
from ibp_gnn.row_order import hottest_first
from ibp_gnn.training.config import CacheConfig, StoreConfig
from ibp_gnn.training.sage import copy_async


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
    hits: int = 0
    """Of `rows`, those read from a GPU cache."""
    by_type: Mapping[str, Traffic] = field(default_factory=dict)
    """Of each feature, where there are several."""


class Features(Protocol):
    """Node features of the run's graph. The loop that reads them counts the rows."""

    store_bytes: int
    raw_bytes: int
    savings: float
    description: str
    cache: dict[str, Any] | None
    """What the GPU cache holds: `rows`, `bytes`, and as `effective_rows` how many rows for each one that would fit into
    these bytes uncompressed; by node type if there are several; None without a cache."""

    def count(self, rows: int) -> None:
        """So many rows are being read."""

    def traffic(self) -> Traffic:
        """The rows counted since the last call; on CUDA with a cache this waits for the GPU."""

    def close(self) -> None:
        """Free what was built; the features cannot be read any more."""


class HostRows:
    """A RowSource over a tensor in CPU memory: picked there, then copied, as a plain loop does it."""

    def __init__(self, rows: torch.Tensor) -> None:
        """rows: [n, *row_shape] on the CPU; referenced."""
        self.rows, self.shape, self.dtype = rows, tuple(rows.shape), rows.dtype

    def gather(
        self, ids: torch.Tensor, *, device: torch.device | str | None = None, out: torch.Tensor | None = None
    ) -> torch.Tensor:
        """As RowSource.gather. To a GPU: enqueued on the current stream, without waiting if the ids are on the CPU."""
        picked = self.rows.index_select(0, ids.cpu())
        rows = copy_async(picked, ids.device if device is None else torch.device(device))
        return rows if out is None else out.copy_(rows)


class RawFeatures:
    """The uncompressed tensor, for the plain loop."""

    savings = 0.0
    cache = None

    def __init__(self, rows: torch.Tensor) -> None:
        """rows: [num_nodes, d] on the CPU."""
        self.rows, self._counted = rows, 0
        self.source = HostRows(rows)
        self._row_bytes = rows[0].numel() * rows.element_size()
        self.raw_bytes = self.store_bytes = rows.numel() * rows.element_size()
        self.description = f"raw {list(rows.shape)} {rows.dtype}, {self.raw_bytes / 1e6:.1f} MB"

    def count(self, rows: int) -> None:
        self._counted += rows

    def traffic(self) -> Traffic:
        counted, self._counted = self._counted, 0
        return Traffic(counted, 1.0, counted * self._row_bytes, 0)

    def close(self) -> None:
        del self.rows, self.source


class FeaturesByType:
    """The features of several node types, counted together."""

    def __init__(self, by_type: Mapping[str, RawFeatures | CompressedFeatures]) -> None:
        """by_type: not empty."""
        self.by_type = by_type
        parts = by_type.values()
        self.store_bytes, self.raw_bytes = sum(p.store_bytes for p in parts), sum(p.raw_bytes for p in parts)
        self.savings = 1 - self.store_bytes / self.raw_bytes
        self.description = "; ".join(f"{name}: {part.description}" for name, part in by_type.items())
        caches = {name: part.cache for name, part in by_type.items() if part.cache is not None}
        self.cache: dict[str, Any] | None = caches or None

    def traffic(self) -> Traffic:
        by_type = {name: part.traffic() for name, part in self.by_type.items()}
        parts = by_type.values()
        rows = sum(part.rows for part in parts)
        return Traffic(
            rows,
            sum(part.miss_rate * part.rows for part in parts) / rows if rows else 1.0,
            sum(part.moved_bytes for part in parts),
            sum(part.saved_bytes for part in parts),
            sum(part.hits for part in parts),
            by_type,
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
        self.cache: dict[str, Any] | None = None
        self._counted, self._row_bytes = 0, rows[0].numel() * rows.element_size()
        if cache_config.capacity is not None:
            cache = ibp_gnn.CompressedGPUCache(store, cache_config.capacity, hotness=hotness, device=device)
            effective = cache.num_cached * self._row_bytes / cache.nbytes
            self.source = cache
            self.cache = {"rows": cache.num_cached, "bytes": cache.nbytes, "effective_rows": effective}
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
            moved, miss_rate, hits = stats.pcie_bytes, stats.miss_rate, stats.hits
        else:
            # Decoded on the CPU, or sent through a staging buffer: only the GPU's kernel counts bytes. So this is
            # what a row of the store takes on average, overflow and metadata included.
            moved, miss_rate = round(counted * self._store.nbytes / self._store.shape[0]), 1.0
            hits = 0
        return Traffic(counted, miss_rate, moved, counted * self._row_bytes - moved, hits)

    def close(self) -> None:
        self._store.close()

"""The two ways that a run reads node features, and what they count; no graph library in it."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch

from .. import CompressedFeatureStore, CompressedGPUCache, FormatError, share_budget
from ..config import ConfigError
from ..distributed.agreement import fingerprint
from ..store.order import hottest_first
from ..store.tensor_source import TensorSource
from .config import CacheConfig, StoreConfig
from .distributed import Ranks
from .sage import copy_async

_ALONE = Ranks()


@dataclass(frozen=True)
class Traffic:
    """What the fetches of an epoch read."""

    rows: int
    moved_bytes: int
    """Bytes read from CPU memory for these rows."""
    raw_bytes: int
    """What reading the same misses uncompressed would have moved."""
    saved_bytes: int
    """What the same rows would have cost uncompressed and uncached, less `moved_bytes`."""
    hits: int = 0
    """Of `rows`, those read from a GPU cache."""
    unique_rows: int | None = None
    """How many different rows they were, if that is counted."""
    by_type: Mapping[str, Traffic] = field(default_factory=dict)
    """Of each feature, where there are several."""

    @classmethod
    def total(cls, parts: Collection[Traffic], by_type: Mapping[str, Traffic] | None = None) -> Traffic:
        """The sum, of at least one. by_type: its own; None: that of each part, added up."""
        if by_type is None:
            names = next(iter(parts)).by_type
            by_type = {name: cls.total([part.by_type[name] for part in parts]) for name in names}
        unique = [part.unique_rows for part in parts if part.unique_rows is not None]
        return cls(
            sum(part.rows for part in parts),
            moved_bytes=sum(part.moved_bytes for part in parts),
            raw_bytes=sum(part.raw_bytes for part in parts),
            saved_bytes=sum(part.saved_bytes for part in parts),
            hits=sum(part.hits for part in parts),
            unique_rows=sum(unique) if len(unique) == len(parts) else None,
            by_type=by_type,
        )

    @property
    def misses(self) -> int:
        return self.rows - self.hits

    @property
    def miss_rate(self) -> float:
        """Share of the rows read from CPU memory: 1.0 without a GPU cache."""
        return self.misses / self.rows if self.rows else 1.0

    def to_record(self) -> dict[str, Any]:
        """Its numbers, without those of each feature; without `unique_rows` if they are not counted."""
        numbers = {
            "rows": self.rows,
            "hits": self.hits,
            "misses": self.misses,
            "miss_rate": self.miss_rate,
            "moved_bytes": self.moved_bytes,
            "raw_bytes": self.raw_bytes,
            "saved_bytes": self.saved_bytes,
        }
        return numbers if self.unique_rows is None else numbers | {"unique_rows": self.unique_rows}


class Features(Protocol):
    """Node features of the run's graph. The loop that reads them counts the rows."""

    store_bytes: int
    raw_bytes: int
    savings: float
    description: str
    precision: str | None
    """LOSSY: what values were rounded to; None: they are as in the data set."""
    cache: dict[str, Any] | None
    """What the GPU cache holds: `rows`, `bytes`, and as `effective_rows` how many rows for each one that would fit into
    these bytes uncompressed; with several features the same of each under `by_type`, where it is None for those without
    a cache. None without any."""

    def count(self, rows: int) -> None:
        """So many rows are being read."""

    def count_unique(self) -> bool:
        """From now on `traffic` says how many different rows it was. Returns whether it can: they are counted where a
        GPU reads compressed rows."""

    def traffic(self) -> Traffic:
        """The rows counted since the last call; on CUDA with a cache this waits for the GPU."""

    def close(self) -> None:
        """Free what was built; the features cannot be read any more."""


class HostSource(TensorSource):
    """Over a tensor in CPU memory. To a GPU rows are copied as a plain loop does it: enqueued on the current stream,
    without waiting if the ids are on the CPU."""

    def _pick(self, ids: torch.Tensor) -> torch.Tensor:
        return self.tensor.index_select(0, ids)  # what a plain loop does: a check of our own would make it slower

    def _copy(self, rows: torch.Tensor, device: torch.device) -> torch.Tensor:
        return copy_async(rows, device)


class RawFeatures:
    """The uncompressed tensor, for the plain loop."""

    savings = 0.0
    cache = precision = None

    def __init__(self, rows: torch.Tensor) -> None:
        """rows: [num_nodes, d] on the CPU."""
        self.rows, self._counted = rows, 0
        self.source = HostSource(rows)
        self._row_bytes = rows[0].numel() * rows.element_size()
        self.raw_bytes = self.store_bytes = rows.numel() * rows.element_size()
        self.description = f"raw {list(rows.shape)} {rows.dtype}, {self.raw_bytes / 1e6:.1f} MB"

    def count(self, rows: int) -> None:
        self._counted += rows

    def count_unique(self) -> bool:
        return False

    def traffic(self) -> Traffic:
        counted, self._counted = self._counted, 0
        raw = counted * self._row_bytes
        return Traffic(counted, moved_bytes=raw, raw_bytes=raw, saved_bytes=0)

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
        self.precision = next((part.precision for part in parts if part.precision is not None), None)
        self.cache = _add_caches({name: part.cache for name, part in by_type.items()})

    def count_unique(self) -> bool:
        return all([part.count_unique() for part in self.by_type.values()])

    def traffic(self) -> Traffic:
        by_type = {name: part.traffic() for name, part in self.by_type.items()}
        return Traffic.total(by_type.values(), by_type)

    def close(self) -> None:
        for part in self.by_type.values():
            part.close()


def _add_caches(by_type: Mapping[str, dict[str, Any] | None]) -> dict[str, Any] | None:
    """by_type: `cache` of each feature. Returns that of all."""
    caches = [cache for cache in by_type.values() if cache is not None]
    if not caches:
        return None
    nbytes = sum(cache["bytes"] for cache in caches)
    # Bytes of the rows, uncompressed, for each one that the caches take.
    effective = sum(cache["effective_rows"] * cache["bytes"] for cache in caches) / nbytes
    rows = sum(cache["rows"] for cache in caches)
    return {"rows": rows, "bytes": nbytes, "effective_rows": effective, "by_type": dict(by_type)}


def _open_store(
    rows: torch.Tensor, config: StoreConfig, order: torch.Tensor | None, progress: bool, mmap: bool
) -> CompressedFeatureStore:
    """The file's store, or a new one in this order. Raises ConfigError for a file of other rows."""
    if config.path is None:
        return CompressedFeatureStore.build(
            rows,
            codec=config.codec,
            layout=config.layout,
            order=order,
            pin=config.pin,
            progress=None if progress else False,
            precision=config.precision,
        )
    try:
        store = CompressedFeatureStore.load(config.path, pin=config.pin, mmap=mmap, lossy=config.precision is not None)
    except (OSError, FormatError, ValueError) as error:
        raise ConfigError(f"store.path: {error}") from error
    if store.shape != tuple(rows.shape) or store.dtype != rows.dtype:
        wanted, got = f"{list(rows.shape)} {rows.dtype}", f"{list(store.shape)} {store.dtype}"
        store.close()
        raise ConfigError(f"store.path: want a store of {wanted} like the data set, got {got} in {config.path}")
    found = None if store.precision is None else store.precision.name
    if found != config.precision:
        store.close()
        raise ConfigError(f"store.precision: want {found}, as {config.path} has it, got {config.precision}")
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
        ranks: Ranks = _ALONE,
    ) -> None:
        """rows: [num_nodes, d] on the CPU, not kept. hotness: [num_nodes], which rows to cache, and the order of a
        store that is built, whose caches are then its first rows; None: in the order of a store file, or lowest ids
        first. ranks: all of a machine share one store, and those of other machines have to have the same."""
        order = None
        if hotness is not None and store_config.path is None:
            order, hotness = hottest_first(hotness, len(rows)), None
        # Each process would page-lock a copy of mapped rows.
        mmap = device.type == "cpu" or ranks.local_size == 1

        def open_store() -> tuple[CompressedFeatureStore, str]:
            opened = _open_store(rows, store_config, order, progress, mmap)
            return opened, fingerprint(opened) if ranks.size > ranks.local_size else ""

        self.store, found = ranks.one_per_machine(open_store)
        ranks.require_same(found, "store")
        store = self.store
        self._device = device
        self._counted, self._row_bytes = 0, rows[0].numel() * rows.element_size()
        self.store_bytes, self.raw_bytes, self.savings = store.nbytes, store.raw_nbytes, store.savings
        lossy = "" if store.precision is None else f"{store.precision}, "
        self.precision = None if store.precision is None else store.precision.name
        what = f"{list(store.shape)} {store.dtype}"
        self.description = (
            f"{lossy}{store_config.path or store_config.codec}, {store.layout} slots, {what}, "
            f"{store.nbytes / 1e6:.1f} MB instead of {store.raw_nbytes / 1e6:.1f} MB (savings {store.savings:.1%})"
        )
        self.read_from(store)
        if cache_config.capacity is not None:
            self.read_from(CompressedGPUCache(store, cache_config.capacity, hotness=hotness, device=device))

    def read_from(self, source: CompressedFeatureStore | CompressedGPUCache) -> None:
        """source: the store, or a cache of its rows."""
        self.source = source
        self.cache: dict[str, Any] | None = None
        if isinstance(source, CompressedGPUCache):
            effective = source.num_cached * self._row_bytes / source.nbytes
            self.cache = {"rows": source.num_cached, "bytes": source.nbytes, "effective_rows": effective}

    def count(self, rows: int) -> None:
        self._counted += rows

    def count_unique(self) -> bool:
        if self._device.type != "cuda" or not self.store.page_lock():
            return False
        if isinstance(self.source, CompressedGPUCache):
            self.source.count_unique()
        else:
            self.source.count_unique(self._device)
        return True

    def traffic(self) -> Traffic:
        counted, self._counted = self._counted, 0
        stats = self.source.stats()
        self.source.reset_stats()
        of_all = counted * self._row_bytes
        if stats.hits + stats.misses == counted:
            moved, hits, raw, unique = stats.pcie_bytes, stats.hits, stats.raw_bytes, stats.unique
        else:
            # Decoded on the CPU, or sent through a staging buffer: only the GPU's kernel counts bytes. So this is
            # what a row of the store takes on average, overflow and metadata included.
            moved, hits, raw, unique = round(counted * self.store.nbytes / len(self.store)), 0, of_all, None
        return Traffic(counted, moved, raw, of_all - moved, hits, unique)

    def close(self) -> None:
        self.store.close()


def cache_together(
    by_type: Mapping[str, CompressedFeatures],
    capacity: int | float | str,
    hotness: Mapping[str, torch.Tensor] | None,
    device: torch.device,
) -> None:
    """Puts caches in front of the features, under one limit; see `share_budget`."""
    stores = {name: part.store for name, part in by_type.items()}
    for name, source in share_budget(stores, capacity, hotness=hotness, device=device).items():
        by_type[name].read_from(source)

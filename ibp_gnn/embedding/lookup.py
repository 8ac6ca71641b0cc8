"""Pooled lookups in one table or several, wherever the result is to be."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch

from ..codec.gather import ids_on_gpu
from ..codec.pool import Bags, pool_on_cpu
from ..codec.pool_gpu import GpuPool, PooledFeature, StagedIds, pool_rows
from ..store.feature_store import CompressedFeatureStore
from .table import Table


class Feature(NamedTuple):
    """Bags of rows of one table: columns [column, column + embedding_dim) of the output."""

    table: Table
    key: int
    """Which of the features of Bags."""
    mode: str
    padding_id: int
    column: int

    @property
    def end_column(self) -> int:
        return self.column + self.table.embedding_dim


class Lookup:
    """Pools these features, whose tables have one dtype. Safe to use from several threads."""

    def __init__(self, features: Sequence[Feature]) -> None:
        self.features = tuple(features)
        self.width = self.features[-1].end_column
        self.widths = [feature.table.embedding_dim for feature in self.features]
        self.dtype = self.features[0].table.dtype
        self._tables = list({id(feature.table): feature.table for feature in self.features}.values())
        self._stores = [table.store for table in self._tables]
        self._pools: dict[torch.device, GpuPool] = {}

    def pool(self, bags: Bags, device: torch.device, staged: Staged | None = None) -> torch.Tensor:
        """Returns [num_bags, width] on `device`. Raises as the public modules. staged: on that device."""
        if device.type == "cpu":
            return self._pool_on_cpu(bags)
        bags = self.on_gpu(bags, device)
        out = torch.empty(bags.num_bags, self.width, dtype=self.dtype, device=device)
        with _Locks(self._stores):
            pool = self._pool_on(device)
            if pool is None:
                self._gather_and_pool(bags, out)
            elif bags.num_bags:
                # Rows that were staged before an update are the old ones.
                of_now = staged if staged is not None and staged.versions == self.versions() else None
                pool.pool(bags, out, None if of_now is None else of_now.ids)
        return out

    def stage(self, bags: Bags, device: torch.device) -> Staged | None:
        """Brings the rows of these ids to the GPU; None if they are there, or cannot be staged. bags: on the device."""
        with _Locks(self._stores):
            pool = self._pool_on(device)
            ids = None if pool is None else pool.stage(bags)
            return None if ids is None else Staged(ids, self.versions())

    @staticmethod
    def on_gpu(bags: Bags, device: torch.device) -> Bags:
        """The bags on this GPU, on its current stream, without waiting."""
        return bags.each(lambda part: ids_on_gpu(part, device))

    def is_current(self) -> bool:
        """Whether the tables have the stores that they had: loading a state gives them others."""
        return all(table.store is store for table, store in zip(self._tables, self._stores, strict=True))

    def versions(self) -> tuple[int, ...]:
        """How many updates each store has had."""
        return tuple(store.version for store in self._stores)

    def _pool_on(self, device: torch.device) -> GpuPool | None:
        """None where rows of a table are not page-locked."""
        gathers = [feature.table.gather_on(device) for feature in self.features]
        pool = self._pools.get(device)
        if pool is None or any(one.gather is not gather for one, gather in zip(pool.features, gathers, strict=True)):
            pooled = []
            for feature, gather in zip(self.features, gathers, strict=True):
                if gather is None:
                    return None
                pooled.append(PooledFeature(gather, feature.key, feature.mode, feature.padding_id, feature.column))
            pool = self._pools[device] = GpuPool(device, self.dtype, pooled)
        return pool

    def _pool_on_cpu(self, bags: Bags) -> torch.Tensor:
        bags = bags.each(torch.Tensor.cpu)
        parts = []
        for feature in self.features:
            own = bags if len(self.features) == 1 else bags.of_feature(feature.key)
            part = torch.empty(own.num_bags, feature.table.embedding_dim, dtype=self.dtype, device="cpu")
            store = feature.table.store
            with store.lock:
                pool_on_cpu(
                    store.codec.form,
                    store.rows,
                    own,
                    part,
                    mode=feature.mode,
                    padding_id=feature.padding_id,
                    slot_of=store.slot_of,
                )
            parts.append(part)
        return parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)

    def _gather_and_pool(self, bags: Bags, out: torch.Tensor) -> None:
        """Rows that are not page-locked go to the GPU through a staging buffer."""
        for feature in self.features:
            own = bags if len(self.features) == 1 else bags.of_feature(feature.key)
            rows = feature.table.source.gather(own.ids, device=out.device)
            pool_rows(rows, own, out, mode=feature.mode, padding_id=feature.padding_id, column=feature.column)


class Staged(NamedTuple):
    """Rows on a GPU, and what they are of."""

    ids: StagedIds
    versions: tuple[int, ...]


class _Locks:
    """Holds the locks of all these stores, to read."""

    def __init__(self, stores: list[CompressedFeatureStore]) -> None:
        self._stores = stores
        self._held = 0

    def __enter__(self) -> None:
        try:
            for store in self._stores:
                store.lock.__enter__()
                self._held += 1
        except BaseException:
            self.__exit__()
            raise

    def __exit__(self, *_: object) -> None:
        while self._held:
            self._held -= 1
            self._stores[self._held].lock.__exit__()

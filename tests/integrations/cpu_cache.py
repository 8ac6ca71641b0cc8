"""A CompressedGPUCache for machines without a GPU."""

from __future__ import annotations

from typing import Any

import torch

from ibp_gnn import CompressedFeatureStore, CompressedGPUCache


class CpuCache(CompressedGPUCache):
    """Has the store and the `rebuilt` of a GPU cache, and no GPU: rows come from the store."""

    def __init__(self, store: CompressedFeatureStore, capacity: str = "1 row") -> None:
        self.store, self.capacity = store, capacity
        self.fails = False

    def gather(self, ids: Any, *, device: Any = None, out: torch.Tensor | None = None) -> torch.Tensor:
        return self.store.gather(ids, device=device, out=out)

    def rebuilt(self, store: CompressedFeatureStore) -> CpuCache:
        if self.fails:
            raise ValueError("capacity: want more than that")
        return CpuCache(store, self.capacity)

    def __repr__(self) -> str:
        return f"CpuCache({self.store})"

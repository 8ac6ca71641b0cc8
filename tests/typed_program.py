"""A small program as a user writes it, for tests/test_types.py: mypy --strict takes it, and knows the types of what it
gets."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

import ibp_gnn
from ibp_gnn import CompressedFeatureStore, RowSource, hotness

if TYPE_CHECKING:
    from typing_extensions import assert_type


def mean_of(source: RowSource, ids: torch.Tensor) -> torch.Tensor:
    """Takes a store, a cache or a class of one's own."""
    return source.gather(ids, device="cpu").float().mean(0)


def store_of(features: torch.Tensor) -> CompressedFeatureStore:
    store = CompressedFeatureStore.build(features, "auto", layout="compact", progress=None)
    same = ibp_gnn.CompressedFeatureStore.build(features.numpy(), order=torch.arange(len(features)))
    ids = torch.tensor([3, 1])
    rows = store.gather(ids, "cpu")
    mean_of(same, ids)
    if TYPE_CHECKING:
        assert_type(store, CompressedFeatureStore)
        assert_type(rows, torch.Tensor)
        assert_type(store[1:3], torch.Tensor)
        assert_type(store.shape, tuple[int, ...])
        assert_type(store.dtype, torch.dtype)
        assert_type(store.device, torch.device)
        assert_type(store.ndim, int)
        assert_type(store.savings, float)
        assert_type(store.is_pinned(), bool)
        assert_type(store.stats(), ibp_gnn.GatherStats)
        assert_type(store.stats().miss_rate, float)
        assert_type(np.asarray(store).ndim, int)
        assert_type(hotness.degree(ids, 4), torch.Tensor)
        assert_type(ibp_gnn.hotness.degree(ids, 4), torch.Tensor)
    return store


def save(store: CompressedFeatureStore, path: str) -> float:
    store.save(path)
    try:
        with ibp_gnn.CompressedFeatureStore.load(path, mmap=False) as loaded:
            loaded.update(torch.tensor([0]), loaded[[0]] * 2)
            return loaded.savings
    except ibp_gnn.FormatError:
        return 0.0


def cached(store: CompressedFeatureStore, graph: object, loader: list[torch.Tensor]) -> None:
    with ibp_gnn.CompressedGPUCache(store, "4GB", hotness=torch.ones(len(store))) as cache:
        ibp_gnn.attach(graph, "feat", cache)
        x = ibp_gnn.fetch(graph, "feat", torch.tensor([1]), device="cuda")
        source = ibp_gnn.detach(graph, "feat")
        for batch, rows in ibp_gnn.Prefetcher(loader, cache, device="cuda"):
            if TYPE_CHECKING:
                assert_type(batch, torch.Tensor)
                assert_type(rows, torch.Tensor)
        if TYPE_CHECKING:
            assert_type(cache.num_cached, int)
            assert_type(x, torch.Tensor)
            assert_type(source, RowSource)
    codec = ibp_gnn.Codec.fit(store[:], codec="dict")
    features = ibp_gnn.pyg.PyGFeatureStore({"x": store}, progress=False)
    sampler = ibp_gnn.pyg.NeighborSampler(graph, [10, 10])
    if TYPE_CHECKING:
        assert_type(codec.report(store[:]), ibp_gnn.CodecReport)
        assert_type(features.source("x"), RowSource)
        assert_type(sampler, ibp_gnn.pyg.NeighborSampler)
        assert_type(
            ibp_gnn.share_budget({"a": store}, "1GB"), dict[str, ibp_gnn.CompressedGPUCache | CompressedFeatureStore]
        )


if __name__ == "__main__":
    print(store_of(torch.zeros(100, 4)))

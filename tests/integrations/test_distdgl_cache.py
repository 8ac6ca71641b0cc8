"""A client's cache of rows that it would pull."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

pytest.importorskip("dgl")

from distdgl_parts import NODES, attached, rows_with_overflow

import ibp_gnn
from ibp_gnn.integrations import distdgl_cache
from ibp_gnn.testing import assert_bitwise_equal

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.cuda)]
HOTNESS = torch.randperm(NODES, generator=torch.Generator().manual_seed(3))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.uint8], ids=str)
@pytest.mark.parametrize("capacity", [1.0, "50%", "100 rows", 4000])
def test_exact_bits(tmp_path: Path, capacity: float | int | str, dtype: torch.dtype, device: str) -> None:
    feature, rows = attached(tmp_path, rows_with_overflow(dtype))
    cache = ibp_gnn.distdgl.DistCache(feature, capacity, hotness=HOTNESS, device=device)
    assert isinstance(cache, ibp_gnn.RowSource) and cache.shape == (NODES, 33) and cache.dtype == dtype
    ids = torch.cat([torch.randperm(NODES), torch.tensor([9, 9])])
    hot = torch.argsort(HOTNESS, descending=True)[: cache.num_cached]
    feature.reset_stats()
    for part in (ids, hot, ids[:0]):
        cache.reset_stats()
        got = cache.gather(part, device=device)
        assert got.device.type == device
        assert_bitwise_equal(got.cpu(), rows[part])
        stats = cache.stats()
        assert stats.hits + stats.misses == len(part)
        assert stats.hits == int(torch.isin(part, hot).sum())
    assert feature.stats().rows == int((~torch.isin(ids, hot)).sum()), "hits are not pulled"
    assert cache[[3, 4]].shape == (2, 33)
    if capacity == "100 rows":
        assert cache.num_cached == 100
    elif capacity == 4000:
        assert 2000 < cache.nbytes <= 4000
    elif capacity == "50%":
        assert 0.95 * feature.nbytes / 2 < cache.nbytes <= feature.nbytes / 2
        assert cache._rows.slots.untyped_storage().nbytes() == cache._rows.slots.numel()
    assert "rows" in repr(cache) and cache.nbytes > 0


def test_pulled_in_many_parts_it_is_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    feature, rows = attached(tmp_path, rows_with_overflow())
    whole = ibp_gnn.distdgl.DistCache(feature, 0.7, hotness=HOTNESS, device="cpu")
    monkeypatch.setattr(distdgl_cache, "_CHUNK_BYTES", 64 * feature.layout.slot_bytes)
    parts = ibp_gnn.distdgl.DistCache(feature, 0.7, hotness=HOTNESS, device="cpu")
    assert 200 < whole.num_cached == parts.num_cached < NODES and whole.nbytes == parts.nbytes
    feature.reset_stats()
    hot = torch.argsort(HOTNESS, descending=True)[: parts.num_cached]
    assert_bitwise_equal(parts[hot], rows[hot])
    assert feature.stats().rows == 0


def test_bad_arguments(tmp_path: Path) -> None:
    feature, _ = attached(tmp_path, rows_with_overflow())
    make = ibp_gnn.distdgl.DistCache
    with pytest.raises(ValueError, match="capacity: want room for at least 1 row, got 3"):
        make(feature, 3, hotness=HOTNESS, device="cpu")
    with pytest.raises(ValueError, match=r"hotness: want shape \[600\], got \[5\]"):
        make(feature, 0.5, hotness=HOTNESS[:5], device="cpu")
    with pytest.raises(TypeError, match="capacity"):
        make(feature, None, hotness=HOTNESS, device="cpu")  # type: ignore[arg-type]
    cache = make(feature, 0.5, hotness=HOTNESS, device="cpu")
    with pytest.raises(IndexError, match="want 0 <= id < 600, got 600"):
        cache[torch.tensor([600])]

"""Features of a training: what they are read from, and what they count."""

from __future__ import annotations

import pytest
import torch

from ibp_gnn import CompressedFeatureStore
from ibp_gnn.config import ConfigError
from ibp_gnn.training.config import CacheConfig, StoreConfig
from ibp_gnn.training.features import CompressedFeatures, Features, FeaturesByType, RawFeatures

CPU = torch.device("cpu")


@pytest.mark.parametrize("kind", ["raw", "compressed"])
def test_features_count_what_is_read(kind: str) -> None:
    rows = torch.arange(64 * 6, dtype=torch.float32).reshape(64, 6)
    features: Features = (
        RawFeatures(rows)
        if kind == "raw"
        else CompressedFeatures(rows, CPU, StoreConfig(), CacheConfig(), torch.ones(64), progress=False)
    )
    features.count(3)
    features.count(1)
    traffic = features.traffic()
    assert (traffic.rows, traffic.miss_rate) == (4, 1.0)
    assert traffic.moved_bytes + traffic.saved_bytes == 4 * 6 * 4
    assert (traffic.saved_bytes == 0) == (kind == "raw")
    assert (traffic.raw_bytes, traffic.hits, traffic.misses) == (4 * 6 * 4, 0, 4)
    assert not features.count_unique()
    record = traffic.to_record()
    assert "unique_rows" not in record and record["miss_rate"] == 1.0
    assert features.traffic().rows == 0
    assert features.raw_bytes == 64 * 6 * 4
    features.close()


def test_features_from_a_store_file(tmp_path) -> None:
    rows = torch.arange(64 * 6, dtype=torch.float32).reshape(64, 6)
    path = str(tmp_path / "x.ibp")
    CompressedFeatureStore.build(rows, "dict", order=torch.arange(63, -1, -1), progress=False).save(path)
    config = StoreConfig(path=path)
    features = CompressedFeatures(rows, CPU, config, CacheConfig(), None, progress=False)
    assert torch.equal(features.source.gather(torch.arange(64)), rows)
    assert features.description.startswith(f"{path}, ")
    features.close()
    for other, message in (
        (rows[:63], r"store.path: want a store of \[63, 6\] torch.float32 like the data set, got \[64, 6\]"),
        (rows.half(), "want a store of .* torch.float16 like the data set, got .* torch.float32"),
    ):
        with pytest.raises(ConfigError, match=message):
            CompressedFeatures(other, CPU, config, CacheConfig(), None, progress=False)
    with pytest.raises(ConfigError, match="store.path: .*No such file"):
        CompressedFeatures(rows, CPU, StoreConfig(path="none.ibp"), CacheConfig(), None, progress=False)


def test_lossy_features_say_so(tmp_path) -> None:
    rows, path = torch.randn(500, 6), str(tmp_path / "x.ibp")
    features = CompressedFeatures(rows, CPU, StoreConfig(precision="bf16"), CacheConfig(), None, progress=False)
    assert features.description.startswith("LOSSY bf16, auto, ") and features.precision == "bf16"
    assert torch.equal(features.source.gather(torch.arange(500)), rows.bfloat16().float())
    features.store.save(path)
    features.close()
    features = CompressedFeatures(rows, CPU, StoreConfig(path, precision="bf16"), CacheConfig(), None, progress=False)
    assert features.precision == "bf16"
    features.close()
    with pytest.raises(ConfigError, match="store.path: .*want lossless rows, got LOSSY bf16"):
        CompressedFeatures(rows, CPU, StoreConfig(path), CacheConfig(), None, progress=False)
    with pytest.raises(ConfigError, match="store.precision: want bf16, as .* has it, got fp16"):
        CompressedFeatures(rows, CPU, StoreConfig(path, precision="fp16"), CacheConfig(), None, progress=False)
    CompressedFeatureStore.build(rows, progress=False).save(path)
    with pytest.raises(ConfigError, match="store.precision: want None, as .* has it, got bf16"):
        CompressedFeatures(rows, CPU, StoreConfig(path, precision="bf16"), CacheConfig(), None, progress=False)


@pytest.mark.cuda
@pytest.mark.parametrize("capacity", [None, "500 rows"])
def test_different_rows_are_counted_on_a_gpu(capacity: str | None) -> None:
    rows = torch.randn(2000, 16)
    device = torch.device("cuda", 0)
    features = CompressedFeatures(
        rows, device, StoreConfig(), CacheConfig(capacity), torch.arange(2000), progress=False
    )
    assert features.count_unique()
    for ids in (torch.arange(1000, 1900), torch.tensor([3, 3, 1999])):
        for _ in range(2):
            features.count(len(ids))
            assert torch.equal(features.source.gather(ids, device=device).cpu(), rows[ids])
        traffic = features.traffic()
        assert (traffic.rows, traffic.unique_rows) == (2 * len(ids), len(ids.unique()))
        assert traffic.hits == (0 if capacity is None else 2 * int((ids >= 1500).sum()))
        assert traffic.raw_bytes == traffic.misses * 16 * 4
    features.close()


def test_features_of_several_types_are_counted_together() -> None:
    parts = {"a": RawFeatures(torch.zeros(4, 2)), "b": RawFeatures(torch.zeros(2, 6))}
    features = FeaturesByType(parts)
    assert features.raw_bytes == features.store_bytes == 80 and features.savings == 0
    parts["a"].count(3)
    parts["b"].count(1)
    traffic = features.traffic()
    assert (traffic.rows, traffic.miss_rate, traffic.moved_bytes, traffic.saved_bytes) == (4, 1.0, 48, 0)
    assert (traffic.raw_bytes, traffic.misses, traffic.unique_rows) == (48, 4, None)
    assert [part.rows for part in traffic.by_type.values()] == [3, 1]
    assert features.traffic().miss_rate == 1.0
    assert features.cache is None and not features.count_unique()
    features.close()

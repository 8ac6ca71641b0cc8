"""The loop's parts that the script's tests do not reach: the other aggregation, time and bytes."""

from __future__ import annotations

import dataclasses
import time

import pytest
import torch

from ibp_gnn import CompressedFeatureStore
from ibp_gnn.config import ConfigError, load
from ibp_gnn.training import loop
from ibp_gnn.training.config import CacheConfig, StoreConfig, TrainingConfig
from ibp_gnn.training.features import CompressedFeatures, Features, RawFeatures, Traffic, _add_caches
from ibp_gnn.training.timing import PhaseTimer

CPU = torch.device("cpu")
SMALL = ["device=cpu", "model.hidden=16", "train.fanouts=[3, 3]", "train.batch_size=16384", "log.progress=false"]


def test_csc_trains_like_dgl(monkeypatch: pytest.MonkeyPatch) -> None:
    config = load(TrainingConfig, None, [*SMALL, "features=raw", "model.dropout=0"])
    _, with_dgl = loop.Run(config).train_epoch(1)
    monkeypatch.setattr(loop, "choose_aggregation", lambda device: "csc")
    job = loop.Run(config)
    _, with_csc = job.train_epoch(1)
    assert "CSC" in job.describe()[-1]
    assert len(with_csc) == 5
    # Same batches and weights: the first loss differs by rounding alone, later ones by what that grows to.
    assert with_csc[0] == pytest.approx(with_dgl[0], rel=1e-5)
    assert with_csc == pytest.approx(with_dgl, rel=1e-2)


def test_a_cache_without_a_gpu_is_said_and_left_out() -> None:
    lines: list[str] = []
    config = load(TrainingConfig, None, [*SMALL, "features=raw", "cache.capacity=0.5"])
    loop.Run(config, lines.append)
    assert lines == ["no cache: cache.capacity is for features=compressed on cuda, not features=raw on cpu"]


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_cuda_where_there_is_none() -> None:
    with pytest.raises(ConfigError, match="device: want cuda, but torch .* sees no usable CUDA device"):
        loop.Run(load(TrainingConfig, None, ["device=cuda"]))


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


def test_phases_add_up() -> None:
    timer = PhaseTimer(CPU)
    for _ in range(2):
        time.sleep(0.02)
        timer.mark("a")
        timer.mark("b")
    seconds = timer.seconds()
    assert seconds.keys() == {"a", "b"}
    assert seconds["a"] >= 0.04 > seconds["b"] >= 0


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


def test_what_the_log_says_of_traffic_and_caches() -> None:
    traffic = Traffic(10, moved_bytes=1_200_000, raw_bytes=2_000_000, saved_bytes=3_800_000, hits=6)
    assert loop._traffic_text(traffic.to_record()) == (
        "hits 6, misses 4 (miss rate 40.0%)  moved 1.2 MB instead of 2.0 MB raw, saved 3.8 MB"
    )
    counted = dataclasses.replace(traffic, unique_rows=3)
    assert "(miss rate 40.0%), unique rows 3  moved" in loop._traffic_text(counted.to_record())
    one = {"rows": 30, "bytes": 1_000_000, "effective_rows": 2.0}
    other = {"rows": 10, "bytes": 3_000_000, "effective_rows": 1.0}
    both = _add_caches({"a": one, "b": other, "c": None})
    assert both is not None and (both["rows"], both["bytes"], both["effective_rows"]) == (40, 4_000_000, 1.25)
    assert loop._cache_text(both) == (
        "40 rows, 4.0 MB, effective rows 1.25; a: 30 rows, 1.0 MB, effective rows 2.00; "
        "b: 10 rows, 3.0 MB, effective rows 1.00; c: no rows"
    )
    assert _add_caches({"a": None}) is None


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

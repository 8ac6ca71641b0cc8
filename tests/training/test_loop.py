"""The loop's parts that the script's tests do not reach: the other aggregation, devices, what it logs."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from ibp_gnn.config import ConfigError, load
from ibp_gnn.training import loop
from ibp_gnn.training.config import TrainingConfig
from ibp_gnn.training.features import Traffic, _add_caches

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


def test_what_the_log_says_of_traffic_and_caches() -> None:
    traffic = Traffic(10, moved_bytes=1_200_000, raw_bytes=2_000_000, saved_bytes=3_800_000, hits=6)
    assert loop._traffic_text(traffic.to_record(), True) == (
        "hits 6, misses 4 (miss rate 40.0%)  moved 1.2 MB instead of 2.0 MB raw, saved 3.8 MB"
    )
    counted = dataclasses.replace(traffic, unique_rows=3)
    assert "(miss rate 40.0%), unique rows 3  moved" in loop._traffic_text(counted.to_record(), True)
    one = {"rows": 30, "bytes": 1_000_000, "effective_rows": 2.0}
    other = {"rows": 10, "bytes": 3_000_000, "effective_rows": 1.0}
    both = _add_caches({"a": one, "b": other, "c": None})
    assert both is not None and (both["rows"], both["bytes"], both["effective_rows"]) == (40, 4_000_000, 1.25)
    assert loop._cache_text(both) == (
        "40 rows, 4.0 MB, effective rows 1.25; a: 30 rows, 1.0 MB, effective rows 2.00; "
        "b: 10 rows, 3.0 MB, effective rows 1.00; c: no rows"
    )
    assert _add_caches({"a": None}) is None

"""`train.prefetch`: the same training, step by step, as without."""

from __future__ import annotations

from typing import Any

import pytest

from ibp_gnn.config import ConfigError, load
from ibp_gnn.training import loop
from ibp_gnn.training.config import TrainingConfig

pytest.importorskip("dgl")

SMALL = ["dataset.name=synthetic-products", "dataset.features=bow", "dataset.scale=0.004", "model.hidden=16"]
SMALL += ["train.fanouts=[3, 3]", "train.batch_size=90", "train.epochs=2", "log.progress=false", "store.codec=auto"]


def train(*overrides: str) -> dict[str, Any]:
    return loop.run(load(TrainingConfig, None, [*SMALL, *overrides]), log=lambda line: None)


def check_equal(plain: dict[str, Any], prefetched: dict[str, Any]) -> None:
    assert len(plain["step_losses_hex"]) == 18
    assert prefetched["step_losses_hex"] == plain["step_losses_hex"]
    assert prefetched["test_accuracy"] == plain["test_accuracy"]
    for one, other in zip(plain["epochs"], prefetched["epochs"], strict=True):
        assert other["rows"] == one["rows"] and other["val_accuracy"] == one["val_accuracy"]
        assert other["hits"] + other["misses"] == other["rows"] and other["by_type"] == {}
        assert min(other["sample_seconds"], other["fetch_seconds"], other["compute_seconds"]) > 0


def test_losses_on_the_cpu() -> None:
    plain = train("device=cpu", "features=raw")
    for features in ("raw", "compressed"):
        check_equal(plain, train("device=cpu", f"features={features}", "train.prefetch=true"))


def test_losses_with_workers() -> None:
    losses = []
    for prefetch in ("false", "true"):
        overrides = [*SMALL, "device=cpu", "train.workers=2", f"train.prefetch={prefetch}"]
        losses.append(loop.Run(load(TrainingConfig, None, overrides), log=lambda line: None).train_epoch(1)[1])
    assert len(losses[0]) == 9 and losses[0] == losses[1]


@pytest.mark.cuda
@pytest.mark.parametrize(
    "how", [["features=raw"], ["features=compressed"], ["features=compressed", "cache.capacity=0.3"]]
)
def test_losses_on_a_gpu(how: list[str]) -> None:
    common = ["device=cuda", "train.deterministic=true"]
    plain = train(*common, "features=raw")
    serial, prefetched = train(*common, *how), train(*common, *how, "train.prefetch=true")
    check_equal(plain, serial)
    check_equal(serial, prefetched)
    for one, other in zip(serial["epochs"], prefetched["epochs"], strict=True):
        assert (other["moved_bytes"], other["hits"]) == (one["moved_bytes"], one["hits"])
        assert (other["hits"] > 0) == ("cache.capacity=0.3" in how)
    cache = prefetched["cache"]
    assert cache is None or (cache["rows"] > 0 and cache["bytes"] > 0 and cache["effective_rows"] > 0)
    assert (cache is not None) == ("cache.capacity=0.3" in how)


def test_the_other_loops_have_none() -> None:
    with pytest.raises(ConfigError, match="train.prefetch: want loop dgl, got pyg"):
        load(TrainingConfig, None, ["loop=pyg", "train.prefetch=true"])

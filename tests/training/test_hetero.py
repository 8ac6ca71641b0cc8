"""Training on heterographs: sums over relations, embeddings, and compressed features that train exactly like raw."""

from __future__ import annotations

import importlib.util
import json
from typing import Any

import pytest
import torch

if importlib.util.find_spec("dgl") is None:
    pytest.skip("DGL is not installed", allow_module_level=True)

from hetero_cases import CITES, SMALL, dataset

from ibp_gnn.config import ConfigError, load
from ibp_gnn.datasets import HeteroNodeDataset
from ibp_gnn.training import loop
from ibp_gnn.training.config import TrainingConfig


def run(monkeypatch: pytest.MonkeyPatch, data: HeteroNodeDataset, *overrides: str) -> dict[str, Any]:
    monkeypatch.setattr(loop, "load_dataset", lambda **settings: data)
    return loop.run(load(TrainingConfig, None, [*SMALL, "train.epochs=2", *overrides]), log=lambda line: None)


@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork.*:DeprecationWarning")
@pytest.mark.parametrize("workers", [0, 1])
def test_compressed_features_train_exactly_like_raw_ones(monkeypatch: pytest.MonkeyPatch, workers: int) -> None:
    data = dataset().with_reverse_edges()
    settings = f"train.workers={workers}"
    raw, compressed = (run(monkeypatch, data, settings, f"features={kind}") for kind in ("raw", "compressed"))
    assert len(raw["step_losses"]) == 4 and len(set(raw["step_losses"])) == 4
    assert raw["step_losses_hex"] == compressed["step_losses_hex"]
    assert raw["test_accuracy"] == compressed["test_accuracy"]
    assert (raw["aggregation"], raw["num_nodes"], raw["num_edges"]) == ("csc", 290, 2800)
    epoch = compressed["epochs"][0]
    assert epoch["moved_bytes"] + epoch["saved_bytes"] == epoch["rows"] * 6 * 4


def test_embeddings_and_weights_learn(monkeypatch: pytest.MonkeyPatch) -> None:
    data = dataset().with_reverse_edges()
    monkeypatch.setattr(loop, "load_dataset", lambda **settings: data)
    job = loop.Run(load(TrainingConfig, None, [*SMALL, "model.dropout=0", "train.lr=0.03"]))
    before = {name: weight.detach().clone() for name, weight in job.model.named_parameters()}
    losses = [job.train_epoch(epoch)[0]["loss"] for epoch in range(1, 9)]
    assert losses[-1] < 0.85 * losses[0]
    changed = {name for name, weight in job.model.named_parameters() if not torch.equal(weight, before[name])}
    assert changed == before.keys()
    assert [type(optimizer).__name__ for optimizer in job.optimizers] == ["Adam", "SparseAdam"]
    assert "by relation" in job.describe()[-1] and "paper: " in job.describe()[1]


def test_one_node_type(monkeypatch: pytest.MonkeyPatch) -> None:
    """DGL gives tensors in the place of dicts."""
    whole = dataset()
    data = dataset(
        num_nodes_of={"paper": 200}, edges={CITES: whole.edges[CITES], ("paper", "like", "paper"): whole.edges[CITES]}
    )
    assert len(run(monkeypatch, data)["step_losses"]) == 4


def test_no_test_labels(monkeypatch: pytest.MonkeyPatch) -> None:
    result = run(monkeypatch, dataset(test_ids=torch.empty(0, dtype=torch.int64)))
    assert result["test_accuracy"] is None and result["val_accuracy"] > 0
    assert json.loads(json.dumps(result))["dataset"] == "small"


@pytest.mark.parametrize("kind", ["graphbolt", "pyg"])
def test_other_loops_say_so(monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    monkeypatch.setattr(loop, "_import_loop", lambda module, cls: None)
    with pytest.raises(ConfigError, match=f"loop: want dgl for small, which has several node types, got {kind}"):
        run(monkeypatch, dataset(), f"loop={kind}")


def two_featured_types() -> HeteroNodeDataset:
    data = dataset().with_reverse_edges()
    generator = torch.Generator().manual_seed(1)
    return dataset(edges=data.edges, features={**data.features, "author": torch.randn(90, 11, generator=generator)})


@pytest.mark.parametrize("features", ["raw", "compressed"])
def test_each_feature_and_all_of_them_are_logged(monkeypatch: pytest.MonkeyPatch, features: str) -> None:
    data = two_featured_types()
    monkeypatch.setattr(loop, "load_dataset", lambda **settings: data)
    lines: list[str] = []
    config = load(TrainingConfig, None, [*SMALL, "train.epochs=1", f"features={features}", "log.unique_rows=true"])
    result = loop.run(config, log=lines.append)
    (epoch,) = result["epochs"]
    by_type = epoch["by_type"]
    assert list(by_type) == ["paper", "author"] and result["cache"] is None
    for name in ("rows", "hits", "misses", "moved_bytes", "raw_bytes", "saved_bytes"):
        assert epoch[name] == sum(part[name] for part in by_type.values())
    assert epoch["raw_bytes"] == by_type["paper"]["rows"] * 6 * 4 + by_type["author"]["rows"] * 11 * 4
    assert "unique_rows" not in epoch and "unique_rows" not in by_type["paper"]
    assert lines[0].startswith("no unique_rows: log.unique_rows is for features=compressed on cuda")
    assert lines[0].endswith(f"not features={features} on cpu")
    for line, (name, part) in zip(lines[-2:], by_type.items(), strict=True):
        assert line.startswith(f"  {name}: read {part['rows']} rows: ")
        assert line.count(" MB") == 3


def test_degrees_are_those_of_all_relations() -> None:
    data = dataset().with_reverse_edges()
    degrees = loop._degree_by_type(data, "paper")
    assert int(degrees.sum()) == 900 + 900 + 500  # cites, its reverse, and the reverse of writes
    alone = dataset(edges={CITES: data.edges[CITES]})
    assert torch.equal(loop._degree_by_type(alone, "author"), torch.zeros(90, dtype=torch.int64))


def test_presample_is_for_one_node_type(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop.Run, "_cache_config", lambda self: self.config.cache)
    with pytest.raises(ConfigError, match="cache.hotness: want degree or null for small, got presample"):
        run(monkeypatch, two_featured_types(), "cache.capacity=0.5", "cache.hotness=presample")


@pytest.mark.cuda
@pytest.mark.parametrize("hotness", ["degree", "null"])
@pytest.mark.parametrize("capacity", ["0.5", "7000", "7KB"])
def test_one_cache_budget_for_all_node_types(monkeypatch: pytest.MonkeyPatch, capacity: str, hotness: str) -> None:
    data = two_featured_types()
    settings = ["device=cuda", "train.deterministic=true", "log.unique_rows=true"]
    raw = run(monkeypatch, data, *settings, "features=raw")
    cached = run(monkeypatch, data, *settings, f"cache.capacity={capacity}", f"cache.hotness={hotness}")
    assert cached["step_losses_hex"] == raw["step_losses_hex"]
    cache, parts = cached["cache"], cached["cache"]["by_type"]
    limit = 7000 if capacity != "0.5" else cached["store_bytes"] // 2 + 1
    assert 0 < cache["bytes"] <= limit and set(parts) == {"paper", "author"}
    held = [part for part in parts.values() if part is not None]
    assert cache["rows"] == sum(part["rows"] for part in held) and cache["bytes"] == sum(p["bytes"] for p in held)
    raw_row_bytes = {"paper": 6 * 4, "author": 11 * 4}
    raw_bytes = sum(part["rows"] * raw_row_bytes[name] for name, part in parts.items() if part is not None)
    assert cache["effective_rows"] == pytest.approx(raw_bytes / cache["bytes"])
    for epoch in cached["epochs"]:
        assert epoch["hits"] > 0 and epoch["hits"] + epoch["misses"] == epoch["rows"]
        unique = {name: part["unique_rows"] for name, part in epoch["by_type"].items()}
        assert epoch["unique_rows"] == sum(unique.values())
        assert 0 < unique["paper"] <= 200 and 0 < unique["author"] <= 90

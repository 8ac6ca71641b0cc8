"""Training on heterographs: sums over relations, embeddings, and compressed features that train exactly like raw."""

from __future__ import annotations

import importlib.util
import json
from typing import Any

import pytest
import torch

if importlib.util.find_spec("dgl") is None:
    pytest.skip("DGL is not installed", allow_module_level=True)

from ibp_gnn.config import ConfigError, load
from ibp_gnn.datasets import HeteroNodeDataset
from ibp_gnn.training import loop
from ibp_gnn.training.config import TrainingConfig
from ibp_gnn.training.features import FeaturesByType, RawFeatures
from ibp_gnn.training.hetero_loop import HeteroDGLLoop
from ibp_gnn.training.hetero_sage import HeteroBlock, HeteroGraphSAGE, HeteroSageConv, InputNorm, to_hetero_csc
from ibp_gnn.training.sage import CscBlock

CPU = torch.device("cpu")
SMALL = ["device=cpu", "model.hidden=8", "train.fanouts=[3, 3]", "train.batch_size=64", "log.progress=false"]
WRITES, CITES = ("author", "writes", "paper"), ("paper", "cites", "paper")
BACK = ("paper", "rev_writes", "author")


def dataset(**changed: Any) -> HeteroNodeDataset:
    generator = torch.Generator().manual_seed(0)

    def ids(end: int, count: int) -> torch.Tensor:
        return torch.randint(end, (count,), generator=generator)

    members: dict[str, Any] = dict(
        name="small",
        num_classes=4,
        num_nodes_of={"author": 90, "paper": 200},
        edges={WRITES: (ids(90, 500), ids(200, 500)), CITES: (ids(200, 900), ids(200, 900))},
        features={"paper": torch.randn(200, 6, generator=generator)},
        target="paper",
        labels=ids(4, 200),
        train_ids=torch.arange(100),
        val_ids=torch.arange(100, 150),
        test_ids=torch.arange(150, 200),
    )
    return HeteroNodeDataset(**(members | changed))


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


def test_batches_are_the_graphs(monkeypatch: pytest.MonkeyPatch) -> None:
    """All neighbours: every row, label and edge of a batch is what the data set has."""
    data = dataset()
    config = load(TrainingConfig, None, [*SMALL, "train.fanouts=[-1, -1]", "train.batch_size=40"]).train
    features = FeaturesByType({"paper": RawFeatures(data.features["paper"])})
    steps = list(
        HeteroDGLLoop(data, features, config, CPU, "csc").steps(data.val_ids, shuffle=False, mark=lambda p: None)
    )
    assert [len(step.labels) for step in steps] == [40, 10]
    step = steps[0]
    torch.testing.assert_close(step.labels, data.labels[100:140])
    paper_rows, authors = step.x["paper"], step.x["author"]
    assert authors.dtype == torch.int64
    last = step.blocks[-1]
    assert last.num_dst == {"author": 0, "paper": 40}
    for edge_type in (WRITES, CITES):
        src, dst = data.edges[edge_type]
        for position in range(40):
            mine = src[dst == 100 + position]
            assert int(last.relations[edge_type].indptr.diff()[position]) == len(mine)
    # Papers of the last block are the first ones of the first block: rows are those of the data set.
    assert torch.equal(paper_rows[:40], data.features["paper"][100:140])


def test_conv_is_the_sum_over_relations() -> None:
    torch.manual_seed(0)
    widths = {"author": 3, "paper": 5}
    conv = HeteroSageConv(widths, 2, [WRITES, CITES, BACK], ["paper"])
    assert len(conv.fc_self) == 1 and len(conv.fc_neigh) == 2
    x = {"author": torch.randn(4, 3), "paper": torch.randn(6, 5)}
    relations = {
        WRITES: CscBlock(torch.tensor([0, 2, 2]), torch.tensor([3, 1])),
        CITES: CscBlock(torch.tensor([0, 1, 4]), torch.tensor([5, 0, 1, 2])),
        BACK: CscBlock(torch.tensor([0]), torch.tensor([], dtype=torch.int64)),
    }
    out = conv(HeteroBlock(relations, {"author": 0, "paper": 2}), x)
    writes, cites = conv.fc_neigh[0].weight, conv.fc_neigh[1].weight
    first = conv.fc_self[0](x["paper"][0]) + writes @ x["author"][[3, 1]].mean(0) + cites @ x["paper"][5]
    second = conv.fc_self[0](x["paper"][1]) + cites @ x["paper"][:3].mean(0)
    assert list(out) == ["paper"]
    torch.testing.assert_close(out["paper"], torch.stack([first, second]))


def test_types_without_nodes_in_a_batch() -> None:
    model = HeteroGraphSAGE(
        {"paper": 5, "book.new": 3}, {"author": 7}, [WRITES, ("book.new", "in", "paper")], "paper", 2,
        hidden=4, layers=1, dropout=0.0, input_norm=True,
    )  # fmt: skip
    empty = CscBlock(torch.tensor([0, 0]), torch.tensor([], dtype=torch.int64))
    block = HeteroBlock({WRITES: empty, ("book.new", "in", "paper"): empty}, {"paper": 1})
    x = {"paper": torch.randn(1, 5), "book.new": torch.randn(0, 3), "author": torch.tensor([], dtype=torch.int64)}
    logits = model([block], x)
    assert logits.shape == (1, 2)
    logits.sum().backward()
    norm = InputNorm(5)
    assert torch.equal(norm(x["paper"]), x["paper"] / (1 + norm.eps) ** 0.5)


def test_to_hetero_csc() -> None:
    from ibp_gnn.integrations.dgl_compat import import_dgl

    graph = dataset().to_dgl()
    block = import_dgl().to_block(graph, {"paper": torch.arange(200), "author": torch.arange(90)})
    csc = to_hetero_csc(block, CPU)
    assert csc.num_dst == {"author": 90, "paper": 200}
    src, dst = dataset().edges[WRITES]
    assert torch.equal(csc.relations[WRITES].indptr.diff(), torch.bincount(dst, minlength=200))
    assert csc.relations[WRITES].num_dst == 200


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


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        (dict(target="field"), r"target: want one of the node types \['author', 'paper'\], got 'field'"),
        (dict(features={}), "features: want those of at least one node type, got none"),
        (dict(features={"paper": torch.zeros(3, 2)}), r"features of 'paper': want \[200, d\], got \[3, 2\]"),
        (dict(edges={("a", "to", "paper"): (torch.zeros(1).long(),) * 2}), "want edges between .*got .'a', 'to', "),
        (dict(edges={WRITES: (torch.tensor([90]), torch.tensor([0]))}), r"src: want values in \[0, 90\), got 90"),
        (dict(labels=torch.zeros(3).long()), r"labels: want \[200\], got \[3\]"),
        (dict(train_ids=torch.tensor([200])), r"train_ids: want values in \[0, 200\), got 200"),
        (dict(num_classes=2), r"labels of train_ids: want values in \[0, 2\), got 3"),
    ],
)
def test_a_dataset_refuses_wrong_tensors(changed: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        dataset(**changed)


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
        assert line.startswith(f"  {name}: hits 0, misses {part['rows']} (miss rate 100.0%)  moved ")
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

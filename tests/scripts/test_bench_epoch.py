"""scripts/bench_epoch.py on a tiny config, on the CPU: what needs a GPU is said to be missing, the rest adds up."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest
import torch

from ibp_gnn.config import ConfigError, load

REPOSITORY = Path(__file__).resolve().parents[2]
CONFIG = REPOSITORY / "configs" / "bench_epoch.yaml"
GENERATED = (
    "{graph: products, nodes: 3000, edges: 9000, width: 20}, "
    "{graph: papers, nodes: 3000, edges: 9000, width: 24, dtype: float16}"
)
TINY = [
    f"sets=[{GENERATED}]",
    "batches=5",
    "batch_size=32",
    "fanouts=[2, 3]",
    "hidden=8",
    "epochs=2",
    "verify_batches=5",
    "live_batches=2",
    "lookahead=2",
]
ON_CPU = ["raw", "ours", "ours_ahead", "ours_prefetch", "ours_lookahead"]
pytest.importorskip("dgl")
WHOLEGRAPH = ["wholegraph", "wholegraph_cached"]
ALL = [
    "raw",
    "raw_cache",
    "raw_cache_prefetch",
    "ours",
    "ours_ahead",
    "ours_prefetch",
    "ours_lookahead",
    *WHOLEGRAPH,
    "on_gpu",
]


def run(part: Any, folder: Path, device: str) -> dict[str, Any]:
    files = ["--json", str(folder / "out.json"), "--plot", str(folder / "out.png")]
    part("bench_epoch").main(["--config", str(CONFIG), *files, "--set", *TINY, f"device={device}"])
    assert (folder / "out.png").stat().st_size > 10_000
    return json.loads((folder / "out.json").read_text())


def check(record: dict[str, Any], methods: list[str]) -> None:
    assert record["benchmark"] == "epoch" and {"hardware", "versions", "commit", "config"} <= record.keys()
    assert [one["name"] for one in record["sets"]] == [
        "synthetic products, 20 x float32",
        "synthetic papers, 24 x float16",
    ]
    for one in record["sets"]:
        assert [method["method"] for method in one["methods"]] == methods
        assert set(one["skipped"]) == set(ALL) - set(methods)
        assert len(one["losses_equal"]) == 5 and one["raw_bytes"] > 0 and one["ids_per_batch"] >= 32
        for method in one["methods"]:
            assert 0 < method["fetch_ms"] and 0 < method["train_ms"] < method["epoch_ms"]
            assert 0 < method["fetch_alone_ms"]
            assert (method["with_sampling_ms"] is None) == (method["method"] == "ours_lookahead")
    assert [one["edges"] for one in record["sets"]] == [18_000, 9_000]


def test_on_the_cpu(part: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    record = run(part, tmp_path, "cpu")
    check(record, ON_CPU)
    printed = capsys.readouterr().out
    assert "not measured, needs a CUDA device: raw cache + ordered UVA; raw cache + ordered UVA, prefetch" in printed
    tables = part("bench.epoch_report")
    assert tables.table(record) in printed and "mean of ours_vs_raw over 2 feature sets" in printed
    for one in record["sets"]:
        assert one["caches"] == {}
        for name, value in one["ratios"].items():
            assert (f"{one['name']}: loses: {name} " in printed) == (value < 1)


@pytest.mark.cuda
def test_on_a_gpu(part: Any, tmp_path: Path) -> None:
    record = run(part, tmp_path, "cuda")
    has_wholegraph = importlib.util.find_spec("pylibwholegraph") is not None
    check(record, [key for key in ALL if has_wholegraph or key not in WHOLEGRAPH])
    for one in record["sets"]:
        assert ("losses_equal" in one["gpu_sampling"]) == has_wholegraph
        with_gpu = {method["method"] for method in one["methods"] if method["with_gpu_sampling_ms"]}
        assert with_gpu == ({"raw_cache", "ours", "on_gpu", *WHOLEGRAPH} if has_wholegraph else set())
        assert set(one["caches"]) == {"raw_cache", "ours"}
        for cache in one["caches"].values():
            assert 0 < cache["bytes"] <= 0.2 * one["raw_bytes"] and 0 < cache["hit_rate"] < 1


def test_json_is_there_after_every_set(part: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bench = part("bench_epoch")
    calls = []

    def fail_at_the_second(*arguments: Any) -> dict[str, Any]:
        calls.append(arguments)
        if len(calls) == 2:
            raise RuntimeError("the second set")
        return {"name": "the first set"}

    monkeypatch.setattr(bench, "run", fail_at_the_second)
    path = tmp_path / "out.json"
    with pytest.raises(RuntimeError, match="the second set"):
        bench.main(["--config", str(CONFIG), "--json", str(path), "--set", *TINY, "device=cpu"])
    assert json.loads(path.read_text())["sets"] == [{"name": "the first set"}]


def test_other_losses_are_found(part: Any) -> None:
    data_part, methods = part("bench.epoch_data"), part("bench.epoch_methods")
    config = load(data_part.Config, CONFIG, TINY)
    device = torch.device("cpu")
    data = data_part.load(config.sets[0], config)
    batches, _ = data_part.keep(data, config, device)
    wrong = data.rows.clone()
    wrong[batches[1].ids] += 1
    wrong[batches[0].ids] = data.rows[batches[0].ids]  # whose features are compared themselves
    sources = [methods.Method(key, methods.HostSource(rows)) for key, rows in (("raw", data.rows), ("ours", wrong))]
    with pytest.raises(RuntimeError, match="ours: want losses .* as raw, got "):
        methods.verify(sources, batches, data, config, device)
    wrong[batches[0].ids[0]] += 1
    with pytest.raises(AssertionError, match="bits differ"):
        methods.verify(sources, batches, data, config, device)
    assert not torch.are_deterministic_algorithms_enabled()


def out_degrees(graph: Any) -> torch.Tensor:
    _, sources, _ = graph.adj_tensors("csc")
    return sources.bincount(minlength=graph.num_nodes())


def test_hottest_nodes_come_first(part: Any) -> None:
    data_part = part("bench.epoch_data")
    config = load(data_part.Config, CONFIG, TINY)
    for one in config.sets:
        degrees = out_degrees(data_part.load(one, config).graph)
        assert torch.equal(degrees, degrees.sort(descending=True).values)
    wordnet = data_part.load(data_part.FeatureSet("wordnet"), config)
    degrees = out_degrees(wordnet.graph)
    assert torch.equal(degrees, degrees.sort(descending=True).values)
    original = data_part.load_wordnet("bow")
    assert torch.equal(wordnet.labels.bincount(), original.labels.bincount())
    assert torch.equal(wordnet.labels[wordnet.train_ids].bincount(), original.labels[original.train_ids].bincount())
    words = original.features[original.train_ids].sum(0)
    assert torch.equal(wordnet.rows[wordnet.train_ids].sum(0), words)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("sets=[{graph: wordnet, nodes: 5}]", "nodes of wordnet: want none .*, got 5"),
        ("sets=[{graph: papers, nodes: 50, edges: 9}]", "width of papers: want a number, got None"),
        ("sets=[{graph: cora}]", "want one of"),
        ("verify_batches=99", "verify_batches: want at most batches = 5, got 99"),
        ("lookahead=1", "lookahead"),
    ],
)
def test_bad_configs(part: Any, override: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load(part("bench.epoch_data").Config, CONFIG, [*TINY, override])


def test_bytes_tell_fetch_times_as_plans_say() -> None:
    """`ibp-gnn plan` divides bytes by the speed of the link. In the results: at the speed with which raw misses came,
    compressed ones take what their bytes say, within 20 %."""
    path = Path(__file__).resolve().parents[2] / "scripts" / "results" / "epoch.json"
    if not path.exists():
        pytest.skip("results are not in this checkout")
    compared = 0
    for one in json.loads(path.read_text())["sets"]:
        alone = {method["method"]: method["fetch_alone_ms"] for method in one["methods"]}
        misses = {name: 1 - cache["hit_rate"] for name, cache in one["caches"].items()}
        if misses["ours"] < 0.01:  # nothing but hits, which no link carries
            continue
        saved = one["store_bytes"] / one["raw_bytes"]
        foretold = alone["raw_cache"] * misses["ours"] / misses["raw_cache"] * saved
        assert foretold == pytest.approx(alone["ours"], rel=0.2), one["name"]
        compared += 1
    assert compared >= 4

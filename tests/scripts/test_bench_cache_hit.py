"""scripts/bench_cache_hit.py on tiny configs: bytes are those of real rows, hits those of a replay, and they add up."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from ibp_gnn import Codec, CompressedFeatureStore, _native
from ibp_gnn.codec.values import dtype_from_name
from ibp_gnn.config import ConfigError, load
from ibp_gnn.datasets import load_dataset
from ibp_gnn.datasets.wordnet import find_glove_data

REPOSITORY = Path(__file__).resolve().parents[2]
CONFIG = REPOSITORY / "configs" / "bench_cache_hit.yaml"
SHARES = [0.001, 0.25, 0.5, 0.8]
FEATURES = "[{rows: wordnet_glove}, {rows: wordnet_glove, dtype: bfloat16}, {rows: wordnet_bow}]"
TINY = [
    f"graphs=[{{name: papers, scale: 0.0002, features: {FEATURES}}}, "
    "{name: products, scale: 0.001, features: [{rows: wordnet_bow}]}]",
    "fanouts=[4-3-2, 5-5]",
    "batch_size=32",
    "presample_epochs=[1, 2, 4]",
    "warm_epochs=2",
    "measured_epochs=2",
    f"shares={SHARES}",
    "dynamic_shares=[0.1, 0.4, 1.0]",
]


@pytest.fixture(scope="module")
def record(part: Any, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("cache_hit")
    bench = part("bench_cache_hit")
    files = ["--json", str(folder / "out.json"), "--plot", str(folder / "out.png")]
    bench.main(["--config", str(CONFIG), *files, "--set", *TINY])
    assert (folder / "out.png").stat().st_size > 10_000
    return json.loads((folder / "out.json").read_text())


def curves(record: dict[str, Any]) -> list[tuple[dict, dict, str, dict]]:
    """(trace, feature set, policy, its curve), all of them."""
    found = []
    for trace in record["traces"]:
        sets = [features for features in record["feature_sets"] if features["graph"] == trace["graph"]]
        for policy, by_features in trace["by_bytes"].items():
            found += [(trace, features, policy, curve) for features, curve in zip(sets, by_features, strict=True)]
    return found


def test_record(record: dict[str, Any]) -> None:
    assert record["benchmark"] == "cache_hit" and {"hardware", "versions", "commit", "config"} <= record.keys()
    traces = [(trace["graph"], trace["fanouts"]) for trace in record["traces"]]
    graphs = ["synthetic papers x 0.0002", "synthetic products x 0.001"]
    assert traces == [(graph, fanouts) for graph in graphs for fanouts in ("4-3-2", "5-5")]
    assert len(record["feature_sets"]) == 4
    static = ["degree", "reverse_pagerank", "presample_1", "presample_2", "presample_4", "hindsight"]
    for trace in record["traces"]:
        assert list(trace["by_bytes"]) == static
        assert list(trace["by_rows"]["hits"]) == [*static, "lru", "clock", "sieve", "lfu"]


def test_hits_are_within_accesses_and_rise_with_capacity(record: dict[str, Any]) -> None:
    assert len(curves(record)) == 2 * 6 * 3 + 2 * 6
    for trace, features, _, curve in curves(record):
        for name in ("compressed_hits", "uncompressed_hits", "compressed_rows"):
            assert curve[name] == sorted(curve[name]), name
        assert all(0 <= hits <= trace["accesses"] for hits in curve["compressed_hits"] + curve["uncompressed_hits"])
        assert all(rows <= trace["nodes"] for rows in curve["compressed_rows"] + features["uncompressed_rows"])
    for trace in record["traces"]:
        for policy, hits in trace["by_rows"]["hits"].items():
            assert hits == sorted(hits) and hits[-1] <= trace["accesses"], policy
            if policy in trace["by_bytes"]:
                assert hits[-1] == trace["accesses"], "all rows are cached"
                assert all(np.array(hits) <= trace["by_rows"]["hits"]["hindsight"])


def test_compressed_hits_more_than_uncompressed_of_the_same_bytes(record: dict[str, Any]) -> None:
    for trace, features, policy, curve in curves(record):
        more = np.array(curve["compressed_hits"]) >= np.array(curve["uncompressed_hits"])
        # Below the break-even a codec's tables cost more than they save; the summary has to say so.
        past_it = np.array(features["uncompressed_rows"]) >= features["break_even_rows"]
        assert more[past_it].all() and past_it[1:].all()
        where = f"{trace['graph']}, {features['rows']} {features['dtype']}, 0.1% "
        (line,) = [line for line in record["summary"]["compressed_loses"] if line.startswith(where)] or [""]
        assert (f"{policy} {trace['fanouts']}" in line) == (not more[0])
    assert record["summary"]["compressed_loses"], "at 0.1 %"


def test_hits_are_those_of_a_replay(record: dict[str, Any], part: Any) -> None:
    traces = part("bench.cache_traces")
    settings = load(part("bench_cache_hit").Config, CONFIG, TINY)
    graph = traces.load_structure(settings.graphs[0], settings.seed)
    trace = traces.sample_trace(graph, [4, 3, 2], batch_size=32, warm_epochs=4, measured_epochs=2, seed=0)
    (recorded,) = [one for one in record["traces"] if one["graph"] == graph.name and one["fanouts"] == "4-3-2"]
    assert recorded["accesses"] == sum(len(batch) for batch in trace.measured_batches())
    assert recorded["batches"] == len(trace.measured_batches()) == 2 * -(-len(graph.train_ids) // 32)
    assert recorded["nodes"] == graph.num_nodes
    for batch in trace.warm_batches(4) + trace.measured_batches():
        assert len(np.unique(batch)) == len(batch)
    counts = np.zeros(graph.num_nodes, np.int64)
    for batch in trace.warm_batches(2):
        counts[batch] += 1
    order = np.argsort(-counts, kind="stable")
    for curve in recorded["by_bytes"]["presample_2"]:
        for rows, wanted in zip(curve["compressed_rows"], curve["compressed_hits"], strict=True):
            cached = np.zeros(graph.num_nodes, bool)
            cached[order[:rows]] = True
            hits = sum(int(cached[batch].sum()) for batch in trace.measured_batches())
            misses = sum(int((~cached[batch]).sum()) for batch in trace.measured_batches())
            assert (hits, hits + misses) == (wanted, recorded["accesses"])


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_bytes_are_those_of_real_rows(part: Any, dtype: str) -> None:
    """One row less than the limit fits, one more does not, by what the rows take in memory."""
    row_bytes = part("bench.cache_bytes")
    features = row_bytes.Features("wordnet_glove", dtype)
    real = load_dataset("wordnet", "glove").features.to(dtype_from_name(dtype))
    sizes = row_bytes.measure_rows(features, len(real))
    store = CompressedFeatureStore.build(real, "auto", pin=False, progress=False)
    order = torch.randperm(len(real), generator=torch.Generator().manual_seed(0))
    fixed = 4 * len(real) + _native.cpu.bitmask_bytes(len(real)) + store.codec.form.device_nbytes
    for capacity in (2_000_000, 8_000_000):
        (rows,) = sizes.compressed_rows([capacity], order)
        assert 0 < rows < len(real)
        assert fixed + store.rows.select(order[:rows]).nbytes <= capacity
        assert fixed + store.rows.select(order[: rows + 1]).nbytes > capacity
        (raw_rows,) = sizes.uncompressed_rows([capacity])
        row_size = real[0].nbytes
        assert 4 * len(real) + raw_rows * row_size <= capacity < 4 * len(real) + (raw_rows + 1) * row_size
    assert sizes.uncompressed_rows([0, 10**12]) == [0, len(real)]
    assert sizes.compressed_rows([0, 10**12], order) == [0, len(real)]


def test_repeated_rows_cost_what_they_cost_once(part: Any) -> None:
    row_bytes = part("bench.cache_bytes")
    overflows = torch.tensor([False, True, False])
    sizes = row_bytes.RowBytes(9, 40, 16, overflows, "dict", codec_bytes=8, payload_bytes=20.0)
    fixed = sizes.table_bytes + sizes.compressed_extra_bytes
    costs = [16 + 4, 32 + 4 + 40, 48 + 4 + 40, 64 + 4 + 40, 80 + 4 + 80]  # nodes 1, 4 and 7 overflow
    for rows, cost in enumerate(costs, start=1):
        assert sizes.compressed_rows([fixed + cost - 1, fixed + cost], torch.arange(9)) == [rows - 1, rows]


def test_joined_and_split_rows_are_the_real_ones(part: Any) -> None:
    rows = part("bench.cache_bytes").real_rows("glove_100")
    vectors = np.load(find_glove_data() / "glove_6B_50d_emb.npy", mmap_mode="r")
    assert rows.shape == (100_000, 100)
    np.testing.assert_array_equal(rows[7].numpy(), np.concatenate([vectors[14], vectors[15]]))
    assert Codec.fit(rows[:1000], codec="auto").row_bytes == 400


def test_a_generated_graph_says_so(part: Any) -> None:
    traces = part("bench.cache_traces")
    graph = traces.load_structure(traces.Graph("products", (), 0.0005), seed=3)
    assert graph.name == "synthetic products x 0.0005" and graph.num_nodes == round(2_449_029 * 0.0005)
    assert len(torch.unique(graph.train_ids)) == len(graph.train_ids) == round(196_615 * 0.0005)
    again = traces.load_structure(traces.Graph("products", (), 0.0005), seed=3)
    assert torch.equal(graph.src, again.src) and torch.equal(graph.train_ids, again.train_ids)
    wordnet = traces.load_structure(traces.Graph("wordnet", ()), seed=0)
    assert (wordnet.name, wordnet.num_nodes) == ("wordnet", 117_659)


@pytest.mark.parametrize(
    "override",
    [
        "fanouts=[15-x]",
        "fanouts=['0-5']",
        "shares=[0.2, 0.1]",
        "shares=[1.5]",
        "dynamic=[arc]",
        "policies=[hindsight]",
        "warm_epochs=2",
        "graphs=[{name: cora, features: []}]",
        "graphs=[{name: wordnet, features: [], scale: 0.5}]",
        "graphs=[{name: wordnet, features: [{rows: glove}]}]",
    ],
)
def test_bad_configs(part: Any, override: str) -> None:
    with pytest.raises(ConfigError):
        load(part("bench_cache_hit").Config, CONFIG, [override])


def test_plans_are_compared_with_counted_hits(record: dict[str, Any], part: Any) -> None:
    """On graphs this small they differ; the full benchmark's are within the target, see below."""
    plan = record["summary"]["plan"]
    # Of 2 traces with 3 feature sets and 2 with 1, at 4 sizes: 3 policies, raw and compressed.
    assert plan["compared"] == (2 * 3 + 2) * len(SHARES) * 3 * 2
    assert 0 <= plan["mean_points"] <= plan["most_points"] < 30
    trace = record["traces"][0]
    counted = trace["by_bytes"]["degree"][0]["compressed_hits"]
    rates = trace["plan"][0]["compressed"]["degree"]
    wanted = max(100 * abs(rate - hits / trace["accesses"]) for rate, hits in zip(rates, counted, strict=True))
    only = {**trace, "plan": [{"compressed": {"degree": rates}}]}
    assert part("bench.cache_plan").compare([only])["most_points"] == pytest.approx(wanted, abs=1e-3)
    assert part("bench.cache_plan").compare([{**trace, "plan": []}]) is None


def test_plans_of_the_full_benchmark_are_within_two_points() -> None:
    path = REPOSITORY / "scripts" / "results" / "cache_hit.json"
    if not path.exists():
        pytest.skip("results are not in this checkout")
    results = json.loads(path.read_text())
    plan = results["summary"]["plan"]
    assert plan["compared"] >= 1000 and plan["most_points"] <= 2 and plan["reached"]

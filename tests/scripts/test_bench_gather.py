"""scripts/bench_gather.py: its config, what it checks and shows, and without CUDA what it says; on a GPU a tiny run."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from ibp_gnn.config import ConfigError, load

REPOSITORY = Path(__file__).resolve().parents[2]
CONFIG = REPOSITORY / "configs" / "bench_gather.yaml"
TINY = [
    "cases=[{dim: 50, footprint_gb: 0.01, batch_sizes: [500, 5000], hit_shares: [0.5]}, "
    "{dim: 128, dtype: bfloat16, footprint_gb: 0.01, batch_sizes: [5000], on_gpu: false, wholegraph: false}]",
    "lookahead=3",
    "repeats=1",
    "host_calls=60",
]
IN_CPU_MEMORY = [
    "cpu",
    "raw_unordered",
    "raw_ordered",
    "raw_presorted",
    "raw_lookahead",
    "wholegraph_host",
    "ours",
    "ours_presorted",
    "ours_lookahead",
]
ON_GPU = ["raw_on_gpu", "wholegraph_device", "all_hit"]
PARTLY_CACHED = ["raw_cache", "cache"]


def row(key: str, ms: float, ids: int = 1000, share: float | None = None) -> dict[str, Any]:
    """Of rows of 512 bytes, 448 of them compressed. Half of the ids hit a cache of a share of the rows."""
    all_hit = key in ON_GPU
    hits = ids if all_hit else ids // 2 if share else 0
    moved = 448.0 if key in ("ours", "ours_presorted", "ours_lookahead", "cache") else 512.0
    return {
        "ids": ids,
        "method": key,
        "share": share,
        "ms": ms,
        "output_gb_per_s": ids * 512 / ms / 1e6,
        "rows_read": ids,
        "hits": hits,
        "pcie_bytes": (ids - hits) * moved,
        "pcie_bytes_per_row": None if all_hit else moved,
    }


def made_up(part: Any) -> dict[str, Any]:
    """A record in which method k takes k + 1 ms, in the order of the tables; ten times that with ten times the ids."""
    keys = [key for key in part("bench.gather_report").LABELS if not key.startswith("wholegraph")]
    case: dict[str, Any] = {
        "name": "128 x float32, 8 GB",
        "rows": 17_000_000,
        "codec": "dict",
        "raw_bytes_per_row": 512,
        "slot_bytes": 448,
        "raw_bytes": 512 * 17_000_000,
        "store_bytes": 449 * 17_000_000,
        "savings": 1 - 449 / 512,
        "methods": [
            row(key, scale * (at + 1.0), scale * 1000, 0.1 if key in PARTLY_CACHED else None)
            for scale in (1, 10)
            for at, key in enumerate(keys)
        ],
        "host_us": {"launch": 4.0, "plan": 11.0, "store": 14.5, "cache": 20.0},
        "host_overhead_us": {"plan": 7.0, "store": 10.5, "cache": 16.0},
        "skipped": {"wholegraph_host": "pylibwholegraph is not installed", "wholegraph_device": "no room"},
    }
    case["ratios"] = part("bench.gather_report").ratios(case)
    return {"cases": [case], "config": {"host_ids": 1000}, "hardware": {"gpu": "GPU X"}}


def test_config_file(part: Any) -> None:
    config = load(part("bench.gather_rows").Config, CONFIG)
    assert {case.dtype for case in config.cases} == {"float32", "bfloat16"}
    assert {50, 128, 768, 1024} == {case.dim for case in config.cases}
    assert config.cases[0].name == "128 x float32, 8 GB" and len(config.cases[0].hit_shares) == 3
    assert load(part("bench.gather_rows").Config).cases == (part("bench.gather_rows").Case(),)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("cases=[{dims: 5}]", r"unknown setting 'cases\[0\].dims'; did you mean 'cases\[0\].dim'"),
        ("cases=[{hit_shares: [1.0]}]", r"cases\[0\].hit_shares\[0\]: want a value < 1, got 1.0"),
        ("cases=[{batch_sizes: [0]}]", r"batch_sizes\[0\]: want a value >= 1, got 0"),
        ("cases=[{dtype: int8}]", r"cases\[0\].dtype: want one of 'float32'"),
        ("lookahead=1", "lookahead: want a value >= 2, got 1"),
    ],
)
def test_bad_configs(part: Any, override: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load(part("bench.gather_rows").Config, CONFIG, [override])


def test_help(part: Any, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        part("bench_gather").main(["--help"])
    assert stopped.value.code == 0 and "--plot PLOT" in capsys.readouterr().out


def test_without_cuda(part: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(SystemExit):
        part("bench_gather").main(["--config", str(CONFIG)])
    assert "this benchmark needs a CUDA device" in capsys.readouterr().err


def test_json_is_there_after_every_case(part: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bench, done = part("bench_gather"), []

    def fail_at_the_second(*arguments: Any) -> dict[str, Any]:
        done.append(arguments)
        if len(done) == 2:
            raise RuntimeError("the second case")
        return {"name": "the first case", "seconds": 1.0}

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(bench._native, "cuda", lambda: None)
    monkeypatch.setattr(part("bench.frame").record_module, "hardware", lambda device: {"gpu": None})
    monkeypatch.setattr(bench, "run", fail_at_the_second)
    path = tmp_path / "out.json"
    with pytest.raises(RuntimeError, match="the second case"):
        bench.main(["--json", str(path), "--set", *TINY])
    record = json.loads(path.read_text())
    assert record["cases"] == [{"name": "the first case", "seconds": 1.0}]
    assert {"benchmark", "config", "hardware", "versions", "commit"} <= record.keys()
    assert "pylibwholegraph" in record["versions"]


def test_ratios(part: Any) -> None:
    small, large = made_up(part)["cases"][0]["ratios"]
    assert (small["ids"], large["ids"]) == (1000, 10_000)
    assert small["ratios"] == pytest.approx(large["ratios"])
    assert small["ratios"] == pytest.approx(
        {
            "ours_vs_cpu": 1 / 6,
            "ours_vs_raw_unordered": 2 / 6,
            "ours_vs_raw_ordered": 3 / 6,
            "lookahead_vs_ours": 6 / 8,
            "lookahead_vs_raw_lookahead": 5 / 8,
            "misses_vs_raw_presorted": 4 / 7,
            "all_hit_vs_raw_on_gpu": 9 / 10,
            "cache_vs_raw_cache_at_10%": 11 / 12,
        }
    )
    assert small["misses_share"] == pytest.approx({"pcie_bytes": 4 / 7 * 448 / 512, "store_bytes": 4 / 7 * 449 / 512})


def test_ratios_with_wholegraph(part: Any) -> None:
    case = made_up(part)["cases"][0]
    case["methods"] += [row("wholegraph_host", 12.0), row("wholegraph_device", 30.0)]
    first, second = part("bench.gather_report").ratios(case)
    assert first["ratios"]["ours_vs_wholegraph_host"] == pytest.approx(12 / 6)
    assert first["ratios"]["lookahead_vs_wholegraph_host"] == pytest.approx(12 / 8)
    assert first["ratios"]["all_hit_vs_wholegraph_device"] == pytest.approx(30 / 10)
    assert "ours_vs_wholegraph_host" not in second["ratios"]


def test_table_and_summary(part: Any) -> None:
    record, tables = made_up(part), part("bench.gather_report")
    lines = tables.table(record).splitlines()
    assert len(lines) == 2 + 2 * 12 and len({line.count("|") for line in lines}) == 1
    assert "| 128 x float32, 8 GB | 1000 | CPU index_select + H2D | 1.000 | 0.5 | 0.0% | 512.0 |" in lines
    assert "| 128 x float32, 8 GB | 1000 | raw rows in GPU memory | 9.000 | 0.1 | 100.0% | - |" in lines
    assert any("ours: cache, 10% of the rows | 12.000 | 0.0 | 50.0% | 448.0 |" in line for line in lines)
    summary = tables.summary_lines(record)
    assert summary[0] == "128 x float32, 8 GB: 17000000 rows, dict, 512 -> 448 bytes, 12.3% saved"
    assert "128 x float32, 8 GB, 1000 ids: loses: ours_vs_raw_ordered 0.50x" in summary
    assert summary[-1] == "128 x float32, 8 GB: not measured: WholeGraph, rows in GPU memory: no room"


def test_host_table(part: Any) -> None:
    record, host_table = made_up(part), part("bench.gather_report").host_table
    assert host_table(record).splitlines() == [
        "| host time of a call with 1000 ids, us | bare launch | GpuGather.gather | store.gather | cache.gather |",
        "|---|---|---|---|---|",
        "| 128 x float32, 8 GB | 4.0 | 11.0 (+7.0) | 14.5 (+10.5) | 20.0 (+16.0) |",
    ]
    for case in record["cases"]:  # results from before GpuGather.gather was measured apart
        del case["host_us"]["plan"], case["host_overhead_us"]["plan"]
    assert host_table(record).splitlines()[2] == "| 128 x float32, 8 GB | 4.0 | 14.5 (+10.5) | 20.0 (+16.0) |"


def rows_and_batch(part: Any) -> tuple[Any, Any]:
    data = part("bench.gather_rows")
    rows = data.Rows(torch.randn(500, 7), 0, None, torch.device("cpu"))
    return rows, data.make_batch(rows, 100, data.Config(lookahead=3))


def test_batches(part: Any) -> None:
    rows, batch = rows_and_batch(part)
    assert batch.out.shape == (300, 7)
    checked = {order: batch.to_check(order)[0] for order in ("random", "ordered", "joined")}
    assert torch.equal(checked["random"], checked["joined"][:100])
    assert torch.equal(checked["ordered"], checked["random"].sort().values)
    for order, ids in checked.items():
        assert torch.equal(batch.to_check(order)[1], rows.raw[ids])
        first, second = batch.draw(order), batch.draw(order)
        assert first.shape == second.shape == ids.shape and not torch.equal(first, second)
        assert order != "ordered" or torch.equal(first, first.sort().values)
        assert 0 <= int(first.min()) and int(first.max()) < 500


def test_other_bits_are_found(part: Any) -> None:
    rows, batch = rows_and_batch(part)
    methods = part("bench.gather_methods")
    right = methods.Method("raw_on_gpu", lambda ids, out: rows.raw[ids], "ordered", cached_rows=200)
    hits = int((batch.to_check("ordered")[0] < 200).sum())
    assert methods.check(right, batch, rows) == {
        "rows_read": 100,
        "hits": hits,
        "pcie_bytes": 28 * (100 - hits),
        "pcie_bytes_per_row": 28,
    }
    wrong = methods.Method("ours", lambda ids, out: rows.raw[ids] + 1)
    with pytest.raises(AssertionError, match="ours, 100 ids: bits differ in"):
        methods.check(wrong, batch, rows)


def test_measured_in_turns(part: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    rows, batch = rows_and_batch(part)
    methods, calls = part("bench.gather_methods"), []

    def gather(ids: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
        calls.append(len(ids))
        return out.copy_(rows.raw[ids])

    def milliseconds(call: Any) -> float:
        return 6.0 if len(call()) == 300 else 4.0

    monkeypatch.setattr(methods, "queued_ms", milliseconds)
    both = [methods.Method("ours", gather), methods.Method("ours_lookahead", gather, "joined")]
    config = part("bench.gather_rows").Config(lookahead=3, repeats=2)
    one, joined = methods.measure(both, batch, rows, config)
    assert calls == [100, 300] * (1 + 3 + 2)  # checked, warmed up, timed
    assert (one["ids"], one["method"], one["ms"], one["rows_read"]) == (100, "ours", 4.0, 100)
    assert (joined["ids"], joined["method"], joined["ms"], joined["rows_read"]) == (100, "ours_lookahead", 2.0, 300)
    assert joined["output_gb_per_s"] == 2 * one["output_gb_per_s"] == pytest.approx(2 * 100 * 28 / 4.0 / 1e6)


def test_wholegraph_that_is_missing(part: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    wholegraph = part("bench.wholegraph")
    monkeypatch.setitem(sys.modules, "pylibwholegraph", None)
    monkeypatch.setitem(sys.modules, "pylibwholegraph.torch", None)
    peer = wholegraph.WholeGraph()
    for _ in range(2):
        with pytest.raises(wholegraph.Unavailable, match="needs WholeGraph, which is not installed here"):
            with peer.table(torch.zeros(3, 4), "cpu"):
                pass


@pytest.mark.cuda
def test_on_a_gpu(part: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = ["--json", str(tmp_path / "out.json"), "--plot", str(tmp_path / "out.png")]
    part("bench_gather").main(["--config", str(CONFIG), *files, "--set", *TINY])
    record = json.loads((tmp_path / "out.json").read_text())
    first, second = record["cases"]
    assert (tmp_path / "out.png").stat().st_size > 10_000
    for size in (500, 5000):
        measured = {one["method"] for one in first["methods"] if one["ids"] == size}
        assert measured | set(first["skipped"]) == {*IN_CPU_MEMORY, *ON_GPU, *PARTLY_CACHED}
    assert set(second["skipped"]) == {"wholegraph_host", *ON_GPU}
    for case in record["cases"]:
        assert all(one["ms"] > 0 and one["output_gb_per_s"] > 0 for one in case["methods"])
        assert case["host_us"].keys() == {"launch", "plan", "store", "cache"}
        assert all(microseconds > 0 for microseconds in case["host_us"].values())
        for name, more in case["host_overhead_us"].items():
            assert more == pytest.approx(case["host_us"][name] - case["host_us"]["launch"])
        for one in case["methods"]:
            assert one["rows_read"] == one["ids"] * (3 if one["method"].endswith("lookahead") else 1)
    ours = {one["method"]: one for one in first["methods"] if one["ids"] == 5000}
    assert ours["all_hit"]["hits"] == 5000 and ours["ours"]["hits"] == 0 and 0 < ours["cache"]["hits"] < 5000
    assert ours["ours"]["pcie_bytes"] < ours["raw_ordered"]["pcie_bytes"]
    assert ours["raw_cache"]["cache_bytes"] <= ours["cache"]["cache_bytes"]
    printed = capsys.readouterr().out
    assert "misses_vs_raw_presorted" in printed and "| bare launch | GpuGather.gather |" in printed

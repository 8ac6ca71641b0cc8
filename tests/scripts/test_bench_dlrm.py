"""scripts/bench_dlrm.py: its tables, ids and report; and a tiny run where there is a GPU."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from ibp_gnn.config import load

REPOSITORY = Path(__file__).resolve().parents[2]
CONFIG = REPOSITORY / "configs" / "bench_dlrm.yaml"
METHODS = (
    "ours",
    "unfused",
    "one_by_one",
    "raw_unordered",
    "raw_ordered",
    "raw_cache",
    "on_gpu",
    "torch_on_gpu",
    "cpu",
)


def test_tables_have_the_wanted_rows(part: Any) -> None:
    data = part("bench.dlrm_data")
    assert len(data.TABLE_ROWS) == len(data.BAG_IDS) == 26 and sum(data.BAG_IDS) == 214
    for total in (26, 1000, 10_000_000, 10**9):
        rows = data.table_rows(total)
        assert sum(rows) <= max(total, 26) and min(rows) >= 1
        assert all(one <= of for one, of in zip(rows, data.TABLE_ROWS, strict=True))
    assert data.table_rows(10**9) == list(data.TABLE_ROWS)
    assert sum(data.table_rows(10_000_000)) > 9_999_900


@pytest.mark.parametrize("alpha", [0.7, 1.0, 1.05])
def test_ids_follow_a_power_law(part: Any, alpha: float) -> None:
    ranks = part("bench.dlrm_data").power_law(1000, 400_000, alpha, torch.Generator().manual_seed(0))
    counts = torch.bincount(ranks, minlength=1000).double()
    assert len(counts) == 1000 and int(ranks.min()) == 0
    # Of many ranks together, as the integral of x ** -alpha.
    edges = torch.tensor([1.0, 11, 101, 1001], dtype=torch.float64)
    integral = edges.log() if alpha == 1 else edges ** (1 - alpha) / (1 - alpha)
    expected = integral.diff() / (integral[-1] - integral[0])
    got = torch.stack([counts[:10].sum(), counts[10:100].sum(), counts[100:].sum()]) / len(ranks)
    assert torch.allclose(got, expected, atol=0.005)


def test_the_config_is_one(part: Any) -> None:
    config = load(part("bench.dlrm_data").Config, CONFIG)
    assert {(case.dim, case.dtype) for case in config.cases} == {
        (128, "float32"),
        (128, "bfloat16"),
        (64, "float32"),
        (64, "bfloat16"),
    }
    assert max(case.rows for case in config.cases) == 40_000_000


def record() -> dict[str, Any]:
    rows = [
        {
            "batch": batch,
            "ids": 214 * batch,
            "different_ids": 50 * batch,
            "method": method,
            "ms": (number + 1) * batch / 2048,
            "p50_ms": (number + 1.5) * batch / 2048,
            "p99_ms": (number + 2) * batch / 2048,
            "lookup_gb_per_s": 100.0,
            "hits": 200 * batch,
            "misses": 14 * batch,
            "pcie_bytes": 7000 * batch * (number + 1),
            "max_difference": 0.0,
        }
        for batch in (2048, 65536)
        for number, method in enumerate(METHODS)
    ]
    case = {
        "name": "26 x 128 float32, 10 M rows",
        "rows": 10_000_000,
        "savings": 0.13,
        "cache_bytes": 10**9,
        "cached_rows": 2_000_000,
        "methods": rows,
        "skipped": {"wholegraph": "pylibwholegraph is not installed"},
    }
    hardware = {"gpu": "GPU", "cpu": "CPU", "cores": 16}
    return {"config": {"data": "minilm_embeddings"}, "hardware": hardware, "commit": "0123456", "cases": [case]}


def test_report(part: Any) -> None:
    report, made = part("bench.dlrm_report"), record()
    case = made["cases"][0]
    case["ratios"] = report.ratios(case)
    assert case["ratios"][0]["batch"] == 2048
    assert case["ratios"][0]["ms"]["ours_vs_unfused"] == 2.0
    assert case["ratios"][1]["p50_ms"]["ours_vs_cpu"] == 9.5 / 1.5
    assert "ours_vs_wholegraph" not in case["ratios"][0]["ms"]
    text = report.text(made)
    assert "13.0% saved" in text and "pylibwholegraph is not installed" in text and "| 65,536 |" in text


def test_picture(part: Any, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    report, made = part("bench.dlrm_report"), record()
    made["cases"][0]["ratios"] = report.ratios(made["cases"][0])
    report.draw(made).savefig(tmp_path / "out.png")
    assert (tmp_path / "out.png").stat().st_size > 10_000


@pytest.mark.cuda
@pytest.mark.filterwarnings("ignore:capacity")
def test_a_tiny_run(part: Any, tmp_path: Path) -> None:
    settings = [
        "cases=[{dim: 64, dtype: bfloat16, rows: 20000, batch_sizes: [16, 64]}]",
        "data=normal_64",
        "repeats=2",
        "batches=2",
        "cache=0.5",
    ]
    part("bench_dlrm").main(["--json", str(tmp_path / "out.json"), "--set", *settings])
    case = json.loads((tmp_path / "out.json").read_text())["cases"][0]
    assert {row["method"] for row in case["methods"]} >= set(METHODS)
    for row in case["methods"]:
        assert row["hits"] + row["misses"] == row["ids"] == 214 * row["batch"] and 0 < row["ms"]
        assert row["max_difference"] == 0 or row["method"] in ("torch_on_gpu", "cpu")
    assert case["ratios"][0]["ms"].keys() >= {"ours_vs_cpu", "ours_vs_unfused", "ours_vs_one_by_one"}

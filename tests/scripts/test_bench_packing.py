"""scripts/bench_packing.py: its parts that need no GPU, what it shows; on a GPU, all of it on a tiny config."""

from __future__ import annotations

import json
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from ibp_gnn.config import load
from ibp_gnn.store.precision import PRECISIONS

CONFIGS = Path(__file__).resolve().parents[2] / "configs"
ON_CPU = ["products=null", "gathers=null", "sizes={data: [normal_8], rows: {synthetic_rows: 300}}"]


@pytest.fixture(scope="module")
def bench(part: Any) -> ModuleType:
    return part("bench_packing")


def test_the_config_is_good(bench: ModuleType) -> None:
    assert load(bench.Config, CONFIGS / "bench_packing.yaml").accuracy.seeds == 5


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_it_says_so(bench: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        bench.main([])
    assert "products and gathers need a CUDA device" in capsys.readouterr().err


def test_sizes(bench: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "out.json"
    bench.main(["--json", str(path), "--set", "accuracy=null", *ON_CPU])
    (one,) = json.loads(path.read_text())["sizes"]
    bits = {of["precision"]: of["bits_per_value"] for of in one["precisions"]}
    assert list(bits) == [None, *PRECISIONS] and bits["fp8_e5m2"] < bits["fp8_e4m3"] < bits["bf16"] < bits[None]
    shown = capsys.readouterr().out
    assert "normal_8 [300, 8]" in shown and "| fp8_e4m3 |" in shown


def test_accuracy_and_its_picture(
    bench: ModuleType, part: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With a training that is none: the real one is measured by hand."""
    pytest.importorskip("matplotlib")
    accuracy = part("bench.packing_accuracy")

    def run(config: Any) -> dict[str, Any]:
        assert config.train.seed in (0, 1) and config.model.hidden == 16
        lost = 0.0 if config.store.precision is None else 0.01
        return {"test_accuracy": 0.8 - lost + 0.001 * config.train.seed, "store_bytes": 400, "raw_bytes": 800}

    monkeypatch.setattr(accuracy, "run", run)
    path, plot = tmp_path / "out.json", tmp_path / "out.png"
    settings = f"accuracy={{training: {CONFIGS / 'wordnet_sage.yaml'}, settings: [model.hidden=16], seeds: 2}}"
    bench.main(["--json", str(path), "--plot", str(plot), "--set", *ON_CPU, "sizes=null", settings])
    found = json.loads(path.read_text())["accuracy"]
    assert [one["precision"] for one in found] == [None, *PRECISIONS]
    assert found[0]["test"] == [0.8, 0.801] and abs(found[0]["deviation"] - 0.000707) < 1e-6
    assert "| lossless | 16.0 | 50.0% | 80.05% | 0.07% |" in capsys.readouterr().out
    assert plot.stat().st_size > 1000


def test_a_training_that_is_not_there(bench: ModuleType) -> None:
    with pytest.raises(ValueError, match="accuracy.training: want a training config, got none.yaml"):
        bench.main(["--set", *ON_CPU, "sizes=null", "accuracy={training: none.yaml}"])


@pytest.mark.cuda
def test_products_and_gathers(bench: ModuleType, tmp_path: Path) -> None:
    path = tmp_path / "out.json"
    settings = [
        "accuracy=null",
        "sizes=null",
        "products={sizes: [256], batches: [1, 3, 32], cold_mb: 1, repeats: 1}",
        "gathers={dims: [32], raw_gb: 0.01, raw_mb: [1], repeats: 1}",
    ]
    bench.main(["--json", str(path), "--set", *settings])
    record = json.loads(path.read_text())
    assert [one["batch"] for one in record["products"]] == [1, 3, 32]
    assert {"torch_float32", "e5m2_x_float32", "fp16_x_bfloat16"} <= record["products"][0]["us"].keys()
    assert {one["precision"] for one in record["gathers"]} == {None, *PRECISIONS}

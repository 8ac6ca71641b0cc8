"""scripts/bench_multi_gpu.py: its config, its processes, what it checks and shows; on a GPU a tiny run."""

from __future__ import annotations

import importlib.util
import json
import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from ibp_gnn.config import ConfigError, load
from ibp_gnn.training.distributed import Ranks

REPOSITORY = Path(__file__).resolve().parents[2]
CONFIG = REPOSITORY / "configs" / "bench_multi_gpu.yaml"
TINY = [
    "cases=[{dim: 50, rows_gb: 0.01}, {dim: 128, dtype: bfloat16, rows_gb: 0.01}]",
    "ids=5000",
    "calls=2",
    "repeats=1",
    "cache_share=0.3",
    "training.strong_batch=840",
    "training.weak_batch=256",
    "training.run.dataset.scale=0.001",
    "training.run.train.epochs=2",
]
needs_wholegraph = pytest.mark.skipif(
    importlib.util.find_spec("pylibwholegraph") is None, reason="WholeGraph is not installed"
)


def methods(other: str, ratio: float, size: int) -> dict[str, Any]:
    """Ours is `ratio` times as fast."""
    return {
        "ours": {"ms": [1.0] * size, "gb_per_s": 100.0 * ratio},
        other: {"ms": [ratio] * size, "gb_per_s": 100.0},
    }


def made_up(part: Any) -> dict[str, Any]:
    """A record of one and two GPUs of a host that has no more."""
    config = load(part("bench.multi_gpu_rows").Config, CONFIG)
    runs = []
    for size in (1, 2):
        cases = []
        for case in config.cases:
            shares = [1.0] if size == 1 else [1.0, 0.5, 0.0]
            cases.append(
                {
                    "name": case.name,
                    "dim": case.dim,
                    "dtype": case.dtype,
                    "rows": 1000,
                    "codec": "dict",
                    "raw_bytes_per_row": 512,
                    "slot_bytes": 448,
                    "hits": [
                        {
                            "local_share": share,
                            "tiers": {"local": 4, "peer": 0, "host": 0},
                            "methods": methods("wholegraph", 0.9 + share, size),
                        }
                        for share in shares
                    ],
                    "placements": [
                        {
                            "placement": placement,
                            "replicated": 100 if placement == "replicate" else 0,
                            "sharded": 0 if placement == "replicate" else 100 * size,
                            "rows": 100 if placement == "replicate" else 100 * size,
                            "tiers": {"local": 2, "peer": 1, "host": 1},
                            "methods": {"ours": {"ms": [1.0] * size, "gb_per_s": 77.0}},
                        }
                        for placement in ("replicate", "shard", "auto")
                    ],
                    "misses": methods("wholegraph", 1.25 / size, size),
                    "machines": [
                        {
                            "location": location,
                            "bytes_per_row": {"ours": 452.0, "raw": 512},
                            "methods": methods("raw", 1.1, size),
                        }
                        for location in ("cuda", "cpu")
                    ],
                }
            )
        training = [
            {
                "scaling": [scaling],
                "batch_size": batch_size,
                "miss_rate": 0.25,
                "epoch_seconds": [9.0, seconds / size, seconds / size],
            }
            for scaling, batch_size, seconds in (("strong", 16384, 2.0), ("weak", 4096 * size, 3.0))
        ]
        runs.append({"gpus": size, "cases": cases, "training": training})
    return {
        "benchmark": "multi_gpu",
        "config": json.loads(json.dumps(part("bench.frame").config_module.to_dict(config))),
        "hardware": {"gpu": "GPU X"},
        "commit": "0123456789",
        "runs": runs,
        "left_out": {"4": "want 4 GPUs, got 2", "8": "want 8 GPUs, got 2"},
    }


def test_config_file(part: Any) -> None:
    config = load(part("bench.multi_gpu_rows").Config, CONFIG)
    assert config.gpus == (1, 2, 4, 8) and config.training.run.loop == "wholegraph"
    assert {case.dtype for case in config.cases} == {"float32", "bfloat16"}
    for case in config.cases:
        assert all(case.num_rows % size == 0 for size in config.gpus)
        assert (
            0.99 * case.rows_gb < case.num_rows * case.dim * getattr(torch, case.dtype).itemsize / 1e9 <= case.rows_gb
        )
    assert load(part("bench.multi_gpu_rows").Config).training.batch_sizes(2) == {}


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("gpus=[0]", r"gpus\[0\]: want a value >= 1, got 0"),
        ("gpus=[11]", "gpus: want numbers that divide 840, got 11"),
        ("training.strong_batch=1001", "training.strong_batch: want a multiple of 2, which is in gpus, got 1001"),
        ("training.run.loop=dgl", "training.run.loop: want wholegraph, got dgl"),
        ("cases=[{dims: 5}]", r"unknown setting 'cases\[0\].dims'; did you mean 'cases\[0\].dim'"),
    ],
)
def test_bad_configs(part: Any, override: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load(part("bench.multi_gpu_rows").Config, CONFIG, [override])


def test_without_cuda(part: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(SystemExit):
        part("bench_multi_gpu").main(["--config", str(CONFIG)])
    assert "this benchmark needs a CUDA device" in capsys.readouterr().err


def on_a_host(part: Any, monkeypatch: pytest.MonkeyPatch, gpus: int) -> Any:
    bench = part("bench_multi_gpu")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    monkeypatch.setattr(bench._native, "cuda", lambda: None)
    monkeypatch.setattr(part("bench.frame").record_module, "hardware", lambda device: {"gpu": None})
    return bench


def test_without_wholegraph(part: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    bench = on_a_host(part, monkeypatch, 1)
    monkeypatch.setitem(sys.modules, "pylibwholegraph", None)
    monkeypatch.setitem(sys.modules, "pylibwholegraph.torch", None)
    with pytest.raises(ImportError, match="pip install pylibwholegraph-cu1"):
        bench.main(["--config", str(CONFIG)])


def test_what_is_run_on_a_host_with_two_gpus(part: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also: the JSON is there after every part."""
    bench, done = on_a_host(part, monkeypatch, 2), []

    def run_ranks(size: int, work: Any, *arguments: Any) -> dict[str, Any]:
        done.append((size, work.__name__, arguments[1] if work is bench.train else arguments[0].dtype))
        if done[-1] == (2, "train", 8192):
            raise RuntimeError("the last one")
        return {"number": len(done)}

    monkeypatch.setattr(bench, "run_ranks", run_ranks)
    monkeypatch.setattr(bench.wholegraph, "library", lambda: None)
    path = tmp_path / "out.json"
    with pytest.raises(RuntimeError, match="the last one"):
        bench.main(["--config", str(CONFIG), "--json", str(path), "--set", "training.strong_batch=4096"])
    of_one = [(1, "measure_case", "float32"), (1, "measure_case", "bfloat16"), (1, "train", 4096)]
    of_two = [(2, *what) for _, *what in of_one]
    assert done == [*of_one, *of_two, (2, "train", 8192)]  # with one GPU strong and weak scaling are one run
    record = json.loads(path.read_text())
    assert record["left_out"] == {"4": "want 4 GPUs, got 2", "8": "want 8 GPUs, got 2"}
    assert [run["gpus"] for run in record["runs"]] == [1, 2]
    assert record["runs"][1] == {
        "gpus": 2,
        "cases": [{"number": 4}, {"number": 5}],
        "training": [{"scaling": ["strong"], "number": 6}],
    }
    assert record["runs"][0]["training"] == [{"scaling": ["strong", "weak"], "number": 3}]
    assert "pylibwholegraph" in record["versions"]


def test_processes_get_what_torchrun_gives(part: Any) -> None:
    run_ranks = part("bench.multi_gpu_ranks").run_ranks
    assert run_ranks(2, os.getenv, "LOCAL_WORLD_SIZE") == "2" and run_ranks(1, os.getenv, "RANK") == "0"
    with pytest.raises(torch.multiprocessing.ProcessRaisedException, match="JSONDecodeError"):
        run_ranks(2, json.loads, "not JSON")


def test_training_follows_the_config(part: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    bench, seen = part("bench.multi_gpu_methods"), []

    def run(config: Any, log: Any) -> dict[str, Any]:
        seen.append((config.train.batch_size, config.train.rank_timeout, np.load(config.dataset.features)))
        ranks = [{"seeds": 500}, {"seeds": 499}]
        epoch = {"ranks": ranks, "miss_rate": 0.5, "loss": 1.5}
        epoch |= {"sample_seconds": 0.25, "fetch_seconds": 0.5, "compute_seconds": 1.0}
        return {"dataset": "made up", "num_nodes": 9, "num_edges": 8, "cache": None, "epochs": [epoch, epoch]}

    monkeypatch.setattr(bench, "run", run)
    trained = bench.train(load(part("bench.multi_gpu_rows").Config, CONFIG).training, 8192, 300.0, 0)
    ((batch_size, timeout, matrix),) = seen
    assert (batch_size, timeout, matrix.shape, matrix.dtype) == (8192, 300.0, (16_384, 128), np.float32)
    assert matrix.std() == pytest.approx(0.1, rel=0.01)
    assert (trained["seeds"], trained["epoch_seconds"], trained["waits_seconds"]) == (999, [1.75] * 2, [0.75] * 2)


@pytest.mark.parametrize("size", [1, 2, 8])
def test_places(part: Any, size: int) -> None:
    draw_places = part("bench.multi_gpu_methods").draw_places
    torch.manual_seed(0)
    for rank in {0, size - 1}:
        for share in (1.0, 1 / size, 0.0) if size > 1 else (1.0,):
            owners, numbers = draw_places(share, rank, size, 5, 20_000, "cpu")
            assert owners.unique().numel() == (1 if share == 1 else size if share else size - 1)
            assert 0 <= int(owners.min()) and int(owners.max()) < size and set(numbers.tolist()) == set(range(5))
            assert float((owners == rank).double().mean()) == pytest.approx(share, abs=0.02)
            of_others = torch.bincount(owners, minlength=size).double() / 20_000
            assert all(
                of_others[other] == pytest.approx((1 - share) / (size - 1), abs=0.02)
                for other in range(size)
                if other != rank
            )


def test_other_bits_are_found(part: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    bench = part("bench.multi_gpu_methods")
    raw = torch.randn(100, 7)
    rows = part("bench.multi_gpu_rows").Rows(raw, SimpleNamespace(), Ranks())
    config = part("bench.multi_gpu_rows").Config(ids=50, calls=2, repeats=1)
    times = iter([1.0, 8.0, 2.0, 8.0, 3.0, 4.0])  # of two warm-up rounds, and of one that counts
    monkeypatch.setattr(bench, "_ms_together", lambda method, calls: next(times))
    right = bench.Method(lambda ids: raw[ids], lambda: torch.randint(100, (50,)))
    measured = bench.measure({"ours": right, "wholegraph": right}, rows, config)
    assert measured["ours"]["ms"] == [3.0] and measured["wholegraph"]["ms"] == [4.0]
    assert measured["ours"]["gb_per_s"] == pytest.approx(50 * 28 / 3.0 / 1e6)
    wrong = right._replace(gather=lambda ids: raw[ids] + 1)
    with pytest.raises(AssertionError, match="wholegraph: rank 0: bits differ"):
        bench.measure({"ours": right, "wholegraph": wrong}, rows, config)


def test_tables(part: Any) -> None:
    record, report = made_up(part), part("bench.multi_gpu_report")
    tables = {name: getattr(report, f"{name}_table")(record).splitlines() for name in ("hits", "placements", "misses")}
    assert [len(lines) for lines in tables.values()] == [2 + 2 * 4, 2 + 2 * 6, 2 + 2 * 2]
    for lines in (*tables.values(), report.machines_table(record).splitlines()):
        assert len({line.count("|") for line in lines}) == 1
    assert "| 2 | 128 x float32, 4 GB | 50% | 140.0 | 100.0 | 1.40 |" in tables["hits"]
    placed = "| 2 | 128 x float32, 4 GB | shard | 0 + 200 | 20.0% | 50% | 25% | 25% | 77.0 |"
    assert placed in tables["placements"]
    assert "| 2 | 768 x bfloat16, 4 GB | 62.5 | 100.0 | 0.62 | 0.50 |" in tables["misses"]
    assert "| 1 | 768 x bfloat16, 4 GB | CPU memory | 512 -> 452 | 110.0 | 100.0 | 1.10 |" in report.machines_table(
        record
    )
    assert report.training_table(record).splitlines()[2:] == [
        "| 1 | strong | 16384 | 2.000 | 1.00 (1.00 x 1) | 25.0% |",
        "| 2 | strong | 16384 | 1.000 | 2.00 (1.00 x 2) | 25.0% |",
        "| 1 | weak | 4096 | 3.000 | 1.00 (1.00 x 1) | 25.0% |",
        "| 2 | weak | 8192 | 1.500 | 2.00 (1.00 x 2) | 25.0% |",
    ]


def test_summary(part: Any) -> None:
    record, report = made_up(part), part("bench.multi_gpu_report")
    record["runs"][0]["cases"][0]["machines"][0]["methods"] = methods("raw", 0.5, 1)
    lines = report.summary_lines(record)
    assert (
        "2 GPUs, 128 x float32, 4 GB: 1000 rows, dict, 512 -> 448 bytes; shard holds 2.00 times the rows of replicate"
        in lines
    )
    assert [line for line in lines if "loses" in line and "float32" in line] == [
        "1 GPU, 128 x float32, 4 GB: loses: NCCL, GPU memory (one GPU sends nothing) 0.50x",
        "2 GPUs, 128 x float32, 4 GB: loses: hits, 0% in own memory 0.90x",
        "2 GPUs, 128 x float32, 4 GB: loses: misses 0.62x",
    ]
    assert lines[-2:] == [
        "not measured: 4 GPUs: want 4 GPUs, got 2",
        "not measured: 8 GPUs: want 8 GPUs, got 2",
    ]


@pytest.mark.parametrize("parts", ["all", "one GPU", "no training", "cut short"])
def test_text_and_picture_from_a_record(part: Any, tmp_path: Path, parts: str, capsys: Any) -> None:
    record = made_up(part)
    if parts != "all":
        del record["runs"][1:]
    if parts == "no training":
        record["runs"][0]["training"] = []
    if parts == "cut short":
        record["runs"][0] |= {"cases": record["runs"][0]["cases"][:1], "training": []}
    path, picture = tmp_path / "out.json", tmp_path / "out.png"
    path.write_text(json.dumps(record))
    part("bench_multi_gpu").main(["--from-json", str(path), "--plot", str(picture)])
    assert picture.stat().st_size > 10_000
    assert ("| strong |" in capsys.readouterr().out) == (parts in ("all", "one GPU"))


@pytest.mark.cuda
@needs_wholegraph
def test_on_a_gpu(part: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    here = torch.cuda.device_count()
    files = ["--json", str(tmp_path / "out.json"), "--plot", str(tmp_path / "out.png")]
    part("bench_multi_gpu").main(["--config", str(CONFIG), *files, "--set", *TINY])
    record = json.loads((tmp_path / "out.json").read_text())
    assert (tmp_path / "out.png").stat().st_size > 10_000
    assert [run["gpus"] for run in record["runs"]] == [size for size in (1, 2, 4, 8) if size <= here]
    assert list(record["left_out"]) == [str(size) for size in (1, 2, 4, 8) if size > here]
    for run in record["runs"]:
        size = run["gpus"]
        for case in run["cases"]:
            for hits in case["hits"]:
                tiers = hits["tiers"]
                assert sum(tiers.values()) == 5000 * size and tiers["host"] == 0
                assert tiers["local"] / 5000 / size == pytest.approx(hits["local_share"], abs=0.05)
            held = {one["placement"]: one for one in case["placements"]}
            assert held["shard"]["rows"] > 0.95 * min(case["rows"], size * held["replicate"]["rows"])
            assert held["replicate"]["tiers"]["peer"] == 0
            for one in case["machines"]:
                assert case["slot_bytes"] < one["bytes_per_row"]["ours"] < case["raw_bytes_per_row"]
            measured = [one["methods"] for one in (*case["hits"], *case["placements"], *case["machines"])]
            for found in (*measured, case["misses"]):
                assert all(len(one["ms"]) == size and one["gb_per_s"] > 0 for one in found.values())
        assert [one["batch_size"] for one in run["training"]] == [840, 256 * size]
        for one in run["training"]:
            assert len(one["epoch_seconds"]) == 2 and min(one["epoch_seconds"]) > 0
    assert "| weak |" in capsys.readouterr().out

"""scripts/train_sage.py as a user runs it: compressed features train exactly like raw ones."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ibp_gnn
from ibp_gnn import CompressedFeatureStore
from ibp_gnn.datasets import load_dataset
from ibp_gnn.integrations.dgl_compat import graphbolt_is_native

REPOSITORY = Path(__file__).resolve().parents[2]
SCRIPT = REPOSITORY / "scripts" / "train_sage.py"
CONFIG = REPOSITORY / "configs" / "wordnet_sage.yaml"
PRODUCTS_CONFIG = REPOSITORY / "configs" / "synthetic_products_sage.yaml"

HAS_DGL = importlib.util.find_spec("dgl") is not None
HAS_GRAPHBOLT = HAS_DGL and graphbolt_is_native()
HAS_PYG = importlib.util.find_spec("torch_geometric") is not None
LOOPS = [
    pytest.param("dgl", marks=pytest.mark.skipif(not HAS_DGL, reason="DGL is not installed")),
    pytest.param(
        "graphbolt", marks=pytest.mark.skipif(not HAS_GRAPHBOLT, reason="GraphBolt's native library needs torch 2.2.1")
    ),
    pytest.param("pyg", marks=pytest.mark.skipif(not HAS_PYG, reason="PyG is not installed")),
]

# Small enough for a test, with more than one step, layer and worker.
SMALL = [
    "device=cpu",
    "model.hidden=16",
    "model.layers=2",
    "train.fanouts=[3, 3]",
    "train.epochs=1",
    "train.batch_size=8192",
]


def call(folder: Path, *overrides: str, config: Path = CONFIG) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(SCRIPT), "--config", str(config), "--set", *SMALL, *overrides]
    # The package that this test run imports, installed or built in place; and another folder, since nothing
    # may depend on where the user stands.
    paths = [str(Path(ibp_gnn.__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=300)


def train(folder: Path, loop: str, features: str, workers: int) -> tuple[dict[str, Any], dict[str, Any], str]:
    """Returns the record, the summary on the last line, and all of standard output."""
    path = folder / "runs" / f"{features}.json"
    done = call(folder, f"loop={loop}", f"features={features}", f"train.workers={workers}", f"log.json={path}")
    assert done.returncode == 0, done.stderr
    return json.loads(path.read_text()), json.loads(done.stdout.splitlines()[-1]), done.stdout


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("loop", LOOPS)
def test_compressed_features_train_exactly_like_raw_ones(tmp_path: Path, loop: str, workers: int) -> None:
    raw, raw_summary, _ = train(tmp_path, loop, "raw", workers)
    compressed, summary, output = train(tmp_path, loop, "compressed", workers)

    assert len(raw["step_losses"]) == 9
    assert compressed["step_losses"] == raw["step_losses"]
    assert compressed["step_losses_hex"] == raw["step_losses_hex"]
    assert [float.fromhex(loss) for loss in raw["step_losses_hex"]] == raw["step_losses"]
    for key in ("test_accuracy", "val_accuracy"):
        assert compressed[key] == raw[key]
    check_record(compressed, summary, loop)

    assert raw_summary["savings"] == 0
    assert raw_summary["store_bytes"] == raw_summary["raw_bytes"] == summary["raw_bytes"]
    assert 0 < summary["savings"] < 1
    assert summary["savings"] == pytest.approx(1 - summary["store_bytes"] / summary["raw_bytes"], abs=1e-3)
    for words in ("loss", "train", "val", "sample", "fetch", "compute", "read", "instead of", "saved"):
        assert words in output
    for words in ("miss", "hits", "PCIe"):
        assert words not in output, "there is no cache on the CPU"


def check_record(record: dict[str, Any], summary: dict[str, Any], loop: str) -> None:
    for key in ("test_accuracy", "savings", "store_bytes", "raw_bytes", "device"):
        assert summary[key] == record[key]
    assert record["device"] == "cpu" and record["aggregation"] == ("pyg" if loop == "pyg" else "dgl")
    assert record["config"]["loop"] == summary["loop"] == loop
    assert record["config"]["model"]["hidden"] == 16
    store = {"path": None, "codec": "auto", "layout": "compact", "precision": None, "pin": "auto"}
    assert record["config"]["store"] == store
    assert {"ibp_gnn", "torch", "dgl", "numpy", "python"} <= record["versions"].keys()
    assert record["hardware"]["cores"] >= 1 and record["hardware"]["cpu"]
    assert "commit" in record
    (epoch,) = record["epochs"]
    for phase in ("sample", "fetch", "compute"):
        assert epoch[f"{phase}_seconds"] > 0
    assert epoch["miss_rate"] == 1.0
    assert 0 < epoch["moved_bytes"] < epoch["moved_bytes"] + epoch["saved_bytes"] == epoch["rows"] * 50 * 4
    assert 0 < epoch["val_accuracy"] < 1 and 0 < epoch["train_accuracy"] < 1


@pytest.mark.skipif(not HAS_DGL, reason="DGL is not installed")
@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.cuda)])
def test_products_shaped_features_from_a_store_file(tmp_path: Path, device: str) -> None:
    rng = np.random.default_rng(0)
    np.save(tmp_path / "real.npy", rng.normal(0, 0.1, (500, 100)).astype(np.float32))
    shape = {"features": str(tmp_path / "real.npy"), "scale": 0.002}
    with CompressedFeatureStore.build(load_dataset("synthetic-products", **shape).features, "auto") as store:
        store.save(tmp_path / "features.ibp")
    sources = {"raw": ["features=raw"], "file": [f"store.path={tmp_path / 'features.ibp'}"]}
    if device == "cuda":
        sources["cache"] = [*sources["file"], "cache.capacity=0.4"]
    records = {}
    for name, overrides in sources.items():
        settings = [f"dataset.{key}={value}" for key, value in shape.items()]
        settings += [f"device={device}", "train.deterministic=true", "train.batch_size=128", "log.progress=false"]
        done = call(tmp_path, *settings, *overrides, f"log.json={name}.json", config=PRODUCTS_CONFIG)
        assert done.returncode == 0, done.stderr
        records[name] = json.loads((tmp_path / f"{name}.json").read_text())
    assert len(records["raw"]["step_losses"]) >= 3
    assert all(record["step_losses_hex"] == records["raw"]["step_losses_hex"] for record in records.values())
    for name in sources.keys() - {"raw"}:
        (epoch,), savings = records[name]["epochs"], records[name]["savings"]
        assert 0.1 < savings < 0.2 and 0 < epoch["fetch_seconds"] < 300
        assert 0 < epoch["moved_bytes"] < epoch["raw_bytes"]
        assert (epoch["hits"] > 0) == (name == "cache")


@pytest.mark.skipif(HAS_GRAPHBOLT or not HAS_DGL, reason="GraphBolt works, or DGL is not installed")
def test_a_loop_that_cannot_run_here(tmp_path: Path) -> None:
    done = call(tmp_path, "loop=graphbolt")
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1].startswith("error: GraphBolt's samplers need its native library, which DGL ")
    assert "Traceback" not in done.stderr


@pytest.mark.skipif(not HAS_DGL, reason="DGL is not installed")
@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("loop=dlg", "error: loop: want one of 'dgl', 'graphbolt', 'pyg', 'wholegraph', got 'dlg'"),
        ("train.epoch=2", "error: unknown setting 'train.epoch'; did you mean 'train.epochs'?"),
        ("dataset.name=cora", "error: dataset.name: want one of ['wordnet', 'ogbn-arxiv', "),
        ("store.codec=zip", "error: store.codec: want one of ['auto', 'dict', 'ibp'], got 'zip'"),
        ("cache.capacity=4XB", "error: cache.capacity: want bytes"),
        ("store.path=none.ibp", "error: store.path: want a store file, got none.ibp, where no file is"),
        ("log.checkpoint=a/b/c.pt", "error: log.checkpoint: want a file in a folder that exists"),
        ("log.json=/", "error: log.json: want a file, got the folder /"),
    ],
)
def test_errors_are_one_line(tmp_path: Path, override: str, message: str) -> None:
    done = call(tmp_path, override)
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1].startswith(message)
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("script", ["train_sage.py", "infer_sage.py"])
def test_without_arguments_there_is_help_and_no_training(tmp_path: Path, script: str) -> None:
    done = subprocess.run(
        [sys.executable, str(REPOSITORY / "scripts" / script)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("usage: ") and "--config FILE" in done.stderr
    assert os.listdir(tmp_path) == []


@pytest.mark.skipif(not HAS_DGL, reason="DGL is not installed")
def test_a_run_that_fails_leaves_no_folder(tmp_path: Path) -> None:
    done = call(
        tmp_path, "log.json=new/run.json", "dataset.name=arrays", "dataset.root=mistyped", "dataset.features=null"
    )
    assert done.returncode == 2 and "Traceback" not in done.stderr
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("seconds", [0.5, 4.0])
def test_ctrl_c_is_one_line(tmp_path: Path, seconds: float) -> None:
    """While torch is imported, and while data is loaded or a model trained."""
    loop = "dgl" if HAS_DGL else "pyg"
    command = [
        sys.executable,
        str(SCRIPT),
        "--config",
        str(CONFIG),
        "--set",
        *SMALL,
        f"loop={loop}",
        "train.epochs=1000",
    ]
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as run:
        time.sleep(seconds)
        run.send_signal(signal.SIGINT)
        _, stderr = run.communicate(timeout=60)
    assert run.returncode == 130
    assert stderr.splitlines()[-1] == "interrupted; run it again to go on" and "Traceback" not in stderr

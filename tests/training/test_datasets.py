"""Every kind of data set by name through one epoch, raw and compressed, without network."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

if importlib.util.find_spec("dgl") is None:
    pytest.skip("DGL is not installed", allow_module_level=True)

from ibp_gnn.config import ConfigError, load
from ibp_gnn.training import loop
from ibp_gnn.training.config import TrainingConfig

REPOSITORY = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(REPOSITORY / "tests" / "datasets"))
import ogb_folders as folders  # noqa: E402

SMALL = [
    "device=cpu", "model.hidden=8", "model.layers=2", "train.fanouts=[3, 3]", "train.batch_size=64", "train.epochs=1",
    "train.workers=0", "log.progress=false",
]  # fmt: skip
needs_ogb = pytest.mark.skipif(importlib.util.find_spec("ogb") is None, reason="ogb is not installed")


def homogeneous_folder(root: Path) -> list[str]:
    return ["dataset.name=ogb-folder", f"dataset.root={folders.save_homogeneous(root)}", "dataset.reverse_edges=true"]


def hetero_folder(root: Path) -> list[str]:
    return ["dataset.name=ogb-folder", f"dataset.root={folders.save_hetero(root)}", "dataset.reverse_edges=true"]


def arxiv(root: Path) -> list[str]:
    folders.write_text_homogeneous(root / "ogbn_arxiv")
    return ["dataset.name=ogbn-arxiv", f"dataset.root={root}"]


def mag(root: Path) -> list[str]:
    folders.write_text_hetero(root / "ogbn_mag")
    return ["dataset.name=ogbn-mag", f"dataset.root={root}"]


def mag240m(root: Path) -> list[str]:
    folders.write_mag240m(root)
    return ["dataset.name=mag240m", f"dataset.root={root}"]


def arrays(root: Path) -> list[str]:
    folders.write_arrays(root / "mine")
    return ["dataset.name=arrays", f"dataset.root={root / 'mine'}"]


def synthetic(root: Path) -> list[str]:
    np.save(root / "real.npy", folders.rows())
    settings = "scale=0.0004", "dtype=bfloat16", f"features={root / 'real.npy'}"
    return ["dataset.name=synthetic-products", *(f"dataset.{setting}" for setting in settings)]


KINDS = [
    pytest.param(homogeneous_folder, marks=needs_ogb),
    pytest.param(hetero_folder, marks=needs_ogb),
    pytest.param(arxiv, marks=needs_ogb),
    pytest.param(mag, marks=needs_ogb),
    mag240m,
    arrays,
    synthetic,
]


def train(overrides: list[str], *more: str) -> tuple[dict[str, Any], list[str]]:
    lines: list[str] = []
    return loop.run(load(TrainingConfig, None, [*SMALL, *overrides, *more]), log=lines.append), lines


@pytest.mark.parametrize("kind", KINDS)
def test_one_epoch(tmp_path: Path, kind: Any) -> None:
    overrides = kind(tmp_path)
    raw, lines = train(overrides, "features=raw")
    compressed, _ = train(overrides, "features=compressed")
    assert raw["step_losses"] and raw["step_losses_hex"] == compressed["step_losses_hex"]
    assert raw["val_accuracy"] == compressed["val_accuracy"]
    assert (raw["test_accuracy"] is None) == (kind is mag240m)
    is_synthetic = kind is synthetic
    assert compressed["synthetic"] == raw["synthetic"] == is_synthetic
    assert raw["dataset"].startswith("synthetic-") == is_synthetic == ("generated" in lines[0])


@pytest.mark.parametrize("path", sorted((REPOSITORY / "configs").glob("*_sage.yaml")), ids=lambda path: path.stem)
def test_configs_are_valid(path: Path) -> None:
    config = load(TrainingConfig, path)
    assert config.dataset.name.split("-")[-1].lower() in path.stem.replace("_", "") or config.dataset.root


def test_errors_name_the_section(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="dataset: .*want a folder that ogb's DatasetSaver wrote"):
        train(["dataset.name=ogb-folder", f"dataset.root={tmp_path}"])
    with pytest.raises(ConfigError, match="want the folder that holds arrays, got none"):
        train(["dataset.name=arrays"])
    with pytest.raises(ConfigError, match="unknown setting 'dataset.rooot'; did you mean 'dataset.root'"):
        train(["dataset.rooot=x"])

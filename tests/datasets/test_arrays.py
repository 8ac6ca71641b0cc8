"""Data sets from plain arrays."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import ogb_folders as folders
import pytest
import torch

from ibp_gnn.datasets import DatasetError, NodeDataset, load_dataset

pytestmark = pytest.mark.usefixtures("no_questions")


def test_arrays(tmp_path: Path) -> None:
    folders.write_arrays(tmp_path / "mine")
    dataset = load_dataset("arrays", root=tmp_path / "mine")
    assert isinstance(dataset, NodeDataset)
    assert (dataset.name, dataset.num_classes) == ("mine", folders.NUM_CLASSES)
    np.testing.assert_array_equal(dataset.features.numpy(), folders.rows())
    np.testing.assert_array_equal(torch.stack([dataset.src, dataset.dst]).numpy(), folders.edge_index())


def test_other_features_of_arrays(tmp_path: Path) -> None:
    folders.write_arrays(tmp_path / "mine")
    half = torch.from_numpy(folders.rows()).bfloat16()
    torch.save(half, tmp_path / "mine" / "half.pt")
    dataset = load_dataset("arrays", root=tmp_path / "mine", features="half.pt")
    assert torch.equal(dataset.features.view(torch.int16), half.view(torch.int16))


def test_features_are_not_read(tmp_path: Path) -> None:
    """Features larger than the machine's memory, nearly all of it holes in a file."""
    folders.write_arrays(tmp_path / "mine")
    path, width = tmp_path / "mine" / "features.npy", 1 << 30
    np.lib.format.open_memmap(path, "w+", np.float16, (folders.NUM_NODES, width)).flush()
    dataset = load_dataset("arrays", root=tmp_path / "mine")
    assert dataset.features.shape == (folders.NUM_NODES, width)
    assert path.stat().st_blocks * 512 < 1 << 20


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"labels": None}, r"want the arrays .*got none named \['labels'\]"),
        ({"edge_index": folders.edge_index().T}, r"edge_index: want integers \[2, num_edges\], got \[2400, 2\] int64"),
        ({"edge_index": folders.edge_index() * 1.0}, r"edge_index: want integers .* float64"),
        ({"edge_index": np.array([[0], [400]])}, r"dst: want values in \[0, 400\), got 400"),
        ({"labels": np.zeros(399, int)}, r"features: want \[399, d\], got \[400, 12\]"),
        ({"labels": np.full(400, 1.5)}, "labels: want class numbers, got 1.5"),
        ({"labels": np.full(400, -1)}, r"labels of train_ids: want values in \[0, 0\), got -1"),
        ({"labels": np.zeros((400, 2), int)}, r"labels: want one label a node, .* got \[400, 2\]"),
        (
            {"train": np.ones(399, bool)},
            r"train: want node ids, integers \[n\], or a mask, bool \[400\], got \[399\] bool",
        ),
        ({"test": np.ones(4)}, r"test: want node ids, integers \[n\], or a mask, bool \[400\], got \[4\] float64"),
        ({"val": np.array([-1])}, r"val_ids: want values in \[0, 400\), got -1"),
        ({"train": np.array([], int)}, "train_ids: want at least 1 node, got none"),
    ],
)
def test_arrays_that_do_not_fit(tmp_path: Path, changed: dict[str, Any], message: str) -> None:
    folders.write_arrays(tmp_path / "mine", **changed)
    with pytest.raises(DatasetError, match=message):
        load_dataset("arrays", root=tmp_path / "mine")


def test_arrays_without_files(tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match="features.npy: no such file"):
        load_dataset("arrays", root=tmp_path)
    np.save(tmp_path / "features.npy", folders.rows())
    with pytest.raises(DatasetError, match="graph.npz"):
        load_dataset("arrays", root=tmp_path)


def test_splits_as_masks(tmp_path: Path) -> None:
    masks = {name: np.arange(folders.NUM_NODES) % 3 == place for place, name in enumerate(("train", "val", "test"))}
    folders.write_arrays(tmp_path / "mine", **masks)
    dataset = load_dataset("arrays", root=tmp_path / "mine")
    assert isinstance(dataset, NodeDataset)
    for name, mask in masks.items():
        assert getattr(dataset, f"{name}_ids").tolist() == np.flatnonzero(mask).tolist()

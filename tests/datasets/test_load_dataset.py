"""Data sets from MAG240M's files and from plain arrays; which settings each name takes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import ogb_folders as folders
import pytest
import torch

from ibp_gnn.datasets import DATASET_NAMES, DatasetError, NodeDataset, load_dataset, npz_map

pytestmark = pytest.mark.usefixtures("no_questions")


def test_mag240m(tmp_path: Path) -> None:
    folders.write_mag240m(tmp_path)
    dataset = load_dataset("mag240m", root=tmp_path)
    assert isinstance(dataset, NodeDataset)
    assert (dataset.name, dataset.num_classes) == ("mag240m", folders.NUM_CLASSES)
    assert dataset.features.dtype == torch.float16
    np.testing.assert_array_equal(dataset.features.numpy(), folders.rows().astype(np.float16))
    np.testing.assert_array_equal(torch.stack([dataset.src, dataset.dst]).numpy(), folders.edge_index())
    np.testing.assert_array_equal(dataset.val_ids.numpy(), folders.split()["valid"])
    assert len(dataset.test_ids) == 0
    assert (dataset.labels[torch.from_numpy(folders.split()["test"])] == -1).all()


@pytest.mark.parametrize(
    "missing", ["meta.pt", "split_dict.pt", "processed/paper/node_feat.npy", "processed/paper/node_label.npy"]
)
def test_mag240m_without_a_file(tmp_path: Path, missing: str) -> None:
    folders.write_mag240m(tmp_path)
    (tmp_path / "mag240m_kddcup2021" / missing).unlink()
    with pytest.raises(DatasetError, match=missing):
        load_dataset("mag240m", root=tmp_path)


def test_mag240m_says_how_to_get_it(tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match="no such folder; ogb downloads it .*MAG240MDataset"):
        load_dataset("mag240m", root=tmp_path)


def test_mag240m_with_another_split(tmp_path: Path) -> None:
    folders.write_mag240m(tmp_path)
    torch.save({"train": np.arange(3)}, tmp_path / "mag240m_kddcup2021" / "split_dict.pt")
    with pytest.raises(DatasetError, match="want 'valid' in meta.pt and split_dict.pt"):
        load_dataset("mag240m", root=tmp_path)


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
        ({"train": np.ones(400, bool)}, r"train: want node ids, integers \[n\], got \[400\] bool"),
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


def test_settings() -> None:
    with pytest.raises(DatasetError, match=r"want one of \['wordnet', 'ogbn-arxiv'.*\], got 'cora'"):
        load_dataset("cora")
    with pytest.raises(DatasetError, match="wordnet: want no setting but features and reverse_edges, got root='x'"):
        load_dataset("wordnet", root="x")
    with pytest.raises(DatasetError, match="mag240m: want no setting but root and reverse_edges, got features='glove'"):
        load_dataset("mag240m", "glove", root="x")
    for name in DATASET_NAMES:
        if name.startswith(("ogb", "mag", "arrays")):
            with pytest.raises(DatasetError, match=f"{name}: want root, the folder that holds it, got none"):
                load_dataset(name)


# ---- one array of a .npz ----


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
@pytest.mark.parametrize("order", ["C", "F"])
def test_map_npz_array(tmp_path: Path, save: Any, order: str) -> None:
    array = np.asarray(folders.rows(), order=order)
    save(tmp_path / "data.npz", first=np.arange(3), array=array, empty=np.empty((0, 2)))
    extracted = tmp_path / "out" / "array.npy"
    mapped = npz_map.map_npz_array(tmp_path / "data.npz", "array", extracted)
    assert isinstance(mapped, np.memmap) and not mapped.flags.writeable
    np.testing.assert_array_equal(mapped, array)
    assert mapped.flags.f_contiguous == (order == "F")
    assert extracted.exists() == (save is np.savez_compressed)
    assert npz_map.map_npz_array(tmp_path / "data.npz", "empty", tmp_path / "out" / "empty.npy").shape == (0, 2)
    with pytest.raises(KeyError):
        npz_map.map_npz_array(tmp_path / "data.npz", "other", extracted)


def test_an_older_unpacked_array_is_replaced(tmp_path: Path) -> None:
    path, extracted = tmp_path / "data.npz", tmp_path / "array.npy"
    np.savez_compressed(path, array=np.zeros(5))
    npz_map.map_npz_array(path, "array", extracted)
    np.savez_compressed(path, array=np.ones(6))
    np.testing.assert_array_equal(npz_map.map_npz_array(path, "array", extracted), np.ones(6))


def test_objects_are_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "data.npz", array=np.array([{}], dtype=object))
    with pytest.raises(ValueError, match="want an array of numbers, got object"):
        npz_map.map_npz_array(tmp_path / "data.npz", "array", tmp_path / "array.npy")

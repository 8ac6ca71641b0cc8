"""MAG240M from ogb's files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import ogb_folders as folders
import pytest
import torch

from ibp_gnn.datasets import DatasetError, NodeDataset, load_dataset

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

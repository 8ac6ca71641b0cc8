"""OGB data sets by name and from local folders: right arrays, no copy of the features, no question on stdin."""

from __future__ import annotations

import importlib.util
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from ibp_gnn.datasets import DatasetError, load_dataset, ogb_package

if importlib.util.find_spec("ogb") is None:
    pytest.skip("ogb is not installed", allow_module_level=True)

import ogb_folders as folders
from ogb_checks import check_hetero, check_homogeneous

pytestmark = pytest.mark.usefixtures("no_questions")


def test_folder_of_dataset_saver(saved: dict[str, Path], tmp_path: Path) -> None:
    moved = shutil.copytree(saved["homogeneous"], tmp_path / "moved")
    for _ in range(2):  # unpacks the features, finds them unpacked
        check_homogeneous(load_dataset("ogb-folder", root=moved), "ogbn-small")
    assert [path.name for path in (moved / "small" / "processed" / "ibp_gnn").iterdir()] == ["node_feat.npy"]


def test_hetero_folder_of_dataset_saver(saved: dict[str, Path]) -> None:
    check_hetero(load_dataset("ogb-folder", root=saved["hetero"]), "ogbn-small")


def test_products_has_both_directions(tmp_path: Path) -> None:
    folders.write_text_homogeneous(tmp_path / "ogbn_products")
    shutil.move(tmp_path / "ogbn_products" / "split" / "time", tmp_path / "ogbn_products" / "split" / "sales_ranking")
    dataset = load_dataset("ogbn-products", root=tmp_path)
    src, dst = folders.edge_index()
    assert sorted(zip(dataset.src.tolist(), dataset.dst.tolist(), strict=True)) == sorted(
        [*zip(src, dst, strict=True), *zip(dst, src, strict=True)]
    )


def test_reverse_edges(saved: dict[str, Path]) -> None:
    dataset = load_dataset("ogb-folder", root=saved["homogeneous"], reverse_edges=True)
    src, dst = folders.edge_index()
    np.testing.assert_array_equal(dataset.src.numpy(), np.concatenate([src, dst]))
    np.testing.assert_array_equal(dataset.dst.numpy(), np.concatenate([dst, src]))
    hetero = load_dataset("ogb-folder", root=saved["hetero"], reverse_edges=True)
    assert len(hetero.edges) == 6
    assert torch.equal(hetero.edges["paper", "rev_writes", "author"][0], hetero.edges["author", "writes", "paper"][1])


def test_a_folder_without_meta_dict(tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match="want a folder that ogb's DatasetSaver wrote, with meta_dict.pt in it"):
        load_dataset("ogb-folder", root=tmp_path)


def test_a_meta_dict_without_keys(submission: Path) -> None:
    torch.save({"version": 1, "download_name": "small"}, submission / "meta_dict.pt")
    with pytest.raises(DatasetError, match="want a dict with .*got none with .*'num classes'"):
        load_dataset("ogb-folder", root=submission)


def test_a_meta_dict_that_points_elsewhere(submission: Path) -> None:
    meta = ogb_package.load_torch_file(submission / "meta_dict.pt")
    torch.save({**meta, "download_name": "../../small"}, submission / "meta_dict.pt")
    with pytest.raises(DatasetError, match="want a folder's name as download_name"):
        load_dataset("ogb-folder", root=submission)


def test_no_features(tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match="want node features, got a data set without"):
        load_dataset("ogb-folder", root=folders.save_homogeneous(tmp_path, node_feat=None))


def test_regression_and_several_tasks(submission: Path) -> None:
    meta = ogb_package.load_torch_file(submission / "meta_dict.pt")
    for changed, got in (({"task type": "regression"}, "1 of regression"), ({"num tasks": 112}, "112 of multi")):
        torch.save({**meta, **changed}, submission / "meta_dict.pt")
        with pytest.raises(DatasetError, match=f"want one task, of classification, got {got}"):
            load_dataset("ogb-folder", root=submission)

"""OGB's files, binary and text: parsed once, mapped where they lie, refused where they are damaged."""

from __future__ import annotations

import importlib.util
import shutil
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from ibp_gnn.datasets import DatasetError, load_dataset, ogb_files

if importlib.util.find_spec("ogb") is None:
    pytest.skip("ogb is not installed", allow_module_level=True)

import ogb_folders as folders
from ogb_checks import check_hetero, check_homogeneous

pytestmark = pytest.mark.usefixtures("no_questions")


@pytest.mark.parametrize("name", ["ogbn-arxiv", "ogbn-mag"])
def test_text_files_are_parsed_once(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    write, check = (
        (folders.write_text_hetero, check_hetero)
        if name == "ogbn-mag"
        else (folders.write_text_homogeneous, check_homogeneous)
    )
    folder = tmp_path / name.replace("-", "_")
    write(folder)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        check(load_dataset(name, root=tmp_path), name)
    assert not [warning for warning in caught if "writ" in str(warning.message)]
    with monkeypatch.context() as patch:
        for parse in ("_parse", "_parse_hetero"):
            patch.delattr(ogb_files, parse)
        check(load_dataset(name, root=tmp_path), name)
    # Another raw file: parsed anew.
    part = sorted(folder.rglob("node-label.csv.gz"))[0]
    folders.write_csv(part, [[0]] * folders.NUM_NODES)
    assert not load_dataset(name, root=tmp_path).labels.any()


def test_text_files_are_parsed_by_two_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One begins to write what it parsed; another parses and writes all of it; then the first one goes on."""
    folder = tmp_path / "ogbn_arxiv"
    folders.write_text_homogeneous(folder)
    save, inner = np.save, []

    def hooked(*arguments: Any) -> None:
        if not inner:
            inner.append(None)
            inner[0] = load_dataset("ogbn-arxiv", root=tmp_path)
        save(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(np, "save", hooked)
        check_homogeneous(load_dataset("ogbn-arxiv", root=tmp_path), "ogbn-arxiv")
    check_homogeneous(inner[0], "ogbn-arxiv")
    check_homogeneous(load_dataset("ogbn-arxiv", root=tmp_path), "ogbn-arxiv")
    assert [path.name for path in (folder / "processed").iterdir()] == ["ibp_gnn"]


def test_papers100m_is_mapped_where_it_lies(tmp_path: Path, saved: dict[str, Path]) -> None:
    """Features as np.savez wrote them, split as text, labels that are NaN where there are none."""
    folder = tmp_path / "ogbn_papers100M"
    shutil.copytree(saved["homogeneous"] / "small" / "raw", folder / "raw")
    (folder / "RELEASE_v1.txt").touch()
    with np.load(folder / "raw" / "data.npz") as arrays:
        np.savez(folder / "raw" / "data.npz", **dict(arrays))
    parts = folder / "split" / "time"
    parts.mkdir(parents=True)
    for part, ids in folders.split().items():
        folders.write_csv(parts / f"{part}.csv.gz", ids[:, None])
    numbers = folders.labels().astype(np.float32)
    used = np.concatenate([ids[:50] for ids in folders.split().values()])
    unused = np.setdiff1d(np.arange(folders.NUM_NODES), np.concatenate(list(folders.split().values())))
    numbers[unused] = np.nan
    np.savez(folder / "raw" / "node-label.npz", node_label=numbers)
    dataset = load_dataset("ogbn-papers100M", root=tmp_path)
    check_homogeneous(dataset, "ogbn-papers100M")
    assert not (folder / "processed").exists()
    assert (dataset.labels[used] >= 0).all()


@pytest.mark.parametrize(
    ("missing", "message"),
    [
        ("RELEASE_v1.txt", r"want RELEASE_v1.txt in it, .*got no RELEASE file"),
        ("raw/data.npz", r"raw/data.npz: no such file"),
        ("raw/node-label.npz", r"want .*node-label.npz, got no such file"),
        ("split", "want the folder of the split"),
    ],
)
def test_missing_files(submission: Path, missing: str, message: str) -> None:
    path = submission / "small" / missing
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    with pytest.raises(DatasetError, match=message):
        load_dataset("ogb-folder", root=submission)
    assert (submission / "small").is_dir()


def test_another_release(tmp_path: Path) -> None:
    folders.write_text_homogeneous(tmp_path / "ogbn_mag")
    with pytest.raises(DatasetError, match=r"want RELEASE_v2.txt in it, .*got \['RELEASE_v1.txt'\]"):
        load_dataset("ogbn-mag", root=tmp_path)


@pytest.mark.parametrize("length", [0, 100, -1])
def test_damaged_files(submission: Path, length: int) -> None:
    path = submission / "small" / "raw" / "data.npz"
    path.write_bytes(path.read_bytes()[:length])
    with pytest.raises(DatasetError, match="want the files of an OGB data set; reading them failed"):
        load_dataset("ogb-folder", root=submission)


def test_a_split_with_ids_that_do_not_exist(submission: Path) -> None:
    path = submission / "small" / "split" / "random" / "split_dict.pt"
    torch.save({**folders.split(), "valid": np.array([3, folders.NUM_NODES])}, path)
    with pytest.raises(DatasetError, match=r"val_ids: want values in \[0, 400\), got 400"):
        load_dataset("ogb-folder", root=submission)
    torch.save({"train": np.arange(3)}, path)
    with pytest.raises(DatasetError, match=r"want a split into train, valid, test, got \['train'\]"):
        load_dataset("ogb-folder", root=submission)

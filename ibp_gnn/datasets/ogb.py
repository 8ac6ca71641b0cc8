"""OGB node-classification data sets: by name, and local folders in OGB's format."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from . import ogb_files, ogb_package
from .as_tensors import class_labels, edge_tensors, node_ids, share_memory
from .hetero_dataset import HeteroNodeDataset
from .node_dataset import DatasetError, NodeDataset

OGB_NAMES = ("ogbn-arxiv", "ogbn-mag", "ogbn-papers100M", "ogbn-products")
META_FILE = "meta_dict.pt"
_META_KEYS = (
    "version", "download_name", "num tasks", "num classes", "task type", "split", "add_inverse_edge", "is hetero",
    "binary",
)  # fmt: skip


def load_ogb(name: str, root: str | Path, *, allow_large_download: bool = False) -> NodeDataset | HeteroNodeDataset:
    """Loads one of OGB_NAMES from `root`, the folder that ogb calls so ("ogbn-arxiv" is its subfolder "ogbn_arxiv").

    Where that is missing, ogb downloads it, more than 1 GB (products, papers100M) only with `allow_large_download`.
    Edges are as ogb gives them: products has both directions, the others the one that they were published with.
    Features stay in files and are memory-mapped. What has to be parsed or unpacked for that is, once, into
    `processed/ibp_gnn` of the folder; for papers100M that can be a file of 57 GB.
    Raises DatasetError if that cannot be; never asks on stdin. ImportError without ogb.
    """
    meta = ogb_package.master_entry(name)
    root = Path(root).expanduser()
    folder = root / name.replace("-", "_")
    if not folder.exists():
        ogb_package.download(meta["url"], root, meta["download_name"], folder, allow_large=allow_large_download)
    return _load(name, folder, meta)


def load_ogb_folder(root: str | Path) -> NodeDataset | HeteroNodeDataset:
    """Loads the data set that ogb's DatasetSaver wrote: `root` has meta_dict.pt and the folder that it describes.

    The name is that of the folder. Errors as `load_ogb`; nothing is downloaded.
    """
    root = Path(root).expanduser()
    if not (root / META_FILE).is_file():
        raise DatasetError(f"{root}: want a folder that ogb's DatasetSaver wrote, with {META_FILE} in it")
    meta = ogb_package.load_torch_file(root / META_FILE)
    missing = [key for key in _META_KEYS if key not in meta] if isinstance(meta, dict) else list(_META_KEYS)
    if missing:
        raise DatasetError(f"{root / META_FILE}: want a dict with {list(_META_KEYS)}, got none with {missing}")
    folder = str(meta["download_name"])
    if Path(folder).name != folder:
        raise DatasetError(f"{root / META_FILE}: want a folder's name as download_name, got {folder!r}")
    # Not meta["dir_path"], which was right where and when it was written.
    return _load(f"ogbn-{folder}", root / folder, meta)


def _load(name: str, folder: Path, meta: dict[str, Any]) -> NodeDataset | HeteroNodeDataset:
    _check_folder(folder, meta)
    if "classification" not in str(meta["task type"]) or int(meta["num tasks"]) != 1:
        got = f"{meta['num tasks']} of {meta['task type']}"
        raise DatasetError(f"{name}: want one task, of classification, got {got}")
    try:
        files = ogb_files.read_files(folder, meta)
    except OSError as error:
        raise DatasetError(f"{name}: want to keep what is parsed or unpacked in {folder}: {error}") from error
    if not files.features:
        raise DatasetError(f"{name}: want node features, got a data set without")
    split = ogb_files.read_split(folder, meta)
    target = _target(name, files.labels, split)
    common: dict[str, Any] = dict(
        name=name,
        num_classes=int(meta["num classes"]),
        labels=class_labels(name, files.labels[target]),
        train_ids=node_ids(split["train"][target]),
        val_ids=node_ids(split["valid"][target]),
        test_ids=node_ids(split["test"][target]),
    )
    edges = {edge_type: edge_tensors(f"{name}: edges {edge_type}", pair) for edge_type, pair in files.edges.items()}
    features = {node_type: share_memory(rows) for node_type, rows in files.features.items()}
    try:
        if meta["is hetero"] == "True":
            return HeteroNodeDataset(
                num_nodes_of=files.num_nodes, edges=edges, features=features, target=target, **common
            )
        src, dst = edges[ogb_files.EDGE]
        return NodeDataset(src=src, dst=dst, features=features[ogb_files.NODE], **common)
    except ValueError as error:
        raise DatasetError(f"{folder}: {error}") from error


def _check_folder(folder: Path, meta: Mapping[str, Any]) -> None:
    """Raises DatasetError where ogb would ask whether to delete the folder, or would download it over again."""
    if not folder.is_dir():
        raise DatasetError(f"{folder}: want the folder of an OGB data set, got no such folder")
    release = f"RELEASE_v{meta['version']}.txt"
    if not (folder / release).exists():
        found = sorted(path.name for path in folder.glob("RELEASE_v*.txt"))
        raise DatasetError(
            f"{folder}: want {release} in it, the version that this ogb reads, got {found or 'no RELEASE file'}. "
            "Move the folder away, or put that version there"
        )
    raw_file = folder / ogb_files.raw_file(dict(meta))
    if not raw_file.exists():
        raise DatasetError(f"{raw_file}: no such file. Move the folder away, or put the raw files there")


def _target(name: str, labels: Mapping[str, np.ndarray], split: Mapping[str, Mapping[str, np.ndarray]]) -> str:
    """The one node type that has labels, and ids in each part of the split."""
    if len(labels) != 1:
        raise DatasetError(f"{name}: want labels of one node type, got those of {sorted(labels)}")
    (target,) = labels
    for part, by_type in split.items():
        if target not in by_type:
            raise DatasetError(f"{name}: want {part} nodes of type {target!r}, got those of {sorted(by_type)}")
    return target

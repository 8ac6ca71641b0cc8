"""MAG240M of OGB-LSC as a homogeneous graph: its papers, their citations and their 768 float16 features."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch

from .as_tensors import class_labels, edge_tensors, node_ids, share_memory
from .node_dataset import DatasetError, NodeDataset
from .ogb_package import load_torch_file

FOLDER = "mag240m_kddcup2021"
DOWNLOAD = "python -c 'from ogb.lsc import MAG240MDataset; MAG240MDataset(\"ROOT\")'"


def load_mag240m(root: str | Path) -> NodeDataset:
    """Loads the papers from the folder `mag240m_kddcup2021` in `root`, laid out as ogb.lsc leaves it.

    Features (187 GB) are memory-mapped. Edges are the citations, citing paper first; authors and institutions are left
    out. The labels of the test papers are not public, so test_ids is empty.
    Raises DatasetError if a file is missing or is not what ogb.lsc has there. Nothing is downloaded: ogb.lsc would ask
    for the 167 GB on stdin.
    """
    folder = Path(root).expanduser() / FOLDER
    if not folder.is_dir():
        raise DatasetError(f"{folder}: no such folder; ogb downloads it (167 GB, it asks first): {DOWNLOAD}")
    meta, split = (_load_dict(folder / name) for name in ("meta.pt", "split_dict.pt"))
    features = _map(folder / "processed" / "paper" / "node_feat.npy")
    labels = _map(folder / "processed" / "paper" / "node_label.npy")
    edge_index = _map(folder / "processed" / "paper___cites___paper" / "edge_index.npy")
    try:
        src, dst = edge_tensors("edge_index", edge_index)
        return NodeDataset(
            name="mag240m",
            num_classes=int(meta["num_classes"]),
            src=src,
            dst=dst,
            features=share_memory(features),
            labels=class_labels("node_label", labels),
            train_ids=node_ids(split["train"]),
            val_ids=node_ids(split["valid"]),
            test_ids=torch.empty(0, dtype=torch.int64, device="cpu"),
        )
    except KeyError as error:
        raise DatasetError(f"{folder}: want {error} in meta.pt and split_dict.pt, got no such entry") from error
    except ValueError as error:
        raise DatasetError(f"{folder}: {error}") from error


def _load_dict(path: Path) -> dict[str, Any]:
    if not path.is_file():
        raise DatasetError(f"{path}: no such file")
    content = load_torch_file(path)
    if not isinstance(content, dict):
        raise DatasetError(f"{path}: want a dict, got {type(content).__name__}")
    return content


def _map(path: Path) -> np.ndarray:
    try:
        return np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise DatasetError(f"{path}: want an array that NumPy can map: {error}") from error

"""A data set of your own as two files in one folder: the features, and a graph.npz with everything else.

features.npy    [num_nodes, d], of any dtype that can be compressed; memory-mapped. Or another file: .npy, .npz,
                .pt or .safetensors with one matrix in it.
graph.npz       edge_index  integers [2, num_edges]: sources, destinations; an undirected edge is there both ways
                labels      integers [num_nodes]: class numbers from 0, -1 where there is none
                train, val, test   integers: node ids; or truth values [num_nodes], a mask

np.save("data/features.npy", features)
np.savez("data/graph.npz", edge_index=edge_index, labels=labels, train=train, val=val, test=test)
"""

from __future__ import annotations

import zipfile
from pathlib import Path

import numpy as np
import torch

from .array_files import load_rows
from .as_tensors import class_labels, edge_tensors, node_ids, share_memory
from .node_dataset import DatasetError, NodeDataset

GRAPH_FILE = "graph.npz"
GRAPH_ARRAYS = ("edge_index", "labels", "train", "val", "test")


def load_arrays(root: str | Path, features: str = "features.npy") -> NodeDataset:
    """Loads a folder as described above, under its own name. features: file name in `root`, or an absolute path.

    There are as many classes as the highest label says. Raises DatasetError for missing files and arrays that do not
    fit together.
    """
    root = Path(root).expanduser()
    path = root / GRAPH_FILE
    try:
        rows = load_rows(root / features)
        with np.load(path, allow_pickle=False) as arrays:
            missing = [name for name in GRAPH_ARRAYS if name not in arrays.files]
            if missing:
                raise DatasetError(f"{path}: want the arrays {list(GRAPH_ARRAYS)}, got none named {missing}")
            graph = {name: arrays[name] for name in GRAPH_ARRAYS}
        src, dst = edge_tensors("edge_index", graph["edge_index"])
        labels = class_labels("labels", graph["labels"])
        return NodeDataset(
            name=root.resolve().name,
            num_classes=int(labels.max()) + 1 if len(labels) else 0,
            src=src,
            dst=dst,
            features=rows if isinstance(rows, torch.Tensor) else share_memory(rows),
            labels=labels,
            train_ids=_split("train", graph["train"], len(rows)),
            val_ids=_split("val", graph["val"], len(rows)),
            test_ids=_split("test", graph["test"], len(rows)),
        )
    except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
        raise DatasetError(f"{root}: {error}") from error


def _split(name: str, nodes: np.ndarray, num_nodes: int) -> torch.Tensor:
    """The ids of a split that is ids or a mask."""
    if nodes.dtype == np.bool_ and nodes.shape == (num_nodes,):
        nodes = np.flatnonzero(nodes)
    if nodes.ndim != 1 or nodes.dtype.kind not in "iu":
        raise DatasetError(
            f"{name}: want node ids, integers [n], or a mask, bool [{num_nodes}], got {list(nodes.shape)} {nodes.dtype}"
        )
    return node_ids(nodes)

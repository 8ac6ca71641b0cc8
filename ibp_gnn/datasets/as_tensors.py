"""Arrays from files as the tensors that a data set holds, checked, and shared rather than copied."""

from __future__ import annotations

import warnings

import numpy as np
import torch
from torch import Tensor

from .node_dataset import UNLABELED, DatasetError


def share_memory(array: np.ndarray) -> Tensor:
    """A tensor over the memory of `array`, which may be a read-only memmap: the tensor must not be written to."""
    with warnings.catch_warnings():
        # Of torch.from_numpy, about writing. A mapping that may be written to would count as used memory.
        warnings.filterwarnings("ignore", message="The given NumPy array is not writ")
        return torch.from_numpy(array)


def node_ids(ids: np.ndarray) -> Tensor:
    return torch.from_numpy(np.array(ids, np.int64).reshape(-1))


def edge_tensors(name: str, edge_index: np.ndarray) -> tuple[Tensor, Tensor]:
    """edge_index: integers [2, num_edges]; its rows are shared, if they are int64."""
    if edge_index.ndim != 2 or edge_index.shape[0] != 2 or edge_index.dtype.kind not in "iu":
        raise DatasetError(f"{name}: want integers [2, num_edges], got {list(edge_index.shape)} {edge_index.dtype}")
    src, dst = (share_memory(np.ascontiguousarray(ids, np.int64)) for ids in edge_index)
    return src, dst


def class_labels(name: str, labels: np.ndarray) -> Tensor:
    """labels: [n] or [n, 1], integers or floats, NaN or a negative number for no label. Returns int64 [n]."""
    if labels.ndim == 0 or labels.size != len(labels):
        raise DatasetError(f"{name}: want one label a node, [n] or [n, 1], got {list(labels.shape)}")
    labels = np.asarray(labels).reshape(-1)
    if labels.dtype.kind == "f":
        labels = np.where(np.isnan(labels), UNLABELED, labels)
        if np.any(labels != np.trunc(labels)):
            raise DatasetError(f"{name}: want class numbers, got {labels[labels != np.trunc(labels)][0]}")
    elif labels.dtype.kind not in "iu":
        raise DatasetError(f"{name}: want class numbers, got {labels.dtype}")
    return torch.from_numpy(np.maximum(labels.astype(np.int64), UNLABELED))

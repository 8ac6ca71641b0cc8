"""Arrays from files as a data set's tensors."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
import pytest
import torch

from ibp_gnn.datasets import DatasetError
from ibp_gnn.datasets.as_tensors import class_labels, edge_tensors, node_ids, share_memory


def test_mapped_arrays_are_shared_without_a_warning(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.arange(12).reshape(4, 3))
    array = np.load(tmp_path / "x.npy", mmap_mode="r")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        tensor = share_memory(array)
    assert tensor.data_ptr() == array.ctypes.data and tensor.tolist() == array.tolist()


def test_edges() -> None:
    edges = np.array([[0, 1, 2], [3, 4, 5]])
    src, dst = edge_tensors("edges", edges)
    assert src.data_ptr() == edges.ctypes.data and dst.tolist() == [3, 4, 5]
    for dtype in (np.int32, np.uint8):
        src, dst = edge_tensors("edges", edges.astype(dtype))
        assert src.dtype == dst.dtype == torch.int64 and src.tolist() == [0, 1, 2]
    for bad, got in ((edges.T, r"\[3, 2\] int64"), (edges[0], r"\[3\] int64"), (edges * 1.0, r"\[2, 3\] float64")):
        with pytest.raises(DatasetError, match=rf"^edges: want integers \[2, num_edges\], got {got}"):
            edge_tensors("edges", bad)


def test_labels_that_are_there_and_those_that_are_not() -> None:
    for labels in ([2, -1, 0, -7], [2.0, float("nan"), 0.0, -1.0], [[2], [-1], [0], [-1]]):
        made = class_labels("labels", np.array(labels))
        assert made.dtype == torch.int64 and made.tolist() == [2, -1, 0, -1]
    for bad, message in (
        (np.zeros((3, 2), int), r"want one label a node, \[n\] or \[n, 1\], got \[3, 2\]"),
        (np.array(3), r"want one label a node, .* got \[\]"),
        (np.array([1.0, 2.5]), "want class numbers, got 2.5"),
        (np.array(["a"]), "want class numbers, got <U1"),
    ):
        with pytest.raises(DatasetError, match=f"^labels: {message}"):
            class_labels("labels", bad)


def test_ids_are_the_data_sets_own() -> None:
    ids = np.array([[3], [1]], np.uint16)
    made = node_ids(ids)
    ids[:] = 0
    assert made.dtype == torch.int64 and made.tolist() == [3, 1]

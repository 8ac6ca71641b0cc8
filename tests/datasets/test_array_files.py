"""Feature arrays from files of every kind, and files that are none."""

from __future__ import annotations

import os
import pickle

import ml_dtypes
import numpy as np
import pytest
import torch
from feature_files import save_safetensors

from ibp_gnn.datasets.array_files import ArrayFileError, _described, load_rows
from ibp_gnn.testing import assert_bitwise_equal


def test_reads_every_kind_of_file(rows, npy, tmp_path):
    np.savez(tmp_path / "one.npz", feat=rows.numpy(), labels=np.arange(400))
    torch.save(rows, tmp_path / "tensor.pt")
    torch.save({"x": rows, "y": torch.arange(400), "name": "graph"}, tmp_path / "dict.PT")
    files = [npy, tmp_path / "one.npz", tmp_path / "tensor.pt", tmp_path / "dict.PT"]
    for path in files:
        read = load_rows(path)
        assert_bitwise_equal(read if isinstance(read, torch.Tensor) else np.array(read), rows.numpy())
    assert isinstance(load_rows(npy), np.memmap)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float8_e4m3fn, torch.int64])
def test_reads_safetensors(rows, dtype, tmp_path):
    wanted = (rows * 50).to(dtype)
    path = save_safetensors(tmp_path / "x.safetensors", x=wanted, bias=torch.zeros(4))
    assert_bitwise_equal(load_rows(path), wanted)
    assert_bitwise_equal(load_rows(path, "x"), wanted)


class Payload:
    """A pickle of it would run code."""

    def __reduce__(self):
        return (os.mkdir, ("made_by_pickle",))


@pytest.mark.filterwarnings("ignore:Detected pickle protocol")
def test_files_cannot_run_code(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    torch.save({"x": Payload()}, tmp_path / "bad.pt")
    (tmp_path / "bare.pt").write_bytes(pickle.dumps(Payload()))
    np.save(tmp_path / "bad.npy", np.array([[Payload()]], dtype=object), allow_pickle=True)
    np.savez(tmp_path / "bad.npz", x=np.array([[Payload()]], dtype=object))
    for name in ("bad.pt", "bare.pt", "bad.npy", "bad.npz"):
        with pytest.raises(ArrayFileError, match=name):
            load_rows(name)
    assert not (tmp_path / "made_by_pickle").exists()


@pytest.mark.parametrize(
    "array, message",
    [
        (np.zeros(5, np.float32), r"2 dimensions, \[rows, columns, ...\], got shape \[5\]"),
        (np.zeros((0, 5), np.float32), r"at least 1 row"),
        (np.zeros((5, 0), np.float32), r"at least 1 value per row"),
        (np.zeros((5, 2), np.complex64), r"got numpy complex64"),
        (np.zeros((5, 2), ">f4"), r"native byte order, got numpy >f4"),
        (np.zeros((5, 2), "U3"), r"got numpy <U3"),
    ],
)
def test_arrays_that_are_no_features(array, message, tmp_path):
    np.save(tmp_path / "x.npy", array)
    with pytest.raises(ArrayFileError, match=message):
        load_rows(tmp_path / "x.npy")


def test_other_refusals(npy, tmp_path):
    torch.save([1, 2], tmp_path / "list.pt")
    torch.save({"y": torch.arange(3)}, tmp_path / "vector.pt")
    (tmp_path / "x.csv").write_text("1,2\n")
    np.save(tmp_path / "bf16.npy", np.zeros((3, 2), ml_dtypes.bfloat16))  # .npy files do not keep this dtype
    for name, key, message in (
        ("list.pt", None, "want an array, got an object of class list; save its features alone"),
        ("list.pt", "x", "want no key"),
        ("vector.pt", None, r"want an array with 2 dimensions or more, got only \['y'\] with fewer"),
        ("x.csv", None, r"want a file named \*.npy"),
        ("feat.npy", "x", "want no key"),
        ("bf16.npy", None, "want one of"),
    ):
        with pytest.raises(ArrayFileError, match=message):
            load_rows(tmp_path / name, key)


class Data:
    """Named as PyG's, which torch loads once PyG has said that it may."""


@pytest.mark.filterwarnings("ignore:Sparse CSR")
def test_files_that_hold_something_else(rows, tmp_path):
    """No advice of torch's or NumPy's to run a file's code, nor colours; but what to save instead."""
    model = torch.nn.Linear(3, 2)
    torch.save(model, tmp_path / "model.pt")
    torch.save({"epoch": 3, "model": model.state_dict()}, tmp_path / "checkpoint.pt")
    torch.save(Data(), tmp_path / "data.pt")
    torch.save(rows.to_sparse(), tmp_path / "coo.pt")
    torch.save(rows.to_sparse_csr(), tmp_path / "csr.pt")
    np.save(tmp_path / "objects.npy", np.array([[None]], dtype=object))
    np.savez(tmp_path / "objects.npz", x=np.array([[None]], dtype=object))
    for name in ("garbage.pt", "garbage.npy", "garbage.npz"):
        (tmp_path / name).write_bytes(b"no array at all")
    for name, message in (
        ("model.pt", r"a model \(torch\.nn\..*Linear\); want node features: torch\.save\(x, FILE\)"),
        ("checkpoint.pt", r"got \{'epoch': int, 'model': OrderedDict\}; is it the checkpoint of a training\?"),
        ("data.pt", r"an object of class .*Data; save its features alone"),
        ("coo.pt", r"want a dense tensor, got layout sparse_coo; save features\.to_dense\(\)"),
        ("csr.pt", r"want a dense tensor, got layout sparse_csr; save features\.to_dense\(\)"),
        ("objects.npy", "it holds Python objects, or is no file of NumPy's"),
        ("objects.npz", "it holds Python objects, or is no file of NumPy's"),
        ("garbage.pt", "got no file of torch.save, or a damaged one"),
        ("garbage.npy", "it holds Python objects, or is no file of NumPy's"),
        ("garbage.npz", "it holds Python objects, or is no file of NumPy's"),
    ):
        with pytest.raises(ArrayFileError, match=message) as caught:
            load_rows(tmp_path / name)
        text = str(caught.value)
        assert not any(word in text for word in ("allow_pickle", "weights_only", "\033", "\n")), text


def test_what_graph_libraries_save_is_named():
    assert _described("torch_geometric.data.data.Data") == (
        "PyG's torch_geometric.data.data.Data; save its features alone: torch.save(data.x, FILE)"
    )
    assert "torch.save(data.x, FILE)" in _described("Data")
    assert "torch.save(graph.ndata[NAME], FILE)" in _described("dgl.heterograph.DGLGraph")


def test_a_folder_and_nothing(tmp_path):
    with pytest.raises(IsADirectoryError, match="want a file, got a folder"):
        load_rows(tmp_path)
    (tmp_path / "x.npy").mkdir()
    with pytest.raises(IsADirectoryError, match="x.npy: want a file, got a folder"):
        load_rows(tmp_path / "x.npy")
    with pytest.raises(FileNotFoundError, match="none.npy: no such file"):
        load_rows(tmp_path / "none.npy")

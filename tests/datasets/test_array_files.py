"""Feature arrays from files of every kind, and files that are none."""

from __future__ import annotations

import os
import pickle

import ml_dtypes
import numpy as np
import pytest
import torch
from feature_files import save_safetensors

from ibp_gnn.datasets.array_files import ArrayFileError, load_rows
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
        ("list.pt", None, "want an array, got list"),
        ("list.pt", "x", "want no key"),
        ("vector.pt", None, r"want an array with 2 dimensions or more, got only \['y'\] with fewer"),
        ("x.csv", None, r"want a file named \*.npy"),
        ("feat.npy", "x", "want no key"),
        ("bf16.npy", None, "want one of"),
    ):
        with pytest.raises(ArrayFileError, match=message):
            load_rows(tmp_path / name, key)

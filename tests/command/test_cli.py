"""The command ibp-gnn, as a process and in this one: files it reads, what it prints and writes, what it refuses."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
import torch

import ibp_gnn
from ibp_gnn import Codec, CompressedFeatureStore
from ibp_gnn.command.cli import main
from ibp_gnn.datasets.array_files import ArrayFileError, load_rows
from ibp_gnn.testing import assert_bitwise_equal

PNG_HEADER = b"\x89PNG\r\n\x1a\n"


@pytest.fixture
def rows() -> torch.Tensor:
    return torch.randn(400, 24, generator=torch.Generator().manual_seed(0)) * 0.1


@pytest.fixture
def npy(rows: torch.Tensor, tmp_path: Path) -> Path:
    np.save(tmp_path / "feat.npy", rows.numpy())
    return tmp_path / "feat.npy"


def save_safetensors(path: Path, **tensors: torch.Tensor) -> Path:
    pytest.importorskip("safetensors.torch").save_file(tensors, path)
    return path


def call(*arguments: object, folder: Path) -> subprocess.CompletedProcess[str]:
    paths = [str(Path(ibp_gnn.__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
    command = [sys.executable, "-m", "ibp_gnn.command.cli", *map(str, arguments)]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=120)


def test_as_a_process(npy, tmp_path):
    done = call("analyze", npy.name, "--json", "out.json", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert "Compressing this data is worth it: codec 'dict'" in done.stdout.splitlines()[-1]
    assert json.loads((tmp_path / "out.json").read_text())["recommendation"] == "dict"


def test_errors_of_a_process(tmp_path):
    done = call("analyze", "missing.npy", folder=tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (1, "", "ibp-gnn: error: missing.npy: no such file\n")
    assert call(folder=tmp_path).returncode == 2
    assert "analyze" in call("--help", folder=tmp_path).stdout


def test_entry_point():
    try:
        scripts = metadata.distribution("ibp-gnn").entry_points.select(group="console_scripts")
    except metadata.PackageNotFoundError:
        pytest.skip("ibp-gnn is not installed, only built in place")
    assert [(script.name, script.load()) for script in scripts] == [("ibp-gnn", main)]


def test_table_and_json(npy, rows, tmp_path, capsys):
    out = tmp_path / "out.json"
    assert main(["analyze", str(npy), "--json", str(out)]) == 0
    text, record = capsys.readouterr().out, json.loads(out.read_text())
    report = Codec.fit(rows, codec="auto").report(rows)
    best = next(codec for codec in record["codecs"] if codec["codec"] == report.codec)
    assert best["savings"] == report.savings and best["compact_bytes"] == report.compact_bytes
    assert f"{report.bits_per_value:.2f}" in text and f"{report.escape_share:.2%}" in text
    assert record["file"] == "feat.npy" and record["row_shape"] == [24] and record["total_rows"] == 400
    assert len(record["bit_agreement"]) == 32
    assert {len(column) for column in record["entropy_bound"]["columns"].values()} == {24}


def test_sample(npy, tmp_path):
    for sample, looked_at in (("100", 100), ("all", 400), ("9999", 400)):
        assert main(["analyze", str(npy), "--sample", sample, "--json", str(tmp_path / "out.json")]) == 0
        assert json.loads((tmp_path / "out.json").read_text())["num_rows"] == looked_at


@pytest.mark.parametrize("sample", ["0", "-1", "x", "1.5", ""])
def test_bad_sample(npy, sample, capsys):
    with pytest.raises(SystemExit, match="2"):
        main(["analyze", str(npy), f"--sample={sample}"])
    assert "want a number of rows or 'all'" in capsys.readouterr().err


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int16", "float8_e5m2", "bool"])
def test_plot(rows, dtype, tmp_path):
    pytest.importorskip("matplotlib")
    torch.save((rows * 20).to(getattr(torch, dtype)), tmp_path / "feat.pt")
    assert main(["analyze", str(tmp_path / "feat.pt"), "--plot", str(tmp_path / "out.png")]) == 0
    assert (tmp_path / "out.png").read_bytes().startswith(PNG_HEADER)


def test_plot_without_matplotlib(npy, tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    assert main(["analyze", str(npy), "--plot", str(tmp_path / "out.png")]) == 1
    captured = capsys.readouterr()
    assert captured.out == "" and "pip install matplotlib" in captured.err
    assert not (tmp_path / "out.png").exists()


@pytest.mark.parametrize("option", ["--json", "--plot"])
def test_outputs_that_cannot_be_written(npy, option, tmp_path, capsys):
    pytest.importorskip("matplotlib")
    for path in (tmp_path, tmp_path / "no" / "out.png"):
        assert main(["analyze", str(npy), option, str(path)]) == 1
        assert f"error: {option}: want a file in an existing folder" in capsys.readouterr().err
    assert main(["analyze", str(npy), "--plot", str(tmp_path / "out.txt")]) == 1
    assert "want a name ending in .png" in capsys.readouterr().err


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


def test_safetensors_without_the_package(tmp_path, monkeypatch, capsys):
    (tmp_path / "x.safetensors").write_bytes(b"")
    monkeypatch.setitem(sys.modules, "safetensors", None)
    assert main(["analyze", str(tmp_path / "x.safetensors")]) == 1
    assert "pip install safetensors" in capsys.readouterr().err


def test_several_arrays_want_a_key(rows, tmp_path, capsys):
    np.savez(tmp_path / "two.npz", a=rows.numpy(), b=rows.numpy().astype(np.float16))
    torch.save({"a": rows, "b": rows.half()}, tmp_path / "two.pt")
    for path in (
        tmp_path / "two.npz",
        tmp_path / "two.pt",
        save_safetensors(tmp_path / "two.safetensors", a=rows, b=rows.half()),
    ):
        with pytest.raises(ArrayFileError, match=r"want a key, one of \['a', 'b'\]"):
            load_rows(path)
        with pytest.raises(ArrayFileError, match=r"want one of \['a', 'b'\], got key 'c'"):
            load_rows(path, "c")
        assert load_rows(path, "b").shape == (400, 24)
        assert main(["analyze", str(path), "--key", "b"]) == 0
        assert "[400, 24] float16" in capsys.readouterr().out


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


@pytest.mark.parametrize("suffix", [".npy", ".npz", ".pt", ".safetensors"])
def test_damaged_files(rows, suffix, tmp_path, capsys):
    path = tmp_path / f"x{suffix}"
    if suffix == ".npy":
        np.save(path, rows.numpy())
    elif suffix == ".npz":
        np.savez(path, x=rows.numpy())
    elif suffix == ".pt":
        torch.save(rows, path)
    else:
        save_safetensors(path, x=rows)
    whole = path.read_bytes()
    for content in (b"", b"not an array at all", whole[:40], whole[: len(whole) // 2], whole[:-1]):
        path.write_bytes(content)
        assert main(["analyze", str(path)]) == 1
        captured = capsys.readouterr()
        assert captured.out == "" and captured.err.startswith("ibp-gnn: error: ")
        assert path.name in captured.err and captured.err.count("\n") == 1


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


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.int64, torch.bfloat16, torch.float8_e5m2])
def test_build_info_verify_extract(dtype, tmp_path, capsys):
    rows = (torch.randn(400, 6, 4, generator=torch.Generator().manual_seed(0)) * 50).to(dtype)
    torch.save(rows, tmp_path / "x.pt")
    np.save(tmp_path / "hot.npy", np.arange(400) // 2)
    store, out = tmp_path / "x.ibp", tmp_path / "out.npy"
    options = ["--codec", "dict", "--layout", "inplace", "--order", str(tmp_path / "hot.npy"), "--chunk-rows", "64"]
    assert main(["build", str(tmp_path / "x.pt"), str(store), *options, "--quiet"]) == 0
    name = str(dtype).removeprefix("torch.")
    assert f"[400, 6, 4] {name}, codec 'dict', inplace slots" in capsys.readouterr().out
    with CompressedFeatureStore.load(store) as loaded:
        # The highest first, and of two with one score the one with the lower id.
        wanted = torch.arange(399, -1, -1).reshape(200, 2).flip(1).flatten()
        assert_bitwise_equal(loaded.slot_of[wanted], torch.arange(400, dtype=torch.int32))
    assert main(["info", str(store), "--json"]) == 0
    info = json.loads(capsys.readouterr().out)
    assert (info["shape"], info["dtype"], info["ordered"], info["codec"]) == ([400, 6, 4], name, True, "dict")
    assert info["file_bytes"] == store.stat().st_size
    assert main(["verify", str(store), "--quiet"]) == 0
    assert f"x.ibp: whole, {info['num_blocks']} blocks, {info['file_bytes']} bytes" in capsys.readouterr().out
    np.save(tmp_path / "ids.npy", np.array([7, 7, 399], np.int32))
    for options, ids in (([], torch.arange(400)), (["--ids", str(tmp_path / "ids.npy")], torch.tensor([7, 7, 399]))):
        assert main(["extract", str(store), str(out), *options, "--quiet"]) == 0
        assert_bitwise_equal(torch.from_numpy(np.load(out)).view(dtype), rows[ids])
        assert np.load(out).dtype == {torch.bfloat16: np.uint16, torch.float8_e5m2: np.uint8}.get(dtype, np.dtype(name))
        assert ("the bits of" in capsys.readouterr().out) == (dtype in (torch.bfloat16, torch.float8_e5m2))
    assert not list(tmp_path.glob("*.partial"))


def test_store_commands_refuse(npy, tmp_path, capsys):
    store, bad = tmp_path / "x.ibp", tmp_path / "bad.npy"
    assert main(["build", str(npy), str(store), "--quiet"]) == 0
    np.save(bad, np.zeros((400, 2)))
    np.save(tmp_path / "short.npy", np.zeros(399))
    np.save(tmp_path / "nan.npy", np.full(400, np.nan))
    np.save(tmp_path / "far.npy", np.array([400]))
    capsys.readouterr()
    new = str(tmp_path / "new.ibp")
    for arguments, message in (
        (["build", npy, store], "want a path where nothing is, got an existing file"),
        (["build", npy, tmp_path / "no" / "x.ibp"], "STORE: want a file in an existing folder"),
        (["build", tmp_path / "none.npy", new], "none.npy: no such file"),
        (["build", npy, new, "--codec", "zip"], "codec: want one of"),
        (["build", npy, new, "--chunk-rows", "0"], "chunk_rows: want at least 1, got 0"),
        (["build", npy, new, "--order", bad], r"--order: want [n] numbers in"),
        (["build", npy, new, "--order", tmp_path / "short.npy"], "hotness: want shape [400], got [399]"),
        (["build", npy, new, "--order", tmp_path / "nan.npy"], "hotness: want numbers, got NaN"),
        (["info", npy], "feat.npy: want a store file, starting with"),
        (["verify", npy], "feat.npy: want a store file, starting with"),
        (["extract", npy, tmp_path / "out.npy"], "feat.npy: want a store file, starting with"),
        (["extract", store, tmp_path / "out.txt"], "OUT: want a file named *.npy"),
        (["extract", store, tmp_path / "out.npy", "--ids", tmp_path / "nan.npy"], "--ids: want int32 or int64"),
        (["extract", store, tmp_path / "out.npy", "--ids", tmp_path / "far.npy"], "want 0 <= id < 400, got 400"),
    ):
        assert main([*map(str, arguments), *([] if arguments[0] == "info" else ["--quiet"])]) == 1
        error = capsys.readouterr().err
        assert error.startswith("ibp-gnn: error: ") and message in error and error.count("\n") == 1
    assert not (tmp_path / "out.npy").exists() and not list(tmp_path.glob("*.partial"))
    damaged = bytearray(store.read_bytes())
    damaged[len(damaged) // 2] ^= 1
    store.write_bytes(damaged)
    for arguments in (["verify", store], ["extract", store, tmp_path / "out.npy"]):
        assert main([*map(str, arguments), "--quiet"]) == 1
        assert "of the file: want checksum" in capsys.readouterr().err
    assert not (tmp_path / "out.npy").exists()


def test_a_build_that_was_stopped_says_that_it_goes_on(npy, tmp_path, monkeypatch, capsys):
    from ibp_gnn.store.file.building import StoreWriter

    arguments = ["build", str(npy), str(tmp_path / "x.ibp"), "--quiet"]
    with monkeypatch.context() as patch:
        patch.setattr(StoreWriter, "finish", lambda self: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            main(arguments)
    assert main(arguments) == 0
    assert "went on with an earlier build" in capsys.readouterr().out

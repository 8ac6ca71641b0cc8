"""The command ibp-gnn, as a process and in this one: files it reads, what it prints and writes, what it refuses."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import numpy as np
import pytest
import torch
from feature_files import save_safetensors

import ibp_gnn
from ibp_gnn import Codec
from ibp_gnn.command.cli import main
from ibp_gnn.datasets.array_files import ArrayFileError, load_rows


def call(*arguments: object, folder: Path) -> subprocess.CompletedProcess[str]:
    paths = [str(Path(ibp_gnn.__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
    command = [sys.executable, "-m", "ibp_gnn.command.cli", *map(str, arguments)]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=120)


def test_as_a_process(npy, tmp_path):
    done = call("analyze", npy.name, "--json", "out.json", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert "Compressing this data is worth it: codec 'dict'" in done.stdout.splitlines()[-2]
    assert done.stdout.splitlines()[-1] == "Of bytes alone. Hit rates and seconds an epoch: ibp-gnn plan."
    assert json.loads((tmp_path / "out.json").read_text())["recommendation"] == "dict"


def test_errors_of_a_process(tmp_path):
    done = call("analyze", "missing.npy", folder=tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (
        1,
        "",
        "ibp-gnn: error: missing.npy: no such file (reading features)\n",
    )
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


@pytest.mark.parametrize("option", ["--json", "--plot"])
def test_outputs_that_cannot_be_written(npy, option, tmp_path, capsys):
    pytest.importorskip("matplotlib")
    for path in (tmp_path, tmp_path / "no" / "out.png"):
        assert main(["analyze", str(npy), option, str(path)]) == 1
        assert f"error: {option}: want a file in an existing folder" in capsys.readouterr().err
    assert main(["analyze", str(npy), "--plot", str(tmp_path / "out.txt")]) == 1
    assert "want a name ending in .png" in capsys.readouterr().err


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


@pytest.mark.parametrize("command", ["", "analyze", "plan", "build", "info", "verify", "extract", "doctor"])
def test_help_fits_80_columns(command, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    with pytest.raises(SystemExit, match="0"):
        main([*filter(None, [command]), "--help"])
    text = capsys.readouterr().out
    assert text.startswith("usage: ibp-gnn") and [line for line in text.splitlines() if len(line) > 80] == []


def test_version(capsys):
    with pytest.raises(SystemExit, match="0"):
        main(["--version"])
    assert capsys.readouterr().out == f"ibp-gnn {ibp_gnn.__version__}\n"


def test_ctrl_c_in_a_command(npy, monkeypatch, capsys):
    monkeypatch.setattr("ibp_gnn.command.analysis.analyze", lambda *_, **__: os.kill(os.getpid(), signal.SIGINT))
    handler = signal.getsignal(signal.SIGINT)
    try:
        assert main(["analyze", str(npy)]) == 130
    finally:
        signal.signal(signal.SIGINT, handler)
    assert capsys.readouterr().err == "ibp-gnn: interrupted; run it again to go on\n"


def test_head_is_no_error(npy, tmp_path):
    command = f"{sys.executable} -m ibp_gnn.command.cli analyze {npy} | head -1; exit ${{PIPESTATUS[0]}}"
    paths = [str(Path(ibp_gnn.__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
    done = subprocess.run(["bash", "-c", command], env=environment, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout, done.stderr) == (0, "[400, 24] float32, 400 rows looked at\n", "")

"""ibp-gnn plan: its files and options, what it prints and writes, what it refuses."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from ibp_gnn.command.cli import main
from ibp_gnn.command.plan import measured_gathers

PNG_HEADER = b"\x89PNG\r\n\x1a\n"
OPTIONS = ["--fanouts", "5,3", "--gpu-memory", "100kB"]


@pytest.fixture
def graph(npy: Path, tmp_path: Path) -> Path:
    """Of the 400 rows in `npy`."""
    rng = np.random.default_rng(0)
    edges = np.stack([rng.integers(0, 400, 3000) ** 2 // 400, rng.integers(0, 400, 3000)])
    np.savez(tmp_path / "graph.npz", edge_index=edges, train=np.arange(0, 400, 4))
    return tmp_path / "graph.npz"


def test_table_json_and_plot(npy, graph, tmp_path, capsys):
    pytest.importorskip("matplotlib")
    out, plot = tmp_path / "out.json", tmp_path / "out.png"
    command = ["plan", str(npy), "--graph", str(graph), "--fanouts", "5,3", "--gpu-memory", "15kB"]
    assert main([*command, "--link", "20GB/s", "--json", str(out), "--plot", str(plot)]) == 0
    text, record = capsys.readouterr().out, json.loads(out.read_text())
    for line in ("store in CPU memory", "rows cached", "hit rate, degree", "hit rate, reverse pagerank"):
        assert f"\n{line} " in text
    assert "\nhit rate, presample" in text and "\nover PCIe an epoch" in text
    assert "\nfetching an epoch at 20 GB/s " in text and text.splitlines()[-1].startswith("It pays ")
    assert record["verdict"] == text.splitlines()[-1] and record["link_bytes_per_s"] == 20e9
    assert record["fanouts"] == [5, 3] and record["capacity"] == 15_000 and record["measured"] is None
    assert record["raw"]["cached_rows"] < record["compressed"]["cached_rows"] < 400
    assert record["raw"]["pcie_bytes"] > record["compressed"]["pcie_bytes"] > 0
    assert plot.read_bytes().startswith(PNG_HEADER)


def test_measure(npy, graph, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(measured_gathers, "_IDS", 500)
    command = ["plan", str(npy), "--graph", str(graph), *OPTIONS, "--measure", "--device", "cpu"]
    assert main([*command, "--json", str(tmp_path / "out.json")]) == 0
    text, measured = capsys.readouterr().out, json.loads((tmp_path / "out.json").read_text())["measured"]
    assert "\nmeasured, CPU, no cache " in text and "\nGB/s of raw rows " in text
    assert measured["device"] == "cpu" and measured["compressed_gb_per_s"] > 0


@pytest.mark.cuda
def test_measure_on_a_gpu(npy, graph, capsys):
    assert main(["plan", str(npy), "--graph", str(graph), *OPTIONS, "--measure", "--device", "cuda"]) == 0
    text = capsys.readouterr().out
    assert "\nmeasured, GPU, rows in page-locked memory " in text and "\nindex_select and a copy: " in text


def test_train_ids_are_optional_or_a_mask(npy, graph, capsys):
    edges = np.load(graph)["edge_index"]
    for arrays, seeds in (({}, 400), ({"train": np.arange(400) < 30}, 30), ({"train": np.array([3, 3, 5])}, 2)):
        np.savez(graph, edge_index=edges, **arrays)
        assert main(["plan", str(npy), "--graph", str(graph), *OPTIONS]) == 0
        assert f"sampling two epochs of {seeds} seeds" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"edges": np.zeros((2, 3), int)}, "--graph: want an array edge_index in "),
        ({"edge_index": np.zeros((3, 2), int)}, "edge_index: want integers [2, num_edges], got [3, 2] int64"),
        ({"edge_index": np.zeros((2, 3))}, "edge_index: want integers [2, num_edges], got [2, 3] float64"),
        (
            {"edge_index": np.full((2, 3), 400)},
            "edge_index: want 0 <= id < 400, the number of rows of FEATURES, got 400",
        ),
        ({"edge_index": np.full((2, 3), -1)}, "edge_index: want 0 <= id < 400, the number of rows of FEATURES, got -1"),
        ({"edge_index": np.zeros((2, 3), int), "train": np.array([400])}, "train: want 0 <= id < 400"),
        (
            {"edge_index": np.zeros((2, 3), int), "train": np.array([0.5])},
            "train: want [n] node ids, n >= 1, got [1] f",
        ),
        ({"edge_index": np.zeros((2, 3), int), "train": np.zeros(0, int)}, "train: want [n] node ids, n >= 1, got [0]"),
        ({"edge_index": np.array([[None]])}, "which is none"),
    ],
)
def test_graphs_that_do_not_fit(npy, tmp_path, arrays, message, capsys):
    np.savez(tmp_path / "bad.npz", **arrays)
    assert main(["plan", str(npy), "--graph", str(tmp_path / "bad.npz"), *OPTIONS]) == 1
    error = capsys.readouterr().err
    assert message in error and "--graph" in error and error.count("\n") == 1


def test_files_that_are_none(npy, graph, tmp_path, capsys):
    (tmp_path / "bad.npz").write_text("x")
    for features, edges, message in (
        (tmp_path / "none.npy", graph, "none.npy: no such file (reading features)"),
        (npy, tmp_path / "none.npz", "none.npz: no such file (reading --graph)"),
        (npy, tmp_path / "bad.npz", "bad.npz, which is none"),
        (npy, npy, "--graph: want a .npz archive, got another file"),
    ):
        assert main(["plan", str(features), "--graph", str(edges), *OPTIONS]) == 1
        assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("--fanouts", "5;3", "want numbers with commas between them, like 15,10,5, got '5;3'"),
        ("--fanouts", "0", "want numbers with commas between them"),
        ("--gpu-memory", "4XB", "want bytes, like 24GB or 512MiB, got '4XB'"),
        ("--gpu-memory", "0", "want bytes, like"),
        ("--link", "fast", "want bytes a second, like 25GB/s, got 'fast'"),
        ("--batches", "0", "want a number from 1 on, got '0'"),
        ("--seed", "-1", "want a number from 0 on, got '-1'"),
    ],
)
def test_options_that_are_none(npy, graph, option, value, message, capsys):
    with pytest.raises(SystemExit, match="2"):
        main(["plan", str(npy), "--graph", str(graph), *OPTIONS, f"{option}={value}"])
    assert f"argument {option}: {message}" in capsys.readouterr().err


@pytest.mark.parametrize(("text", "size"), [("1000", 1000), ("24GB", 24 * 10**9), ("1.5 kB", 1500), ("2MiB", 2**21)])
def test_sizes(npy, graph, text, size, tmp_path):
    out = tmp_path / "out.json"
    command = ["plan", str(npy), "--graph", str(graph), "--fanouts", "3", "--gpu-memory", text, "--json", str(out)]
    assert main(command) == 0
    assert json.loads(out.read_text())["capacity"] == size

"""Pictures of an analysis, as the command makes them."""

from __future__ import annotations

import sys

import pytest
import torch

from ibp_gnn.command.cli import main

PNG_HEADER = b"\x89PNG\r\n\x1a\n"


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

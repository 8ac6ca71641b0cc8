"""Pictures of an analysis, as the command makes them."""

from __future__ import annotations

import sys

import pytest
import torch

from ibp_gnn.command.analysis import CANDIDATES, analyze
from ibp_gnn.command.cli import main
from ibp_gnn.command.plots import plot_analysis

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


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int64", "uint8", "bool"])
def test_no_panel_is_empty_and_texts_can_be_read(rows, dtype, tmp_path, monkeypatch):
    """Savings of both codecs and of the entropy, a bar for every bit; no text below 11 pixels of 800."""
    pytest.importorskip("matplotlib")
    from matplotlib.figure import Figure
    from matplotlib.text import Text

    figures = []
    monkeypatch.setattr(Figure, "savefig", lambda figure, path: figures.append(figure))
    analysis = analyze((rows * 20).to(getattr(torch, dtype)))
    plot_analysis(analysis, tmp_path / "out.png", "feat.pt")
    (figure,) = figures
    savings, bits = figure.axes
    assert len(savings.patches) == 1 + 2 * len(CANDIDATES)
    assert len(bits.patches) == 8 * analysis.dtype.itemsize and max(bar.get_height() for bar in bits.patches) > 50
    for text in figure.findobj(Text):
        if text.get_text():
            assert text.get_fontsize() * (800 / figure.get_figwidth()) / 72 >= 11 - 0.2, text.get_text()

"""What `ibp-gnn analyze` says of files, beyond its table."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from ibp_gnn.command.analysis import analyze
from ibp_gnn.command.cli import main
from ibp_gnn.testing import special_rows


def said(rows, tmp_path, capsys, *options: str) -> str:
    torch.save(rows, tmp_path / "x.pt")
    assert main(["analyze", str(tmp_path / "x.pt"), *options]) == 0
    return capsys.readouterr().out


def test_auto_takes_no_codec_that_enlarges(tmp_path, capsys):
    for rows in (torch.randn(2, 32), special_rows(torch.float32, 24, "random_bits", n=500)):
        text = said(rows, tmp_path, capsys)
        assert "auto takes: not worth it, no codec makes a store smaller\n" in text
    text = said(torch.randn(2000, 32), tmp_path, capsys)
    assert "auto takes: dict\n" in text


@pytest.mark.parametrize(
    ("rows", "narrower"),
    [
        (torch.arange(100).reshape(50, 2), "uint8"),
        (-torch.arange(100).reshape(50, 2), "int8"),
        (torch.arange(100).reshape(50, 2) * 100, "int16"),
        (torch.arange(100).reshape(50, 2) * 2**33, None),
        (torch.randn(50, 4), None),
        (torch.randn(50, 4).bfloat16().float(), "bfloat16"),
        (torch.randn(50, 4).half().float(), "float16"),
        (torch.randn(50, 4, dtype=torch.float64), None),
        (torch.randn(50, 4).double(), "float32"),
        (torch.randn(50, 4).half(), None),
        (torch.zeros(50, 4, dtype=torch.bool), None),
        (torch.tensor([[1.0, 2.0], [-0.0, float("inf")]]), "bfloat16"),
    ],
)
def test_narrower_dtypes_are_advised(rows, narrower, tmp_path, capsys):
    found = analyze(rows).narrower_dtype
    assert found == (None if narrower is None else getattr(torch, narrower))
    assert (f"fit in {narrower} as they are" in said(rows, tmp_path, capsys)) == (narrower is not None)


def test_a_nan_payload_that_would_be_lost_is_no_reason_for_a_narrower_dtype():
    rows = torch.tensor([[0x7FC00001, 0x3F800000]] * 4, dtype=torch.int32).view(torch.float32)
    assert analyze(rows).narrower_dtype is None


@pytest.mark.parametrize("count", [300, 20_000])
def test_the_size_of_the_file_is_foretold(count, tmp_path, capsys):
    """And why it is another share than that of the sample."""
    rows = torch.randn(count, 24, generator=torch.Generator().manual_seed(0))
    np.save(tmp_path / "x.npy", rows.numpy())
    text = said(rows, tmp_path, capsys)
    assert main(["build", str(tmp_path / "x.npy"), str(tmp_path / "x.ibp"), "--quiet"]) == 0
    size = (tmp_path / "x.ibp").stat().st_size
    assert analyze(rows).file_bytes == pytest.approx(size, rel=0.02)
    line = next(line for line in text.splitlines() if line.startswith(f"store file of all {count} rows: about "))
    assert "a header, checksums and sections of whole 4096 bytes come on top" in line
    assert float(line.split("savings ")[1].split("%")[0]) == pytest.approx(100 * (1 - size / rows.nbytes), abs=2)


def test_bad_seed(npy, capsys):
    for seed in ("-1", "x", "1.5"):
        with pytest.raises(SystemExit, match="2"):
            main(["analyze", str(npy), f"--seed={seed}"])
        assert f"argument --seed: want a number from 0 on, got '{seed}'" in capsys.readouterr().err


def test_help_explains_the_columns(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    with pytest.raises(SystemExit, match="0"):
        main(["analyze", "--help"])
    text = capsys.readouterr().out
    for column in ("bits/value", "savings", "compressed", "escapes", "compact store", "slot", "overflow", "bound"):
        assert f"\n  {column} " in text

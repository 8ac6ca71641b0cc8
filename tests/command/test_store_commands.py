"""ibp-gnn build, info, verify and extract."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

from ibp_gnn import CompressedFeatureStore
from ibp_gnn.command.cli import main
from ibp_gnn.testing import assert_bitwise_equal


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
        assert np.load(out).dtype == {torch.bfloat16: np.uint16, torch.float8_e5m2: np.uint8}.get(dtype, name)
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

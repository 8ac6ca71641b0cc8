"""ibp-gnn build, info, verify and extract."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

from ibp_gnn import CompressedFeatureStore
from ibp_gnn.command.cli import main
from ibp_gnn.store.precision import PRECISIONS
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
        assert main(["extract", str(store), str(out), *options, "--quiet", "--force"]) == 0
        assert_bitwise_equal(torch.from_numpy(np.load(out)).view(dtype), rows[ids])
        assert np.load(out).dtype == {torch.bfloat16: np.uint16, torch.float8_e5m2: np.uint8}.get(dtype, name)
        assert ("the bits of" in capsys.readouterr().out) == (dtype in (torch.bfloat16, torch.float8_e5m2))
    assert not list(tmp_path.glob("*.partial"))


def test_a_lossy_store(npy, tmp_path, capsys):
    store, out = tmp_path / "x.ibp", tmp_path / "out.npy"
    assert main(["build", str(npy), str(store), "--precision", "fp8_e4m3", "--quiet"]) == 0
    assert ", LOSSY fp8_e4m3, codec " in capsys.readouterr().out
    assert main(["info", str(store), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["precision"] == "fp8_e4m3"
    assert main(["extract", str(store), str(out), "--quiet"]) == 0
    assert "LOSSY fp8_e4m3: values were rounded" in capsys.readouterr().out
    with CompressedFeatureStore.load(store, lossy=True) as loaded:
        assert_bitwise_equal(torch.from_numpy(np.load(out)), loaded[:])
        assert not torch.equal(loaded[:], torch.from_numpy(np.load(npy)))


def test_precisions_are_those_of_stores(capsys):
    """Named twice, since the command's help goes without torch."""
    with pytest.raises(SystemExit):
        main(["build", "--help"])
    assert "{" + ",".join(PRECISIONS) + "}" in capsys.readouterr().out.replace("\n", "")


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
        (["build", npy, store], "want a path where nothing is, got an existing file; to replace it, remove it first"),
        (["build", npy, tmp_path / "no" / "x.ibp"], "STORE: want a file in an existing folder"),
        (["build", tmp_path / "none.npy", new], "none.npy: no such file (reading features)"),
        (["build", npy, new, "--codec", "zip"], "error: --codec: want one of"),
        (["build", npy, new, "--chunk-rows", "0"], "error: --chunk-rows: want at least 1, got 0"),
        (["build", npy, new, "--order", bad], r"--order: want [n] numbers in"),
        (["build", npy, new, "--order", tmp_path / "short.npy"], "error: --order: want shape [400], got [399]"),
        (["build", npy, new, "--order", tmp_path / "nan.npy"], "error: --order: want numbers, got NaN"),
        (["build", npy, new, "--order", tmp_path / "none.npy"], "none.npy: no such file (reading --order)"),
        (["build", tmp_path, new], "want a file, got a folder (reading features)"),
        (["info", tmp_path], "want a file, got a folder (reading a store)"),
        (["info", tmp_path / "none.ibp"], "none.ibp: no such file (reading a store)"),
        (["verify", tmp_path / "none.ibp"], "none.ibp: no such file (reading a store)"),
        (["extract", tmp_path / "none.ibp", tmp_path / "out.npy"], "none.ibp: no such file (reading a store)"),
        (["extract", store, tmp_path / "out.npy", "--ids", tmp_path / "none.npy"], "no such file (reading --ids)"),
        (["extract", store, npy], "OUT: want a path where nothing is, or --force to replace it, got "),
        (["info", npy], "feat.npy: want a store file, starting with"),
        (["verify", npy], "feat.npy: want a store file, starting with"),
        (["extract", npy, tmp_path / "out.npy"], "feat.npy: want a store file, starting with"),
        (["extract", store, tmp_path / "out.txt"], "OUT: want a file named *.npy"),
        (["extract", store, tmp_path / "out.npy", "--ids", tmp_path / "nan.npy"], "--ids: want int32 or int64"),
        (["extract", store, tmp_path / "out.npy", "--ids", tmp_path / "far.npy"], "--ids: want 0 <= id < 400, got 400"),
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


def test_info_names_both_versions(npy, tmp_path, capsys):
    assert main(["build", str(npy), str(tmp_path / "x.ibp"), "--quiet"]) == 0
    assert "\nversion 1 of store files, version 2 of compressed rows\n" in capsys.readouterr().out
    assert main(["info", str(tmp_path / "x.ibp"), "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert (record["version"], record["row_version"]) == (1, 2)


def test_extract_replaces_only_by_force(npy, rows, tmp_path, capsys):
    store, out = str(tmp_path / "x.ibp"), tmp_path / "out.npy"
    assert main(["build", str(npy), store, "--quiet"]) == 0
    out.write_text("mine")
    assert main(["extract", store, str(out), "--quiet"]) == 1
    assert f"OUT: want a path where nothing is, or --force to replace it, got {out}\n" in capsys.readouterr().err
    assert out.read_text() == "mine"
    assert main(["extract", store, str(out), "--quiet", "--force"]) == 0
    assert_bitwise_equal(torch.from_numpy(np.load(out)), rows)


def test_a_disk_that_is_too_small_says_both_sizes(npy, tmp_path, monkeypatch, capsys):
    store = str(tmp_path / "x.ibp")
    assert main(["build", str(npy), store, "--quiet"]) == 0
    monkeypatch.setattr("ibp_gnn.store.file.writing.free_bytes", lambda folder: 7)
    capsys.readouterr()
    assert main(["build", str(npy), str(tmp_path / "y.ibp"), "--quiet"]) == 1
    error = capsys.readouterr().err
    assert "bytes of free disk space for y.ibp.partial, got 7 (building " in error and error.count("\n") == 1
    assert main(["extract", store, str(tmp_path / "out.npy"), "--quiet"]) == 1
    assert "want 38400 bytes of free disk space for out.npy, got 7 (extracting to " in capsys.readouterr().err


def test_a_folder_in_the_way_of_a_build(npy, tmp_path, capsys):
    (tmp_path / "x.ibp.partial").mkdir()
    assert main(["build", str(npy), str(tmp_path / "x.ibp"), "--quiet"]) == 1
    assert "x.ibp.partial: want a file, got a folder (building " in capsys.readouterr().err


def test_the_files_of_a_build_have_one_mode(npy, tmp_path, monkeypatch):
    from ibp_gnn.store.file.building import StoreWriter

    with monkeypatch.context() as patch:
        patch.setattr(StoreWriter, "finish", lambda self: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            main(["build", str(npy), str(tmp_path / "x.ibp"), "--quiet"])
    modes = {path.name: path.stat().st_mode & 0o777 for path in tmp_path.glob("x.ibp.*")}
    assert modes.keys() == {"x.ibp.journal", "x.ibp.partial"} and len(set(modes.values())) == 1

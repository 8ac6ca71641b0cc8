"""Builds that were interrupted go on where they were; others start over."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from store_files import an_order, build_to, by_id_or_ordered, command, environment, make, mixed_rows, stop_building

from ibp_gnn import CompressedFeatureStore
from ibp_gnn.store.file import building, sorted_reader
from ibp_gnn.testing import assert_bitwise_equal


@pytest.mark.parametrize("fails_at", [1, 2, 7, 30])
@pytest.mark.parametrize("ordered", [False, True], ids=["by_id", "ordered"])
def test_an_interrupted_build_goes_on(
    ordered: bool, fails_at: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stopped after any step, with a torn line at the journal's end."""
    monkeypatch.setattr(building, "_SORT_BYTES", 0)
    monkeypatch.setattr(sorted_reader, "_PARTITION_BYTES", 96 * 4 * 33)
    rows = mixed_rows(torch.float32, 33, 1000)
    np.save(tmp_path / "x.npy", rows.numpy())
    features = np.load(tmp_path / "x.npy", mmap_mode="r")
    options: dict = {"order": an_order(1000) if ordered else None}
    wanted = build_to(tmp_path / "whole.ibp", features, **options)

    path = tmp_path / "s.ibp"
    stop_building(monkeypatch, fails_at, lambda: build_to(path, features, **options))
    assert not path.exists()
    with open(tmp_path / "s.ibp.journal", "ab") as journal:
        journal.write(b'{"rows": 64, "over')
    assert build_to(path, features, **options) == wanted
    assert sorted(os.listdir(tmp_path)) == ["s.ibp", "whole.ibp", "x.npy"]


def test_another_build_starts_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = mixed_rows(torch.float32, 33, 1000)
    path = tmp_path / "s.ibp"
    with monkeypatch.context() as patch:
        patch.setattr(building.StoreWriter, "finish", lambda self: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            build_to(path, rows)
    other = mixed_rows(torch.float32, 33, 999)
    build_to(path, other)
    with CompressedFeatureStore.load(path) as store:
        assert_bitwise_equal(store.gather(torch.arange(999)), other)


def test_a_file_that_is_there_or_being_built_is_left_alone(tmp_path: Path) -> None:
    rows = mixed_rows(torch.float32, 8)
    path = make(tmp_path / "s.ibp", rows)
    with pytest.raises(FileExistsError, match="want a path where nothing is"):
        build_to(path, rows)
    with building.Journal(tmp_path / "t.ibp.journal", {}):
        with pytest.raises(BlockingIOError, match="another process is building this store"):
            build_to(tmp_path / "t.ibp", rows)


@by_id_or_ordered
def test_a_killed_build_run_again_makes_the_same_bytes(ordered: bool, tmp_path: Path) -> None:
    num_rows, chunk_rows = 200_000, 1024
    rows = torch.randn(num_rows, 64, generator=torch.Generator().manual_seed(0))
    np.save(tmp_path / "x.npy", rows.numpy())
    np.save(tmp_path / "hot.npy", np.random.default_rng(0).zipf(1.5, num_rows))
    options = ["--chunk-rows", chunk_rows, "--quiet", *(["--order", "hot.npy"] if ordered else [])]
    run = {"cwd": tmp_path, "env": environment()}
    subprocess.run(command("build", "x.npy", "whole.ibp", *options), **run, check=True, timeout=300)
    building_process = subprocess.Popen(command("build", "x.npy", "s.ibp", *options), **run)
    journal = tmp_path / "s.ibp.journal"
    lines = 0
    while lines < 2 + 0.3 * num_rows / chunk_rows:
        assert building_process.poll() is None, "the build was to be killed before its end"
        lines = journal.read_bytes().count(b"\n") if journal.exists() else 0
        time.sleep(0.002)
    building_process.send_signal(signal.SIGKILL)
    building_process.wait()
    assert (tmp_path / "s.ibp.partial").exists() and not (tmp_path / "s.ibp").exists()
    again = command("build", "x.npy", "s.ibp", *options)
    done = subprocess.run(again, **run, check=True, capture_output=True, text=True, timeout=300)
    assert "went on with an earlier build" in done.stdout
    assert (tmp_path / "s.ibp").read_bytes() == (tmp_path / "whole.ibp").read_bytes()
    assert not list(tmp_path.glob("s.ibp.*"))

"""Files that one process at a time works on."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

import pytest

from ibp_gnn.store.file import locks


def test_one_at_a_time(tmp_path: Path) -> None:
    fd = locks.open_locked(tmp_path / "x")
    (tmp_path / "other").touch()
    assert (tmp_path / "x").stat().st_mode == (tmp_path / "other").stat().st_mode
    open_before = len(os.listdir("/proc/self/fd"))
    for _ in range(2):
        with pytest.raises(BlockingIOError):
            locks.open_locked(tmp_path / "x")
    assert len(os.listdir("/proc/self/fd")) == open_before
    os.close(fd)
    os.close(locks.open_locked(tmp_path / "x"))


def test_a_file_that_was_removed_while_it_was_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The lock is of a file that nobody else finds: another one is made."""
    path, flock, removed = tmp_path / "x", fcntl.flock, []

    def after_the_owner_removed_it(fd: int, operation: int) -> None:
        if not removed:
            path.unlink()
            removed.append(os.fstat(fd).st_ino)
        flock(fd, operation)

    monkeypatch.setattr(fcntl, "flock", after_the_owner_removed_it)
    path.touch()
    fd = locks.open_locked(path)
    assert removed and locks.is_at(fd, path)
    path.unlink()
    assert not locks.is_at(fd, path)
    path.touch()
    assert not locks.is_at(fd, path)
    os.close(fd)

"""Files that one process at a time works on."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path


def open_locked(path: Path) -> int:
    """Opens the file at `path`, made if need be, and locks it for this process alone. Returns the descriptor; closing
    it ends the lock. Raises BlockingIOError if another process has it."""
    while True:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if is_at(fd, path):
                return fd
        except BaseException:
            os.close(fd)
            raise
        os.close(fd)  # the one that had the lock has removed the file


def is_at(fd: int, path: Path) -> bool:
    """Whether the open file is the one that the path leads to."""
    try:
        found = os.stat(path)
    except FileNotFoundError:
        return False
    ours = os.fstat(fd)
    return (found.st_dev, found.st_ino) == (ours.st_dev, ours.st_ino)

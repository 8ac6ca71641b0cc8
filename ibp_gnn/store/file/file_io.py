"""Reading and writing files whole: the system may do less than it is asked to, and say so."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO


def read_into(fd: int, buffer: Any, offset: int) -> int:
    """Fills `buffer`, writable bytes, from `offset` of the file on. Returns how many bytes there were: fewer than it
    has room for only if the file ends before. Raises OSError."""
    view = memoryview(buffer)
    done = 0
    while done < len(view):
        got = os.preadv(fd, [view[done:]], offset + done)
        if got == 0:
            break
        done += got
    return done


def read_at(fd: int, length: int, offset: int) -> bytes:
    """The `length` bytes of the file from `offset` on; fewer only if the file ends before. Raises OSError."""
    buffer = bytearray(length)
    return bytes(buffer[: read_into(fd, buffer, offset)])


def write_all(fd: int, data: Any, offset: int) -> None:
    """Writes `data`, bytes, to `offset` of the file. Raises OSError."""
    while len(data):
        written = os.pwrite(fd, data, offset)
        data, offset = data[written:], offset + written


@contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """A new file for the block to write to. After the block it is on the disk and at `path`, in place of what was
    there; after an error it is gone. Its name meanwhile is its own, whoever else replaces the same path."""
    partial = path.with_name(f"{path.name}.{secrets.token_hex(8)}.partial")
    with removed_after(partial):
        with open(partial, "xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        rename(partial, path)


def rename(partial: Path, path: Path) -> None:
    """Puts a complete file in its place; so it is after a power failure, too."""
    os.replace(partial, path)
    sync_folder(path)


def sync_folder(path: Path) -> None:
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


@contextmanager
def removed_after(path: Path) -> Iterator[None]:
    try:
        yield
    finally:
        path.unlink(missing_ok=True)

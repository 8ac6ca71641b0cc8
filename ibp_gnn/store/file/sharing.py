"""One copy of a store file's rows in memory for all processes of this user on this machine.

The copy is a file in /dev/shm, which is memory. The first process fills it, holding its lock alone; those that come
meanwhile wait. Each that uses it shares the lock, and the last one to let go removes the copy. If all are killed, it
stays, and the next process takes it over, or `rm /dev/shm/ibp_gnn-*` frees the memory.
"""

from __future__ import annotations

import fcntl
import hashlib
import mmap
import os
import weakref
from pathlib import Path

import torch

from .file_io import read_at, write_all
from .locks import is_at
from .reading import StoreFile, bytes_of
from .writing import check_space, free_bytes

FOLDER = Path("/dev/shm")
_PAGE = 4096
_COMPLETE = b"complete"  # in the last page, once the rows before it are


class SharedCopy:
    """The rows of a store file, in the shared copy. `rows` are valid until `close`, or as long as this object lives."""

    def __init__(self, file: StoreFile) -> None:
        """Raises FormatError for a damaged file, and OSError if there is no room or no shared memory."""
        if not FOLDER.is_dir():
            raise OSError(f"{FOLDER}: want shared memory there, got no such folder")
        name = hashlib.sha256(repr((str(file.path.resolve()), *file.identity)).encode()).hexdigest()[:32]
        self.path = FOLDER / f"ibp_gnn-{os.geteuid()}-{name}"
        starts, self._mark = {}, 0
        for part in ("bitmask", "slots", "overflow"):
            starts[part] = self._mark
            self._mark += -(-file.section(part).nbytes // _PAGE) * _PAGE
        while not self._open(file, starts):
            self.close()

    def close(self) -> None:
        """Lets go of the copy; `rows` must not be used any more. Idempotent."""
        self._release()

    def _open(self, file: StoreFile, starts: dict[str, int]) -> bool:
        """Opens the copy, fills it if it is not complete, and maps it. Returns False if another process has removed it
        meanwhile."""
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        self._fd = os.open(self.path, flags, 0o600)
        self._release = weakref.finalize(self, _let_go, self._fd, self.path, os.getpid())
        try:
            owner = os.fstat(self._fd).st_uid
            if owner != os.geteuid():
                raise PermissionError(f"{self.path}: want a file of user {os.geteuid()}, got one of user {owner}")
            fcntl.flock(self._fd, fcntl.LOCK_SH)
            if not self._is_complete():
                fcntl.flock(self._fd, fcntl.LOCK_EX)
                if is_at(self._fd, self.path) and not self._is_complete():
                    self._fill(file, starts)
                fcntl.flock(self._fd, fcntl.LOCK_SH)
            if not is_at(self._fd, self.path):
                return False
            self.rows = file.rows_from(self._map(file, starts))
        except BaseException:
            self.close()
            raise
        return True

    def _is_complete(self) -> bool:
        is_sized = os.fstat(self._fd).st_size == self._mark + _PAGE
        return is_sized and read_at(self._fd, len(_COMPLETE), self._mark) == _COMPLETE

    def _fill(self, file: StoreFile, starts: dict[str, int]) -> None:
        os.ftruncate(self._fd, 0)
        wanted_bytes = self._mark + _PAGE
        check_space(self.path, wanted_bytes)
        try:
            # Writing to a page that there is no memory for would end the process.
            os.posix_fallocate(self._fd, 0, wanted_bytes)
        except OSError as error:
            os.ftruncate(self._fd, 0)
            free = free_bytes(FOLDER)
            raise OSError(
                error.errno, f"{self.path}: want {wanted_bytes} bytes of shared memory, got {free} free ({error})"
            ) from error
        file.read_into(self._map(file, starts))
        write_all(self._fd, _COMPLETE, self._mark)

    def _map(self, file: StoreFile, starts: dict[str, int]) -> dict[str, torch.Tensor]:
        mapping = mmap.mmap(self._fd, self._mark + _PAGE)
        return {part: bytes_of(mapping, start, file.section(part).nbytes) for part, start in starts.items()}


def _let_go(fd: int, path: Path, pid: int) -> None:
    """Removes the copy if no other process uses it. In a forked child nothing: it shares its parent's lock."""
    try:
        if os.getpid() == pid:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                pass
            else:
                if is_at(fd, path):
                    path.unlink()
            finally:  # a forked child has the descriptor, too, and would keep the lock
                fcntl.flock(fd, fcntl.LOCK_UN)
    finally:
        os.close(fd)

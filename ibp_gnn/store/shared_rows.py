"""A store's rows in memory that processes map together: one updates them, the others follow.

The memory is a file without a name (memfd), which is gone when the last process lets go of it, however that ends. Its
first page says what changes: see `_Word`. Behind it lie the table of slots, bitmask, slots and overflow rows; these
last, since they are what grows.

Processes lock that file. Each has an open file description of its own for it, so that the kernel lets go of its locks
when it ends, and a fork takes none of them along.
- The file as a whole (flock, which takes half as long): shared by those that read, once for all threads of a process;
  alone by the owner while it updates.
- Its byte `_GATE` (fcntl): alone by the owner from before it waits for the readers; those that come meanwhile wait
  here. Else it might wait for ever.
- Its byte `_IN_PLACE`: shared by processes whose GPUs read the rows where they lie. Nobody knows when these are done
  with what they were told to read, so the owner refuses to update meanwhile.
"""

from __future__ import annotations

import contextlib
import dataclasses
import enum
import errno
import fcntl
import mmap
import os
import struct
import threading
import weakref
from multiprocessing import context, reduction
from typing import Any

import torch

from .. import _native
from ..codec.compressed_rows import CompressedRows, bitmask_bytes
from ..codec.packing import Packing
from ..concurrency.read_write_lock import Block

_GATE, _IN_PLACE = range(2)
_SEAL_SHRINK = 1033, 2  # F_ADD_SEALS and F_SEAL_SHRINK, which Python has names for from 3.13 on


class _Word(enum.IntEnum):
    """int64 words of the first page. The owner alone writes them."""

    VERSION = 0  # one more before rows are written, and after: odd in between
    UPDATING = 1  # 1 while the owner has the gate
    NUM_OVERFLOW = 2
    LEAD_BYTES = 3
    OWNER = 4  # its process id


_VERSION, _UPDATING = int(_Word.VERSION), int(_Word.UPDATING)


@dataclasses.dataclass(frozen=True)
class Layout:
    """Where the parts lie in the file."""

    num_rows: int
    row_bytes: int
    slot_bytes: int
    ordered: bool
    packing: Packing | None
    data_bytes: int

    @classmethod
    def of(cls, rows: CompressedRows, *, ordered: bool) -> Layout:
        return cls(rows.num_rows, rows.row_bytes, rows.slot_bytes, ordered, rows.packing, rows.data_bytes)

    def lengths(self) -> dict[str, int]:
        """Of all parts but the overflow area, in bytes."""
        slack = _native.cpu.SLACK_BYTES + (0 if self.packing is None else self.slot_bytes)
        return {
            "slot_of": 4 * self.num_rows * self.ordered,
            "bitmask": bitmask_bytes(self.num_rows, self.packing),
            "slots": self.data_bytes + slack,
        }

    def starts(self) -> dict[str, int]:
        """Of "slot_of", "bitmask", "slots" and "overflow", at pages."""
        starts, end = {}, mmap.PAGESIZE
        for name, length in self.lengths().items():
            starts[name] = end
            end += -(-length // mmap.PAGESIZE) * mmap.PAGESIZE
        return {**starts, "overflow": end}

    def overflow_bytes(self, num_overflow: int) -> int:
        return num_overflow * self.row_bytes + _native.cpu.SLACK_BYTES

    def file_bytes(self, num_overflow: int) -> int:
        return self.starts()["overflow"] + self.overflow_bytes(num_overflow)


class SharedRows:
    """The rows as this process maps them, with the part of the lock that is between processes (`OuterLock`): while a
    thread is in the store's lock, they are those of one version. Safe to use from several threads.

    rows, slot_of (int32 [num_rows] or None), lead_bytes: up to date inside of the lock.
    """

    def __init__(self, fd: int, layout: Layout, *, is_owner: bool) -> None:
        """fd: of the file, which is as long as its first page says; belongs to this object from now on. Raises OSError,
        and has closed it then."""
        self._fds = {"file": fd}
        self._close = weakref.finalize(self, _close_all, self._fds)
        try:
            self._fds["locks"] = _open_again(fd)
            self._layout = layout
            starts = layout.starts()
            mapping = mmap.mmap(fd, starts["overflow"])
        except BaseException:
            self._close()
            raise
        self._words = memoryview(mapping).cast("q")
        self._is_owner = is_owner
        self._version = self._words[_VERSION] if is_owner else -1  # of `rows`
        self._mutex = threading.Lock()
        self._idle = threading.Condition(self._mutex)  # notified when no thread of this process is in
        self._waiting = 0  # threads that wait for it
        self._threads: set[int] = set()  # those that are in
        self._lost: str | None = None  # why there are no rows any more
        parts = {name: _bytes(mapping, starts[name], length) for name, length in layout.lengths().items()}
        table = parts["slot_of"] if layout.ordered else None
        self.slot_of = None if table is None else table.view(torch.int32)
        self.lead_bytes = self._words[_Word.LEAD_BYTES]
        self._rows = CompressedRows(
            layout.num_rows,
            layout.row_bytes,
            layout.slot_bytes,
            slots=parts["slots"],
            bitmask=parts["bitmask"],
            overflow=self._map_overflow(self._words[_Word.NUM_OVERFLOW]),
            packing=layout.packing,
        )

    @classmethod
    def copy_of(cls, rows: CompressedRows, slot_of: torch.Tensor | None, lead_bytes: int, version: int) -> SharedRows:
        """The rows of a store, on the CPU, in memory that can be shared; this process owns them. Nobody writes the rows
        meanwhile. Raises OSError if there is no room."""
        if not hasattr(os, "memfd_create") or not hasattr(fcntl, "F_OFD_SETLK"):
            raise OSError(errno.ENOSYS, "rows that processes share: want Linux, got another system")
        layout = Layout.of(rows, ordered=slot_of is not None)
        fd = os.memfd_create("ibp_gnn_rows", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            _reserve(fd, 0, layout.file_bytes(rows.num_overflow))
            fcntl.fcntl(fd, *_SEAL_SHRINK)
            words = 2 * version, 0, rows.num_overflow, lead_bytes, os.getpid()  # in the order of _Word
            os.pwrite(fd, struct.pack("=5q", *words), 0)
        except BaseException:
            os.close(fd)
            raise
        shared = cls(fd, layout, is_owner=True)
        for name in ("slots", "bitmask", "overflow"):
            getattr(shared.rows, name).copy_(getattr(rows, name))
        if slot_of is not None and shared.slot_of is not None:
            shared.slot_of.copy_(slot_of)
        return shared

    def __getstate__(self) -> dict[str, Any]:
        """For multiprocessing's pickler alone: the file goes with it. Raises ValueError after `close`."""
        if not self._fds:
            raise ValueError("these SharedRows are closed")
        return {"file": _sent(self._fds["file"]), "layout": self._layout}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["file"].detach(), state["layout"], is_owner=False)  # type: ignore[misc]

    @property
    def rows(self) -> CompressedRows:
        """Raises RuntimeError if the owner did not finish an update."""
        if self._lost is not None:
            raise RuntimeError(self._lost)
        return self._rows

    @property
    def version(self) -> int:
        """How many updates the rows have had by now, counting one that is under way; also outside of the lock."""
        return (self._words[_VERSION] + 1) // 2

    def close(self) -> None:
        """Lets go of the file; what is mapped stays as long as tensors of it. `rows` and `slot_of` must not be used any
        more. Idempotent."""
        self._close()
        self._lost, self.slot_of = "these SharedRows are closed", None
        self._words = memoryview(bytes(self._words[: len(_Word)])).cast("q")
        empty = torch.empty(_native.cpu.SLACK_BYTES, dtype=torch.uint8, device="cpu")
        self._rows = CompressedRows(0, self._layout.row_bytes, self._layout.slot_bytes, empty, empty, empty)

    # The owner's part

    def check_owner(self) -> None:
        """Raises RuntimeError in a process that does not own the rows."""
        if not self._is_owner:
            raise RuntimeError(
                f"update: want process {self._words[_Word.OWNER]}, which owns the rows, got process {os.getpid()}; "
                "update there, and every process that shares the rows sees it"
            )

    def with_overflow(self, num_overflow: int) -> CompressedRows:
        """The rows with room for so many overflow rows, more than now; the others stay. Others see it once `end_write`
        was called with it. Raises OSError."""
        fd = self._fds["file"]
        had = os.fstat(fd).st_size
        missing = self._layout.file_bytes(num_overflow) - had
        if missing > 0:
            _reserve(fd, had, missing)
        overflow = self._map_overflow(num_overflow)
        overflow[num_overflow * self._layout.row_bytes :] = 0
        return dataclasses.replace(self.rows, overflow=overflow)

    def updating(self) -> contextlib.AbstractContextManager[None]:
        """Waits for readers of other processes and keeps them out. Raises RuntimeError if GPUs of another process read
        the rows in place. One thread at a time."""
        return _Updating(self._words, self._fds["locks"])

    def begin_write(self) -> None:
        """Inside of `updating`, before the rows are written: should this process end now, others say so instead of
        reading rows that are half written."""
        self._words[_VERSION] |= 1

    def end_write(self, rows: CompressedRows, lead_bytes: int) -> None:
        """rows: as they are now, whole; these or `with_overflow`."""
        self._rows, self.lead_bytes = rows, lead_bytes
        self._words[_Word.NUM_OVERFLOW] = rows.num_overflow
        self._words[_Word.LEAD_BYTES] = lead_bytes
        self._version = (self._words[_VERSION] | 1) + 1
        self._words[_VERSION] = self._version

    def undo_write(self) -> None:
        """Instead of `end_write`: the rows are whole, and as they were before `begin_write`."""
        self._words[_VERSION] = self._version

    # The others' part

    def read_in_place(self) -> None:
        """From now on, until `close`, GPUs of this process may read the rows. Call it inside of the lock."""
        if not self._is_owner:
            _lock(self._fds["locks"], fcntl.F_RDLCK, _IN_PLACE)

    def end_read_in_place(self) -> None:
        """Before `close`: they do not, after all."""
        if not self._is_owner:
            _lock(self._fds["locks"], fcntl.F_UNLCK, _IN_PLACE)

    def enter(self, thread: int) -> None:
        if self._is_owner or not self._fds:
            return  # its readers and its writer have the store's lock
        with self._mutex:
            # One that comes while the owner waits has to let the others go first, else the owner waits for ever.
            while self._threads and self._words[_UPDATING]:
                self._waiting += 1
                try:
                    self._idle.wait()
                finally:
                    self._waiting -= 1
            if not self._threads:
                if self._words[_UPDATING]:
                    self._lock_behind_owner()
                else:
                    fcntl.flock(self._fds["locks"], fcntl.LOCK_SH)
                if self._words[_VERSION] != self._version:
                    self._follow()
            self._threads.add(thread)

    def leave(self, thread: int) -> None:
        if self._is_owner or not self._fds:
            return
        with self._mutex:
            self._threads.discard(thread)
            if not self._threads:
                fcntl.flock(self._fds["locks"], fcntl.LOCK_UN)
                if self._waiting:
                    self._idle.notify_all()

    def _lock_behind_owner(self) -> None:
        locks = self._fds["locks"]
        _lock(locks, fcntl.F_RDLCK, _GATE)
        try:
            self._words[_UPDATING] = 0  # if it is not yet, the owner has ended
            fcntl.flock(locks, fcntl.LOCK_SH)
        finally:
            _lock(locks, fcntl.F_UNLCK, _GATE)

    def _follow(self) -> None:
        """Takes over what has changed. The rows are locked."""
        version = self._words[_VERSION]
        if version & 1:
            self._lost = (
                f"process {self._words[_Word.OWNER]}, which owns the rows, did not finish an update of them: some are "
                "half written; make the store again"
            )
            return
        num_overflow = self._words[_Word.NUM_OVERFLOW]
        if num_overflow != self._rows.num_overflow:
            self._rows = dataclasses.replace(self._rows, overflow=self._map_overflow(num_overflow))
        self.lead_bytes = self._words[_Word.LEAD_BYTES]
        self._version = version

    def after_fork_in_child(self) -> None:
        """The child has its parent's description, and has to have its own before it uses a lock."""
        self._is_owner = False
        self._mutex = threading.Lock()
        self._idle, self._waiting, self._threads = threading.Condition(self._mutex), 0, set()
        if not self._fds:
            return  # closed before
        os.close(self._fds.pop("locks"))
        try:
            self._fds["locks"] = _open_again(self._fds["file"])
        except OSError:
            self._lost = "this process was forked when no file descriptor was left, which the store needs for it"
            self._close()

    def _map_overflow(self, num_overflow: int) -> torch.Tensor:
        length = self._layout.overflow_bytes(num_overflow)
        return _bytes(mmap.mmap(self._fds["file"], length, offset=self._layout.starts()["overflow"]), 0, length)


class _Updating(Block):
    """See `SharedRows.updating`."""

    def __init__(self, words: memoryview, locks: int) -> None:
        self._words, self._locks = words, locks

    def _enter(self) -> None:
        _lock(self._locks, fcntl.F_WRLCK, _GATE)
        self._words[_UPDATING] = 1
        fcntl.flock(self._locks, fcntl.LOCK_EX)
        if not _lock(self._locks, fcntl.F_WRLCK, _IN_PLACE, wait=False):
            raise RuntimeError(
                "update: want rows that only GPUs of this process read, got rows that GPUs of another process read "
                "in place; close the stores there first, or load them there with pin=False"
            )

    def _leave(self) -> None:
        self._words[_UPDATING] = 0
        fcntl.flock(self._locks, fcntl.LOCK_UN)
        for byte in (_IN_PLACE, _GATE):
            _lock(self._locks, fcntl.F_UNLCK, byte)


def _bytes(mapping: mmap.mmap, start: int, length: int) -> torch.Tensor:
    if length == 0:
        return torch.empty(0, dtype=torch.uint8, device="cpu")
    with torch.inference_mode(False):  # or they could not be written outside of it
        part = torch.frombuffer(mapping, dtype=torch.uint8, count=length, offset=start)
    _native.cpu.advise_huge_pages(part)
    return part


def _sent(fd: int) -> Any:
    """What can be pickled for another process, and gives it a descriptor of its own there, with `detach()`."""
    popen: Any = context.get_spawning_popen()
    if popen is None:  # sent through a queue or a pipe
        return reduction.DupFd(fd)
    # A process cannot be given one descriptor twice, so each time it is another one.
    own = os.dup(fd)
    weakref.finalize(popen, os.close, own)
    return reduction.DupFd(own)


def _copied(rows: CompressedRows) -> Any:
    """For multiprocessing: torch would move the tensors themselves to memory that it shares, away from those that have
    their address."""
    copies = {name: getattr(rows, name).clone() for name in ("slots", "bitmask", "overflow")}
    return dataclasses.replace(rows, **copies).__reduce_ex__(2)


reduction.ForkingPickler.register(CompressedRows, _copied)


def _open_again(fd: int) -> int:
    """Another open file description of the same file."""
    return os.open(f"/proc/self/fd/{fd}", os.O_RDWR | os.O_CLOEXEC)


def _close_all(fds: dict[str, int]) -> None:
    while fds:
        os.close(fds.popitem()[1])


def _lock(fd: int, kind: int, byte: int, *, wait: bool = True) -> bool:
    """kind: F_RDLCK, F_WRLCK or F_UNLCK. Returns whether it has the byte; without wait, another may have it."""
    try:
        fcntl.fcntl(fd, fcntl.F_OFD_SETLKW if wait else fcntl.F_OFD_SETLK, _FLOCK[kind, byte])
    except BlockingIOError:
        return False
    return True


_FLOCK = {
    (kind, byte): struct.pack("hhqqi", kind, os.SEEK_SET, byte, 1, 0)
    for kind in (fcntl.F_RDLCK, fcntl.F_WRLCK, fcntl.F_UNLCK)
    for byte in (_GATE, _IN_PLACE)
}


def _reserve(fd: int, start: int, length: int) -> None:
    """Makes the file longer, with memory behind it. Raises OSError, and has changed nothing then."""
    free = _free_memory()
    reason = "there is no more"
    try:
        if length <= free:
            os.posix_fallocate(fd, start, length)
            return
        code = errno.ENOMEM
    except OSError as error:
        code, reason = error.errno or errno.ENOMEM, os.strerror(error.errno or errno.ENOMEM)
    raise OSError(code, f"rows that processes share: want {length} bytes of memory, got {free} free ({reason})")


def _free_memory() -> int:
    """Bytes that can be had without others losing theirs."""
    with open("/proc/meminfo") as file:
        sizes = {line.split(":")[0]: int(line.split()[1]) for line in file}
    return 1024 * (sizes["MemAvailable"] + sizes.get("SwapFree", 0))

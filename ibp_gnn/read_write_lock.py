"""A lock that many readers hold together, or one writer alone."""

from __future__ import annotations

import contextlib
import os
import threading
import weakref
from collections.abc import Iterator


class ReadWriteLock:
    """`with lock:` to read, about a microsecond; `with lock.exclusive():` to write. A writer that waits goes before
    readers that come later, so neither may be entered by a thread that is in one already.

    A fork waits until nobody writes; the child has the lock, held by nobody.
    """

    def __init__(self) -> None:
        self._reset()
        with _registry:
            _locks.add(self)

    def _reset(self) -> None:
        self._gate = threading.Lock()  # the way in; a writer keeps it
        self._count = threading.Lock()
        self._no_reader = threading.Condition(self._count)
        self._readers = 0

    def __enter__(self) -> None:
        with self._gate, self._count:
            self._readers += 1

    def __exit__(self, *_: object) -> None:
        with self._count:
            self._readers -= 1
            if self._readers == 0:
                self._no_reader.notify()

    @contextlib.contextmanager
    def exclusive(self) -> Iterator[None]:
        """Waits for the readers that are in, and keeps others out."""
        with self._gate:
            with self._count:
                self._no_reader.wait_for(lambda: self._readers == 0)
            yield


_registry = threading.Lock()  # held by whoever uses `_locks`; across a fork by the thread that forks
_locks: weakref.WeakSet[ReadWriteLock] = weakref.WeakSet()
_held: list[ReadWriteLock] = []  # by the thread that forks


def _before_fork() -> None:
    _registry.acquire()
    for lock in list(_locks):
        lock.__enter__()
        _held.append(lock)


def _after_fork_in_parent() -> None:
    while _held:
        _held.pop().__exit__()
    _registry.release()


def _after_fork_in_child() -> None:
    # Other threads, which may have held them, are not here.
    while _held:
        _held.pop()._reset()
    _registry.release()


os.register_at_fork(before=_before_fork, after_in_parent=_after_fork_in_parent, after_in_child=_after_fork_in_child)

"""A lock that a forked child finds open, whichever thread of the parent had it."""

from __future__ import annotations

import os
import threading
import weakref


class ForkSafeLock:
    """`with lock:`, like threading.Lock. For what a thread may be doing for long while another one forks, if the child
    does not go on with it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        _all.add(self)

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()

    def _reset_in_child(self) -> None:
        self._lock = threading.Lock()


_all: weakref.WeakSet[ForkSafeLock] = weakref.WeakSet()


def _after_fork_in_child() -> None:
    for lock in list(_all):
        lock._reset_in_child()


os.register_at_fork(after_in_child=_after_fork_in_child)

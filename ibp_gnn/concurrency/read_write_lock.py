"""A lock that many readers hold together, or one writer alone."""

from __future__ import annotations

import _thread
import abc
import atexit
import contextlib
import os
import signal
import threading
import time
import weakref
from collections import deque
from collections.abc import Iterator
from threading import get_ident
from typing import NamedTuple, Protocol

from .interrupts import uninterrupted


class Block(contextlib.AbstractContextManager[None], abc.ABC):
    """What `with` enters and, whatever interrupts it, leaves. Not a generator: an interrupt can come between its
    `yield` and the block."""

    def __enter__(self) -> None:
        try:
            self._enter()
        except BaseException:
            self._leave()
            raise

    def __exit__(self, *_: object) -> None:
        try:
            self._leave()
        except BaseException:
            self._leave()
            raise

    @abc.abstractmethod
    def _enter(self) -> None:
        """May wait, and may raise."""

    @abc.abstractmethod
    def _leave(self) -> None:
        """May be called again, and wherever `_enter` or itself was interrupted."""


class OuterLock(Protocol):
    """What a ReadWriteLock holds, too, while a thread is in it: a lock that processes share."""

    def enter(self, thread: int) -> None:
        """For a thread that is not in. May wait, and may raise; `leave` is called then, too."""

    def leave(self, thread: int) -> None:
        """Nothing happens for a thread that is not in."""

    def after_fork_in_child(self) -> None:
        """No thread is in; the calling one is the only one that is left."""


class _Waiter(NamedTuple):
    thread: int
    writes: bool
    granted: threading.Lock  # held until its turn comes


class ReadWriteLock:
    """`with lock:` to read, about a microsecond; `with lock.exclusive():` to write. First come, first served: a reader
    that comes after a waiting writer waits, too, so that neither is kept out for ever.

    A thread that is in may enter again: reading inside of either, writing inside of writing. Writing inside of reading
    raises RuntimeError. The thread that enters is the one that leaves.

    A fork waits until no other thread writes. A child that is forked inside is outside: nobody waits for it. Its reads
    enter anew, and may see more than its parent did; the end of the block that it was forked in does nothing there.
    """

    def __init__(self) -> None:
        self.outer: OuterLock | None = None  # set by whoever writes, or before other threads know the lock
        self._mutex = threading.Lock()
        self._reads: dict[int, int] = {}  # by thread, how many times it is in
        self._writer: int | None = None
        self._writes = 0  # how many times the writer is in
        self._queue: deque[_Waiter] = deque()
        self._before_fork: dict[int, int] = {}  # by thread, how many blocks it reads in since before this process
        with _registry:
            _locks.add(self)

    def __enter__(self) -> None:
        me, waiter = get_ident(), None
        reads = self._reads.get(me, 0)  # only this thread changes it
        try:
            with self._mutex:
                if reads or (self._writer is None and not self._queue) or self._writer == me:
                    self._reads[me] = reads + 1
                else:
                    waiter = self._enqueue(me, writes=False)
            if waiter is not None:
                waiter.granted.acquire()
            if self.outer is not None and not reads and self._writer != me:
                self.outer.enter(me)
        except BaseException:
            self._back_to(me, reads, self._writes_of(me))
            raise

    def __exit__(self, *_: object) -> None:
        me, reads = 0, -1
        try:
            me = get_ident()
            reads = self._reads.get(me, 0)
            if reads == 1:
                if self.outer is not None and self._writer != me:
                    self.outer.leave(me)
                with self._mutex:
                    del self._reads[me]
                    if self._queue:
                        self._grant()
            elif reads:
                self._back_to(me, reads - 1, self._writes_of(me))
        except BaseException:
            if reads < 0:  # interrupted before it was known
                me = get_ident()
                reads = self._reads.get(me, 0)
            if reads:
                self._back_to(me, reads - 1, self._writes_of(me))
            raise
        if not reads:
            if not self._before_fork.get(me):
                raise RuntimeError("want the lock left by the thread that entered it, got another one")
            self._before_fork[me] -= 1

    def exclusive(self) -> contextlib.AbstractContextManager[None]:
        """Waits for the other threads that are in, and keeps them out. Raises RuntimeError in a thread that reads: it
        would wait for itself."""
        return _Exclusive(self)

    def _writes_of(self, thread: int) -> int:
        return self._writes if self._writer == thread else 0

    def _enqueue(self, thread: int, *, writes: bool) -> _Waiter:
        """The mutex is held."""
        waiter = _Waiter(thread, writes, threading.Lock())
        waiter.granted.acquire()
        self._queue.append(waiter)
        return waiter

    def _back_to(self, thread: int, reads: int, writes: int) -> None:
        """The calling thread is in that many times from now on, and waits no more. May be called again."""
        if not reads and not writes and self.outer is not None:
            self.outer.leave(thread)
        with self._mutex:
            if self._writer == thread:
                self._writer, self._writes = (thread, writes) if writes else (None, 0)
            if reads:
                self._reads[thread] = reads
            else:
                self._reads.pop(thread, None)
            if self._queue:
                self._queue = deque(waiter for waiter in self._queue if waiter.thread != thread)
                self._grant()

    def _grant(self) -> None:
        """Lets in those at the head of the queue who may be. The mutex is held."""
        while self._queue and self._writer is None:
            waiter = self._queue[0]
            if waiter.writes and self._reads:
                return
            if waiter.writes:
                self._writer, self._writes = waiter.thread, 1
            else:
                self._reads[waiter.thread] = 1
            try:
                self._queue.popleft()
            finally:  # an interrupt must not leave it waiting for what it has
                waiter.granted.release()

    def _enter_to_fork(self, me: int) -> bool:
        """Reads ahead of the queue. Returns False, and is not in, if another thread writes."""
        with self._mutex:
            if self._writer not in (None, me):
                return False
            self._reads[me] = self._reads.get(me, 0) + 1
        return True

    def _leave_after_fork(self, me: int) -> None:
        with self._mutex:
            self._reads[me] -= 1
            if not self._reads[me]:
                del self._reads[me]
                self._grant()

    def _reset_in_child(self, me: int) -> None:
        blocks = self._before_fork.get(me, 0) + self._reads[me] - 1  # without the fork's own
        self._before_fork = {me: blocks} if blocks else {}
        self._mutex, self._queue, self._reads = threading.Lock(), deque(), {}
        self._writer, self._writes = None, 0
        if self.outer is not None:
            self.outer.after_fork_in_child()


class _Exclusive(Block):
    def __init__(self, lock: ReadWriteLock) -> None:
        self._lock = lock
        self._me: int | None = None

    def _enter(self) -> None:
        lock, me = self._lock, get_ident()
        reads, writes = lock._reads.get(me, 0), lock._writes_of(me)
        if reads and not writes:
            raise RuntimeError(
                "exclusive: want a thread that is not reading (`with lock:`), got one that is: it would wait for itself"
            )
        self._writes = writes  # as it was before
        self._me = me
        waiter = None
        with lock._mutex:
            if writes or (lock._writer is None and not lock._reads and not lock._queue):
                lock._writer, lock._writes = me, writes + 1
            else:
                waiter = lock._enqueue(me, writes=True)
        if waiter is not None:
            waiter.granted.acquire()
        if lock.outer is not None and not writes:
            lock.outer.enter(me)

    def _leave(self) -> None:
        """Reads that began inside and go on are kept."""
        if self._me is not None:
            self._lock._back_to(self._me, self._lock._reads.get(self._me, 0), self._writes)


_MOST_SECONDS_AT_EXIT = 10.0  # for one that never ends
_registry = threading.Lock()  # held by whoever uses `_locks`; across a fork by the thread that forks
_locks: weakref.WeakSet[ReadWriteLock] = weakref.WeakSet()
_in_fork: list[ReadWriteLock] = []  # those that the forking thread reads until the fork is over
_signals: uninterrupted | None = None  # while `_registry` is held for a fork
_RESEND_SECONDS = 0.002  # enough for a hook to return


def _before_fork() -> None:
    """Reads all locks, and holds the registry. Waits with one of them at most, since a writer of one may be waiting for
    another. Signals wait, too: what this function raises would not stop the fork."""
    global _signals
    me, signals = get_ident(), uninterrupted(at_once=False)
    blocked: ReadWriteLock | None = None
    try:
        signals.put_off()
    except BaseException:
        _before_fork()
        raise  # Python prints it
    while True:
        with _written_by_nobody(blocked):
            _registry.acquire()
            blocked = _enter_all(me)
        if blocked is None:
            _signals = signals
            return
        _registry.release()


@contextlib.contextmanager
def _written_by_nobody(lock: ReadWriteLock | None) -> Iterator[None]:
    """Waits for the lock, though not for its outer one, which other processes may hold."""
    me = get_ident()
    if lock is not None:
        with lock._mutex:
            waiter = None if lock._writer is None else lock._enqueue(me, writes=False)
            if waiter is None:
                lock._reads[me] = lock._reads.get(me, 0) + 1
        if waiter is not None:
            waiter.granted.acquire()
    try:
        yield
    finally:
        if lock is not None:
            lock._leave_after_fork(me)


def _enter_all(me: int) -> ReadWriteLock | None:
    """Returns a lock that another thread writes, and is in none then; or None. The registry is held."""
    for lock in list(_locks):
        if not lock._enter_to_fork(me):
            while _in_fork:
                _in_fork.pop()._leave_after_fork(me)
            return lock
        _in_fork.append(lock)
    return None


def _after_fork_in_parent() -> None:
    me = get_ident()
    if _signals is None:
        return  # interrupted before it began
    while _in_fork:
        _in_fork.pop()._leave_after_fork(me)
    for number in _end_fork():
        _thread.start_new_thread(_resend, (number,))


def _after_fork_in_child() -> None:
    me = get_ident()
    if _signals is None:
        return
    while _in_fork:
        _in_fork.pop()._reset_in_child(me)
    _end_fork()  # the signals were its parent's


def _end_fork() -> list[int]:
    """Returns the signals that came meanwhile, which have not been handled."""
    global _signals
    signals, _signals = _signals, None
    _registry.release()
    return [] if signals is None else signals.leave_unhandled()


def _resend(number: int) -> None:
    """To the main thread, once it is out of the function in which Python ignores what a handler raises."""
    time.sleep(_RESEND_SECONDS)
    signal.pthread_kill(threading.main_thread().ident or 0, number)


def _before_exit() -> None:
    """A daemon thread that writes is left to end: cut off in the middle, it would leave rows that processes share half
    written, and torch ends the process with an abort where it meets such a thread."""
    me, deadline = get_ident(), time.monotonic() + _MOST_SECONDS_AT_EXIT
    for lock in list(_locks):
        while lock._writer not in (None, me) and time.monotonic() < deadline:
            time.sleep(0.001)


atexit.register(_before_exit)
os.register_at_fork(before=_before_fork, after_in_parent=_after_fork_in_parent, after_in_child=_after_fork_in_child)

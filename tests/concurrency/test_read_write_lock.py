"""ReadWriteLock: threads, nesting, errors and forks. Nothing may wait for ever."""

from __future__ import annotations

import dis
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from types import FrameType

import pytest
from forks import in_child
from time_limits import at_most

from ibp_gnn.concurrency import read_write_lock
from ibp_gnn.concurrency.read_write_lock import ReadWriteLock

pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork.*:DeprecationWarning")


@pytest.fixture(autouse=True)
def time_limit() -> Iterator[None]:
    with at_most(30):
        yield


class Thread(threading.Thread):
    """Starts at once; `end` waits for it, and raises what it raised."""

    def __init__(self, work: Callable[[], object]) -> None:
        super().__init__(daemon=True)
        self._work, self._error = work, None
        self.start()

    def run(self) -> None:
        try:
            self._work()
        except BaseException as error:
            self._error = error

    def end(self) -> None:
        self.join(20)
        assert not self.is_alive(), "the thread hangs"
        if self._error is not None:
            raise self._error


def write(lock: ReadWriteLock, then: Callable[[], object] = lambda: None) -> None:
    with lock.exclusive():
        then()


def read(lock: ReadWriteLock, then: Callable[[], object] = lambda: None) -> None:
    with lock:
        then()


def until_waiting(lock: ReadWriteLock, waiters: int = 1) -> None:
    """Returns once so many threads wait for the lock."""
    while len(lock._queue) < waiters:
        time.sleep(0)


def assert_free(lock: ReadWriteLock) -> None:
    """Another thread can write, and read, at once."""
    Thread(lambda: write(lock)).end()
    Thread(lambda: read(lock)).end()
    assert not lock._reads and not lock._queue and lock._writer is None


class Held:
    """A thread that is in the lock until `leave`."""

    def __init__(self, hold: object) -> None:
        self._in, self._leave = threading.Event(), threading.Event()
        self._hold = hold
        self._thread = Thread(self._run)
        assert self._in.wait(20)

    def _run(self) -> None:
        with self._hold:  # type: ignore[attr-defined]
            self._in.set()
            assert self._leave.wait(20)

    def leave(self) -> None:
        self._leave.set()
        self._thread.end()


# One thread


def test_nesting() -> None:
    lock = ReadWriteLock()
    with lock:
        with lock, lock:
            pass
        other = Held(lock)  # others may read on
        other.leave()
    with lock.exclusive():
        with lock:
            with lock.exclusive():
                with lock:
                    pass
        writer = Thread(lambda: write(lock))
        until_waiting(lock)
        assert writer.is_alive()
    writer.end()
    assert_free(lock)


def test_writing_inside_of_reading_is_refused() -> None:
    lock = ReadWriteLock()
    with lock:
        with pytest.raises(RuntimeError, match="it would wait for itself"):
            with lock.exclusive():
                pass
        Held(lock).leave()  # nothing has changed
        writer = Thread(lambda: write(lock))
        until_waiting(lock)
        with pytest.raises(RuntimeError, match="it would wait for itself"):
            write(lock)
    writer.end()
    assert_free(lock)


def test_reading_may_outlast_writing() -> None:
    lock = ReadWriteLock()
    with lock.exclusive():
        lock.__enter__()
    Held(lock).leave()
    writer = Thread(lambda: write(lock))
    until_waiting(lock)
    lock.__exit__()
    writer.end()
    assert_free(lock)


def test_only_the_thread_that_entered_leaves() -> None:
    lock = ReadWriteLock()
    with lock:
        with pytest.raises(RuntimeError, match="left by the thread that entered it"):
            Thread(lock.__exit__).end()
    assert_free(lock)


@pytest.mark.parametrize("error", [KeyError, KeyboardInterrupt, SystemExit])
def test_an_error_inside_leaves_the_lock(error: type[BaseException]) -> None:
    lock = ReadWriteLock()
    for hold in (lambda: lock, lock.exclusive) * 2:
        with pytest.raises(error):
            with hold(), hold():
                raise error
        assert_free(lock)


@pytest.mark.parametrize("waits", [False, True])
@pytest.mark.parametrize("writes", [False, True])
def test_an_interrupt_at_any_line_leaves_the_lock(writes: bool, waits: bool) -> None:
    """Raises at the n-th line that runs while a thread enters, for every n. Not where a `with` block ends: there the
    interpreter does not look for signals."""
    lock = ReadWriteLock()

    def stopped_at(n: int) -> bool:
        lines, seen, entered = 0, set(), threading.Event()

        def trace(frame: FrameType, event: str, _: object) -> object:
            nonlocal lines
            entering = frame.f_code.co_name in ("__enter__", "_enter", "_enqueue")
            if frame.f_code.co_filename != read_write_lock.__file__ or not entering:
                return None
            if event == "line" and (frame, frame.f_lineno) not in seen and not entered.is_set():
                seen.add((frame, frame.f_lineno))
                lines += 1
                if lines == n:
                    raise KeyboardInterrupt
            return trace

        held, over = Held(lock.exclusive()) if waits else None, threading.Event()

        def release() -> None:
            while not lock._queue and not over.is_set():
                time.sleep(0)
            if held is not None:
                held.leave()

        releasing = Thread(release)
        sys.settrace(trace)  # type: ignore[arg-type]
        try:
            (write if writes else read)(lock, entered.set)
            return False
        except KeyboardInterrupt:
            return True
        finally:
            sys.settrace(None)
            over.set()
            releasing.end()

    assert stop_everywhere(stopped_at, lock) > 8


def stop_everywhere(stopped_at: Callable[[int], bool], lock: ReadWriteLock) -> int:
    """stopped_at: stops at the n-th opcode, and returns whether there is one. Nobody holds the lock after any of them.
    Returns the first n that there is none for."""
    stopped_at(0)  # nowhere: Python 3.12 traces opcodes of a function from its second call on
    n = 1
    while stopped_at(n):
        assert_free(lock)
        n += 1
    assert_free(lock)
    return n


def interrupts_at(n: int, names: tuple[str, ...]) -> Callable[[FrameType, str, object], object]:
    """A trace function that raises KeyboardInterrupt at the n-th moment where the interpreter looks for signals in the
    functions of these names: after calls and jumps back, and where the functions that they call begin."""
    moments, last = 0, {}

    def moment() -> None:
        nonlocal moments
        moments += 1
        if moments == n:
            raise KeyboardInterrupt

    def trace(frame: FrameType, event: str, _: object) -> object:
        if frame.f_code.co_filename != read_write_lock.__file__ or frame.f_code.co_name not in names:
            return None
        if event == "call":
            frame.f_trace_opcodes, frame.f_trace_lines = True, False
            if frame.f_code.co_name not in ("__enter__", "__exit__"):  # at their beginning nobody can help
                moment()
        elif event == "opcode":
            before = last.get(frame)
            last[frame] = dis.opname[frame.f_code.co_code[frame.f_lasti]]
            if before is not None and (before.startswith("CALL") or before in ("JUMP_BACKWARD", "JUMP_ABSOLUTE")):
                moment()
        return trace

    return trace


@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize("waiter", [None, write, read])
@pytest.mark.parametrize("writes", [False, True])
def test_an_interrupt_of_the_leaving_leaves_the_lock(
    writes: bool, waiter: Callable[[ReadWriteLock], None] | None, nested: bool
) -> None:
    lock = ReadWriteLock()

    def stopped_at(n: int) -> bool:
        hold = lock.exclusive() if writes else lock
        hold.__enter__()
        if nested:
            lock.__enter__()
        waiting = None if waiter is None else Thread(lambda: waiter(lock))
        if writes or waiter is write:
            until_waiting(lock, waiter is not None)
        sys.settrace(interrupts_at(n, ("__exit__", "_leave", "_back_to", "_grant")))  # type: ignore[arg-type]
        try:
            (lock if nested else hold).__exit__(None, None, None)
            return False
        except KeyboardInterrupt:
            return True
        finally:
            sys.settrace(None)
            if nested:
                assert waiting is None or not writes or waiting.is_alive()
                hold.__exit__(None, None, None)
            if waiting is not None:
                waiting.end()

    assert stop_everywhere(stopped_at, lock) > 3


# Several threads


def test_a_reader_enters_again_while_a_writer_waits() -> None:
    lock, written = ReadWriteLock(), threading.Event()
    with lock:
        writer = Thread(lambda: write(lock, written.set))
        until_waiting(lock)
        with lock:
            pass
        assert not written.is_set()
    writer.end()
    assert written.is_set()
    assert_free(lock)


def test_readers_are_in_together_and_a_writer_alone() -> None:
    lock, together = ReadWriteLock(), threading.Barrier(3, timeout=20)
    readers = [Thread(lambda: read(lock, together.wait)) for _ in range(3)]
    for reader in readers:
        reader.end()
    first = Held(lock.exclusive())
    order: list[str] = []
    threads = [Thread(lambda: read(lock, lambda: order.append("read")))]
    until_waiting(lock, 1)
    threads.append(Thread(lambda: write(lock, lambda: order.append("write"))))
    until_waiting(lock, 2)
    threads.append(Thread(lambda: read(lock, lambda: order.append("read again"))))
    until_waiting(lock, 3)
    assert order == []
    first.leave()
    for thread in threads:
        thread.end()
    assert order == ["read", "write", "read again"], "first come, first served"
    assert_free(lock)


def test_nobody_is_kept_out_for_ever() -> None:
    """Two readers take turns so that one is always in; two writers write on and on. All come in again and again."""
    lock, stop = ReadWriteLock(), threading.Event()
    counts, state = [0] * 4, {"writers": 0, "torn": 0}

    def keep_reading(mine: int, other: int) -> None:
        while not stop.is_set():
            with lock:
                counts[mine] += 1
                state["torn"] += state["writers"]
                before = counts[other]
                for _ in range(100):  # overlap where the other reader can come in
                    if counts[other] > before or lock._queue:
                        break
                    time.sleep(0)

    def keep_writing(mine: int) -> None:
        while not stop.is_set():
            with lock.exclusive():
                state["writers"] += 1
                state["torn"] += state["writers"] - 1
                counts[mine] += 1
                state["writers"] -= 1

    threads = [Thread(lambda: keep_reading(0, 1)), Thread(lambda: keep_reading(1, 0))]
    threads += [Thread(lambda: keep_writing(2)), Thread(lambda: keep_writing(3))]
    while min(counts) < 50:
        time.sleep(0)
    stop.set()
    for thread in threads:
        thread.end()
    assert state["torn"] == 0
    assert_free(lock)


# Forks


def test_a_fork_inside_of_reading_while_a_writer_waits() -> None:
    lock, written = ReadWriteLock(), threading.Event()
    other = Held(lock)
    with lock:
        writer = Thread(lambda: write(lock, written.set))
        until_waiting(lock)

        def work() -> None:
            with lock, lock:  # the writer is not here
                pass
            write(lock)  # nor is the other reader, nor what this thread read
            with lock.exclusive():
                pid = os.fork()
                if pid == 0:
                    assert_free(lock)
            if pid == 0:
                lock.__exit__()  # ends what began two processes before
                os._exit(0)
            assert os.waitpid(pid, 0)[1] == 0
            lock.__exit__()  # ends what began in the parent
            with pytest.raises(RuntimeError, match="left by the thread that entered it"):
                lock.__exit__()
            assert_free(lock)

        in_child(work, seconds=20)
        assert not written.is_set()
    other.leave()
    writer.end()
    assert_free(lock)


def test_a_fork_inside_of_writing() -> None:
    lock = ReadWriteLock()
    hold = lock.exclusive()
    hold.__enter__()
    waiting = Thread(lambda: read(lock))
    until_waiting(lock)

    def work() -> None:
        assert_free(lock)
        held = Held(lock)
        hold.__exit__(None, None, None)
        assert list(lock._reads.values()) == [1]
        held.leave()
        assert_free(lock)

    in_child(work, seconds=20)
    assert waiting.is_alive()
    hold.__exit__(None, None, None)
    waiting.end()
    assert_free(lock)


def test_a_fork_waits_for_the_writers_of_other_threads() -> None:
    """Each of the threads writes two locks, one inside the other, while forks go on."""
    locks = [ReadWriteLock(), ReadWriteLock()]
    state, stop, rounds = ["whole", "whole"], threading.Event(), [0]

    def keep_writing() -> None:
        while not stop.is_set():
            with locks[0].exclusive():
                state[0] = "torn"
                with locks[1].exclusive():
                    state[1] = "torn"
                    ReadWriteLock()  # made while a fork waits
                    time.sleep(0)
                    state[1] = "whole"
                state[0] = "whole"
            rounds[0] += 1

    writer = Thread(keep_writing)

    def work() -> None:
        assert state == ["whole", "whole"]
        for lock in locks:
            assert_free(lock)

    for _ in range(10):
        in_child(work, seconds=20)
    before = rounds[0]
    while rounds[0] == before:
        time.sleep(0)
    stop.set()
    writer.end()
    for lock in locks:
        assert_free(lock)


def test_threads_that_fork_at_the_same_time() -> None:
    lock = ReadWriteLock()

    def fork() -> None:
        for _ in range(5):
            with lock:
                pid = os.fork()
                if pid == 0:
                    os._exit(0 if not lock._reads else 1)
            assert os.waitpid(pid, 0)[1] == 0

    threads = [Thread(fork) for _ in range(2)]
    for thread in threads:
        thread.end()
    assert_free(lock)


def test_an_interrupt_while_a_fork_waits() -> None:
    """The fork takes place, since Python ignores what is raised before it. The interrupt comes afterwards, and nothing
    is left behind in both processes."""
    lock, messages = ReadWriteLock(), []
    writer = Held(lock.exclusive())
    hook, sys.unraisablehook = sys.unraisablehook, messages.append

    def interrupt() -> None:
        until_waiting(lock)
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
        time.sleep(0.05)
        writer.leave()

    interrupting, pid = Thread(interrupt), -1
    try:
        with pytest.raises(KeyboardInterrupt):
            pid = os.fork()
            if pid == 0:
                status = 1
                try:
                    signal.alarm(20)
                    assert_free(lock)
                    time.sleep(0.05)  # no interrupt here
                    status = 0
                finally:
                    os._exit(status)
            while True:
                time.sleep(0.01)
    finally:
        sys.unraisablehook = hook
    assert os.waitpid(pid, 0)[1] == 0 and not messages
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    interrupting.end()
    assert_free(lock)
    in_child(lambda: assert_free(lock), seconds=20)


_EXIT = """
import threading, time
from ibp_gnn.concurrency import read_write_lock
read_write_lock._MOST_SECONDS_AT_EXIT = {most}
lock, inside = read_write_lock.ReadWriteLock(), threading.Event()
def write():
    with lock.exclusive():
        inside.set()
        time.sleep({takes})
        print("written", flush=True)
threading.Thread(target=write, daemon=True).start()
inside.wait()
"""


@pytest.mark.parametrize(("most", "takes", "wanted"), [(60, 0.3, "written"), (0.1, 60, "")])
def test_the_exit_waits_for_a_daemon_thread_that_writes(most: float, takes: float, wanted: str) -> None:
    run = subprocess.run(
        [sys.executable, "-c", _EXIT.format(most=most, takes=takes)], capture_output=True, text=True, timeout=50
    )
    assert (run.returncode, run.stdout.strip(), run.stderr) == (0, wanted, "")

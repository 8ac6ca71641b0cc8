"""ForkSafeLock: a fork beside a thread that holds it."""

from __future__ import annotations

import threading

import pytest
from forks import in_child
from time_limits import at_most

from ibp_gnn.concurrency.fork_safe_lock import ForkSafeLock


@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork.*:DeprecationWarning")
def test_a_child_finds_it_open() -> None:
    lock, inside, leave = ForkSafeLock(), threading.Event(), threading.Event()

    def hold() -> None:
        with lock:
            inside.set()
            leave.wait(60)

    def take() -> None:
        with lock:
            pass

    holder = threading.Thread(target=hold)
    holder.start()
    with at_most(60):
        assert inside.wait(30)
        in_child(take, seconds=10)
        leave.set()
        holder.join()
        take()

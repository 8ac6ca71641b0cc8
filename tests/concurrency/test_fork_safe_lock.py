"""ForkSafeLock: a fork beside a thread that holds it."""

from __future__ import annotations

import os
import threading

import pytest
from time_limits import at_most

from ibp_gnn.concurrency.fork_safe_lock import ForkSafeLock


@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork.*:DeprecationWarning")
def test_a_child_finds_it_open() -> None:
    lock, inside, leave = ForkSafeLock(), threading.Event(), threading.Event()

    def hold() -> None:
        with lock:
            inside.set()
            leave.wait(60)

    holder = threading.Thread(target=hold)
    holder.start()
    with at_most(60):
        assert inside.wait(30)
        child = os.fork()
        if child == 0:
            with at_most(10), lock:
                os._exit(0)
            os._exit(1)
        assert os.waitpid(child, 0)[1] == 0
        leave.set()
        holder.join()
        with lock:
            pass

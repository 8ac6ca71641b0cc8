"""Other processes that read a store while it is updated: forked ones, and one that was spawned."""

from __future__ import annotations

import multiprocessing
import os
import signal
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

import torch

from ibp_gnn import CompressedFeatureStore

CHILD_SECONDS = 120


def forked(work: Callable[[], object]) -> int:
    """Starts `work` in a forked process, which ends with status 0 unless it raises. Returns its process id."""
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            signal.alarm(CHILD_SECONDS)
            torch.set_num_threads(1)  # torch's own threads hang in a forked process
            work()
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)
    return pid


def wait_for(pid: int) -> None:
    """Raises AssertionError unless the process ended well."""
    status = os.waitpid(pid, 0)[1]
    assert status == 0, f"a forked process ended with {status} (14: it hung for {CHILD_SECONDS} seconds)"


def _serve(connection: Connection) -> None:
    torch.set_num_threads(1)
    store: CompressedFeatureStore | None = None
    while (request := connection.recv()) is not None:
        if isinstance(request, CompressedFeatureStore):
            store = request
            answer: Any = len(store)
        elif isinstance(request, str):  # drop it
            store = answer = None
        else:
            assert store is not None
            answer = store.gather(request)
        connection.send(answer)


class SpawnedReader:
    """A process that gathers from what it is sent. One thread at a time asks it."""

    def __init__(self) -> None:
        context = multiprocessing.get_context("spawn")
        self._connection, other = context.Pipe()
        self._process = context.Process(target=_serve, args=(other,), daemon=True)
        self._process.start()
        other.close()

    def ask(self, request: Any) -> Any:
        """request: a store to read from now on; ids, whose rows are returned; or "drop"."""
        self._connection.send(request)
        if not self._connection.poll(CHILD_SECONDS):
            raise AssertionError(f"a spawned reader has not answered in {CHILD_SECONDS} seconds")
        return self._connection.recv()

    def close(self) -> None:
        """Raises AssertionError unless it ends well."""
        self._connection.send(None)
        self._process.join(CHILD_SECONDS)
        assert self._process.exitcode == 0, f"the spawned reader ended with {self._process.exitcode}"

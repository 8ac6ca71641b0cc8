"""What one process of a machine makes, and all others of it read: compressed rows that are in memory once.

For the processes of torchrun. They have nothing in common but their process group, so the first one of each machine
tells the others, through the group, which socket it listens to. It sends them its stores as multiprocessing does: by
descriptors of memory that has no name (store/shared_rows.py), or by the name of a mapped file. So nothing is left when
the processes end, however they end.
"""

from __future__ import annotations

import os
import secrets
import socket
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from multiprocessing import current_process
from multiprocessing.connection import Connection
from multiprocessing.reduction import ForkingPickler
from typing import Any, TypeVar

from torch import distributed

T = TypeVar("T")


def one_per_machine(make: Callable[[], T], *, local_rank: int, local_size: int, timeout: timedelta) -> T:
    """A collective call of the default process group: all its processes make it. The first process of each machine
    calls `make`; the others wait for it, however long it takes.

    Args:
        make: returns a CompressedFeatureStore, or something picklable that has stores in it.
        local_rank: number of this process on its machine.
        local_size: processes of this machine, which have consecutive ranks.
        timeout: how long the first process waits for the others to come.

    Returns:
        What `make` returned, sharing its memory.

    Raises:
        Exception: what `make` raised, in all processes of the machine.
        RuntimeError: the process that makes it has ended, or another one has not come in time.
    """
    if local_size == 1:
        if distributed.is_initialized():  # other machines may have several processes, which wait for this one
            _tell_all(None)
        return make()
    with _Listener(local_size - 1) if local_rank == 0 else _nothing() as listener:
        # Known to the processes of the group alone. Senders of descriptors ask for it.
        mine = None if listener is None else (listener.address, bytes(current_process().authkey))
        of_all = _tell_all(mine)
        if listener is not None:
            return _send(make, listener, timeout)
        return _receive(*of_all[distributed.get_rank() - local_rank])


def _tell_all(value: Any) -> list[Any]:
    """A collective call. Returns the value of every process, by rank."""
    of_all: list[Any] = [None] * distributed.get_world_size()
    distributed.all_gather_object(of_all, value)
    return of_all


def _send(make: Callable[[], T], listener: _Listener, timeout: timedelta) -> T:
    connections = listener.accept_all(timeout)
    try:
        try:
            made = make()
            # Each time other descriptors: one can be taken once.
            messages = [ForkingPickler.dumps((made, None)) for _ in connections]
        except BaseException as error:
            _tell(connections, error)
            raise
        try:
            for connection, message in zip(connections, messages, strict=True):
                connection.send_bytes(message)
            for connection in connections:
                connection.recv()  # it has the descriptors by now
        except (ConnectionError, EOFError) as error:
            raise RuntimeError("another process of this machine has ended before it had the store") from error
    finally:
        for connection in connections:
            connection.close()
    return made


def _tell(connections: list[Connection], error: BaseException) -> None:
    for connection in connections:
        try:
            connection.send((None, error))
        except Exception:  # an error that cannot be sent: the closed connection says enough
            continue


def _receive(address: str, key: bytes) -> Any:
    try:
        with _connect(address) as connection, _authkey(key):
            made, error = connection.recv()
            if error is None:
                connection.send("received")
    except (ConnectionError, EOFError) as lost:
        raise RuntimeError("the process of this machine that makes the store has ended before it was there") from lost
    if error is not None:
        raise error
    return made


class _Listener:
    """A socket without a file."""

    def __init__(self, count: int) -> None:
        """count: of processes that will come."""
        self._count = count
        self.address = f"\0ibp_gnn-{secrets.token_hex(16)}"
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.bind(self.address)
        self._socket.listen(count)

    def accept_all(self, timeout: timedelta) -> list[Connection]:
        """Raises RuntimeError if one does not come."""
        self._socket.settimeout(timeout.total_seconds())
        connections: list[Connection] = []
        while len(connections) < self._count:
            try:
                accepted, _ = self._socket.accept()
            except TimeoutError as error:
                got = f"{len(connections)} after {timeout.total_seconds():g} s"
                raise RuntimeError(f"want {self._count} other processes of this machine, got {got}") from error
            with accepted:
                credentials = accepted.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
                if struct.unpack("3i", credentials)[1] == os.geteuid():
                    connections.append(Connection(accepted.detach()))
        return connections

    def __enter__(self) -> _Listener:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()


@contextmanager
def _nothing() -> Iterator[None]:
    yield None


def _connect(address: str) -> Connection:
    to_maker = socket.socket(socket.AF_UNIX)
    with to_maker:
        to_maker.connect(address)
        return Connection(to_maker.detach())


@contextmanager
def _authkey(key: bytes) -> Iterator[None]:
    process = current_process()
    before = process.authkey
    process.authkey = key
    try:
        yield
    finally:
        process.authkey = before

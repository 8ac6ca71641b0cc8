"""Rows that processes share: readers beside updates, forks, and owners that end."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Iterator
from multiprocessing.connection import Connection
from typing import Any

import pytest
import torch
from forks import forked
from shared_stores import build, sent, try_to_update
from time_limits import at_most
from update_rows import ALL, fitting, raw

from ibp_gnn import CompressedFeatureStore
from ibp_gnn.store import feature_store, shared_rows
from ibp_gnn.testing import assert_bitwise_equal

pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork.*:DeprecationWarning")


@pytest.fixture(autouse=True)
def time_limit() -> Iterator[None]:
    with at_most(100):
        yield


# Updates and readers at the same time


def _seen(stores: list[CompressedFeatureStore], ids: torch.Tensor, until: Any) -> set[bytes]:
    """What gathers of two threads give until the event is set."""
    seen: set[bytes] = set()

    def read() -> None:
        while not until.is_set():
            got = stores[0].gather(ids)
            seen.add(
                got[0].numpy().tobytes() if bool((got.view(torch.int32) == got[0].view(torch.int32)).all()) else b"torn"
            )

    threads = [threading.Thread(target=read) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return seen


def _watch(store: CompressedFeatureStore, ids: torch.Tensor, until: Any, connection: Connection) -> None:
    torch.set_num_threads(1)
    connection.send("ready")
    connection.send(_seen([store], ids, until))


def test_busy_readers_see_whole_updates_and_let_them_happen() -> None:
    """Each pattern fills all rows; the two kinds differ in slots, bitmask and overflow area, which grows."""
    n, width = 64, 1000
    patterns = [fitting(1, width), *(raw(1, width, seed) for seed in range(3))]
    store = build(torch.cat([fitting(200, width)[200 - n :], fitting(1, width).expand(n, width)]))
    ids = torch.arange(n) + n
    store._share()
    context = multiprocessing.get_context("fork")
    until = context.Event()
    watchers = []
    for _ in range(2):
        connection, other = context.Pipe()
        process = context.Process(target=_watch, args=(store, ids, until, other), daemon=True)
        process.start()
        watchers.append((process, connection))
    for _, connection in watchers:
        assert connection.recv() == "ready"
    for step in range(60):
        store.update(ids, patterns[step % 4].expand(n, width).contiguous())
    until.set()
    known = {pattern[0].numpy().tobytes() for pattern in patterns}
    for process, connection in watchers:
        seen = connection.recv()
        assert seen <= known and len(seen) >= 2, "torn rows, or no update seen"
        process.join(30)
        assert process.exitcode == 0


def test_a_worker_killed_while_it_reads_does_not_block_updates() -> None:
    wanted = fitting()
    store = build(wanted)
    store._share()
    inside, writing = os.pipe()

    def read() -> None:
        with store.lock:
            os.write(writing, b"x")
            signal.pause()

    pid = forked(read)
    assert os.read(inside, 1) == b"x"
    updating = threading.Thread(target=store.update, args=(ALL[:5], raw(5)), daemon=True)
    updating.start()
    while not store._shared._words[shared_rows._UPDATING]:  # type: ignore[union-attr]
        time.sleep(0)
    updating.join(0.05)
    assert updating.is_alive(), "it waits for the reader"
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    updating.join(30)
    assert not updating.is_alive()
    wanted[:5] = raw(5)
    assert_bitwise_equal(store.gather(ALL), wanted)
    os.close(inside)
    os.close(writing)


@pytest.mark.parametrize("forked_from", ["owner", "follower"])
def test_a_child_forked_while_it_reads_does_not_block_updates(forked_from: str) -> None:
    """The workers of a loader never leave the block that they were forked in. They follow updates all the same."""
    wanted = fitting()
    store = build(wanted)
    follower = sent(store)
    forking = store if forked_from == "owner" else follower
    mine, childs = multiprocessing.Pipe()

    def read() -> None:
        assert forking.gather(ALL).numpy().tobytes() == wanted.numpy().tobytes()
        childs.send("read")
        assert childs.recv() == "updated"
        assert forking.gather(ALL[:5]).numpy().tobytes() == raw(5).numpy().tobytes()
        forking.lock.__exit__()  # a child that does leave the block
        assert forking.gather(ALL[:5]).numpy().tobytes() == raw(5).numpy().tobytes()

    with forking.lock:
        pid = forked(read)
    assert mine.poll(30) and mine.recv() == "read"
    with at_most(20):
        store.update(ALL[:5], raw(5))
    mine.send("updated")
    assert os.waitpid(pid, 0)[1] == 0
    assert_bitwise_equal(follower.gather(ALL[:5]), raw(5))


def test_forked_children_of_the_owner_follow_it() -> None:
    """Also those that are forked while it reads, or keeps readers out."""
    wanted = fitting()
    store = build(wanted)
    store._share()
    for hold in (store.lock, store.lock.exclusive()):
        mine, childs = multiprocessing.Pipe()

        def work(childs: Connection = childs) -> None:
            assert store.gather(ALL).numpy().tobytes() == wanted.numpy().tobytes()
            assert "which owns the rows" in try_to_update([store])
            childs.send("read")
            assert childs.recv() == "updated"
            assert store.gather(ALL).numpy().tobytes() == raw().numpy().tobytes()

        with hold:
            pid = forked(work)
        assert mine.poll(30) and mine.recv() == "read"
        store.update(ALL, raw())
        mine.send("updated")
        assert os.waitpid(pid, 0)[1] == 0
        store.update(ALL, wanted)


# Owners that end


def _owner(connection: Connection, rows: torch.Tensor) -> None:
    torch.set_num_threads(1)
    store = build(rows)
    connection.send(store)
    connection.recv()

    def end_half_way(overwrites: Any) -> None:
        overwrites[0].write()
        overwrites[1].write()
        os._exit(9)

    feature_store.write_all = end_half_way  # type: ignore[assignment]
    store.update(ALL[:50], raw(50))


@pytest.mark.parametrize("half_way", [False, True])
def test_the_owner_ends(half_way: bool) -> None:
    context = multiprocessing.get_context("fork")
    connection, other = context.Pipe()
    process = context.Process(target=_owner, args=(other, fitting()), daemon=True)
    process.start()
    store = connection.recv()
    assert_bitwise_equal(store.gather(ALL), fitting())
    if half_way:
        connection.send("go on")
    else:
        process.kill()
    process.join(30)
    assert process.exitcode == (9 if half_way else -signal.SIGKILL)
    if half_way:
        for _ in range(2):
            with pytest.raises(RuntimeError, match=f"process {process.pid}, .* did not finish an update"):
                store.gather(ALL[60:])
        assert "which owns the rows" in try_to_update([store])
    else:
        assert_bitwise_equal(store.gather(ALL), fitting())
    store.close()


def test_an_update_that_is_undone_is_not_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    store = build(fitting())
    follower = sent(store)

    def fail(overwrites: Any) -> None:
        raise MemoryError("no room to write")

    with monkeypatch.context() as patch:
        patch.setattr(feature_store, "write_all", fail)
        with pytest.raises(MemoryError):
            store.update(ALL[:50], raw(50))
    for each in (store, follower):
        assert_bitwise_equal(each.gather(ALL), fitting())
    store.update(ALL[:50], raw(50))
    for each in (store, follower):
        assert_bitwise_equal(each.gather(ALL), torch.cat([raw(50), fitting()[50:]]))


def test_a_fork_without_a_descriptor_for_the_child(monkeypatch: pytest.MonkeyPatch) -> None:
    """The child would share its parent's lock. It has to say so, and the parent goes on."""

    def refuse(fd: int) -> int:
        raise OSError(24, "Too many open files")

    def work() -> None:
        with pytest.raises(RuntimeError, match="no file descriptor was left"):
            store.gather(ALL)

    store = build(fitting())
    sent(store)
    monkeypatch.setattr(shared_rows, "_open_again", refuse)
    with store.lock:
        pid = forked(work)
    assert os.waitpid(pid, 0)[1] == 0
    store.update(ALL, raw())
    assert_bitwise_equal(store.gather(ALL), raw())

"""Stores between processes: nobody holds a copy of the rows, and all see whole updates."""

from __future__ import annotations

import copy
import fcntl
import gc
import io
import multiprocessing
import os
import pickle
import signal
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from multiprocessing import forkserver, resource_tracker
from multiprocessing.connection import Connection
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any

import pytest
import torch
from forks import forked
from page_locking import Registers
from time_limits import at_most
from update_rows import ALL, ROWS, fitting, raw

from ibp_gnn import CompressedFeatureStore, CompressedGPUCache, PinError
from ibp_gnn.codec.compressed_rows import CompressedRows
from ibp_gnn.store import feature_store, shared_rows
from ibp_gnn.store.file import sharing
from ibp_gnn.store.file.held_file import HeldFile
from ibp_gnn.store.file.reading import StoreFile
from ibp_gnn.store.shared_rows import SharedRows
from ibp_gnn.testing import assert_bitwise_equal, special_rows

pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork.*:DeprecationWarning")


@pytest.fixture(autouse=True)
def time_limit() -> Iterator[None]:
    with at_most(100):
        yield


def build(rows: torch.Tensor, **options: Any) -> CompressedFeatureStore:
    return CompressedFeatureStore.build(rows.clone(), "ibp", progress=False, **options)


def sent(store: CompressedFeatureStore) -> CompressedFeatureStore:
    """As another process gets it through a pipe, in this one."""
    return pickle.loads(ForkingPickler.dumps(store))


def descriptors() -> int:
    """How many are open here. What multiprocessing keeps open is open at the first call, too."""
    resource_tracker.ensure_running()
    forkserver.ensure_running()
    sent(build(fitting()))
    gc.collect()
    return len(os.listdir("/proc/self/fd"))


def mappings() -> int:
    """How often this process maps memory that stores share."""
    return Path("/proc/self/maps").read_text().count("memfd:ibp_gnn_rows")


# A worker that answers questions about its stores.


def private_kib() -> int:
    """Memory that this process alone has."""
    with open("/proc/self/smaps_rollup") as file:
        return sum(int(line.split()[1]) for line in file if line.startswith("Private_"))


def _rows(stores: list[CompressedFeatureStore]) -> list[bytes]:
    return [store.gather(torch.arange(len(store))).numpy().tobytes() for store in stores]


def _update(stores: list[CompressedFeatureStore]) -> str:
    try:
        stores[0].update(ALL[:1], fitting(1))
    except RuntimeError as error:
        return str(error)
    return "no error"


class MemoryWhenUnpickled:
    """Becomes what `private_kib` says in the process that gets it."""

    def __reduce__(self) -> Any:
        return private_kib, ()


def _memory_since_unpickling(stores: list[Any]) -> int:
    """Of the stores behind the first entry, after all their rows were read."""
    before, *stores = stores
    for store in stores:
        for part in torch.arange(len(store)).split(500):
            store.gather(part)
    return private_kib() - before


def _copies(stores: list[CompressedFeatureStore]) -> list[bytes]:
    mine = pickle.loads(pickle.dumps(stores[0]))
    mine.update(ALL[:1], fitting(1))  # belongs to this process
    return _rows([mine])


def serve(connection: Connection, *stores: Any) -> None:
    torch.set_num_threads(1)  # torch's own threads hang in a forked process
    stores = [store for part in stores for store in (part if isinstance(part, list) else [part])]  # type: ignore[assignment]
    while (request := connection.recv()) is not None:
        if isinstance(request, CompressedFeatureStore):
            stores.append(request)  # type: ignore[attr-defined]
            connection.send(len(stores))
        else:
            connection.send(request(stores))


class Worker:
    def __init__(self, method: str, *stores: Any) -> None:
        context = multiprocessing.get_context(method)
        self.connection, other = context.Pipe()
        self.process = context.Process(target=serve, args=(other, *stores), daemon=True)
        self.process.start()
        other.close()

    def ask(self, request: Any) -> Any:
        self.connection.send(request)
        return self.connection.recv()

    def end(self) -> None:
        self.connection.send(None)
        self.process.join(30)
        assert self.process.exitcode == 0
        self.process.close()
        self.connection.close()


@pytest.mark.parametrize("method", ["spawn", "forkserver", "fork"])
def test_workers_follow_updates(method: str) -> None:
    """Updates before and after processes start; the same store twice in one process; overflow areas that grow."""
    open_before, mapped_before = descriptors(), mappings()
    wanted = fitting()
    store = build(wanted, order=torch.randperm(ROWS))
    areas = set()

    def update(first: int, rows: torch.Tensor) -> None:
        store.update(ALL[first : first + len(rows)], rows)
        wanted[first : first + len(rows)] = rows
        areas.add(store.rows.num_overflow)

    def check(*workers: Worker) -> None:
        assert_bitwise_equal(store.gather(ALL), wanted)
        for worker in workers:
            answers = worker.ask(_rows)
            assert len(answers) >= 2 and set(answers) == {wanted.numpy().tobytes()}

    update(0, raw(3))
    if method == "fork":
        store._share()
    one = Worker(method, store, [store, sent(store)])
    update(3, raw(4))
    two = Worker(method, [store, store])
    for step in range(4):
        update(10 * step, raw(60, seed=step) if step % 2 else fitting(20))
        check(one, two)
    update(40, raw(ROWS - 40, seed=9))
    assert one.ask(store) == 4  # and through a pipe, after all of this
    check(one, two)
    update(0, fitting())
    check(two, one)
    assert len(areas) >= 3
    for worker in (one, two):
        message = worker.ask(_update)
        assert f"want process {os.getpid()}, which owns the rows, got process {worker.process.pid}" in message
    mine = wanted.clone()
    assert one.ask(_copies) == [mine.numpy().tobytes()]
    check(one, two)
    one.end()
    update(0, raw(5, seed=77))
    check(two)
    store.close()
    assert two.ask(_rows)[0] == wanted.numpy().tobytes(), "the memory is there as long as somebody has it"
    two.end()
    for worker in (one, two):
        del worker.process, worker.connection  # and with them what was opened to start them
    assert descriptors() <= open_before
    assert mappings() <= mapped_before


@pytest.mark.parametrize("options", [{"mmap": False}, {}, {"shared": True}], ids=str)
def test_stores_of_files(options: dict, tmp_path: Path) -> None:
    """Those of files are sent by name; rows that were read from one move to shared memory."""
    wanted, path = fitting(), tmp_path / "s.ibp"
    build(wanted, order=torch.randperm(ROWS)).save(path)
    store = CompressedFeatureStore.load(path, **options)
    other = sent(store)
    assert_bitwise_equal(other.gather(ALL), wanted)
    if "mmap" in options:
        store.update(ALL[:9], raw(9))
        wanted[:9] = raw(9)
        path.unlink()
        assert_bitwise_equal(sent(other).gather(ALL), wanted)
    else:
        assert store._shared is None and other._held_file is not None
    for each in (store, other, copy.deepcopy(other) if "mmap" in options else other):
        assert_bitwise_equal(each.gather(ALL), wanted)
        each.save(tmp_path / "t.ibp")
        with CompressedFeatureStore.load(tmp_path / "t.ibp") as loaded:
            assert_bitwise_equal(loaded.gather(ALL), wanted)


def test_a_mapped_store_that_is_page_locked_is_mapped_by_workers(registers: Registers, tmp_path: Path) -> None:
    path = tmp_path / "s.ibp"
    build(fitting()).save(path)
    store = CompressedFeatureStore.load(path, pin=True)  # its own copy, in memory
    other = sent(store)
    assert other._held_file is not None and other._held_file._is_mapped and store.page_lock()
    assert_bitwise_equal(other.gather(ALL), fitting())
    store.close()
    assert registers.locked == {}


def test_workers_have_no_copy_of_the_rows(tmp_path: Path) -> None:
    width = 1000
    rows = special_rows(torch.float32, width, "random_bits", 1000, 1).repeat(25, 1)
    one = build(rows, layout="inplace")
    assert one.nbytes >= 95 << 20
    one.save(tmp_path / "s.ibp")
    two = CompressedFeatureStore.load(tmp_path / "s.ibp", mmap=False)
    worker = Worker("spawn", MemoryWhenUnpickled(), one, two)
    assert 1024 * worker.ask(_memory_since_unpickling) < one.nbytes // 2
    worker.end()


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
            assert "which owns the rows" in _update([store])
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
        assert "which owns the rows" in _update([store])
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


# What may fail


@pytest.mark.parametrize("refuses", ["the system", "what is free"])
def test_no_room(refuses: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(28, "No space left on device")

    def full() -> Any:
        patch = monkeypatch.context()
        one = patch.__enter__()
        if refuses == "the system":
            one.setattr(os, "posix_fallocate", refuse)
        else:
            one.setattr(shared_rows, "_free_memory", lambda: 1000)
        return patch

    store = build(fitting())
    held = store.rows
    open_before = descriptors()
    patch = full()
    for _ in range(2):
        with pytest.raises(OSError, match=r"want \d+ bytes of memory, got \d+ free"):
            sent(store)
    patch.__exit__(None, None, None)
    assert store.rows is held and store._shared is None and descriptors() == open_before
    store.update(ALL[:5], raw(5))
    follower = sent(store)
    patch = full()
    with pytest.raises(OSError, match=r"want \d+ bytes of memory, got \d+ free"):
        store.update(ALL, raw())
    patch.__exit__(None, None, None)
    for each in (store, follower):
        assert_bitwise_equal(each.gather(ALL), torch.cat([raw(5), fitting()[5:]]))
    store.update(ALL, raw())
    for each in (store, follower):
        assert_bitwise_equal(each.gather(ALL), raw())


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


@pytest.mark.parametrize("num_rows", [0, 1, 8, 1025])
@pytest.mark.parametrize("ordered", [False, True])
def test_rows_of_any_number(num_rows: int, ordered: bool) -> None:
    rows = CompressedRows.empty(num_rows, 40, 20, num_rows // 2)
    for part in (rows.slots, rows.bitmask, rows.overflow):
        part.random_(0, 256)
    slot_of = torch.randperm(num_rows).to(torch.int32) if ordered else None
    shared = SharedRows.copy_of(rows, slot_of, 12, 3)
    follower = pickle.loads(ForkingPickler.dumps(shared))
    for each in (shared, follower):
        for name in ("slots", "bitmask", "overflow"):
            assert_bitwise_equal(getattr(each.rows, name), getattr(rows, name))
        assert (each.lead_bytes, each.version) == (12, 3)
        if slot_of is None:
            assert each.slot_of is None
        else:
            assert_bitwise_equal(each.slot_of, slot_of)
    with pytest.raises(PermissionError):  # another process would end when it reads what is gone
        os.ftruncate(shared._fds["file"], 4096)


def test_a_thread_that_reads_cannot_send() -> None:
    """But for rows that have moved before."""
    store = build(fitting())
    with store.lock:
        with pytest.raises(RuntimeError, match="it would wait for itself"):
            sent(store)
    sent(store)
    with store.lock:
        assert_bitwise_equal(sent(store).gather(ALL), fitting())
    store.close()
    with pytest.raises(ValueError, match="closed"):
        sent(store)


def test_other_pickles_are_private() -> None:
    """A copy, with nothing of the shared memory."""
    wanted = torch.cat([raw(5), fitting()[5:]])
    store = build(fitting())
    follower = sent(store)
    store.update(ALL[:5], raw(5))
    for each in (store, follower):
        file = io.BytesIO()
        torch.save(each, file)
        file.seek(0)
        for mine in (pickle.loads(pickle.dumps(each)), copy.deepcopy(each), torch.load(file, weights_only=False)):
            assert mine.rows.num_overflow == 5, "tidy"
            mine.update(ALL, raw())
            assert_bitwise_equal(each.gather(ALL), wanted)
            assert mine.version == 1 != each.version or mine._shared is None


def test_compressed_rows_are_sent_as_a_copy() -> None:
    """torch would move the tensors of the store away from under it."""
    store = build(fitting())
    follower = sent(store)
    address = store.rows.slots.data_ptr()
    rows = pickle.loads(ForkingPickler.dumps(store.rows))
    assert store.rows.slots.data_ptr() == address != rows.slots.data_ptr() and not store.rows.slots.is_shared()
    assert_bitwise_equal(rows.slots, store.rows.slots)
    store.update(ALL, raw())
    assert_bitwise_equal(follower.gather(ALL), raw())


def test_versions_count_updates_for_everybody() -> None:
    store = build(fitting())
    store.update(ALL[:1], raw(1))
    follower = sent(store)
    assert store.version == follower.version == 1
    store.update(ALL[:1], raw(1))
    assert store.version == follower.version == 2


@pytest.mark.parametrize("mode", [torch.inference_mode, lambda: torch.device("meta")], ids=["inference", "device"])
def test_torchs_modes_do_not_matter(mode: Callable[[], Any]) -> None:
    store = build(fitting())
    with mode():
        follower = sent(store)
    store.update(ALL, raw())
    for each in (store, follower):
        assert_bitwise_equal(each.gather(ALL), raw())
    with mode():
        store.close()
        follower.close()


# Page-locked rows, on any machine


def locked_by(store: CompressedFeatureStore) -> dict[int, int]:
    return {part.data_ptr(): part.numel() for part in (store.rows.slots, store.rows.overflow)}


def test_page_locked_rows_are_locked_where_they_go(registers: Registers) -> None:
    store = build(fitting(), pin=True)
    store.update(ALL[:9], raw(9))
    before = locked_by(store)
    assert registers.locked == before
    registers.refuses = True
    with pytest.raises(PinError, match="could not page-lock"):
        sent(store)
    assert registers.locked == before == locked_by(store) and store._shared is None
    registers.refuses = False
    follower = sent(store)
    gc.collect()
    assert registers.locked == locked_by(store) != before
    assert follower._pinned is None, "a worker that uses no GPU locks nothing"
    store.update(ALL, raw())
    assert registers.locked == locked_by(store)
    assert_bitwise_equal(follower.gather(ALL), raw())
    store.close()
    assert registers.locked == {}


def test_no_updates_under_the_gpus_of_other_processes(registers: Registers) -> None:
    store = build(fitting())
    follower = sent(store)
    registers.refuses = True
    with pytest.warns(UserWarning, match="could not page-lock"):
        assert not follower.page_lock()
    store.update(ALL[:5], raw(5))
    follower, registers.refuses = sent(store), False
    assert follower.page_lock()
    with pytest.raises(RuntimeError, match="GPUs of another process read in place; close the stores there"):
        store.update(ALL, raw())
    for each in (store, follower):
        assert_bitwise_equal(each.gather(ALL), torch.cat([raw(5), fitting()[5:]]))
    follower.close()
    store.update(ALL, raw())
    assert_bitwise_equal(store.gather(ALL), raw())


# GPUs


def _rows_from_gpu(stores: list[CompressedFeatureStore]) -> bytes:
    return stores[0].gather(ALL.cuda()).cpu().numpy().tobytes()


def _close(stores: list[CompressedFeatureStore]) -> None:
    stores[0].close()


@pytest.mark.cuda
def test_rows_that_gpus_read_move_and_are_updated() -> None:
    wanted = fitting()
    with build(wanted, order=torch.randperm(ROWS)) as store:
        sources = [
            store,
            CompressedGPUCache(store, "99 rows"),
            CompressedGPUCache(store, "50 rows", hot_ids=ALL[200:250]),
        ]
        streams = [torch.cuda.Stream() for _ in sources]
        torch.cuda.synchronize()
        for step in range(4):
            results = []
            for source, stream in zip(sources, streams, strict=True):
                with torch.cuda.stream(stream):
                    results.append(source.gather(ALL.cuda()))
            if step == 1:
                follower = sent(store)  # under the gathers
            for got, stream in zip(results, streams, strict=True):
                stream.synchronize()
                assert_bitwise_equal(got.cpu(), wanted)
            new = raw(100, seed=step)
            store.update(ALL[step * 60 : step * 60 + 100][: ROWS - step * 60], new[: ROWS - step * 60])
            wanted[step * 60 : step * 60 + 100] = new[: ROWS - step * 60]
        assert_bitwise_equal(follower.gather(ALL), wanted)


@pytest.mark.cuda
def test_a_worker_that_gathers_to_a_gpu() -> None:
    wanted = fitting()
    with build(wanted) as store:
        worker = Worker("spawn", store)
        store.update(ALL[:50], raw(50))
        wanted[:50] = raw(50)
        assert worker.ask(_rows_from_gpu) == wanted.numpy().tobytes()
        with pytest.raises(RuntimeError, match="GPUs of another process read in place"):
            store.update(ALL, raw())
        assert worker.ask(_rows_from_gpu) == wanted.numpy().tobytes()
        worker.ask(_close)
        store.update(ALL, raw())
        assert_bitwise_equal(store.gather(ALL, device="cuda").cpu(), raw())
        worker.end()


# torch's loader


class Rows(torch.utils.data.Dataset):
    def __init__(self, store: CompressedFeatureStore) -> None:
        self.store, self.again = store, [store]

    def __len__(self) -> int:
        return len(self.store)

    def __getitems__(self, ids: list[int]) -> torch.Tensor:
        return self.store.gather(torch.tensor(ids))


def _as_it_is(batch: torch.Tensor) -> torch.Tensor:
    return batch


def test_a_loader_with_spawned_workers_follows_updates() -> None:
    wanted = fitting()
    store = build(wanted)
    store.update(ALL[:5], raw(5))
    wanted[:5] = raw(5)
    loader = torch.utils.data.DataLoader(
        Rows(store),
        batch_size=100,
        num_workers=1,
        multiprocessing_context="spawn",
        persistent_workers=True,
        collate_fn=_as_it_is,
    )
    for epoch in range(3):
        assert_bitwise_equal(torch.cat(list(loader)), wanted)
        new = raw(40, seed=epoch)
        store.update(ALL[50 * epoch : 50 * epoch + 40], new)
        wanted[50 * epoch : 50 * epoch + 40] = new


# load(shared=True)


def test_a_full_shared_memory_is_noticed_before_it_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(28, "No space left on device")

    path, folder = tmp_path / "s.ibp", tmp_path / "shm"
    folder.mkdir()
    monkeypatch.setattr(sharing, "FOLDER", folder)
    build(fitting()).save(path)
    open_before = descriptors()
    with monkeypatch.context() as patch:
        patch.setattr(os, "posix_fallocate", refuse)
        with pytest.raises(OSError, match=r"want \d+ bytes of shared memory, got \d+ free \(.*No space left"):
            CompressedFeatureStore.load(path, shared=True)
    gc.collect()
    assert descriptors() == open_before and not list(folder.iterdir())
    with CompressedFeatureStore.load(path, shared=True) as store:
        assert_bitwise_equal(store.gather(ALL), fitting())


def test_a_forked_child_does_not_keep_the_lock_of_a_copy_that_is_let_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A third process that has opened the copy before it was removed sees that, and makes another one."""
    folder, path = tmp_path / "shm", tmp_path / "s.ibp"
    folder.mkdir()
    monkeypatch.setattr(sharing, "FOLDER", folder)
    build(fitting()).save(path)
    store = CompressedFeatureStore.load(path, shared=True)
    (name,) = folder.iterdir()
    opened = os.open(name, os.O_RDWR)
    pid = forked(lambda: signal.pause())
    try:
        store.close()
        fcntl.flock(opened, fcntl.LOCK_SH | fcntl.LOCK_NB)  # raises if the child has the lock
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        os.close(opened)
    assert not list(folder.iterdir())


def test_a_copy_that_cannot_be_removed_is_let_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, path = tmp_path / "shm", tmp_path / "s.ibp"
    folder.mkdir()
    monkeypatch.setattr(sharing, "FOLDER", folder)
    build(fitting()).save(path)
    open_before = descriptors()
    store = CompressedFeatureStore.load(path, shared=True)

    def refuse(path: Path) -> None:
        raise PermissionError(13, "Permission denied")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "unlink", refuse)
        with pytest.raises(PermissionError):
            store.close()
    del store
    gc.collect()
    assert descriptors() == open_before


# The rows of a file


def test_a_child_forked_while_rows_are_read_to_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another thread may be in the middle of it. The child does not wait for that one."""
    path, reading, go_on = tmp_path / "s.ibp", threading.Event(), threading.Event()
    build(fitting()).save(path)
    held = HeldFile(StoreFile(path), "mapped")
    read_rows, pid = held.file.read_rows, os.getpid()

    def slowly() -> CompressedRows:
        if os.getpid() == pid:
            reading.set()
            assert go_on.wait(30)
        return read_rows()

    monkeypatch.setattr(held.file, "read_rows", slowly)
    thread = threading.Thread(target=held.to_memory)
    thread.start()
    assert reading.wait(30)

    def work() -> None:
        signal.alarm(10)
        assert held.to_memory() is held.rows and not held._is_mapped

    child = forked(work)
    status = os.waitpid(child, 0)[1]
    go_on.set()
    thread.join()
    assert status == 0


def test_rows_that_were_read_in_vain_go(tmp_path: Path) -> None:
    path = tmp_path / "s.ibp"
    build(fitting()).save(path)
    held = HeldFile(StoreFile(path), "mapped")
    mapped = held.rows
    held.back_to_mapping()  # nothing was read
    assert held.rows is mapped and not held.is_checked
    for _ in range(2):
        read = weakref.ref(held.to_memory().slots)
        assert held.rows is not mapped and held.is_checked
        held.back_to_mapping()
        held.back_to_mapping()
        gc.collect()
        assert held.rows is mapped and read() is None and held._is_mapped
    for place in ("private", "shared"):
        held = HeldFile(StoreFile(path), place)
        rows = held.to_memory()
        held.back_to_mapping()
        assert held.rows is rows
        held.close()

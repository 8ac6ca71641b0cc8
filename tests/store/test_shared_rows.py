"""Rows that processes share: nobody holds a copy of them, and all see whole updates."""

from __future__ import annotations

import copy
import gc
import io
import os
import pickle
from collections.abc import Callable, Iterator
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any

import pytest
import torch
from page_locking import Registers
from shared_stores import Worker, all_rows, build, closed_since, descriptors, mappings, private_kib, sent, try_to_update
from time_limits import at_most
from update_rows import ALL, ROWS, fitting, raw

from ibp_gnn import CompressedFeatureStore, CompressedGPUCache, PinError
from ibp_gnn.codec.compressed_rows import CompressedRows
from ibp_gnn.store import shared_rows
from ibp_gnn.store.shared_rows import SharedRows
from ibp_gnn.testing import assert_bitwise_equal, special_rows

pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork.*:DeprecationWarning")


@pytest.fixture(autouse=True)
def time_limit() -> Iterator[None]:
    with at_most(100):
        yield


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
    return all_rows([mine])


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
            answers = worker.ask(all_rows)
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
        message = worker.ask(try_to_update)
        assert f"want process {os.getpid()}, which owns the rows, got process {worker.process.pid}" in message
    mine = wanted.clone()
    assert one.ask(_copies) == [mine.numpy().tobytes()]
    check(one, two)
    one.end()
    update(0, raw(5, seed=77))
    check(two)
    store.close()
    assert two.ask(all_rows)[0] == wanted.numpy().tobytes(), "the memory is there as long as somebody has it"
    two.end()
    for worker in (one, two):
        del worker.process, worker.connection  # and with them what was opened to start them
    assert closed_since(open_before)
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
    gc.collect()  # what earlier tests left open
    open_before = descriptors()
    patch = full()
    for _ in range(2):
        with pytest.raises(OSError, match=r"want \d+ bytes of memory, got \d+ free"):
            sent(store)
    patch.__exit__(None, None, None)
    assert store.rows is held and store._shared is None
    assert descriptors() == open_before
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

"""CompressedFeatureStore.update: the same bits as a tensor that is changed alike, for every reader."""

from __future__ import annotations

import copy
import io
import pickle
import threading
from collections.abc import Callable
from multiprocessing.reduction import ForkingPickler
from pathlib import Path

import numpy as np
import pytest
import torch
from forks import in_child
from page_locking import Registers
from update_rows import ALL, ROWS, WIDTH, fitting, raw

from ibp_gnn import Codec, CompressedFeatureStore, CompressedGPUCache, PinError
from ibp_gnn.codec.compressed_rows import CompressedRows
from ibp_gnn.concurrency.read_write_lock import ReadWriteLock
from ibp_gnn.store.file.reading import StoreFile
from ibp_gnn.store.updates import RowWriter, write_all
from ibp_gnn.testing import KINDS, assert_bitwise_equal, special_rows


def build(rows: torch.Tensor, codec: str | Codec = "ibp", **options: object) -> CompressedFeatureStore:
    return CompressedFeatureStore.build(rows, codec, progress=False, **options)  # type: ignore[arg-type]


def contents(store: CompressedFeatureStore) -> list[bytes]:
    return [getattr(store.rows, name).numpy().tobytes() for name in ("slots", "bitmask", "overflow")]


def draw(step: int, n: int, num_rows: int = ROWS) -> torch.Tensor:
    return torch.randperm(num_rows, generator=torch.Generator().manual_seed(step))[:n]


def assert_tidy(store: CompressedFeatureStore, wanted: torch.Tensor, path: Path) -> None:
    """Pickled and saved, the store is to the byte what an encoder makes of these rows."""
    by_slot = torch.empty_like(wanted)
    by_slot.view(torch.uint8)[store.to_slots(torch.arange(len(wanted)))] = wanted.view(torch.uint8)
    encoded = store.codec.compress(by_slot, slot_bytes=store.slot_bytes)
    store.save(path)
    with StoreFile(path) as file:
        file.check()
    loaded = CompressedFeatureStore.load(path)
    for again in (pickle.loads(pickle.dumps(store)), loaded):
        assert again.lead_bytes == store.lead_bytes
        for name in ("slots", "bitmask", "overflow"):
            assert_bitwise_equal(getattr(again.rows, name), getattr(encoded, name))
        assert_bitwise_equal(again.gather(torch.arange(len(wanted))), wanted)
    loaded.close()


@pytest.mark.parametrize("ordered", [False, True])
@pytest.mark.parametrize("layout", ["compact", "inplace"])
@pytest.mark.parametrize("codec", ["ibp", "dict"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64, torch.int8, torch.int64], ids=str)
def test_random_updates(dtype: torch.dtype, codec: str, layout: str, ordered: bool, tmp_path: Path) -> None:
    wanted = fitting(dtype=dtype)
    wanted[::9] = raw(dtype=dtype)[::9]
    store = build(wanted.clone(), codec, layout=layout, order=draw(7, ROWS) if ordered else None)
    if layout == "compact" and dtype.itemsize < 8:  # codec "dict" gains nothing with words of 8 bytes
        assert store.rows.overflows().any(), "the data must exercise the overflow area"
    for step in range(3 * len(KINDS)):
        ids = draw(step, (0, 1, 40, ROWS)[step % 4])
        rows = special_rows(dtype, WIDTH, KINDS[step % len(KINDS)], len(ids), seed=step)
        if step % 2:
            rows[::2] = fitting(len(rows), dtype=dtype)[::2]
        store.update(ids.to(torch.int32) if step % 3 else ids, rows)
        wanted[ids] = rows
        assert_bitwise_equal(store.gather(ALL), wanted)
    assert_tidy(store, wanted, tmp_path / "s.ibp")


@pytest.mark.parametrize("width", [1, 2, 33])
def test_rows_of_zeros_and_others(width: int, tmp_path: Path) -> None:
    """A form with a code for zero; and rows of few bytes."""
    wanted = torch.zeros(ROWS, width)
    store = build(wanted.clone(), Codec.fit(torch.zeros(40, width), codec="dict"))
    assert store.codec.form.zero_code  # type: ignore[union-attr]
    for rows in (raw(50, width=width), torch.full((50, width), -0.0), torch.zeros(50, width)):
        wanted[100:150] = rows
        store.update(torch.arange(100, 150), rows)
        assert_bitwise_equal(store.gather(ALL), wanted)
    assert_tidy(store, wanted, tmp_path / "s.ibp")


def test_rows_and_ids_of_every_kind() -> None:
    wanted = fitting(width=12).view(ROWS, 3, 4).clone()
    store = build(wanted.clone())
    new = raw(4, width=12).view(4, 3, 4)
    for ids, rows in (
        (np.array([7, 3, 9, 1], np.int32), new.numpy()),
        (torch.arange(0, 16, 4), torch.stack([new, new], 1)[:, 1]),  # strided, as are these ids
        (torch.arange(40)[::10], new.clone().requires_grad_()),
    ):
        store.update(ids, rows)
        wanted[torch.as_tensor(ids).long()] = new
        assert_bitwise_equal(store.gather(ALL), wanted)


def test_fits_then_overflows_then_fits() -> None:
    rows, other = fitting(), raw()
    store = build(rows, layout="compact")
    assert store.rows.num_overflow == 0
    before = contents(store)
    store.update(ALL[:50], other[:50])
    assert int(store.rows.overflows().sum()) == 50 <= store.rows.num_overflow
    assert_bitwise_equal(store.gather(ALL), torch.cat([other[:50], rows[50:]]))
    store.update(ALL[:50], rows[:50])
    assert_bitwise_equal(store.gather(ALL), rows)
    assert contents(store)[:2] == before[:2] and not store.rows.overflows().any()


def test_overflow_rows_are_used_again() -> None:
    wanted, other = fitting(), raw()
    store = build(wanted.clone())
    store.update(ALL[:100], other[:100])
    room = store.rows.num_overflow
    wanted[:100] = other[:100]
    for step in range(6):  # as many overflow at any time, each time others; and raw rows over raw ones
        first = 100 * (step % 3)
        there, next_ones = ALL[first : first + 100], (ALL[first : first + 100] + 100) % ROWS
        store.update(torch.cat([there, next_ones]), torch.cat([fitting(100), other[next_ones]]))
        wanted[there], wanted[next_ones] = fitting(100), other[next_ones]
        store.update(next_ones, raw(100, seed=step))
        wanted[next_ones] = raw(100, seed=step)
        assert_bitwise_equal(store.gather(ALL), wanted)
        assert store.rows.num_overflow == room
    one_by_one = build(fitting())
    for row in range(ROWS):
        one_by_one.update(ALL[row : row + 1], other[row : row + 1])
    assert_bitwise_equal(one_by_one.gather(ALL), other)
    assert one_by_one.rows.num_overflow == ROWS


def test_the_area_grows_in_steps() -> None:
    store = build(fitting(2000 * 7 // 8))
    areas = set()
    for row in range(1000):
        store.update(torch.tensor([row]), raw(1, seed=row))
        areas.add(store.rows.overflow.data_ptr())
        assert store.rows.num_overflow <= max(16, (row + 1) * 5 // 4 + 16)
    assert len(areas) < 30


@pytest.mark.parametrize(
    ("ids", "rows", "error", "message"),
    [
        (torch.tensor([1, 2, ROWS]), raw(3), IndexError, "want 0 <= id < 300, got 300 at position 2"),
        (torch.tensor([1, -2, 5]), raw(3), IndexError, "want 0 <= id < 300, got -2 at position 1"),
        (torch.tensor([8, 5, 8]), raw(3), ValueError, "ids: want distinct ids, got 8 more than once"),
        (torch.tensor([1.0, 2, 3]), raw(3), TypeError, "ids: want int32 or int64, got torch.float32"),
        (torch.tensor([[1]]), raw(1), ValueError, r"ids: want shape \[n\], got \[1, 1\]"),
        (ALL[:3], raw(2), ValueError, "rows: want 3 of them, as many as ids, got 2"),
        (ALL[:3], raw(3)[:, 1:], ValueError, r"rows: want \[n, 33\] torch.float32, got \[3, 32\] torch.float32"),
        (ALL[:3], raw(3).double(), ValueError, r"rows: want \[n, 33\] torch.float32, got \[3, 33\] torch.float64"),
        (ALL[:3], raw(3).tolist(), TypeError, "rows: want a torch.Tensor or a numpy.ndarray, got list"),
        (ALL[:0], raw(1), ValueError, "rows: want 0 of them, as many as ids, got 1"),
    ],
)
def test_a_bad_update_changes_nothing(ids: object, rows: object, error: type, message: str) -> None:
    store = build(fitting())
    store.update(ALL[:9], raw(9))
    before = contents(store)
    with pytest.raises(error, match=message):
        store.update(ids, rows)
    assert contents(store) == before


def test_no_rows_and_closed_stores() -> None:
    store = build(fitting())
    before = contents(store)
    store.update(ALL[:0], raw(0))
    assert contents(store) == before
    store.close()
    with pytest.raises(ValueError, match="this CompressedFeatureStore is closed"):
        store.update(ALL[:1], raw(1))


def test_stores_of_files(tmp_path: Path) -> None:
    path, wanted = tmp_path / "s.ibp", fitting()
    build(wanted.clone()).save(path)
    for options in ({}, {"shared": True}, {"shared": True, "mmap": False}, {"verify": "read"}):
        with CompressedFeatureStore.load(path, **options) as store:  # type: ignore[arg-type]
            for each in (store, pickle.loads(pickle.dumps(store))):
                with pytest.raises(ValueError, match="load it with mmap=False, shared=False"):
                    each.update(ALL[:1], raw(1))
                assert_bitwise_equal(each.gather(ALL), wanted)
    store = CompressedFeatureStore.load(path, mmap=False)
    again = pickle.loads(pickle.dumps(store))  # of the file, still
    for each in (store, again):
        each.update(ALL[5:25], raw(20))
    path.unlink()
    wanted[5:25] = raw(20)
    for each in (store, again, pickle.loads(pickle.dumps(store))):
        assert_bitwise_equal(each.gather(ALL), wanted)
        assert_tidy(each, wanted, tmp_path / "t.ibp")


def test_a_pickled_store_goes_its_own_way() -> None:
    rows = fitting()
    store = build(rows.clone())
    store.update(ALL[:5], raw(5))
    copy = pickle.loads(pickle.dumps(store))
    copy.update(ALL[:5], raw(5, seed=2))
    store.update(ALL[5:9], raw(4))
    assert_bitwise_equal(copy.gather(ALL), torch.cat([raw(5, seed=2), rows[5:]]))
    assert_bitwise_equal(store.gather(ALL), torch.cat([raw(5), raw(4), rows[9:]]))


@pytest.mark.parametrize("part", ["slots", "bitmask", "overflow"])
def test_rows_shared_by_torch_multiprocessing_are_refused(part: str) -> None:
    rows = fitting()
    store = build(rows.clone())
    ForkingPickler(io.BytesIO(), pickle.HIGHEST_PROTOCOL).dump(getattr(store.rows, part))  # which torch moves
    with pytest.raises(ValueError, match="torch.multiprocessing shares"):
        store.update(ALL[:1], raw(1))
    assert_bitwise_equal(store.gather(ALL), rows)


# Readers meanwhile


@pytest.mark.parametrize("codec", ["ibp", "dict"])
def test_readers_never_see_torn_rows(codec: str) -> None:
    """One pattern fits and the other overflows, so that every update changes slots, bitmask and overflow area."""
    n, width = 64, 3000
    one = fitting(width=width)[:1].expand(n, width).contiguous()
    other = raw(1, width=width).expand(n, width).contiguous()
    patterns = {one.numpy().tobytes(), other.numpy().tobytes()}
    store = build(torch.cat([fitting(200, width=width)[200 - n :], one]), codec)
    ids = torch.arange(n) + n
    assert len(set((store.codec.measure(torch.stack([one[0], other[0]])) > store.slot_bytes).tolist())) == 2
    stop, failures, seen = threading.Event(), [], set()

    def read() -> None:
        while not stop.is_set():
            try:
                got = store.gather(ids).numpy().tobytes()
            except Exception as error:
                failures.append(repr(error))
                return
            seen.add(got if got in patterns else b"torn")

    readers = [threading.Thread(target=read) for _ in range(2)]
    for reader in readers:
        reader.start()
    for step in range(200):
        store.update(ids, (other, one)[step % 2])
    stop.set()
    for reader in readers:
        reader.join(60)
        assert not reader.is_alive()
    assert not failures and b"torn" not in seen and seen <= patterns and seen


def test_the_lock_lets_readers_in_together_and_a_writer_alone() -> None:
    lock, inside, written = ReadWriteLock(), threading.Barrier(2, timeout=30), threading.Event()

    def read() -> None:
        with lock:
            inside.wait()
            assert not written.wait(0.05)

    readers = [threading.Thread(target=read) for _ in range(2)]

    def write() -> None:
        with lock.exclusive():
            written.set()

    for reader in readers:
        reader.start()
    with lock:  # so that the writer has to wait, at least for this thread
        writer = threading.Thread(target=write)
        writer.start()
        for reader in readers:
            reader.join(30)
        assert not written.is_set()
    writer.join(30)
    assert written.is_set()


def test_a_lock_is_left_after_an_error() -> None:
    lock = ReadWriteLock()
    for hold in (lambda: lock, lock.exclusive) * 2:
        with pytest.raises(KeyError):
            with hold():
                raise KeyError


@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork.*:DeprecationWarning")
def test_a_forked_child_reads_and_updates_a_copy() -> None:
    rows = fitting()
    store = build(rows.clone())
    store.update(ALL[:5], raw(5))

    def update_there() -> bytes:
        store.update(ALL[5:10], raw(5))
        return store.gather(ALL[:20]).numpy().tobytes()

    leave, entered = threading.Event(), threading.Event()

    def read_on() -> None:
        with store.lock:
            entered.set()
            leave.wait(60)

    reader = threading.Thread(target=read_on)
    reader.start()
    assert entered.wait(60)
    # The reader is in, and is not there in the child, which could wait for it for ever.
    assert in_child(update_there) == torch.cat([raw(5), raw(5), rows[10:20]]).numpy().tobytes()
    leave.set()
    reader.join()
    assert_bitwise_equal(store.gather(ALL[:20]), torch.cat([raw(5), rows[5:20]]))
    store.update(ALL[:1], rows[:1])  # the fork has let go of the lock here


@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork.*:DeprecationWarning")
def test_a_fork_waits_for_a_writer() -> None:
    lock, state, writing = ReadWriteLock(), ["whole"], threading.Event()

    def write() -> None:
        with lock.exclusive():
            state[0] = "torn"
            writing.set()
            writing_ends.wait(0.3)
            state[0] = "whole"

    writing_ends = threading.Event()  # never set: a pause
    writer = threading.Thread(target=write)
    writer.start()
    assert writing.wait(30)
    assert in_child(lambda: state[0]) == "whole"
    writer.join()


# What page-locks and maps, on any machine


def locked_by(rows: CompressedRows) -> dict[int, int]:
    return {part.data_ptr(): part.numel() for part in (rows.slots, rows.overflow)}


def test_a_larger_overflow_area_is_page_locked(registers: Registers) -> None:
    rows = fitting()
    store = build(rows.clone(), pin=True)
    slots = store.rows.slots.data_ptr()
    for end in (10, 100, 250):
        store.update(ALL[:end], raw(end))
        assert registers.locked == locked_by(store.rows) and store.rows.slots.data_ptr() == slots
    registers.refuses = True
    before, held = contents(store), dict(registers.locked)
    for _ in range(2):
        with pytest.raises(PinError, match="could not page-lock"):
            store.update(ALL, raw())
        assert contents(store) == before and registers.locked == held == locked_by(store.rows)
    store.update(ALL[:250], rows[:250])  # there is room for these
    registers.refuses = False
    store.update(ALL, raw())
    assert_bitwise_equal(store.gather(ALL), raw())
    assert registers.locked == locked_by(store.rows)
    store.close()
    assert registers.locked == {}


def test_a_child_of_the_process_that_page_locked_the_rows(registers: Registers) -> None:
    rows = fitting()
    store = build(rows.clone(), pin=True)

    def update_there() -> str:
        try:
            store.update(ALL[:1], raw(1))
        except RuntimeError as error:
            return str(error)
        return "no error"

    assert "got one forked from it" in str(in_child(update_there))
    assert_bitwise_equal(store.gather(ALL), rows)


def test_what_is_prepared_and_never_written_changes_nothing() -> None:
    rows = build(fitting()).rows
    codec = Codec.fit(fitting())
    writer = RowWriter(rows)
    new = codec.compress(raw(20), slot_bytes=rows.slot_bytes)
    for _ in range(3):
        writer.prepare(ALL[:20], new)
        assert writer.rows is rows
    patch = writer.prepare(ALL[:20], new)
    write_all(patch.overwrites)
    writer.commit(patch)
    assert writer.rows.num_overflow == 20
    assert_bitwise_equal(codec.decompress(writer.rows), torch.cat([raw(20), fitting()[20:]]))


def test_lead_bytes_grow_with_the_payloads() -> None:
    """The fast kernel for these forms fetches so much; what is longer takes a slow one."""
    rows = torch.rand(ROWS, 128) + 1  # one exponent: no escapes
    store = build(rows.clone(), Codec.fit(torch.randn(5000, 128), codec="dict"), layout="inplace")
    longest = int(store.codec.measure(rows).max())
    assert store.lead_bytes == longest
    new = rows[:3].clone()
    new[1, :20] *= 1e-30
    store.update(ALL[:3], new)
    assert store.lead_bytes == int(store.codec.measure(new).max()) > longest
    store.update(ALL[:3], raw(3, width=128))  # not payloads, but raw rows
    store.update(ALL[:3], rows[:3])
    assert store.lead_bytes == int(store.codec.measure(new).max())


# GraphBolt


def test_graphbolt_features_are_updated() -> None:
    pytest.importorskip("dgl")
    pytest.importorskip("torchdata")
    from ibp_gnn import GraphBoltFeatureStore

    key, rows = ("node", None, "feat"), fitting()
    features = GraphBoltFeatureStore({key: rows.clone()}, progress=False)
    features.update(*key, raw(3), torch.tensor([5, 3, 4]))
    wanted = rows.clone()
    wanted[[5, 3, 4]] = raw(3)
    assert_bitwise_equal(features.read(*key), wanted)
    (pending,) = features[key].read_async(torch.tensor([3, 9]))
    assert_bitwise_equal(pending.wait(), wanted[[3, 9]])
    features.update(*key, raw())
    assert_bitwise_equal(features.read(*key), raw())
    features.update(*key, raw(3))  # without ids, another number of rows takes the place of these
    assert_bitwise_equal(features.read(*key), raw(3))


# Copies


@pytest.mark.parametrize("how", [copy.copy, copy.deepcopy, lambda store: pickle.loads(pickle.dumps(store))])
@pytest.mark.parametrize("updated", [False, True])
def test_a_copy_shares_no_row(updated: bool, how: Callable[[CompressedFeatureStore], CompressedFeatureStore]) -> None:
    wanted = fitting().clone()
    store = build(wanted.clone())
    if updated:
        store.update(ALL[:5], raw(5))
        wanted[:5] = raw(5)
    twin = how(store)
    store.update(ALL[10:50], raw(40, seed=2))
    twin.update(ALL[30:70], raw(40, seed=3))
    for each, ids, seed in ((store, ALL[10:50], 2), (twin, ALL[30:70], 3)):
        rows = wanted.clone()
        rows[ids] = raw(40, seed=seed)
        assert_bitwise_equal(each.gather(ALL), rows)


def test_an_update_while_a_pickle_is_written_is_not_in_it() -> None:
    store = build(fitting())
    make, _, state, *_ = store.__reduce_ex__(4)
    store.update(ALL, raw())
    again = CompressedFeatureStore.__new__(CompressedFeatureStore)
    again.__setstate__(state)
    assert make is not None
    assert_bitwise_equal(again.gather(ALL), fitting())


def test_rows_that_were_read_from_a_file_are_pickled_without_it(tmp_path: Path) -> None:
    build(fitting()).save(tmp_path / "s.ibp")
    store = CompressedFeatureStore.load(tmp_path / "s.ibp", mmap=False)
    (tmp_path / "s.ibp").unlink()
    for again in (pickle.loads(pickle.dumps(store)), copy.deepcopy(store)):
        assert_bitwise_equal(again.gather(ALL), fitting())
        again.update(ALL[:3], raw(3))


def test_an_update_of_a_store_that_is_closed_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    for shared in (False, True):
        store = build(fitting())
        if shared:
            ForkingPickler.dumps(store)
        compress = store.codec.compress

        def close_first(
            *args: object, store: CompressedFeatureStore = store, compress: Callable = compress, **options: object
        ) -> CompressedRows:
            store.close()
            return compress(*args, **options)

        monkeypatch.setattr(store.codec, "compress", close_first)
        with pytest.raises(ValueError, match="this CompressedFeatureStore is closed"):
            store.update(ALL[:3], raw(3))


# GPUs


def device() -> torch.device:
    return torch.device("cuda", torch.cuda.current_device())


@pytest.mark.cuda
@pytest.mark.parametrize("cached", ["nothing", "prefix", "hot_ids", "everything"])
@pytest.mark.parametrize("ordered", [False, True])
@pytest.mark.parametrize("layout", ["compact", "inplace"])
@pytest.mark.parametrize("codec", ["ibp", "dict"])
def test_random_updates_on_a_gpu(codec: str, layout: str, ordered: bool, cached: str) -> None:
    """Overflow areas grow from nothing, in the store and in the cache; counters go on."""
    wanted = fitting()
    order = draw(7, ROWS) if ordered else None
    hot = {"prefix": (ALL if order is None else order)[:99], "hot_ids": draw(8, 99), "everything": ALL}.get(
        cached, ALL[:0]
    )
    with build(wanted.clone(), codec, layout=layout, order=order) as store:
        source: CompressedFeatureStore | CompressedGPUCache = store
        if cached == "everything":
            source = CompressedGPUCache(store, f"{ROWS} rows")
        elif cached == "prefix":
            source = CompressedGPUCache(store, "99 rows")
        elif cached == "hot_ids":
            source = CompressedGPUCache(store, "99 rows", hot_ids=hot)
        hits = misses = 0
        for step in range(3 * len(KINDS)):
            ids = draw(step, (1, 40, 0, ROWS)[step % 4])
            rows = special_rows(torch.float32, WIDTH, KINDS[step % len(KINDS)], len(ids), seed=step)
            if step % 2:
                rows[::2] = fitting(len(rows))[::2]
            store.update(ids.to(device()) if step % 3 else ids, rows.to(device()) if step % 5 else rows)
            wanted[ids] = rows
            asked = torch.randint(0, ROWS, (1000,), generator=torch.Generator().manual_seed(step))
            assert_bitwise_equal(source.gather(asked.to(device())).cpu(), wanted[asked])
            assert_bitwise_equal(store.gather(ALL), wanted)
            hits += int(torch.isin(asked, hot).sum())
            misses += int((~torch.isin(asked, hot)).sum())
            assert (source.stats().hits, source.stats().misses) == (hits, misses)
        source.check()
        if isinstance(source, CompressedGPUCache):
            assert source.num_cached == len(hot)
            assert_bitwise_equal(store.gather(ALL.to(device())).cpu(), wanted)
            parts = source._cache.nbytes + store.rows.bitmask.numel() + store.codec.form.device_nbytes
            assert source.nbytes == parts + (4 * ROWS if ordered or cached == "hot_ids" else 0)


@pytest.mark.cuda
def test_every_cache_of_a_store_is_updated() -> None:
    wanted = fitting()
    with build(wanted.clone(), "dict") as store:
        caches = [CompressedGPUCache(store, "50 rows"), CompressedGPUCache(store, "80 rows", hot_ids=draw(1, 80))]
        gone = CompressedGPUCache(store, "10 rows")
        del gone
        for step in range(8):
            ids = draw(step, 100)
            rows = raw(100, seed=step) if step % 2 == 0 else fitting(100)
            store.update(ids, rows)
            wanted[ids] = rows
            for source in (*caches, store):
                assert_bitwise_equal(source.gather(ALL, device="cuda").cpu(), wanted)
        caches.append(CompressedGPUCache(store, "50 rows", hot_ids=draw(2, 50)))  # made after updates
        store.update(ALL, fitting())
        for source in (*caches, store):
            assert_bitwise_equal(source.gather(ALL, device="cuda").cpu(), fitting())


@pytest.mark.cuda
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("layout", ["compact", "inplace"])
def test_longer_payloads_than_any_before_on_a_gpu(layout: str, dtype: torch.dtype) -> None:
    codec = Codec.fit(torch.randn(5000, 128).to(dtype), codec="dict")
    rows = (torch.rand(ROWS, 128) + 1).to(dtype)
    with build(rows.clone(), codec, layout=layout) as store:
        cache = CompressedGPUCache(store, "50 rows")
        for source in (store, cache):
            assert_bitwise_equal(source.gather(ALL, device="cuda").cpu(), rows)
        for escapes in (1, 5, 20, 60, 128, 2):
            rows[20:80, :escapes] = (torch.rand(60, escapes) * 1e-6).to(dtype)
            store.update(ALL[20:80], rows[20:80])
            for source in (store, cache):
                assert_bitwise_equal(source.gather(ALL, device="cuda").cpu(), rows)
                source.check()


@pytest.mark.cuda
def test_an_update_without_page_locked_rows() -> None:
    wanted = fitting()
    with build(wanted.clone(), pin=False) as store:
        for step in range(4):
            ids = draw(step, 100)
            wanted[ids] = raw(100, seed=step)
            store.update(ids, raw(100, seed=step))
            assert_bitwise_equal(store.gather(ALL, device="cuda").cpu(), wanted)


@pytest.mark.cuda
def test_gathers_under_way_on_any_stream_have_the_rows_from_before() -> None:
    n, width = 20000, 256
    one, other = fitting(1, width=width).expand(n, width), raw(1, width=width).expand(n, width)
    with build(one.contiguous()) as store:
        cache = CompressedGPUCache(store, f"{n // 2} rows")
        ids = torch.arange(n, device="cuda")
        streams = [torch.cuda.Stream() for _ in range(3)]
        torch.cuda.synchronize()
        for step in range(6):
            before, after = (one, other) if step % 2 == 0 else (other, one)
            results = []
            for stream in streams:
                with torch.cuda.stream(stream):
                    results += [source.gather(ids) for source in (store, cache)]
            store.update(torch.arange(n), after.contiguous())
            for got in results:
                assert_bitwise_equal(got.cpu(), before.contiguous())
            for stream in streams:
                with torch.cuda.stream(stream):
                    results = [source.gather(ids) for source in (store, cache)]
                stream.synchronize()
                for got in results:
                    assert_bitwise_equal(got.cpu(), after.contiguous())


@pytest.mark.cuda
def test_threads_that_gather_to_a_gpu_see_whole_updates() -> None:
    n, width = 2000, 256
    one = fitting(1, width=width).expand(n, width).contiguous()
    other = raw(1, width=width).expand(n, width).contiguous()
    with build(one) as store:
        cache = CompressedGPUCache(store, f"{n // 2} rows")
        patterns = [rows.cuda().view(torch.int32) for rows in (one, other)]
        stop, failures = threading.Event(), []

        def read(source: CompressedFeatureStore | CompressedGPUCache) -> None:
            ids, stream = torch.arange(n, device="cuda"), torch.cuda.Stream()
            stream.wait_stream(torch.cuda.current_stream())
            try:
                with torch.cuda.stream(stream):
                    while not stop.is_set():
                        got = source.gather(ids).view(torch.int32)
                        if not any(bool((got == pattern).all()) for pattern in patterns):
                            failures.append("torn")
            except Exception as error:
                failures.append(repr(error))

        readers = [threading.Thread(target=read, args=(source,)) for source in (store, cache)]
        for reader in readers:
            reader.start()
        for step in range(100):
            store.update(torch.arange(n), (other, one)[step % 2])
        stop.set()
        for reader in readers:
            reader.join(60)
        assert not failures

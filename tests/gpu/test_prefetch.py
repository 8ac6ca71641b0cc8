"""Prefetcher: the bits of plain gathers, in the loader's order, whatever is slow, empty, repeated or broken."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import ibp_gnn
from ibp_gnn import CompressedFeatureStore, CompressedGPUCache, Prefetcher
from ibp_gnn.codec.values import SUPPORTED_DTYPES
from ibp_gnn.gpu.side_stream import SideStream
from ibp_gnn.testing import assert_bitwise_equal, special_rows

ROWS, WIDTH = 500, 12
CYCLES = 20_000_000  # of the GPU, for torch.cuda._sleep: about 10 ms


def features(dtype: torch.dtype = torch.float32) -> torch.Tensor:
    rows = special_rows(dtype, WIDTH, "outliers", ROWS)
    rows[::7] = special_rows(dtype, WIDTH, "random_bits", len(rows[::7]))
    return rows


RAW = features()
STORE = CompressedFeatureStore.build(RAW, progress=False)


class Rows:
    """A RowSource over a tensor that notes what it is asked for; on a GPU it is as slow as told."""

    def __init__(self, tensor: torch.Tensor, cycles: int = 0) -> None:
        self.tensor, self.cycles, self.asked = tensor, cycles, list[int]()
        self.shape, self.dtype = tuple(tensor.shape), tensor.dtype

    def gather(self, ids: torch.Tensor, *, device: Any = None, out: Any = None) -> torch.Tensor:
        self.asked.append(len(ids))
        if self.cycles:
            torch.cuda._sleep(self.cycles)
        if self.tensor.is_cuda and not ids.is_cuda:
            assert ids.is_pinned() or len(ids) == 0
            ids = ids.to(self.tensor.device, non_blocking=True)
        return self.tensor.index_select(0, ids).to(ids.device if device is None else device)


def random_batches(count: int, *, most: int = 40, seed: int = 0) -> list[torch.Tensor]:
    draw = torch.Generator().manual_seed(seed)
    sizes = torch.randint(0, most + 1, (count,), generator=draw).tolist()
    return [torch.randint(0, ROWS, (size,), generator=draw) for size in sizes]


def bits(rows: torch.Tensor) -> torch.Tensor:
    """Older versions of torch cannot index float8."""
    return rows.view(torch.uint8) if rows.dtype.itemsize == 1 else rows


def check(prefetched: list[tuple[Any, torch.Tensor]], batches: list[torch.Tensor], raw: torch.Tensor = RAW) -> None:
    assert len(prefetched) == len(batches)
    for (batch, rows), wanted in zip(prefetched, batches, strict=True):
        assert batch is wanted
        assert rows.dtype == raw.dtype
        assert_bitwise_equal(bits(rows.cpu()), bits(raw)[wanted.cpu().long()])


def test_it_is_public() -> None:
    assert ibp_gnn.Prefetcher is Prefetcher and "Prefetcher" in ibp_gnn.__all__


@given(
    st.lists(st.lists(st.integers(0, ROWS - 1), max_size=30), max_size=9),
    st.integers(1, 5),
    st.sampled_from([torch.int32, torch.int64]),
)
@settings(max_examples=200)
def test_random_batches(batches: list[list[int]], lookahead: int, dtype: torch.dtype) -> None:
    ids = [torch.tensor(batch, dtype=dtype) for batch in batches]
    prefetcher = Prefetcher(ids, STORE, device="cpu", lookahead=lookahead)
    check(list(prefetcher), ids)
    check(list(prefetcher), ids)  # again, as a loader
    assert len(prefetcher) == len(ids)


@pytest.mark.parametrize("lookahead", [1, 3])
@pytest.mark.parametrize("dtype", SUPPORTED_DTYPES, ids=str)
def test_every_dtype(dtype: torch.dtype, lookahead: int) -> None:
    raw = features(dtype)
    with CompressedFeatureStore.build(raw, progress=False) as store:
        batches = random_batches(7)
        check(list(Prefetcher(batches, store, device="cpu", lookahead=lookahead)), batches, raw)


@pytest.mark.parametrize("row_shape", [(), (1,), (3, 4)])
def test_rows_of_every_shape(row_shape: tuple[int, ...]) -> None:
    raw = torch.randn(ROWS, *row_shape)
    batches = random_batches(7)
    for lookahead in (1, 3):
        check(list(Prefetcher(batches, Rows(raw), device="cpu", lookahead=lookahead)), batches, raw)


def test_mixed_id_dtypes() -> None:
    batches = [ids.to(torch.int32) if i % 2 else ids for i, ids in enumerate(random_batches(8))]
    check(list(Prefetcher(batches, STORE, device="cpu", lookahead=4)), batches)


def test_batches_as_dgl_makes_them() -> None:
    batches = [(ids, ids[:2], ["block"]) for ids in random_batches(5)]
    for (input_nodes, output_nodes, blocks), x in Prefetcher(batches, STORE, device="cpu"):
        assert_bitwise_equal(x, RAW[input_nodes])
        assert len(output_nodes) <= 2 and blocks == ["block"]
    picked = Prefetcher(batches, STORE, device="cpu", ids=lambda batch: batch[1])
    check([(batch[1], x) for batch, x in picked], [batch[1] for batch in batches])


def test_lookahead_asks_for_a_group_at_once() -> None:
    batches = [torch.tensor(ids, dtype=torch.int64) for ids in ([1, 2, 2], [2, 3], [], [7, 7], [1], [2])]
    source = Rows(RAW)
    check(list(Prefetcher(batches, source, device="cpu", lookahead=3)), batches)
    assert source.asked == [5, 4]
    source = Rows(RAW)
    check(list(Prefetcher(batches[:4], source, device="cpu", lookahead=3)), batches[:4])
    assert source.asked == [5, 2]
    source = Rows(RAW)
    check(list(Prefetcher(batches, source, device="cpu")), batches)
    assert source.asked == [3, 2, 0, 2, 1, 1]


@pytest.mark.parametrize("lookahead", [1, 2, 3])
def test_how_far_it_is_ahead(lookahead: int) -> None:
    taken = 0

    def loader() -> Iterator[torch.Tensor]:
        nonlocal taken
        for ids in random_batches(20):
            taken += 1
            yield ids

    source = Rows(RAW)
    prefetcher = Prefetcher(loader(), source, device="cpu", lookahead=lookahead)
    iterator = iter(prefetcher)
    assert taken == 0, "nothing before the first batch is asked for"
    for step in range(20):
        next(iterator)
        assert taken == min(20, step + 2 * lookahead)
        in_use = step // lookahead
        assert len(source.asked) >= min(-(-20 // lookahead), in_use + 2), "the next group is under way"


class Broken(Exception):
    pass


@pytest.mark.parametrize("lookahead", [1, 2, 3, 4])
@pytest.mark.parametrize("at", range(6))
@pytest.mark.parametrize("where", ["loader", "ids", "bad id", "negative id", "bad dtype"])
def test_errors_come_in_the_place_of_their_batch(where: str, at: int, lookahead: int) -> None:
    good = random_batches(6, seed=at)
    broken = {"bad id": torch.tensor([3, ROWS]), "negative id": torch.tensor([-1]), "bad dtype": torch.tensor([0.5])}

    def loader() -> Iterator[tuple[int, torch.Tensor]]:
        for i, ids in enumerate(good):
            if where == "loader" and i == at:
                raise Broken
            yield i, broken[where] if where in broken and i == at else ids

    def ids_of(batch: tuple[int, torch.Tensor]) -> torch.Tensor:
        if where == "ids" and batch[0] == at:
            raise Broken
        return batch[1]

    error = {"bad id": IndexError, "negative id": IndexError, "bad dtype": TypeError}.get(where, Broken)
    iterator = iter(Prefetcher(loader(), STORE, device="cpu", ids=ids_of, lookahead=lookahead))
    for i in range(at):
        (index, ids), rows = next(iterator)
        assert index == i
        assert_bitwise_equal(rows, RAW[ids])
    with pytest.raises(error):
        next(iterator)
    with pytest.raises(StopIteration):
        next(iterator)


def test_an_error_of_the_source_comes_at_the_first_batch_of_its_group() -> None:
    class Failing(Rows):
        def gather(self, ids: torch.Tensor, **where: Any) -> torch.Tensor:
            if len(self.asked) == 2:
                raise Broken
            return super().gather(ids, **where)

    batches = [torch.tensor([i, i + 1]) for i in range(8)]
    iterator = iter(Prefetcher(batches, Failing(RAW), device="cpu", lookahead=2))
    check([next(iterator) for _ in range(4)], batches[:4])
    with pytest.raises(Broken):
        next(iterator)


def test_leaving_early_leaves_nothing() -> None:
    threads = threading.active_count()
    held: list[weakref.ref[torch.Tensor]] = []

    def loader() -> Iterator[torch.Tensor]:
        try:
            for _ in range(100):
                ids = torch.arange(4)
                held.append(weakref.ref(ids))
                yield ids
                del ids
        finally:
            held.append(lambda: None)  # type: ignore[arg-type]  # the loader was ended, too

    for _ in Prefetcher(loader(), STORE, device="cpu", lookahead=2):
        break
    del _
    gc.collect()
    assert len(held) == 5 and not any(one() is not None for one in held)
    assert threading.active_count() == threads


def test_close_ends_what_is_under_way_and_can_be_repeated() -> None:
    batches = random_batches(9)
    with Prefetcher(batches, STORE, device="cpu") as prefetcher:
        iterator, other = iter(prefetcher), iter(prefetcher)
        next(iterator)
        next(other)
    for one in (iterator, other):
        with pytest.raises(StopIteration):
            next(one)
    prefetcher.close()
    check(list(prefetcher), batches)


def test_a_failed_iteration_frees_its_batches() -> None:
    class Ids(list):
        pass

    batch = Ids([torch.tensor([ROWS])])
    alive = weakref.ref(batch)
    with pytest.raises(IndexError, match="want 0 <= id < 500, got 500 at position 0"):
        list(Prefetcher([batch], STORE, device="cpu"))
    del batch
    assert alive() is None


def test_length_is_the_loaders() -> None:
    with pytest.raises(TypeError, match="has no len"):
        len(Prefetcher(iter([]), STORE, device="cpu"))


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"source": RAW}, TypeError, r"source: want a RowSource \(shape, dtype and gather\), got Tensor"),
        ({"source": CompressedFeatureStore}, TypeError, "source: want a RowSource .*, got type"),
        ({"source": None}, TypeError, "source: want a RowSource .*, got NoneType"),
        ({"loader": 3}, TypeError, "loader: want an iterable of batches, got int"),
        ({"lookahead": 0}, ValueError, "lookahead: want a whole number of at least 1, got 0"),
        ({"lookahead": 1.5}, ValueError, "lookahead: want a whole number of at least 1, got 1.5"),
        ({"lookahead": True}, ValueError, "lookahead: want a whole number of at least 1, got True"),
        ({"device": "meta"}, ValueError, "device: want cpu or cuda, got meta"),
    ],
)
def test_bad_arguments(arguments: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        Prefetcher(**{"loader": [], "source": STORE, "device": "cpu", **arguments})


def test_a_batch_without_ids() -> None:
    with pytest.raises(TypeError, match="ids: want an int32 or int64 tensor, got dict"):
        list(Prefetcher([{"paper": torch.tensor([1])}], STORE, device="cpu"))


SOURCES = ("store", "staged", "cache", "tensor on the CPU", "tensor on the GPU")


def gpu_source(kind: str) -> Any:
    if kind.startswith("tensor"):
        return Rows(RAW.cuda() if kind.endswith("GPU") else RAW)
    store = CompressedFeatureStore.build(RAW, pin=False if kind == "staged" else "auto", progress=False)
    return CompressedGPUCache(store, f"{ROWS // 3} rows") if kind == "cache" else store


@pytest.mark.cuda
@pytest.mark.parametrize("ids_on", ["cpu", "cuda"])
@pytest.mark.parametrize("lookahead", [1, 2, 4])
@pytest.mark.parametrize("kind", SOURCES)
def test_every_source_to_a_gpu(kind: str, lookahead: int, ids_on: str) -> None:
    if kind == "tensor on the CPU" and ids_on == "cuda":
        pytest.skip("index_select takes ids on the tensor's device")
    source = gpu_source(kind)
    for dtype in (torch.int64, torch.int32):
        batches = [ids.to(ids_on, dtype) for ids in random_batches(11)]
        prefetcher = Prefetcher(batches, source, device="cuda", lookahead=lookahead)
        for _ in range(2):
            prefetched = list(prefetcher)
            assert all(rows.is_cuda for _, rows in prefetched)
            check(prefetched, batches)


@pytest.mark.cuda
@pytest.mark.parametrize("lookahead", [1, 3])
@pytest.mark.parametrize("slow", ["fetch", "consumer", "both"])
@pytest.mark.parametrize("own_stream", [False, True])
def test_delays_on_either_stream(slow: str, lookahead: int, own_stream: bool) -> None:
    """The consumer's copies are right although it drops each batch before its GPU has come to it, and although the
    rows are written late."""
    big = torch.randint(0, 2**31, (ROWS, 4096), dtype=torch.int32, device="cuda")
    source = Rows(big, CYCLES if slow in ("fetch", "both") else 0)
    batches = [torch.randint(0, ROWS, (300,)) for _ in range(8)]
    stream = torch.cuda.Stream() if own_stream else torch.cuda.current_stream()
    stream.wait_stream(torch.cuda.current_stream())
    copies = []
    with torch.cuda.stream(stream):
        for _, x in Prefetcher(batches, source, device="cuda", lookahead=lookahead):
            if slow in ("consumer", "both"):
                torch.cuda._sleep(CYCLES)
            copies.append(x.clone())
            del x
    torch.cuda.synchronize()
    for ids, copy in zip(batches, copies, strict=True):
        assert_bitwise_equal(copy, big[ids.cuda()])


@pytest.mark.cuda
def test_ids_made_late_on_the_consumers_stream() -> None:
    source = Rows(RAW.cuda())

    def loader() -> Iterator[torch.Tensor]:
        for i in range(8):
            torch.cuda._sleep(CYCLES)
            ids = torch.zeros(100, dtype=torch.int64, device="cuda")
            yield ids.add_(i)

    rows = [x for _, x in Prefetcher(loader(), source, device="cuda")]
    for i, x in enumerate(rows):
        assert_bitwise_equal(x.cpu(), RAW[torch.full((100,), i)])


@pytest.mark.cuda
def test_fetches_overlap_the_consumer() -> None:
    """Eight fetches and eight steps of the same length take the time of nine, not of sixteen."""
    source, batches = Rows(RAW.cuda(), CYCLES), [torch.arange(100) for _ in range(8)]

    def milliseconds(prefetch: bool) -> float:
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda.synchronize()
        start.record()
        if prefetch:
            for _ in Prefetcher(batches, source, device="cuda"):
                torch.cuda._sleep(CYCLES)
        else:
            for ids in batches:
                source.gather(ids.pin_memory(), device="cuda")
                torch.cuda._sleep(CYCLES)
        end.record()
        end.synchronize()
        return start.elapsed_time(end)

    milliseconds(True)
    assert milliseconds(True) < 0.75 * milliseconds(False)


@pytest.mark.cuda
def test_no_host_sync() -> None:
    """torch's own synchronising calls are errors; the host returns before the GPU is done."""
    cache = gpu_source("cache")
    batches = [ids for ids in random_batches(10) if len(ids)]
    for lookahead in (1, 2):
        wanted = [RAW[ids] for ids in batches]
        list(Prefetcher(batches, cache, device="cuda", lookahead=lookahead))
        torch.cuda.synchronize()
        torch.cuda.set_sync_debug_mode("error")
        try:
            torch.cuda._sleep(20 * CYCLES)
            iterator = iter(Prefetcher(batches, cache, device="cuda", lookahead=lookahead))
            got = [next(iterator)]
            assert not torch.cuda.current_stream().query()
            got += list(iterator)
        finally:
            torch.cuda.set_sync_debug_mode("default")
        for (_, rows), one in zip(got, wanted, strict=True):
            assert_bitwise_equal(rows.cpu(), one)


@pytest.mark.cuda
def test_leaving_early_waits_for_the_fetches() -> None:
    side = SideStream(torch.device("cuda", torch.cuda.current_device())).stream
    source = Rows(RAW.cuda(), CYCLES)
    batches = random_batches(30)
    for _ in Prefetcher(batches, source, device="cuda", lookahead=2):
        break
    assert side.query()
    with Prefetcher(batches, source, device="cuda") as prefetcher:
        iterator = iter(prefetcher)
        next(iterator)
    assert side.query()
    store = gpu_source("store")
    for _, _x in Prefetcher(batches, store, device="cuda"):
        break
    store.close()


@pytest.mark.cuda
def test_memory_is_bounded_though_the_host_runs_ahead() -> None:
    big = torch.zeros(ROWS, 1 << 18, device="cuda")  # a row of 1 MiB
    batches = [torch.arange(64) for _ in range(40)]
    batch_bytes = 64 << 20
    list_of_none = [None for _ in Prefetcher(batches[:4], Rows(big), device="cuda")]
    assert len(list_of_none) == 4
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    for _, x in Prefetcher(batches, Rows(big), device="cuda"):
        torch.cuda._sleep(CYCLES)
        del x
    assert torch.cuda.max_memory_reserved() - before <= 8 * batch_bytes


@pytest.mark.cuda
@pytest.mark.parametrize("lookahead", [1, 2])
def test_bad_ids_on_the_cpu_are_told_at_their_batch(lookahead: int) -> None:
    batches = [torch.tensor([1, 2]), torch.tensor([3]), torch.tensor([4, ROWS]), torch.tensor([5])]
    iterator = iter(Prefetcher(batches, gpu_source("cache"), device="cuda", lookahead=lookahead))
    check([next(iterator), next(iterator)], batches[:2])
    with pytest.raises(IndexError, match="want 0 <= id < 500, got 500 at position 1"):
        next(iterator)


@pytest.mark.parametrize("lookahead", [1, 3])
@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.cuda)])
@pytest.mark.parametrize("kind", ["store", "cache"])
def test_rows_are_those_of_the_moment_of_the_yield(kind: str, device: str, lookahead: int) -> None:
    if kind == "cache" and device == "cpu":
        pytest.skip("a cache is on a GPU")
    store = CompressedFeatureStore.build(torch.zeros(100, 4), progress=False)
    source = CompressedGPUCache(store, "50 rows") if kind == "cache" else store
    batches = [torch.tensor([1, 2, 60, 2 + step]) for step in range(9)]
    steps = 0
    for ids, x in Prefetcher(batches, source, device=device, lookahead=lookahead):
        assert_bitwise_equal(x.cpu(), store.gather(ids))
        if steps % 3 != 1:  # some batches are fetched after the last update
            store.update(torch.tensor([2, 60]), torch.full((2, 4), 1.0 + steps))
        steps += 1
    assert steps == 9


def test_a_source_of_ones_own_tells_by_its_version() -> None:
    class Changing(Rows):
        version = 0

    rows = torch.zeros(10, 2)
    source = Changing(rows)
    got = []
    for ids, x in Prefetcher([torch.tensor([step]) for step in range(5)], source, device="cpu", lookahead=2):
        got.append(float(x[0, 0]))
        rows += 1
        source.version += 1
        assert len(ids) == 1
    assert got == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("lookahead", [1, 2])
def test_rows_that_were_gathered_across_a_change_are_fetched_again(lookahead: int) -> None:
    """Even if the version before it is the present one again, as after an update that failed."""

    class Changing(Rows):
        version, gathers = 0, 0

        def gather(self, ids: torch.Tensor, **options: Any) -> torch.Tensor:
            self.gathers += 1
            rows = super().gather(ids, **options)
            if self.gathers == 1:
                self.version = 1  # what it was before is not known
            return rows

    source = Changing(RAW)
    batches = random_batches(lookahead)
    for _ in Prefetcher(batches, source, device="cpu", lookahead=lookahead):
        source.version = 0
    assert source.gathers == 1 + lookahead

"""What a kernel reads or writes outlives it, on whatever stream it runs, whoever drops or closes what.

A gather is launched behind a kernel that takes long, on a stream of its own; then its memory is let go of, and what is
freed is handed out again and written over. scripts/gpu_check.sh runs this folder with each of torch's allocators.
"""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
import torch

from ibp_gnn import Codec, CompressedFeatureStore, CompressedGPUCache, _native
from ibp_gnn.testing import assert_bitwise_equal, special_rows

pytestmark = pytest.mark.cuda

ROWS, WIDTH = 20_000, 128
CYCLES = 500_000_000  # of a kernel that takes about 0.3 s: long after the memory was written over
_SIZES_OF_TABLES = [64, 512, 1024, 4096, 32 << 10, 64 << 10]  # about those of counters and codecs
_JUNK = 0x7B


def make_rows(seed: int = 0) -> torch.Tensor:
    """Most fit their slots, some overflow; NaNs and zeros of both signs."""
    rows = torch.randn(ROWS, WIDTH, generator=torch.Generator().manual_seed(seed)) * 0.1
    rows[::97, 3], rows[::89, 5] = float("nan"), -0.0
    rows[::50] = special_rows(torch.float32, WIDTH, "random_bits", len(rows[::50]), seed=seed)
    return rows


ALL_ROWS = make_rows()
IDS = torch.randint(0, ROWS, (30_000,), generator=torch.Generator().manual_seed(1))


def build(rows: torch.Tensor = ALL_ROWS, **options: object) -> CompressedFeatureStore:
    return CompressedFeatureStore.build(rows, progress=False, **options)  # type: ignore[arg-type]


@contextmanager
def late(device: torch.device | str = "cuda") -> Iterator[torch.cuda.Stream]:
    """Launches in the block go to a stream of their own, and run when everybody else has long gone on."""
    stream = torch.cuda.Stream(device)
    stream.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(stream):
        torch.cuda._sleep(CYCLES)
        yield stream


def sizes_of(source: CompressedFeatureStore | CompressedGPUCache) -> list[int]:
    """Bytes of the buffers that a gather of it reads and writes."""
    rows = [source.rows] if isinstance(source, CompressedFeatureStore) else [source.store.rows, source._cache]
    sizes = [part.numel() for one in rows for part in (one.slots, one.bitmask, one.overflow)]
    return [*sizes, 4 * ROWS, *_SIZES_OF_TABLES]


def write_over_what_is_free(sizes: list[int], device: str = "cuda") -> list[torch.Tensor]:
    """Takes memory of these sizes, on the GPU and the CPU: an allocator gives what was freed last. Fills it. The caller
    holds it until it has looked at the results."""
    junk = [torch.full((size,), _JUNK, dtype=torch.uint8, device=device) for size in sizes for _ in range(4)]
    junk += [torch.full((size,), _JUNK, dtype=torch.uint8) for size in sizes for _ in range(2)]
    torch.cuda.current_stream(device).synchronize()
    return junk


def source_of(kind: str, store: CompressedFeatureStore) -> CompressedFeatureStore | CompressedGPUCache:
    if kind == "store":
        return store
    if kind == "prefix":
        return CompressedGPUCache(store, f"{ROWS // 2} rows")
    return CompressedGPUCache(store, f"{ROWS // 2} rows", hot_ids=torch.randperm(ROWS)[: ROWS // 2])


@pytest.mark.parametrize("ordered", [False, True])
@pytest.mark.parametrize("end", ["drop", "close", "close the store", "drop the store"])
@pytest.mark.parametrize("codec", ["dict", "ibp"])
@pytest.mark.parametrize("kind", ["store", "prefix", "hot_ids"])
def test_gathers_in_flight(kind: str, codec: str, end: str, ordered: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if kind == "store" and end == "drop":
        pytest.skip("the store is all that there is to drop")
    if ordered:
        monkeypatch.setattr("ibp_gnn.codec.gather._ORDER_FOOTPRINT_BYTES", 0)
    store = build(codec=codec, order=torch.randperm(ROWS) if ordered else None)
    source = source_of(kind, store)
    source.gather(IDS[:10], device="cuda")  # what is made at the first call
    ids, sizes = IDS.cuda(), sizes_of(source)
    gc.collect()  # not later, when it would take the time that the kernel waits
    with late() as stream:
        got = source.gather(ids)
    if end == "close":
        source.close()
    elif end == "close the store":
        store.close()
    del source
    if end != "drop":
        del store
    junk = write_over_what_is_free(sizes)
    stream.synchronize()
    assert_bitwise_equal(got.cpu(), ALL_ROWS[IDS])
    del junk


def test_a_codec_in_use() -> None:
    """The tables of a codec that is gone are read to the end. (Compressing and decompressing wait for the GPU.)"""
    rows, wanted = ALL_ROWS.cuda(), Codec.fit(ALL_ROWS, codec="dict").measure(ALL_ROWS)
    codec = Codec.fit(ALL_ROWS, codec="dict")
    codec.measure(rows[:1])  # makes the tables
    gc.collect()
    with late() as stream:
        got = codec.measure(rows)
    del codec
    junk = write_over_what_is_free(8 * _SIZES_OF_TABLES)
    stream.synchronize()
    assert_bitwise_equal(got.cpu(), wanted)
    del junk


@pytest.mark.parametrize("kind", ["store", "prefix"])
def test_ids_and_results_of_another_stream(kind: str) -> None:
    store = build()
    source = source_of(kind, store)
    source.gather(IDS[:10], device="cuda")
    ids, out = IDS.cuda(), torch.empty(len(IDS), WIDTH, device="cuda")
    copies = []
    with late() as stream:
        source.gather(ids, out=out)
        copies.append(out.clone())
    sizes = ids.nbytes, out.nbytes
    del ids, out
    junk = [torch.full((size,), _JUNK, dtype=torch.uint8, device="cuda") for size in sizes for _ in range(3)]
    stream.synchronize()
    source.check()
    assert_bitwise_equal(copies[0].cpu(), ALL_ROWS[IDS])
    del junk


@pytest.mark.parametrize("kind", ["store", "prefix"])
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_ids_that_are_written_over_after_the_call(kind: str, dtype: torch.dtype) -> None:
    store = build()
    source = source_of(kind, store)
    source.gather(IDS[:10], device="cuda")
    for pinned in (True, False):
        ids = IDS.to(dtype, copy=True)
        if pinned:
            ids = ids.pin_memory()
        with late() as stream:
            got = source.gather(ids, device="cuda")
            ids.fill_(0)
        stream.synchronize()
        assert_bitwise_equal(got.cpu(), ALL_ROWS[IDS])


def test_a_closed_cache() -> None:
    with build() as store:
        with CompressedGPUCache(store, "10 rows") as cache:
            used = torch.cuda.memory_allocated()
        if not os.environ.get("PYTORCH_NO_CUDA_MEMORY_CACHING"):  # torch counts nothing then
            assert torch.cuda.memory_allocated() < used, "its memory is free"
        with pytest.raises(ValueError, match="this CompressedGPUCache is closed"):
            cache.gather(torch.tensor([1], device="cuda"))
        assert repr(cache) == "CompressedGPUCache(closed)"
        cache.close()
        store.update(torch.tensor([1]), ALL_ROWS[:1])  # reaches those that are open
        other = CompressedGPUCache(store, "10 rows")
        with pytest.raises(TypeError, match="belongs to its process; send its store"):
            import pickle

            pickle.dumps(other)
    for closed in (other.gather, store.gather):
        with pytest.raises(ValueError, match="is closed"):
            closed(torch.tensor([1], device="cuda"))


def test_errors_of_gathers_are_raised_by_close() -> None:
    for make in (lambda store: store, lambda store: CompressedGPUCache(store, "10 rows")):
        store = build()
        source = make(store)
        source.gather(torch.tensor([ROWS], device="cuda"))
        with pytest.raises(IndexError, match=f"got {ROWS} in an earlier gather"):
            source.close()
        with pytest.raises(ValueError, match="closed"):
            source.gather(torch.tensor([1], device="cuda"))


def run_threads(works: list[Callable[[], None]]) -> None:
    failures: list[BaseException] = []

    def run(work: Callable[[], None]) -> None:
        try:
            with torch.cuda.stream(torch.cuda.Stream()):
                work()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=run, args=(work,)) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
        assert not thread.is_alive(), "deadlock"
    if failures:
        raise failures[0]


def test_first_gathers_of_several_threads() -> None:
    """They page-lock once, make the codec's tables once, and have the right rows."""
    for _ in range(5):
        store = build()
        barrier = threading.Barrier(4)

        def gather(store: CompressedFeatureStore = store, barrier: threading.Barrier = barrier) -> None:
            barrier.wait(60)
            assert_bitwise_equal(store.gather(IDS.cuda()).cpu(), ALL_ROWS[IDS])

        run_threads([gather] * 4)
        store.close()


def test_closing_while_others_gather() -> None:
    """They get the right rows, or are told that it is closed."""
    for closes_store in (True, False):
        for _ in range(5):
            store = build()
            cache = CompressedGPUCache(store, f"{ROWS // 2} rows")
            started = threading.Barrier(4)

            def gather(cache: CompressedGPUCache = cache, started: threading.Barrier = started) -> None:
                ids = IDS.cuda()
                results = [cache.gather(ids)]
                started.wait(60)
                try:
                    while True:
                        results[1:] = [cache.gather(ids)]
                except ValueError as error:
                    assert "closed" in str(error)
                for got in results:
                    assert_bitwise_equal(got.cpu(), ALL_ROWS[IDS])

            def close(
                store: CompressedFeatureStore = store,
                cache: CompressedGPUCache = cache,
                started: threading.Barrier = started,
                closes_store: bool = closes_store,
            ) -> None:
                started.wait(60)
                (store if closes_store else cache).close()

            run_threads([gather] * 3 + [close])
            store.close()


def test_threads_that_do_anything() -> None:
    """Updates, gathers from the store and from caches that come and go, each thread on a stream of its own; every
    thread owns some rows, which it alone changes and reads."""
    store = build()
    threads = 4
    shared = CompressedGPUCache(store, f"{ROWS // 3} rows")

    def work(number: int) -> None:
        generator = torch.Generator().manual_seed(number)
        mine = torch.arange(number, ROWS, threads)
        wanted = ALL_ROWS[mine].clone()
        cache, results = shared, []
        for step in range(40):
            picked = torch.randint(0, len(mine), (3000,), generator=generator)
            source = (store, shared, cache)[step % 3]
            ids = mine[picked] if step % 2 else mine[picked].cuda()
            results.append((source.gather(ids, device="cuda"), wanted[picked]))
            if step % 5 == number:
                changed = torch.randperm(len(mine), generator=generator)[:500]
                rows = make_rows(step)[changed]
                if step % 2:
                    rows = special_rows(torch.float32, WIDTH, "random_bits", len(changed), seed=step)
                store.update(mine[changed], rows)
                wanted = wanted.clone()
                wanted[changed] = rows
            if step % 7 == number:
                if cache is not shared and step % 2:
                    cache.close()
                cache = CompressedGPUCache(store, "2000 rows", hot_ids=mine[:2000])
            if len(results) > 5:
                got, want = results.pop(0)
                assert_bitwise_equal(got.cpu(), want)
        for got, want in results:
            assert_bitwise_equal(got.cpu(), want)

    run_threads([lambda number=number: work(number) for number in range(threads)])
    shared.check()
    store.close()


def test_other_threads_run_while_memory_is_page_locked() -> None:
    buffer = torch.zeros(1 << 30, dtype=torch.uint8)
    longest, stop, running = [0.0], threading.Event(), threading.Event()

    def run() -> None:
        before = time.perf_counter()
        while not stop.is_set():
            now = time.perf_counter()
            longest[0], before = max(longest[0], now - before), now
            running.set()

    thread = threading.Thread(target=run)
    thread.start()
    try:
        running.wait(60)
        start = time.perf_counter()
        longest[0] = 0.0
        _native.cuda().register_host_memory(buffer.data_ptr(), buffer.numel())
        took = time.perf_counter() - start
        _native.cuda().unregister_host_memory(buffer.data_ptr())
    finally:
        stop.set()
        thread.join()
    assert longest[0] < took / 2, f"a pause of {longest[0]:.3f} s in {took:.3f} s"


def test_capturing_wants_ids_on_the_gpu() -> None:
    with build() as store:
        out = torch.empty(10, WIDTH, device="cuda")
        ids = torch.arange(10).pin_memory()
        store.gather(ids, out=out, device="cuda")
        graph = torch.cuda.CUDAGraph()
        with (
            pytest.raises(RuntimeError, match="ids: want ids on cuda:0 while a CUDA graph is captured, got ids on cpu"),
            torch.cuda.graph(graph),
        ):
            store.gather(ids, out=out, device="cuda")
        assert_bitwise_equal(store.gather(ids, device="cuda").cpu(), ALL_ROWS[:10])


@pytest.mark.skipif(
    bool(os.environ.get("PYTORCH_NO_CUDA_MEMORY_CACHING")), reason="torch frees memory at once, which no capture allows"
)
def test_dropping_a_cache_while_another_thread_captures_a_graph() -> None:
    with build() as store:
        caches = [CompressedGPUCache(store, "10 rows") for _ in range(4)]
        ids, out = torch.arange(10, device="cuda"), torch.empty(10, WIDTH, device="cuda")
        for cache in caches:
            cache.gather(ids, out=out)
        del cache
        store.gather(ids, out=out)
        torch.cuda.synchronize()
        captured = torch.cuda.CUDAGraph()
        with torch.cuda.graph(captured):
            caches[0].gather(ids, out=out)  # this one is in a graph itself
        del captured
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            store.gather(ids, out=out)
            for _ in range(2):
                dropping = threading.Thread(target=lambda: caches.pop().version)
                dropping.start()
                dropping.join(60)
            caches.clear()
        ids.copy_(torch.arange(10, 20))
        graph.replay()
        assert_bitwise_equal(out.cpu(), ALL_ROWS[10:20])
        torch.cuda.synchronize()


_FORK = """
import gc, os, sys, torch, ibp_gnn
x = torch.rand(2000, 64)
store = ibp_gnn.CompressedFeatureStore.build(x, pin=True, progress=False)
cache = ibp_gnn.CompressedGPUCache(store, 0.5)
cache.gather(torch.arange(10, device="cuda"))
torch.cuda.synchronize()
child = os.fork()
if child == 0:
    torch.set_num_threads(1)  # those of the parent's pool are not here
    same = torch.equal(store.gather(torch.arange(2000)), x)
    del cache, store
    gc.collect()
    sys.exit(0 if same else 3)
_, status = os.waitpid(child, 0)
same = torch.equal(cache.gather(torch.arange(2000, device="cuda")).cpu(), x)
sys.exit(status or not same)
"""


def test_a_forked_child_drops_what_it_inherited() -> None:
    run = subprocess.run([sys.executable, "-W", "ignore", "-c", _FORK], capture_output=True, text=True, timeout=300)
    assert run.returncode == 0 and run.stderr == "", run.stderr


def test_many_plans_do_not_make_the_process_grow() -> None:
    rows = ALL_ROWS[:2000]

    def churn(times: int) -> tuple[int, int]:
        for _ in range(times):
            store = build(rows)
            CompressedGPUCache(store, 0.5).gather(IDS[:100] % 2000, device="cuda")
        gc.collect()
        torch.cuda.synchronize()
        resident = int(open("/proc/self/statm").read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
        return resident, torch.cuda.memory_allocated()

    before, after = churn(20), churn(100)
    assert after[0] - before[0] < 50 << 20 and after[1] <= before[1]


two_gpus = pytest.mark.skipif(torch.cuda.device_count() < 2, reason="one GPU")


@two_gpus
@pytest.mark.parametrize("end", ["drop", "close"])
def test_a_store_that_another_gpu_still_reads(end: str) -> None:
    store = build()
    cache = CompressedGPUCache(store, f"{ROWS // 2} rows", device="cuda:1")
    ids = IDS.to("cuda:1")
    cache.gather(ids), store.gather(ids)
    sizes = sizes_of(cache)
    gc.collect()
    with late("cuda:1") as stream:
        results = [cache.gather(ids), store.gather(ids)]
    if end == "close":
        store.close()
    del store, cache
    junk = write_over_what_is_free(sizes, "cuda:1")
    stream.synchronize()
    for got in results:
        assert_bitwise_equal(got.cpu(), ALL_ROWS[IDS])
    del junk


_CONTEXTS = """
import torch, ibp_gnn
x = torch.rand(2000, 64)
store = ibp_gnn.CompressedFeatureStore.build(x, progress=False)
cache = ibp_gnn.CompressedGPUCache(store, 0.5, device="cuda:1")
assert torch.equal(cache.gather(torch.arange(2000), device="cuda:1").cpu(), x)
assert torch.equal(store.gather(torch.arange(2000), device="cuda:1").cpu(), x)
store.update(torch.arange(3), x[3:6])
store.close()
import threading
def gather():
    cache = ibp_gnn.CompressedGPUCache(again, 0.5, device="cuda:1")
    cache.gather(ids, out=out)
again = ibp_gnn.CompressedFeatureStore.build(x, progress=False)
ids, out = torch.arange(100, device="cuda:1"), torch.empty(100, 64, device="cuda:1")
thread = threading.Thread(target=gather)  # its current device is 0
thread.start()
thread.join()
assert torch.equal(out.cpu(), x[:100])
assert not torch._C._cuda_hasPrimaryContext(0)
"""


@two_gpus
def test_no_context_on_a_gpu_that_nobody_asked_for() -> None:
    run = subprocess.run([sys.executable, "-c", _CONTEXTS], capture_output=True, text=True, timeout=300)
    assert run.returncode == 0, run.stderr

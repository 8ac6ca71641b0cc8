"""CompressedGPUCache. What needs no GPU is tested without one."""

from __future__ import annotations

import pytest
import torch

from ibp_gnn import CompressedFeatureStore, CompressedGPUCache, _native
from ibp_gnn.codec.values import to_bytes
from ibp_gnn.gpu.cache import hot_order, rows_that_fit
from ibp_gnn.testing import assert_bitwise_equal, special_rows

ROWS, WIDTH = 3000, 50


def features() -> torch.Tensor:
    rows = special_rows(torch.float32, WIDTH, "outliers", ROWS)
    rows[::13] = special_rows(torch.float32, WIDTH, "random_bits", len(rows[::13]))
    return rows


@pytest.fixture
def store() -> CompressedFeatureStore:
    return CompressedFeatureStore.build(features(), progress=False)


def test_hottest_rows_come_first(store: CompressedFeatureStore) -> None:
    hotness = torch.randint(0, 50, (ROWS,))
    order = hot_order(store, hotness, None)
    assert order.sort().values.tolist() == list(range(ROWS))
    pairs = [(-int(hotness[row]), int(row)) for row in order]
    assert pairs == sorted(pairs), "by falling hotness, then by rising id"
    assert hot_order(store, None, torch.tensor([5, 3], dtype=torch.int32)).tolist() == [5, 3]
    assert hot_order(store, None, None).tolist() == list(range(ROWS))


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"hotness": torch.ones(5)}, ValueError, r"hotness: want shape \[3000\], got \[5\]"),
        ({"hotness": torch.full((ROWS,), float("nan"))}, ValueError, "hotness: want numbers, got NaN"),
        ({"hot_ids": torch.tensor([0, ROWS])}, IndexError, "want 0 <= id < 3000, got 3000 at position 1"),
        ({"hot_ids": torch.tensor([1, 1])}, ValueError, "hot_ids: want distinct ids, got 1 repeats"),
        ({"hot_ids": torch.tensor([1.5])}, TypeError, "hot_ids: want int32 or int64"),
        ({"hot_ids": torch.tensor([1]), "hotness": torch.ones(ROWS)}, ValueError, "want at most one of them, got both"),
    ],
)
def test_bad_hotness_is_refused(store: CompressedFeatureStore, options: dict, error: type, message: str) -> None:
    with pytest.raises(error, match=message):
        hot_order(store, options.get("hotness"), options.get("hot_ids"))


def test_the_rows_that_fit_are_counted_to_the_byte(store: CompressedFeatureStore) -> None:
    order = torch.randperm(ROWS, generator=torch.Generator().manual_seed(0))
    fixed = 4 * ROWS + store.rows.bitmask.numel() + store.codec.form.device_nbytes
    for wanted in (1, 2, 31, 32, 33, 999, ROWS):
        needed = fixed + store.rows.select(order[:wanted]).nbytes
        assert rows_that_fit(store, order, needed, needed, fixed) == wanted
        if wanted > 1:
            assert rows_that_fit(store, order, needed - 1, needed - 1, fixed) == wanted - 1
    with pytest.raises(ValueError, match=rf"want at least {fixed + store.rows.select(order[:1]).nbytes} bytes"):
        rows_that_fit(store, order, fixed, fixed, fixed)
    everything = fixed + store.rows.select(order).nbytes
    with pytest.warns(UserWarning, match=f"more than the {everything} bytes that caching {ROWS} rows takes"):
        assert rows_that_fit(store, order, everything + 1, everything + 1, fixed) == ROWS


@pytest.mark.cuda
@pytest.mark.parametrize("share", [0.3, 0.7, 1.0])
@pytest.mark.parametrize("layout", ["compact", "inplace", "packed"])
@pytest.mark.parametrize("ids_dtype", [torch.int32, torch.int64])
@pytest.mark.parametrize("codec", ["ibp", "dict"])
def test_hits_and_misses_have_the_stores_bits(share: float, layout: str, ids_dtype: torch.dtype, codec: str) -> None:
    rows = features()
    with CompressedFeatureStore.build(rows, codec, layout=layout, progress=False) as store:
        hotness = torch.rand(ROWS)
        cache = CompressedGPUCache(store, int(store.nbytes * share) + 4 * ROWS, hotness=hotness)
        assert cache.nbytes <= int(store.nbytes * share) + 4 * ROWS
        cached = set(torch.argsort(hotness, descending=True, stable=True)[: cache.num_cached].tolist())
        for size in (0, 1, 50, ROWS, 40000):
            cache.reset_stats()
            ids = torch.randint(0, ROWS, (size,), dtype=ids_dtype)
            for holder in ("cpu", "cuda"):
                assert_bitwise_equal(cache.gather(ids.to(holder), device="cuda").cpu(), rows[ids])
            stats = cache.stats()
            hits = sum(row in cached for row in ids.tolist())
            assert (stats.hits, stats.misses) == (2 * hits, 2 * (size - hits))
            assert stats.raw_bytes == stats.misses * WIDTH * 4
            assert (stats.pcie_bytes > 0) == (stats.misses > 0)
            assert stats.miss_rate == pytest.approx((size - hits) / size if size else 0)


@pytest.mark.cuda
def test_a_cache_built_from_given_ids() -> None:
    rows = features()
    with CompressedFeatureStore.build(rows, progress=False) as store:
        hot = torch.tensor([7, 2999, 13, 26])
        cache = CompressedGPUCache(store, "4 rows", hot_ids=hot)
        assert cache.num_cached == 4
        assert_bitwise_equal(cache.gather(hot.cuda()).cpu(), rows[hot])
        assert cache.stats().misses == 0
        assert_bitwise_equal(cache.gather(torch.arange(ROWS)), rows)  # to the CPU: from the store
        assert cache.shape == (ROWS, WIDTH) and cache.dtype == torch.float32 and len(cache) == ROWS


@pytest.mark.cuda
def test_errors_of_a_cache() -> None:
    with CompressedFeatureStore.build(features(), progress=False) as store:
        with pytest.raises(ValueError, match="device: want cuda, got cpu"):
            CompressedGPUCache(store, "auto", device="cpu")
        with pytest.raises(ValueError, match="capacity: want at least"):
            CompressedGPUCache(store, 100)
        cache = CompressedGPUCache(store, 0.5)
        with pytest.raises(IndexError, match="got 3000 at position 0"):
            cache.gather(torch.tensor([ROWS]), device="cuda")
        cache.gather(torch.tensor([ROWS], device="cuda"))
        with pytest.raises(IndexError, match="got 3000 in an earlier gather"):
            cache.check()
        assert CompressedGPUCache(store, "auto").num_cached == ROWS
    with CompressedFeatureStore.build(features(), pin=False, progress=False) as store:
        with pytest.raises(RuntimeError, match="not page-locked"):
            CompressedGPUCache(store, 0.5)
    with pytest.raises(ValueError, match="closed"):
        CompressedGPUCache(store, 0.5)


@pytest.mark.skipif(torch.cuda.is_available(), reason="a machine without a GPU")
def test_without_a_gpu_a_cache_is_refused(store: CompressedFeatureStore) -> None:
    with pytest.raises(RuntimeError, match="device: want one that torch can use, got cuda"):
        CompressedGPUCache(store, "1GB")


@pytest.mark.cuda
def test_a_cache_of_an_ordered_store_has_its_rows() -> None:
    rows = features()
    order = torch.randperm(ROWS, generator=torch.Generator().manual_seed(2))
    with CompressedFeatureStore.build(rows, order=order, progress=False) as ordered:
        cache = CompressedGPUCache(ordered, "700 rows", hot_ids=order[:700])
        ids = torch.randint(0, ROWS, (5000,), device="cuda")
        assert_bitwise_equal(cache.gather(ids).cpu(), rows[ids.cpu()])
        hot = torch.isin(ids.cpu(), order[:700])
        assert cache.stats().hits == int(hot.sum())
        with pytest.raises(IndexError, match=rf"got {ROWS} in an earlier gather"):
            cache.gather(torch.tensor([ROWS], device="cuda"))
            cache.check()


@pytest.mark.cuda
@pytest.mark.parametrize("codec", ["ibp", "dict"])
def test_without_hot_ids_the_cache_is_the_stores_prefix(codec: str) -> None:
    rows = features()
    order = torch.randperm(ROWS, generator=torch.Generator().manual_seed(3))
    ids = torch.randint(0, ROWS, (5000,))
    for given, first in ((order, order[:700]), (None, torch.arange(700))):
        with CompressedFeatureStore.build(rows, codec, order=given, progress=False) as store:
            cache = CompressedGPUCache(store, "700 rows")
            for each in (ids, ids.to(torch.int32)):
                cache.reset_stats()
                assert_bitwise_equal(cache.gather(each.cuda()).cpu(), rows[ids])
                assert cache.stats().hits == int(torch.isin(ids, first).sum())
            table = 0 if given is None else 4 * ROWS
            fixed = table + store.rows.bitmask.numel() + store.codec.form.device_nbytes
            assert cache.nbytes == fixed + store.rows.select(store.to_slots(first)).nbytes


@pytest.mark.cuda
@pytest.mark.parametrize("codec", ["ibp", "dict"])
@pytest.mark.parametrize("ids_dtype", [torch.int32, torch.int64])
@pytest.mark.parametrize("size", [1, 31, 4096, 100_000])
def test_the_order_of_fetching_changes_no_row(codec: str, ids_dtype: torch.dtype, size: int) -> None:
    rows = features()
    order = torch.randperm(ROWS, generator=torch.Generator().manual_seed(4))
    for given in (None, order):
        with CompressedFeatureStore.build(rows, codec, order=given, progress=False) as store:
            cache = CompressedGPUCache(store, "500 rows", hot_ids=order[500:1000])
            for gather in (store.gather_on(cache.device), cache._gather):
                ids = torch.randint(0, ROWS, (size,), dtype=ids_dtype)
                out = torch.full((size, WIDTH), float("nan"), device="cuda")
                for blocks in (0, 3):
                    gather.gather(ids.cuda(), to_bytes(out), ordered=True, max_blocks=blocks)
                    assert_bitwise_equal(out.cpu(), rows[ids])
                ids[size // 2] = ROWS + 5
                gather.gather(ids.cuda(), to_bytes(out), ordered=True)
                good = torch.arange(size) != size // 2
                assert_bitwise_equal(out.cpu()[good], rows[ids[good]])
                assert_bitwise_equal(out[size // 2].cpu(), torch.zeros(WIDTH))
                with pytest.raises(IndexError, match=f"got {ROWS + 5} in an earlier gather"):
                    gather.check()


@pytest.mark.cuda
def test_gathers_in_a_cuda_graph() -> None:
    rows = features()
    with CompressedFeatureStore.build(rows, "dict", progress=False) as store:
        cache = CompressedGPUCache(store, "1000 rows")
        ids, out = torch.arange(2000, device="cuda"), torch.empty(2000, WIDTH, device="cuda")
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            cache.gather(ids, out=out)  # outside of the capture: what is made at the first call
        stream.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            cache.gather(ids, out=out)
        for seed in range(3):
            wanted = torch.randint(0, ROWS, (2000,), generator=torch.Generator().manual_seed(seed))
            ids.copy_(wanted)
            graph.replay()
            assert_bitwise_equal(out.cpu(), rows[wanted])
        torch.cuda.synchronize()


@pytest.mark.cuda
def test_the_miss_rate_is_known_without_waiting() -> None:
    with CompressedFeatureStore.build(features(), progress=False) as store:
        cache = CompressedGPUCache(store, "1000 rows")
        unseen = 0  # hits of gathers that were too small to look at the counters after them
        for first_id in (0, 1000, 500):
            ids = torch.arange(first_id, first_id + 1000).repeat(_native.cuda().SHOW_EVERY_IDS // 1000 + 1)
            rate = int((ids >= 1000).sum()) / (unseen + len(ids))
            cache.gather(ids, device="cuda")
            torch.cuda.synchronize()
            assert cache._gather.miss_rate_lately() == rate
            cache.gather(torch.arange(10), device="cuda")
            unseen = 10
            torch.cuda.synchronize()
            assert cache._gather.miss_rate_lately() == rate
        assert CompressedGPUCache(store, f"{ROWS} rows")._gather.miss_rate_lately() == 0

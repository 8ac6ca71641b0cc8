"""ShardedGPUCache: the bits of the store, within its memory, however rows are split. One process here."""

from __future__ import annotations

import importlib.util

import pytest
import torch

from ibp_gnn import CompressedFeatureStore
from ibp_gnn.gpu.cache import fixed_bytes
from ibp_gnn.integrations.wholegraph_cache import Placement, choose_split
from ibp_gnn.testing import assert_bitwise_equal, special_rows
from ibp_gnn.wholegraph import ShardedGPUCache, Split

ROWS, WIDTH = 3000, 40
PLACEMENTS: list[Placement] = ["auto", "replicate", "shard"]
needs_wholegraph = [
    pytest.mark.cuda,
    pytest.mark.skipif(importlib.util.find_spec("pylibwholegraph") is None, reason="WholeGraph is not installed"),
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]


def test_shards_hold_as_many_times_more_as_there_are_gpus() -> None:
    each = torch.full((100_000,), 448)
    replicated = choose_split(each, 4_000_000, 4, "replicate")
    sharded = choose_split(each, 4_000_000, 4, "shard")
    assert replicated.sharded == 0 and sharded.replicated == 0
    assert 3.97 * replicated.replicated <= sharded.sharded <= 4 * replicated.replicated


@pytest.mark.parametrize("placement", PLACEMENTS)
@pytest.mark.parametrize("size", [1, 2, 8])
def test_within_the_room(placement: Placement, size: int) -> None:
    draw = torch.Generator().manual_seed(0)
    each = torch.randint(100, 900, (5000,), generator=draw)
    for room in (2000, 50_000, 400_000, 100_000_000):
        split = choose_split(each, room, size, placement, torch.arange(5000, 0, -1).double())
        assert sum(split) <= len(each)
        own = int(each[: split.replicated].sum()) + -(-int(each[split.replicated : sum(split)].sum()) // size)
        assert own + (sum(split) + 7) // 8 <= room


def test_auto_replicates_what_is_hot_and_shards_the_rest() -> None:
    each = torch.full((100_000,), 400)
    skewed = choose_split(each, 8_000_000, 4, "auto", torch.arange(1, 100_001).double() ** -1.2)
    flat = choose_split(each, 8_000_000, 4, "auto", torch.ones(100_000).double())
    assert 0 < skewed.replicated < 20_000 and skewed.sharded > 0
    assert flat.replicated == 0 and flat.sharded > 70_000
    assert choose_split(each, 8_000_000, 4, "auto") == choose_split(each, 8_000_000, 4, "shard")


def test_rows_as_the_limit() -> None:
    ones = torch.ones(1000, dtype=torch.int64)
    assert choose_split(ones, 100, 4, "replicate", row_bits=False) == Split(100, 0)
    assert choose_split(ones, 100, 4, "shard", row_bits=False) == Split(0, 400)
    assert choose_split(ones, 100, 1, "auto", row_bits=False) == Split(100, 0)


def store_of(dtype: torch.dtype, order: torch.Tensor | None = None) -> tuple[torch.Tensor, CompressedFeatureStore]:
    rows = special_rows(dtype, WIDTH, "outliers", ROWS)
    rows[::7] = special_rows(dtype, WIDTH, "random_bits", len(rows[::7]))  # they overflow
    return rows, CompressedFeatureStore.build(rows, order=order, progress=False)


@pytest.mark.parametrize("placement", ["replicate", "shard"])
@pytest.mark.parametrize("size", [1, 8])
def test_a_cache_without_rows_is_refused(placement: Placement, size: int) -> None:
    """Whatever the tables leave."""
    _, store = store_of(torch.float32)
    cache = object.__new__(ShardedGPUCache)  # to choose takes no GPU
    cache.store, cache.device, cache._size, cache._placement = store, torch.device("cpu"), size, placement
    messages = set()
    with store:
        for capacity in range(1, fixed_bytes(store, is_prefix=False) + 1000, 7):
            cache._capacity = capacity
            try:
                _, split = cache._choose(None, None)
            except ValueError as error:
                messages.add(str(error).rpartition(",")[0])
            else:
                assert sum(split) > 0
        (message,) = messages
        cache._capacity = int(message.split()[-4])
        assert message.startswith("capacity_per_gpu: want at least one row beside the tables, for which ")
        assert sum(cache._choose(None, None)[1]) > 0
        cache._capacity = "1 rows"
        assert sum(cache._choose(None, None)[1]) == (size if placement == "shard" else 1)


class TestOnGpu:
    pytestmark = needs_wholegraph

    @pytest.mark.parametrize("placement", PLACEMENTS)
    @pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.uint8], ids=str)
    @pytest.mark.parametrize("is_ordered", [False, True])
    def test_bits(self, placement: Placement, dtype: torch.dtype, is_ordered: bool) -> None:
        order = torch.randperm(ROWS, generator=torch.Generator().manual_seed(2)) if is_ordered else None
        rows, store = store_of(dtype, order)
        scores = torch.rand(ROWS, generator=torch.Generator().manual_seed(1))
        ids = torch.randint(0, ROWS, (5000,), generator=torch.Generator().manual_seed(3))
        with store, ShardedGPUCache(store, "700 rows", placement=placement, hotness=scores) as cache:
            assert cache.num_cached == 700
            assert cache.split == (Split(0, 700) if placement == "shard" else Split(700, 0))
            cache.count_tiers()
            assert_bitwise_equal(cache.gather(ids, device="cuda").cpu(), rows[ids])
            assert_bitwise_equal(cache.gather(ids.int().cuda()).cpu(), rows[ids])
            assert_bitwise_equal(cache.gather(ids), rows[ids])  # to the CPU
            hot = torch.zeros(ROWS, dtype=torch.bool)
            hot[torch.argsort(scores, descending=True, stable=True)[:700]] = True
            hits = 2 * int(hot[ids].sum())
            assert cache.stats().hits == hits
            assert cache.tiers() == (hits, 0, 2 * len(ids) - hits)

    @pytest.mark.parametrize("placement", PLACEMENTS)
    def test_within_its_capacity(self, placement: Placement) -> None:
        rows, store = store_of(torch.float32)
        for capacity in (60_000, "100kB", 0.5):
            with ShardedGPUCache(store, capacity, placement=placement) as cache:
                limit = {60_000: 60_000, "100kB": 100_000, 0.5: store.nbytes // 2}[capacity]
                assert 0.9 * limit < cache.nbytes <= limit
                assert_bitwise_equal(cache.gather(torch.arange(ROWS), device="cuda").cpu(), rows)
        store.close()

    def test_updates_are_refused_and_change_nothing(self) -> None:
        rows, store = store_of(torch.float32)
        cache = ShardedGPUCache(store, "100 rows", placement="shard")
        with pytest.raises(RuntimeError, match="close it in all processes, update, and make another"):
            store.update(torch.tensor([3]), torch.zeros(1, WIDTH))
        assert_bitwise_equal(cache.gather(torch.arange(ROWS), device="cuda").cpu(), rows)
        cache.close()
        store.update(torch.tensor([3]), torch.zeros(1, WIDTH))
        assert float(store.gather(torch.tensor([3])).sum()) == 0
        store.close()

    def test_close(self) -> None:
        _, store = store_of(torch.float32)
        cache = ShardedGPUCache(store, "100 rows", placement="shard")
        store.close()
        assert repr(cache) == "ShardedGPUCache(closed)"
        cache.close()
        with pytest.raises(ValueError, match="closed"):
            cache.gather(torch.tensor([1]), device="cuda")

    def test_rebuilt_has_the_same_ids(self) -> None:
        _, store = store_of(torch.float32)
        ids = torch.tensor([7, 3, 2999])
        with store, ShardedGPUCache(store, "3 rows", placement="shard", hot_ids=ids) as cache:
            with cache.rebuilt(store) as again:
                again.gather(ids, device="cuda")
                assert again.stats().hits == 3 and isinstance(again, ShardedGPUCache)

    def test_bad_input(self) -> None:
        _, store = store_of(torch.float32)
        with store:
            with pytest.raises(ValueError, match="placement: want auto, replicate or shard, got 'all'"):
                ShardedGPUCache(store, "3 rows", placement="all")  # type: ignore[arg-type]
            with pytest.raises(ValueError, match="capacity_per_gpu: want at least one row"):
                ShardedGPUCache(store, 100)
            cache = ShardedGPUCache(store, "3 rows")
            with pytest.raises(IndexError, match="got 3000"):
                cache.gather(torch.tensor([3000]), device="cuda")
            with pytest.raises(ValueError, match="tiers: want count_tiers"):
                cache.tiers()

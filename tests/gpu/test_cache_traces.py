"""Traces of ids through a GPU cache: rows, and every counter, against what torch computes from the ids."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import pytest
import torch

from ibp_gnn import Codec, CompressedFeatureStore, CompressedGPUCache, GatherStats
from ibp_gnn.testing import special_rows

ROWS, CACHED, WIDTH = 100_000, 20_000, 50
ROW_BYTES = 4 * WIDTH
OVERFLOW_BYTES = ROW_BYTES + 4  # of a row in the overflow area, and of the index that says where
CODECS = ["ibp", "dict"]
IDS_DTYPES = [torch.int32, torch.int64]
# How the cache's rows are chosen: the first ones of a store in order of hotness, the first ids of a store without an
# order, given ones.
KINDS = ["prefix", "first_ids", "hot_ids"]


class Trace(NamedTuple):
    """A store, the ids that are cached, hottest first, and what the rows decode to, on the GPU."""

    store: CompressedFeatureStore
    hot: torch.Tensor  # all ids, on the CPU
    kind: str
    rows: torch.Tensor
    payload_bytes: torch.Tensor  # of each row, if it is stored as a payload, else 0

    def make_cache(self, num_cached: int = CACHED) -> CompressedGPUCache:
        hot_ids = self.hot[:num_cached] if self.kind == "hot_ids" else None
        cache = CompressedGPUCache(self.store, f"{num_cached} rows", hot_ids=hot_ids)
        assert cache.num_cached == num_cached
        cache.count_unique()
        return cache

    @property
    def is_cached(self) -> torch.Tensor:
        """bool [num_rows] on the GPU."""
        mask = torch.zeros(len(self.store), dtype=torch.bool)
        mask[self.hot[:CACHED]] = True
        return mask.cuda()


def make_trace(rows: torch.Tensor, codec: str | Codec, hot: torch.Tensor, kind: str) -> Trace:
    order = hot if kind == "prefix" else None
    store = CompressedFeatureStore.build(rows, codec, order=order, progress=False)
    ids = torch.arange(len(rows))
    is_payload = store.rows.is_compressed(store.to_slots(ids))
    assert store.layout == "compact"
    return Trace(store, hot, kind, rows.cuda(), (store.codec.measure(rows) * is_payload).cuda())


@pytest.fixture(scope="module", params=CODECS)
def codec(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="module", params=KINDS)
def trace(request: pytest.FixtureRequest, codec: str) -> Iterator[Trace]:
    """Rows of which every eighth overflows, or every sixteenth, and every fourth has a longer payload than others."""
    hot = torch.arange(ROWS)
    if request.param != "first_ids":
        hot = torch.randperm(ROWS, generator=torch.Generator().manual_seed(1))
    rows = special_rows(torch.float32, WIDTH, "outliers", ROWS)
    if codec == "dict":  # codes of 3 bits, for the kernel that most features take
        usual = torch.arange(ROWS) % 16 != 5
        rows[usual] = torch.randn(int(usual.sum()), WIDTH, generator=torch.Generator().manual_seed(5)) * 0.1
    noisy = 13 if codec == "ibp" else 3
    rows[3::4, :noisy] = special_rows(torch.float32, noisy, "random_bits", ROWS // 4)
    made = make_trace(rows, codec, hot, request.param)
    assert 0.06 < float((made.payload_bytes == 0).double().mean()) < 0.13
    if codec == "ibp":  # the first bytes that are fetched do not suffice for all
        assert 0 < made.store.lead_bytes < int(made.payload_bytes.max()) - 16
    yield made
    made.store.close()


@pytest.fixture(params=["ordered", "default"])
def ordering(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Whether ids are sorted by place however few the bytes and the misses are."""
    if request.param == "ordered":
        monkeypatch.setattr("ibp_gnn.codec.gather._ORDER_FOOTPRINT_BYTES", 0)
        monkeypatch.setattr("ibp_gnn.codec.gather._ORDER_MIN_MISSES", 0)
    return request.param


def zipf_batches(hot: torch.Tensor, sizes: list[int], seed: int) -> list[torch.Tensor]:
    """int64 ids on the CPU: the id at place r of `hot` comes with a probability that falls as 1 / (r + 1)."""
    rng = np.random.default_rng(seed)
    weights = 1 / np.arange(1, len(hot) + 1)
    return [hot[torch.from_numpy(rng.choice(len(hot), size, p=weights / weights.sum()))] for size in sizes]


def check_rows(got: torch.Tensor, wanted: torch.Tensor) -> None:
    """Both float32 on the GPU."""
    assert got.dtype == wanted.dtype and torch.equal(got.view(torch.int32), wanted.view(torch.int32))


def round_up(count: torch.Tensor | int, multiple: int = 16) -> torch.Tensor | int:
    return (count + multiple - 1) // multiple * multiple


def check_stats(stats: GatherStats, trace: Trace, ids: torch.Tensor) -> None:
    """ids: int64 on the GPU, all that were gathered since the last reset."""
    missed = ids[~trace.is_cached[ids]]
    assert (stats.hits, stats.misses) == (len(ids) - len(missed), len(missed))
    assert stats.raw_bytes == len(missed) * ROW_BYTES
    assert stats.unique == len(torch.unique(ids))
    store = trace.store
    payload_bytes = trace.payload_bytes[missed]
    payloads = payload_bytes[payload_bytes > 0]
    of_overflow = (len(missed) - len(payloads)) * OVERFLOW_BYTES
    # Whole blocks of 16 bytes: the first bytes of the slot, which starts anywhere in a block (with codec dict in a
    # sector of 32 bytes); where they do not suffice, blocks up to the payload's end once more.
    least = torch.maximum(payloads, torch.full_like(payloads, int(round_up(store.lead_bytes))))
    first = int(round_up(31 + store.lead_bytes))
    most = len(payloads) * first + int((round_up(31 + payloads) * (payloads + 31 > store.lead_bytes)).sum())
    assert of_overflow + int(least.sum()) <= stats.pcie_bytes <= of_overflow + most


@pytest.mark.cuda
@pytest.mark.parametrize("ids_dtype", IDS_DTYPES)
def test_zipf(trace: Trace, ordering: str, ids_dtype: torch.dtype) -> None:
    cache = trace.make_cache()
    assert cache._gather.plan.ordering_pays == (ordering == "ordered")
    batches = zipf_batches(trace.hot, [300_000, 1, 0, 77_777, 4096, 150_000], seed=2)
    for number, ids in enumerate(batches):
        held = ids.to(ids_dtype) if number == 3 else ids.cuda().to(ids_dtype)  # one of them in CPU memory
        check_rows(cache.gather(held, device="cuda"), trace.rows[ids.cuda()])
    everything = torch.cat(batches).cuda()
    assert 0.5 < float(trace.is_cached[everything].double().mean()) < 0.95
    check_stats(cache.stats(), trace, everything)

    cache.reset_stats()
    assert cache.stats() == GatherStats(unique=0)
    again = batches[3].cuda()
    check_rows(cache.gather(again.to(ids_dtype)), trace.rows[again])
    check_stats(cache.stats(), trace, again)
    cache.check()


@pytest.mark.cuda
@pytest.mark.parametrize("ids_dtype", IDS_DTYPES)
def test_one_id_again_and_again(trace: Trace, ordering: str, ids_dtype: torch.dtype) -> None:
    cache = trace.make_cache()
    count = 100_000
    is_payload = (trace.payload_bytes > 0).cpu()
    for is_hit, part in ((True, trace.hot[:CACHED]), (False, trace.hot[CACHED:])):
        for payload in (True, False):
            of_this_kind = part[is_payload[part] == payload]
            ids = of_this_kind[len(of_this_kind) // 2].repeat(count).cuda()
            cache.reset_stats()
            check_rows(cache.gather(ids.to(ids_dtype)), trace.rows[ids])
            stats = cache.stats()
            check_stats(stats, trace, ids)
            assert (stats.hits == count, stats.misses == count, stats.unique) == (is_hit, not is_hit, 1)
            assert stats.pcie_bytes % count == 0  # of each the same
            assert (stats.pcie_bytes == 0) == is_hit
            if not is_hit and not payload:
                assert stats.pcie_bytes == count * OVERFLOW_BYTES
    cache.check()


@pytest.mark.cuda
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("ids_dtype", IDS_DTYPES)
def test_every_id_a_miss_and_every_miss_an_overflow_row(
    codec: str, kind: str, ordering: str, ids_dtype: torch.dtype
) -> None:
    """The codec is made for the rows in the cache; all others are random bits."""
    num_rows = CACHED + CACHED // 10
    good = special_rows(torch.float32, WIDTH, "all_equal", CACHED)
    rows = torch.cat([good, special_rows(torch.float32, WIDTH, "random_bits", num_rows - CACHED)])
    hot = torch.arange(num_rows)
    if kind != "first_ids":
        at = torch.randperm(num_rows, generator=torch.Generator().manual_seed(3))
        rows, hot = rows[at], torch.argsort(at)
    trace = make_trace(rows, Codec.fit(good, codec=codec), hot, kind)
    is_payload = trace.payload_bytes > 0
    assert torch.equal(is_payload, trace.is_cached)
    cache = trace.make_cache()
    cold = hot[CACHED:].repeat(30).cuda()
    check_rows(cache.gather(cold.to(ids_dtype)), trace.rows[cold])
    wanted = GatherStats(0, len(cold), len(cold) * OVERFLOW_BYTES, len(cold) * ROW_BYTES, num_rows - CACHED)
    assert cache.stats() == wanted

    warm = hot[:CACHED].cuda()
    check_rows(cache.gather(warm.to(ids_dtype)), trace.rows[warm])
    assert cache.stats() == wanted + GatherStats(hits=CACHED, unique=CACHED)
    cache.check()
    trace.store.close()


@pytest.mark.cuda
@pytest.mark.parametrize("ids_dtype", IDS_DTYPES)
def test_bad_ids_in_the_middle_of_a_batch(trace: Trace, ordering: str, ids_dtype: torch.dtype) -> None:
    cache = trace.make_cache()
    (ids,) = zipf_batches(trace.hot, [60_001], seed=4)
    bad = {30_000: ROWS + 5, 30_001: -1, 45_000: ROWS, 59_999: 2**31 - 1}
    if ids_dtype is torch.int64:
        bad[30_002] = 2**40
    is_good = torch.ones(len(ids), dtype=torch.bool)
    is_good[list(bad)] = False
    wanted = trace.rows[ids.cuda()]
    wanted[~is_good.cuda()] = 0
    with_bad = ids.clone()
    for position, one in bad.items():
        with_bad[position] = one
    got = cache.gather(with_bad.to(ids_dtype).cuda())
    check_rows(got, wanted)
    check_stats(cache.stats(), trace, ids[is_good].cuda())
    named = "|".join(str(one) for one in bad.values())
    with pytest.raises(IndexError, match=rf"want 0 <= id < {ROWS}, got ({named}) in an earlier gather"):
        cache.check()
    cache.check()  # reported once
    check_rows(cache.gather(ids.to(ids_dtype).cuda()), trace.rows[ids.cuda()])
    cache.check()


@pytest.mark.cuda
def test_stats_of_caches_and_stores_add_up(trace: Trace) -> None:
    caches = [trace.make_cache(), trace.make_cache()]
    batches = zipf_batches(trace.hot, [5000, 7000], seed=5)
    for cache, ids in zip(caches, batches, strict=True):
        cache.gather(ids.cuda())
    first, second = (cache.stats() for cache in caches)
    both = first + second
    assert both.hits + both.misses == 12_000 and both.pcie_bytes == first.pcie_bytes + second.pcie_bytes
    assert both.unique == len(batches[0].unique()) + len(batches[1].unique())
    assert both + GatherStats() == both

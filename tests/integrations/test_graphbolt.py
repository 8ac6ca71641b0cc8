"""GraphBolt reads the rows of the tensor, bit for bit: with its own data pipes, and with the calls of its caches.

What samples needs GraphBolt's native library, so torch 2.2.1; scripts/test.sh runs this file there and on the current
torch, where the rest of it runs.
"""

from __future__ import annotations

import difflib
import multiprocessing
import os
import pickle
import re
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from cpu_cache import CpuCache
from exact_sources import CountingSource, TensorSource

pytest.importorskip("dgl")
pytest.importorskip("torchdata")

import dgl  # noqa: E402
from dgl import graphbolt as gb  # noqa: E402
from graphbolt_stand_ins import AsyncFetcher, CachedFeature  # noqa: E402
from on_disk_dataset import write_dataset  # noqa: E402

import ibp_gnn  # noqa: E402
from ibp_gnn import Codec, CompressedFeatureStore, CompressedGPUCache, GraphBoltFeatureStore  # noqa: E402
from ibp_gnn.graphbolt import CompressedFeature, require_native  # noqa: E402
from ibp_gnn.integrations.dgl_compat import graphbolt_is_native  # noqa: E402
from ibp_gnn.testing import assert_bitwise_equal  # noqa: E402

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*CPU affinity.*"),
    pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork.*:DeprecationWarning"),
]
native = pytest.mark.skipif(not graphbolt_is_native(), reason="GraphBolt's native library needs torch 2.0.0 to 2.2.1")

NUM_NODES, NUM_EDGES, BATCH = 3000, 12000, 64
FEAT, LABEL = ("node", None, "feat"), ("node", None, "label")
DTYPES = [torch.bfloat16, torch.int8, torch.float16, torch.float32, torch.int64, torch.bool]
ROW_SHAPES = [(), (1,), (3, 4)]
IDS = {
    "some": torch.tensor([5, 0, 77, 199]),
    "empty": torch.tensor([], dtype=torch.int64),
    "repeated": torch.tensor([9, 9, 0, 9, 0]),
    "int32": torch.tensor([3, 198, 3], dtype=torch.int32),
    "all": torch.arange(200),
}
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.cuda)]


def rows_of(dtype: torch.dtype, *shape: int, seed: int = 0) -> torch.Tensor:
    """Rows that compress, and some values that do not."""
    generator = torch.Generator().manual_seed(seed)
    if dtype == torch.bool:
        return torch.rand(shape, generator=generator) < 0.1
    rows = torch.rand(shape, generator=generator) * 16 + 16  # one exponent
    rows[torch.rand(shape[0], generator=generator) < 0.05] *= -0.01
    return rows.to(dtype)


def feature_of(rows: torch.Tensor, **options: Any) -> CompressedFeature:
    return CompressedFeature(CompressedFeatureStore.build(rows, progress=False), **options)


def compressed(features: Any, **options: Any) -> GraphBoltFeatureStore:
    return GraphBoltFeatureStore(features, progress=False, **options)


# One feature


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("ids", IDS)
@pytest.mark.parametrize("row_shape", ROW_SHAPES, ids=str)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_read(dtype: torch.dtype, row_shape: tuple[int, ...], ids: str, device: str) -> None:
    rows = rows_of(dtype, 200, *row_shape)
    feature, wanted = feature_of(rows), IDS[ids].to(device)
    got = feature.read(wanted)
    assert got.device == wanted.device
    assert_bitwise_equal(got, rows[IDS[ids].long()])
    (pending,) = feature.read_async(wanted)
    assert_bitwise_equal(pending.wait(), rows[IDS[ids].long()])
    assert feature.read_async_num_stages(torch.device(device)) == 1
    assert_bitwise_equal(feature.read(), rows)
    assert isinstance(feature, gb.Feature)
    assert (feature.size(), feature.count()) == (torch.Size(row_shape), 200)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("row_shape", ROW_SHAPES, ids=str)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_behind_a_gpu_cache(dtype: torch.dtype, row_shape: tuple[int, ...], device: str) -> None:
    rows = rows_of(dtype, 200, *row_shape)
    cached = CachedFeature(feature_of(rows), cache_rows=50, device=torch.device(device))
    for _ in range(2):  # the second time, some are cached
        for ids in IDS.values():
            wanted = ids.to(device)
            assert_bitwise_equal(cached.read(wanted), rows[ids.long()])
            *others, pending = cached.read_async(wanted)
            assert len(others) + 1 == cached.read_async_num_stages(wanted.device) == 2
            assert_bitwise_equal(pending.wait(), rows[ids.long()])
    assert_bitwise_equal(cached.read(), rows)
    assert (cached.size(), cached.count()) == (torch.Size(row_shape), 200)


@pytest.mark.parametrize("bad", [-1, 200, 2**40])
def test_an_id_out_of_range(bad: int) -> None:
    feature = feature_of(rows_of(torch.float16, 200, 3))
    ids = torch.tensor([3, bad, 7])
    want = rf"want 0 <= id < 200, got {bad}"
    with pytest.raises(IndexError, match=want):
        feature.read(ids)
    (pending,) = feature.read_async(ids)
    with pytest.raises(IndexError, match=want):
        pending.wait()
    cached = CachedFeature(feature, cache_rows=10, device=torch.device("cpu"))
    with pytest.raises(IndexError, match=want):
        cached.read(ids)
    assert_bitwise_equal(feature.read(torch.tensor([3])), feature.read()[3:4])


def test_ids_of_another_kind() -> None:
    feature = feature_of(rows_of(torch.float16, 200, 3))
    with pytest.raises(TypeError, match="ids: want int32 or int64, got torch.float32"):
        feature.read(torch.tensor([1.0]))
    with pytest.raises(ValueError, match=r"ids: want shape \[n\], got \[1, 2\]"):
        feature.read(torch.tensor([[1, 2]]))
    with pytest.raises(TypeError, match="ids: want an int32 or int64 tensor, got list"):
        feature.read([1, 2])
    (pending,) = feature.read_async(torch.tensor([1.0]))
    with pytest.raises(TypeError, match="ids: want int32 or int64, got torch.float32"):
        pending.wait()


def test_metadata() -> None:
    feature = feature_of(rows_of(torch.bfloat16, 200, 16), metadata={"unit": "m"})
    facts = feature.metadata()
    assert facts["unit"] == "m" and facts["layout"] == "compact"
    assert facts["raw_nbytes"] == 200 * 16 * 2 and facts["nbytes"] == feature.source.nbytes
    assert facts["savings"] == pytest.approx(1 - facts["nbytes"] / facts["raw_nbytes"])
    assert CompressedFeature(TensorSource(torch.ones(3, 2))).metadata() == {}


# Updates

NEW_ROWS = {
    "wider": rows_of(torch.float32, 200, 7, seed=3),
    "narrower": rows_of(torch.float32, 200, 1, seed=3),
    "of one dimension": rows_of(torch.float32, 200, seed=3),
    "of three": rows_of(torch.float32, 200, 2, 2, seed=3),
    "of another dtype": rows_of(torch.int8, 200, 3, seed=3),
    "more": rows_of(torch.float32, 333, 3, seed=3),
    "fewer": rows_of(torch.float32, 2, 3, seed=3),
    "none": torch.empty(0, 3),
    "without values": torch.empty(200, 0),
    "not to be compressed": torch.full((200, 3), 2j),
    "alike": rows_of(torch.float32, 200, 3, seed=3),
    "of other exponents": rows_of(torch.float32, 200, 3, seed=3) * 1e-20,
    "with a gradient": rows_of(torch.float32, 200, 3, seed=3).requires_grad_(),
}


def assert_rows(feature: gb.Feature, rows: torch.Tensor) -> None:
    """That the feature is these rows, read in every way."""
    assert (feature.size(), feature.count()) == (rows.shape[1:], len(rows))
    ids = torch.arange(len(rows) - 1, -1, -1)
    (pending,) = feature.read_async(ids)
    for got, want in ((feature.read(), rows), (feature.read(ids), rows.flip(0)), (pending.wait(), rows.flip(0))):
        assert got.dtype == want.dtype and torch.equal(got, want)


@pytest.mark.parametrize("how", ["feature", "store", "cache"])
@pytest.mark.parametrize("new", NEW_ROWS)
def test_update_of_all_rows(new: str, how: str) -> None:
    rows, value = rows_of(torch.float32, 200, 3), NEW_ROWS[new]
    if how == "store":
        features = compressed({FEAT: rows, LABEL: torch.arange(200)})
        feature = features[FEAT]
    else:
        store = CompressedFeatureStore.build(rows, progress=False)
        feature = CompressedFeature(CpuCache(store) if how == "cache" else store)
        features = compressed({FEAT: feature})
    before = feature.source
    if how == "cache" and new in ("none", "without values", "not to be compressed"):
        with pytest.raises(ValueError, match="value: want rows that a GPU cache can have, got"):
            features.update(*FEAT, value)
        assert feature.source is before
        value = rows
    else:
        features.update(*FEAT, value)
        assert feature.source is not before
    assert features[FEAT] is feature
    assert_rows(feature, value.detach())
    features.update(*FEAT, rows)  # and back
    assert_rows(feature, rows)
    features.update(*FEAT, rows[:2].neg(), torch.tensor([9, 0]))
    changed = rows.clone()
    changed[[9, 0]] = -rows[:2]
    assert_rows(feature, changed)
    assert_bitwise_equal(before.gather(torch.arange(200)), rows)  # whoever has the old one
    if how == "store":
        assert_bitwise_equal(features.read(*LABEL), torch.arange(200))


def test_update_of_all_rows_keeps_how_they_are_compressed() -> None:
    rows = rows_of(torch.float32, 200, 32)
    wide = rows_of(torch.float32, 200, 40, seed=1)
    for options in ({"codec": "ibp"}, {"codec": "dict", "layout": "inplace"}, {"pin": False}):
        features = compressed({FEAT: rows}, **options)
        first = features[FEAT].source
        for value in (torch.empty(0, 2), torch.ones(3, 2, dtype=torch.complex64), wide):
            features.update(*FEAT, value)
        second = features[FEAT].source
        assert second.codec.kind == options.get("codec", second.codec.kind)
        assert (second.layout, second._pin) == (first.layout, first._pin)

    fitted = Codec.fit(rows, codec="ibp")
    features = compressed({FEAT: rows}, codec=fitted)
    features.update(*FEAT, rows.neg())
    assert features[FEAT].source.codec is fitted
    features.update(*FEAT, wide)  # which it is not for
    assert features[FEAT].source.codec.kind == "ibp"
    assert_rows(features[FEAT], wide)

    order = torch.randperm(200)
    store = CompressedFeatureStore.build(rows, order=order, layout="inplace", pin=False, progress=False)
    feature = CompressedFeature(store)
    feature.update(wide)
    assert torch.equal(feature.source.slot_of, store.slot_of)
    assert (feature.source.layout, feature.source._pin) == ("inplace", False)
    assert_rows(feature, wide)


def test_update_of_all_rows_of_a_file(tmp_path: Path) -> None:
    rows, wide = rows_of(torch.float32, 200, 3), rows_of(torch.float32, 200, 5)
    CompressedFeatureStore.build(rows, progress=False).save(tmp_path / "rows.ibp")
    feature = CompressedFeature(CompressedFeatureStore.load(tmp_path / "rows.ibp"))
    with pytest.raises(ValueError, match="value: update: want rows in memory"):
        feature.update(rows[:1], torch.tensor([0]))
    feature.update(wide)
    assert_rows(feature, wide)
    assert_bitwise_equal(CompressedFeatureStore.load(tmp_path / "rows.ibp").gather(torch.arange(200)), rows)


def test_a_cache_follows_an_update_of_all_rows() -> None:
    rows, wide = rows_of(torch.float32, 200, 3), rows_of(torch.float32, 200, 5)
    cache = CpuCache(CompressedFeatureStore.build(rows, layout="inplace", progress=False), "7 rows")
    feature = CompressedFeature(cache)
    feature.update(wide)
    assert isinstance(feature.source, CpuCache) and feature.source is not cache
    assert (feature.source.capacity, feature.source.store.layout) == ("7 rows", "inplace")
    assert_rows(feature, wide)
    feature.source.fails, last = True, feature.source
    with pytest.raises(ValueError, match="want more than that"):
        feature.update(rows)
    assert feature.source is last
    assert_rows(feature, wide)


@pytest.mark.parametrize(
    ("value", "ids", "error", "message"),
    [
        ([1.0], None, TypeError, "value: want a tensor or a NumPy array, got list"),
        (torch.tensor(1.0), None, ValueError, r"value: want \[n, \*row_shape\], got a scalar"),
        ([1.0], [0], TypeError, "value: want a tensor or a NumPy array, got list"),
        (torch.ones(1, 3), [0, 1], ValueError, "value: rows: want 2 of them, as many as ids, got 1"),
        (torch.ones(1, 4), [0], ValueError, "value: .*want"),
        (torch.ones(2, 3), [7, 7], ValueError, "value: ids: want distinct ids, got 7 more than once"),
        (torch.ones(1, 3), [200], IndexError, "want 0 <= id < 200, got 200"),
    ],
)
def test_after_a_failed_update_nothing_has_changed(
    value: Any, ids: list[int] | None, error: type[Exception], message: str
) -> None:
    rows = rows_of(torch.float32, 200, 3)
    features = compressed({FEAT: rows})
    source = features[FEAT].source
    with pytest.raises(error, match=message):
        features.update(*FEAT, value, None if ids is None else torch.tensor(ids))
    assert features[FEAT].source is source
    assert_rows(features[FEAT], rows)


@pytest.mark.parametrize("ids", [None, torch.arange(3)])
def test_update_of_a_source_of_the_users(ids: torch.Tensor | None) -> None:
    feature = CompressedFeature(TensorSource(torch.ones(3, 2)))
    with pytest.raises(NotImplementedError, match="want a feature over a CompressedFeatureStore .*make a new one"):
        feature.update(torch.zeros(3, 2), ids)
    assert_rows(feature, torch.ones(3, 2))


def test_is_pinned(monkeypatch: pytest.MonkeyPatch) -> None:
    rows, odd = rows_of(torch.float32, 200, 3), torch.ones(200, dtype=torch.complex64)
    features = compressed({FEAT: rows, LABEL: odd})
    assert not features.is_pinned()
    assert not any(features[key].is_pinned() for key in (FEAT, LABEL))
    assert not CompressedFeature(TensorSource(rows)).is_pinned()
    monkeypatch.setattr(CompressedFeatureStore, "is_pinned", True)
    assert features[FEAT].is_pinned() and CompressedFeature(CpuCache(features[FEAT].source)).is_pinned()
    assert not features.is_pinned()  # not all of them
    assert compressed({FEAT: rows}).is_pinned()
    features[LABEL] = gb.Feature()
    assert not features.is_pinned()


@pytest.mark.cuda
def test_is_pinned_and_updates_on_a_gpu() -> None:
    rows, wide = rows_of(torch.float32, 500, 8), rows_of(torch.float32, 500, 24)
    features = compressed({FEAT: rows})
    assert not features.is_pinned()
    assert features.pin_memory_().is_pinned()
    moved = features.to("cuda")
    assert moved.is_pinned()
    ids = torch.arange(0, 500, 3, device="cuda")
    for value in (wide.cuda(), wide[:100], rows):
        moved.update(*FEAT, value)
        assert isinstance(moved[FEAT].source, CompressedGPUCache)
        want = value.cpu()[: len(value)]
        assert_bitwise_equal(moved.read(*FEAT, ids[ids < len(value)]), want[ids[ids < len(value)].cpu()])
    assert_bitwise_equal(features.read(*FEAT, ids), rows[ids.cpu()])  # a copy, as GraphBolt's `to` gives


def test_torchs_default_device_does_not_matter() -> None:
    rows = rows_of(torch.float32, 200, 3)
    feature = feature_of(rows)
    torch.set_default_device("meta")
    try:
        got = feature.read()
        empty = compressed({FEAT: torch.empty(0, device="cpu").numpy()}).read(*FEAT)
    finally:
        torch.set_default_device(None)
    assert_bitwise_equal(got, rows)
    assert empty.device.type == "cpu"


def test_a_source_that_is_none() -> None:
    with pytest.raises(TypeError, match="want a RowSource, got Tensor; compress it first"):
        CompressedFeature(torch.ones(3, 2))
    with pytest.raises(TypeError, match="want a RowSource, got TorchBasedFeature"):
        CompressedFeature(gb.TorchBasedFeature(torch.ones(3, 2)))


def test_a_feature_can_be_pickled() -> None:
    rows = rows_of(torch.float32, 200, 3)
    assert_bitwise_equal(pickle.loads(pickle.dumps(feature_of(rows))).read(), rows)


def read_in_child(feature: CompressedFeature, queue: Any) -> None:
    (pending,) = feature.read_async(torch.tensor([1, 2]))
    queue.put(pending.wait().tolist())


def test_read_async_in_a_forked_process() -> None:
    feature = feature_of(rows_of(torch.float32, 200, 3))
    (pending,) = feature.read_async(torch.tensor([0]))  # the decoder's thread exists, and stays behind
    pending.wait()
    context = multiprocessing.get_context("fork")
    queue = context.SimpleQueue()
    process = context.Process(target=read_in_child, args=(feature, queue))
    process.start()
    process.join(60)
    assert process.exitcode == 0
    assert queue.get() == feature.read(torch.tensor([1, 2])).tolist()


class GatedSource(CountingSource):
    """Gathers batch number i only once gates[i] is open; writes down when it does."""

    def __init__(self, inner: Any, trace: list[tuple[str, int]], gates: list[threading.Event]) -> None:
        super().__init__(inner)
        self.trace, self.gates = trace, gates

    def gather(self, ids: torch.Tensor, **options: Any) -> torch.Tensor:
        number = len(self.fetches)
        self.trace.append(("gathers", number))
        if not self.gates[number].wait(timeout=30):
            raise TimeoutError(f"batch {number + 1} was not sampled while batch {number} was read")
        return super().gather(ids, **options)


def test_read_async_overlaps_with_sampling() -> None:
    rows, num_batches = rows_of(torch.float32, 200, 3), 5
    trace: list[tuple[str, int]] = []
    gates = [threading.Event() for _ in range(num_batches)]
    store = compressed({FEAT: GatedSource(TensorSource(rows), trace, gates)})

    def sample() -> Iterator[torch.Tensor]:
        for number in range(num_batches):
            trace.append(("samples", number))
            if number > 0:
                gates[number - 1].set()  # only now can the previous batch be read
            yield torch.arange(number, 200, 7)
        gates[-1].set()

    fetcher = AsyncFetcher(sample(), store, [FEAT], trace)
    assert fetcher.stages == 1
    for ids, features in fetcher:
        assert_bitwise_equal(features[FEAT], rows[ids])
    assert [number for event, number in trace if event == "has"] == list(range(num_batches))
    for number in range(num_batches - 1):
        started, waits = trace.index(("started", number)), trace.index(("waits", number))
        assert started < trace.index(("samples", number + 1)) < waits < trace.index(("has", number))
        assert trace.index(("gathers", number)) < trace.index(("has", number))


@pytest.mark.cuda
def test_read_async_on_a_stream_of_its_own() -> None:
    rows = rows_of(torch.float32, 100_000, 64)
    feature = feature_of(rows)
    for _ in range(20):
        ids = torch.randint(0, len(rows), (20_000,))
        on_gpu = ids.to("cuda", non_blocking=True)
        (pending,) = feature.read_async(on_gpu)
        del on_gpu
        junk = torch.full((20_000,), 7, device="cuda")  # may take the memory of the ids, unless the stream holds it
        got = pending.wait()
        assert_bitwise_equal(got * 1, rows[ids] * 1)
        del junk, got


@pytest.mark.cuda
def test_cpu_ids_decoded_on_the_gpu() -> None:
    rows, ids = rows_of(torch.bfloat16, 500, 8), torch.tensor([4, 4, 0])
    feature = feature_of(rows, device="cuda")
    assert feature.read(ids).is_cuda
    assert_bitwise_equal(feature.read(ids), rows[ids])
    (pending,) = feature.read_async(ids)
    assert pending.wait().is_cuda


@pytest.mark.cuda
def test_pin_and_move() -> None:
    rows = rows_of(torch.float32, 500, 8)
    store = compressed({FEAT: rows}).pin_memory_()
    assert store.to("pinned")[FEAT] is store[FEAT]
    moved = store.to("cuda")
    assert isinstance(moved[FEAT].source, CompressedGPUCache) and moved[FEAT].source.num_cached == 500
    assert_bitwise_equal(moved.read(*FEAT, torch.arange(500, device="cuda")), rows)
    assert moved[FEAT].metadata()["raw_nbytes"] == 500 * 8 * 4


# The store


def test_a_store_from_a_dict() -> None:
    rows, labels = rows_of(torch.float32, 200, 3), torch.arange(200)
    held = feature_of(rows)
    features = {
        FEAT: rows,
        LABEL: labels,
        ("node", "a", "array"): rows.numpy(),
        ("node", "a", "source"): TensorSource(rows),
        ("edge", "a:b:c", "held"): held,
        ("edge", "a:b:c", "torch"): gb.TorchBasedFeature(rows.abs().long()),
    }
    store = compressed(features)
    assert isinstance(store, gb.BasicFeatureStore)
    assert store.keys() == list(features) and len(store) == 6
    assert all(isinstance(store[key], CompressedFeature) for key in features)
    assert store["edge", "a:b:c", "held"] is held
    ids = torch.tensor([3, 3, 199])
    for key in features:
        want = {"label": labels, "torch": rows.abs().long()}.get(key[2], rows)
        assert_bitwise_equal(store.read(*key, ids), want[ids])
        assert_bitwise_equal(store.read(*key), want)
        assert (store.size(*key), store.count(*key)) == (want.shape[1:], 200)
    assert store.metadata(*FEAT)["raw_nbytes"] == rows.nbytes
    store.update(*FEAT, rows.neg())
    assert_bitwise_equal(store.read(*FEAT), rows.neg())
    assert "('node', None, 'feat'): CompressedFeature(" in repr(store)


def test_keys_choose_what_is_compressed() -> None:
    rows = rows_of(torch.float32, 200, 3)
    other = ("node", None, "other")
    store = compressed({FEAT: rows, other: rows}, keys=[FEAT])
    assert isinstance(store[FEAT], CompressedFeature)
    assert isinstance(store[other], gb.TorchBasedFeature)
    assert (store.size(*other), store.count(*other)) == (torch.Size([3]), 200)
    store.update(*other, torch.zeros(200, 3))
    assert_bitwise_equal(store.read(*other), torch.zeros(200, 3))


def test_what_cannot_be_compressed_stays_a_tensor() -> None:
    features = {FEAT: torch.ones(4, 2, dtype=torch.complex64), LABEL: torch.ones(4, dtype=torch.complex64)}
    empty = ("edge", None, "empty")
    store = compressed({**features, empty: torch.empty(0)})
    for key, rows in features.items():
        assert torch.equal(store.read(*key), rows)
    assert store.read(*LABEL, torch.tensor([1, 1])).tolist() == [1, 1]
    assert store.read(*empty, torch.tensor([], dtype=torch.int64)).shape == (0,)


@pytest.mark.parametrize("row_shape", ROW_SHAPES, ids=str)
@pytest.mark.parametrize("chosen", [False, True], ids=["all keys", "by name"])
@pytest.mark.parametrize("kind", ["tensor", "array", "feature"])
def test_a_type_without_rows(kind: str, chosen: bool, row_shape: tuple[int, ...]) -> None:
    empty = torch.empty(0, *row_shape)
    if kind == "feature":
        if not row_shape:
            pytest.skip("GraphBolt's own feature takes no 1-d tensors")
        value: Any = gb.TorchBasedFeature(empty)
    else:
        value = empty.numpy() if kind == "array" else empty
    key = ("edge", "a:b:c", "feat")
    store = compressed({key: value, FEAT: rows_of(torch.float32, 20, 3)}, keys=[key, FEAT] if chosen else None)
    if kind == "feature" and not chosen:
        assert store[key] is value  # GraphBolt's own
        return
    for got in (store.read(*key), store.read(*key, torch.tensor([], dtype=torch.int64))):
        assert_bitwise_equal(got, empty)
    assert (store.size(*key), store.count(*key), store.metadata(*key)) == (torch.Size(row_shape), 0, {})
    with pytest.raises(IndexError):
        store.read(*key, torch.tensor([0]))
    store.update(*key, rows_of(torch.float32, 5, *row_shape))  # until it has some
    assert_bitwise_equal(store.read(*key, torch.tensor([4])), rows_of(torch.float32, 5, *row_shape)[4:])


def test_a_graph_with_a_relation_without_edges() -> None:
    nothing = torch.tensor([], dtype=torch.int64)
    edges = {("a", "to", "b"): (torch.tensor([0, 1]), torch.tensor([1, 0])), ("b", "to", "c"): (nothing, nothing)}
    g = dgl.heterograph(edges, num_nodes_dict={"a": 2, "b": 2, "c": 0})
    g.edges["a", "to", "b"].data["w"] = torch.ones(2, 3)
    g.edges["b", "to", "c"].data["w"] = torch.ones(0, 3)
    g.nodes["c"].data["feat"] = torch.ones(0, 4)
    store = compressed(g)
    assert_bitwise_equal(store.read("edge", "a:to:b", "w"), torch.ones(2, 3))
    assert_bitwise_equal(store.read("edge", "b:to:c", "w", nothing), torch.ones(0, 3))
    assert_bitwise_equal(store.read("node", "c", "feat"), torch.ones(0, 4))


def test_what_would_not_get_smaller_stays() -> None:
    noise = torch.randint(-(2**31), 2**31, (64, 4), dtype=torch.int64).to(torch.int32)
    held = gb.TorchBasedFeature(noise)
    assert compressed({FEAT: held})[FEAT] is held
    assert isinstance(compressed({FEAT: held}, keys=[FEAT])[FEAT], CompressedFeature)
    for odd in (torch.ones(4, 2, dtype=torch.complex64), torch.empty(0, 3)):
        kept = gb.TorchBasedFeature(odd)
        assert compressed({FEAT: kept})[FEAT] is kept


def test_features_can_be_replaced() -> None:
    rows = rows_of(torch.float32, 200, 3)
    store = compressed({FEAT: rows})
    assert FEAT in store and LABEL not in store
    store[FEAT] = CachedFeature(store[FEAT], cache_rows=10, device=torch.device("cpu"))
    assert_bitwise_equal(store.read(*FEAT, torch.tensor([8, 0])), rows[[8, 0]])
    with pytest.raises(TypeError, match="want a gb.Feature, got Tensor"):
        store[FEAT] = rows
    with pytest.raises(KeyError, match="no feature .*'label'.*there are: .*'feat'"):
        store.read(*LABEL, torch.tensor([0]))


@pytest.mark.parametrize(
    ("features", "options", "error", "message"),
    [
        ([1, 2], {}, TypeError, "want a dict .*, a feature store of GraphBolt's or a DGLGraph, got list"),
        ({"feat": torch.ones(2, 2)}, {}, ValueError, r"want \(domain, type or None, name\).*got 'feat'"),
        ({("nodes", None, "feat"): torch.ones(2, 2)}, {}, ValueError, "want .*'node'.*got .*'nodes'"),
        ({FEAT: [1.0]}, {}, TypeError, "want a gb.Feature, a tensor, an array or a RowSource, got list"),
        ({FEAT: torch.ones(2, 2)}, {"keys": [LABEL]}, ValueError, "keys: want some of .*got .*'label'"),
        ({FEAT: torch.ones(2, 2)}, {"codec": "zip"}, ValueError, "feat.*: .*zip"),
        ({FEAT: gb.Feature()}, {"keys": [FEAT]}, TypeError, "want a feature held as a tensor .* got Feature"),
    ],
)
def test_what_a_store_refuses(features: Any, options: dict, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        compressed(features, **options)


def graph(num_features: int = 8) -> dgl.DGLGraph:
    generator = torch.Generator().manual_seed(1)
    src, dst = torch.randint(0, NUM_NODES, (2, NUM_EDGES), generator=generator)
    g = dgl.graph((src, dst), num_nodes=NUM_NODES)
    g.ndata["feat"] = rows_of(torch.float32, NUM_NODES, num_features)
    g.ndata["label"] = torch.arange(NUM_NODES) % 5
    g.edata["weight"] = rows_of(torch.float16, NUM_EDGES, 2, seed=2)
    return g


def hetero_graph(with_features: bool = True) -> dgl.DGLGraph:
    generator = torch.Generator().manual_seed(2)
    user, item = torch.randint(0, 200, (2, 3000), generator=generator)
    g = dgl.heterograph(
        {("user", "buys", "item"): (user, item), ("item", "sold", "user"): (item, user)},
        num_nodes_dict={"user": 400, "item": 200},
    )
    if not with_features:  # gb.from_dglgraph wants features of one name to be of one shape
        return g
    g.nodes["user"].data["feat"] = rows_of(torch.bfloat16, 400, 6)
    g.nodes["item"].data["feat"] = rows_of(torch.float32, 200, 4)
    g.edges["buys"].data["price"] = rows_of(torch.float32, 3000, 1)
    return g


def test_a_store_from_a_graph() -> None:
    g = graph()
    store = compressed(g)
    assert set(store.keys()) == {FEAT, LABEL, ("edge", None, "weight")}
    assert_bitwise_equal(store.read(*FEAT), g.ndata["feat"])
    assert_bitwise_equal(store.read("edge", None, "weight"), g.edata["weight"])


def test_a_store_from_a_heterograph() -> None:
    g = hetero_graph()
    store = compressed(g)
    keys = {("node", "user", "feat"), ("node", "item", "feat"), ("edge", "user:buys:item", "price")}
    assert set(store.keys()) == keys
    assert_bitwise_equal(store.read("node", "user", "feat"), g.nodes["user"].data["feat"])
    assert_bitwise_equal(store.read("edge", "user:buys:item", "price"), g.edges["buys"].data["price"])


def test_a_store_from_a_graph_with_an_attached_feature() -> None:
    g = graph()
    rows = g.ndata["feat"]
    source = CountingSource(TensorSource(rows))
    ibp_gnn.attach(g, "feat", source)
    store = compressed(g)
    assert store[FEAT].source is source and source.fetches == []
    part = g.subgraph(torch.arange(10, 20))  # its rows are not all of the source's
    assert_bitwise_equal(compressed(part).read(*FEAT), rows[10:20])


# With and without GraphBolt's native library


@pytest.mark.skipif(graphbolt_is_native(), reason="GraphBolt's native library is here")
def test_without_the_native_library() -> None:
    this = re.escape(torch.__version__)
    wanted = rf"DGL 2.1.0 has for torch 2.0.0, .*2.2.1; this is torch {this}.*pip install 'ibp-gnn\[graphbolt\]'"
    with pytest.raises(ImportError, match=wanted):
        require_native()


def run_python(source: str, folder: Path) -> str:
    # With the package under test, installed or in the source tree; -c would put the current folder first.
    environment = {**os.environ, "PYTHONPATH": str(Path(ibp_gnn.__file__).parents[1])}
    command = [sys.executable, "-c", textwrap.dedent(source)]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_without_what_graphbolt_imports(tmp_path: Path) -> None:
    output = run_python(
        """
        import sys
        sys.modules["torchdata"] = None
        import ibp_gnn
        try:
            ibp_gnn.GraphBoltFeatureStore
        except ImportError as error:
            print(error)
        """,
        tmp_path,
    )
    # With its library, DGL itself stops there.
    assert "torchdata" in output and "pip install" in output


def test_nothing_is_imported_before_it_is_needed(tmp_path: Path) -> None:
    output = run_python(
        """
        import sys
        import ibp_gnn
        print([name for name in ("dgl", "torch_geometric", "torchdata") if name in sys.modules])
        from ibp_gnn import graphbolt
        print(graphbolt.GraphBoltFeatureStore is ibp_gnn.GraphBoltFeatureStore, "dgl" in sys.modules)
        """,
        tmp_path,
    )
    assert output.splitlines() == ["[]", "True True"]


@native
def test_the_native_library_is_here() -> None:
    require_native()


# GraphBolt's own pipes


def items(num_nodes: int = NUM_NODES) -> gb.ItemSet:
    ids = torch.arange(0, num_nodes, 5)
    return gb.ItemSet((ids, ids % 5), names=("seed_nodes", "labels"))


@native
@pytest.mark.parametrize("workers", [0, 2])
def test_homogeneous_pipe(workers: int) -> None:
    g = graph()
    pipe = gb.ItemSampler(items(), batch_size=BATCH, shuffle=True)
    pipe = pipe.sample_neighbor(gb.from_dglgraph(g, is_homogeneous=True, include_original_edge_id=True), [5, 5])
    pipe = pipe.fetch_feature(compressed(g), node_feature_keys=["feat", "label"], edge_feature_keys=["weight"])
    batches = list(gb.DataLoader(pipe, num_workers=workers))
    assert len(batches) == 10
    for batch in batches:
        assert_bitwise_equal(batch.node_features["feat"], g.ndata["feat"][batch.input_nodes])
        assert_bitwise_equal(batch.node_features["label"], g.ndata["label"][batch.input_nodes])
        for layer in range(2):
            edges = batch.edge_ids(layer)
            assert_bitwise_equal(batch.edge_features[layer]["weight"], g.edata["weight"][edges])


@native
@pytest.mark.parametrize("workers", [0, 2])
def test_heterogeneous_pipe(workers: int) -> None:
    g = hetero_graph()
    seeds = gb.ItemSetDict({"item": gb.ItemSet(torch.arange(200), names="seed_nodes")})
    pipe = gb.ItemSampler(seeds, batch_size=BATCH)
    pipe = pipe.sample_neighbor(gb.from_dglgraph(hetero_graph(False), include_original_edge_id=True), [4, 4])
    keys = {"user": ["feat"], "item": ["feat"]}
    pipe = pipe.fetch_feature(compressed(g), node_feature_keys=keys, edge_feature_keys={"user:buys:item": ["price"]})
    batches = list(gb.DataLoader(pipe, num_workers=workers))
    assert len(batches) == 4
    for batch in batches:
        for ntype in keys:
            want = g.nodes[ntype].data["feat"][batch.input_nodes[ntype]]
            assert_bitwise_equal(batch.node_features[ntype, "feat"], want)
        edges = batch.edge_ids(0)["user:buys:item"]
        want = g.edges["buys"].data["price"][edges]
        assert_bitwise_equal(batch.edge_features[0]["user:buys:item", "price"], want)


@native
def test_walking_the_pipe_does_not_pickle_the_rows() -> None:
    rows = rows_of(torch.float32, NUM_NODES, 4)
    source = CountingSource(TensorSource(rows), picklable=False)  # raises if pickled
    pipe = gb.ItemSampler(items(), batch_size=BATCH)
    pipe = pipe.sample_neighbor(gb.from_dglgraph(graph(), is_homogeneous=True), [5])
    pipe = pipe.fetch_feature(compressed({FEAT: source}), node_feature_keys=["feat"])
    for batch in gb.DataLoader(pipe, num_workers=2):
        assert_bitwise_equal(batch.node_features["feat"], rows[batch.input_nodes])


@native
def test_a_store_from_an_on_disk_dataset(tmp_path: Path) -> None:
    g = graph()
    features = {"feat": g.ndata["feat"], "extra": rows_of(torch.float16, NUM_NODES, 4)}
    write_dataset(tmp_path, g, features)
    dataset = gb.OnDiskDataset(str(tmp_path)).load()
    store = compressed(dataset.feature)
    assert isinstance(store[FEAT], CompressedFeature)
    assert store.metadata(*FEAT)["unit"] == "m"  # what the data set says stays
    pipe = gb.ItemSampler(dataset.tasks[0].train_set, batch_size=BATCH, shuffle=True)
    pipe = pipe.sample_neighbor(dataset.graph, [5, 5])
    pipe = pipe.fetch_feature(store, node_feature_keys=["feat", "extra"])
    for batch in gb.DataLoader(pipe):
        for name in ("feat", "extra"):
            assert_bitwise_equal(batch.node_features[name], features[name][batch.input_nodes])


# DGL's GraphBolt flow for node classification, as a user has it.
FLOW = """
features = gb.BasicFeatureStore({("node", None, "feat"): gb.TorchBasedFeature(node_features)})

datapipe = gb.ItemSampler(train_set, batch_size=64, shuffle=False)
datapipe = datapipe.sample_neighbor(graph, [5, 5])
datapipe = datapipe.fetch_feature(features, node_feature_keys=["feat"])
dataloader = gb.DataLoader(datapipe, num_workers=num_workers)

model = SAGE(node_features.shape[1], 16, 5)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
for epoch in range(2):
    for minibatch in dataloader:
        logits = model(minibatch.blocks, minibatch.node_features["feat"])
        loss = torch.nn.functional.cross_entropy(logits, minibatch.labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
"""
ONE_LINE = 'features = ibp_gnn.GraphBoltFeatureStore({("node", None, "feat"): gb.TorchBasedFeature(node_features)})'


class SAGE(torch.nn.Module):
    def __init__(self, in_size: int, hidden_size: int, out_size: int, num_layers: int = 2) -> None:
        super().__init__()
        sizes = [in_size, *[hidden_size] * (num_layers - 1), out_size]
        self.layers = torch.nn.ModuleList(dgl.nn.SAGEConv(i, o, "mean") for i, o in zip(sizes, sizes[1:], strict=False))

    def forward(self, blocks: list, x: torch.Tensor) -> torch.Tensor:
        for layer, block in zip(self.layers, blocks, strict=True):
            x = layer(block, torch.relu(x))
        return x


def run_flow(source: str, num_workers: int) -> tuple[list[float], Any]:
    g = graph(32)
    torch.manual_seed(0)
    gb.seed(0)
    scope = {
        "gb": gb,
        "torch": torch,
        "ibp_gnn": ibp_gnn,
        "SAGE": SAGE,
        "graph": gb.from_dglgraph(g, is_homogeneous=True),
        "node_features": g.ndata["feat"],
        "train_set": items(),
        "num_workers": num_workers,
        "losses": [],
    }
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # GraphBolt's threads race for its random numbers
    try:
        exec(source, scope)
    finally:
        torch.set_num_threads(threads)
    return scope["losses"], scope["features"]


@native
@pytest.mark.parametrize("workers", [0, 2])
def test_one_line_changes_in_the_node_classification_flow(workers: int) -> None:
    line = next(line for line in FLOW.splitlines() if "gb.BasicFeatureStore" in line)
    changed = FLOW.replace(line, ONE_LINE)
    changes = [d for d in difflib.ndiff(FLOW.splitlines(), changed.splitlines()) if d[0] in "+-"]
    assert changes == [f"- {line}", f"+ {ONE_LINE}"]

    losses, plain = run_flow(FLOW, workers)
    with_ours, ours = run_flow(changed, workers)
    assert type(plain) is gb.BasicFeatureStore and type(ours) is GraphBoltFeatureStore
    assert isinstance(ours[FEAT], CompressedFeature)
    assert len(losses) == 20
    assert with_ours == losses  # every bit of every loss


# Layer-wise inference: each layer's output takes the place of the features, of another width.


def all_nodes() -> gb.ItemSet:
    return gb.ItemSet(torch.arange(NUM_NODES), names="seed_nodes")


def infer(model: SAGE, graph: Any, features: Any, num_workers: int) -> torch.Tensor:
    """All nodes' outputs, through the features."""
    pipe = gb.ItemSampler(all_nodes(), batch_size=4 * BATCH)
    pipe = pipe.sample_neighbor(graph, [-1]).fetch_feature(features, node_feature_keys=["feat"])
    loader = gb.DataLoader(pipe, num_workers=num_workers)  # one for all layers
    with torch.no_grad():
        for number, layer in enumerate(model.layers):
            is_last = number == len(model.layers) - 1
            y = torch.empty(graph.total_num_nodes, layer._out_feats)
            for batch in loader:
                hidden = layer(batch.blocks[0], batch.node_features["feat"])
                y[batch.seed_nodes[0] : batch.seed_nodes[-1] + 1] = hidden if is_last else torch.relu(hidden)
            if not is_last:
                features.update("node", None, "feat", y)
    return y


@pytest.fixture
def one_thread() -> Iterator[None]:
    """GraphBolt's threads race for its random numbers."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def plain_and_ours(g: dgl.DGLGraph) -> list[Any]:
    rows = g.ndata["feat"]
    plain = gb.BasicFeatureStore({FEAT: gb.TorchBasedFeature(rows)})
    cache = CpuCache(CompressedFeatureStore.build(rows, progress=False))
    return [plain, compressed({FEAT: rows}), compressed({FEAT: cache})]


@native
@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("workers", [0, 2])
def test_layerwise_inference_of_node_classification(workers: int) -> None:
    g = graph(32)
    sampling = gb.from_dglgraph(g, is_homogeneous=True)
    outputs = []
    for features in plain_and_ours(g):
        torch.manual_seed(0)
        model = SAGE(32, 16, 5, num_layers=3)  # the first update is of another width, the second of the same
        outputs.append(infer(model, sampling, features, workers))
        assert features.size(*FEAT) == (16,)
    for output in outputs[1:]:
        assert_bitwise_equal(output, outputs[0])


@native
@pytest.mark.usefixtures("one_thread")
def test_layerwise_inference_of_link_prediction() -> None:
    g = graph(32)
    sampling = gb.from_dglgraph(g, is_homogeneous=True)
    pairs = torch.stack(g.edges(), dim=1)[:: NUM_EDGES // 300]
    scores, losses = [], []
    for features in plain_and_ours(g):
        torch.manual_seed(0)
        gb.seed(0)
        model = SAGE(32, 16, 16)
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
        pipe = gb.ItemSampler(gb.ItemSet(pairs, names="node_pairs"), batch_size=BATCH)
        pipe = pipe.sample_uniform_negative(sampling, 1).sample_neighbor(sampling, [5, 5])
        pipe = pipe.fetch_feature(features, node_feature_keys=["feat"])
        losses.append([])
        for batch in gb.DataLoader(pipe):
            y = model(batch.blocks, batch.node_features["feat"])
            (src, dst), labels = batch.node_pairs_with_labels
            loss = torch.nn.functional.binary_cross_entropy_with_logits((y[src] * y[dst]).sum(1), labels.float())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses[-1].append(loss.item())
        y = infer(model, sampling, features, 0)
        scores.append((y[pairs[:, 0]] * y[pairs[:, 1]]).sum(1))
    assert len(losses[0]) == 5
    for loss, score in zip(losses[1:], scores[1:], strict=True):
        assert loss == losses[0]
        assert_bitwise_equal(score, scores[0])

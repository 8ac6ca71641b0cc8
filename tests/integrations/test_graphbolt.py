"""GraphBolt reads the rows of the tensor, bit for bit, with the calls of its caches; features and stores of them.

What samples needs GraphBolt's native library, so torch 2.2.1. scripts/test.sh runs this file and its neighbours,
test_graphbolt_*.py, there and on the current torch, where the rest of them runs.
"""

from __future__ import annotations

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
from adapter_cases import DTYPES, ROW_SHAPES, rows_of
from exact_sources import CountingSource, TensorSource

pytest.importorskip("dgl")
pytest.importorskip("torchdata")

import dgl  # noqa: E402
from dgl import graphbolt as gb  # noqa: E402
from graphbolt_cases import FEAT, IDS, LABEL, compressed, feature_of, graph, hetero_graph, native  # noqa: E402
from graphbolt_stand_ins import AsyncFetcher, CachedFeature  # noqa: E402

import ibp_gnn  # noqa: E402
from ibp_gnn import CompressedGPUCache  # noqa: E402
from ibp_gnn._install import install_command  # noqa: E402
from ibp_gnn.graphbolt import CompressedFeature, require_native  # noqa: E402
from ibp_gnn.integrations.dgl_compat import graphbolt_is_native  # noqa: E402
from ibp_gnn.testing import assert_bitwise_equal  # noqa: E402

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*CPU affinity.*"),
    pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork.*:DeprecationWarning"),
]
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.cuda)]


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


# Other readers


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
    wanted = rf"DGL 2.1.0 has for torch 2.0.0, .*2.2.1; this is torch {this}.*{re.escape(install_command('graphbolt'))}"
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
        except AttributeError as error:
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

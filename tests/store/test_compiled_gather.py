"""Gathers inside of torch.compile are one node of the graph, and the same bits."""

from __future__ import annotations

import gc
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch

import ibp_gnn
from ibp_gnn import CompressedFeatureStore
from ibp_gnn.store import compiled_gather
from ibp_gnn.testing import assert_bitwise_equal, special_rows

needs_compile = pytest.mark.skipif(
    not hasattr(torch.compiler, "is_compiling"), reason="torch.compile breaks the graph at a gather before torch 2.3"
)
NUM_ROWS = 200


@pytest.fixture
def rows() -> torch.Tensor:
    made = special_rows(torch.float32, 12, "outliers", NUM_ROWS)
    made[3] = special_rows(torch.float32, 12, "nan_payloads", 1)[0]
    return made


@pytest.fixture
def store(rows: torch.Tensor) -> CompressedFeatureStore:
    return CompressedFeatureStore.build(rows, progress=False)


def compiled(function: Callable[..., Any], backend: Any = None, **options: Any) -> Callable[..., Any]:
    torch._dynamo.reset()
    if "mode" not in options:
        options["backend"] = backend or "aot_eager"
    return torch.compile(function, fullgraph=True, **options)


@needs_compile
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_a_gather_does_not_break_the_graph(
    store: CompressedFeatureStore, rows: torch.Tensor, dtype: torch.dtype
) -> None:
    gather = compiled(lambda ids: (store.gather(ids), ids + 1))
    for count in (0, 1, 7, 200, 333):
        ids = torch.randint(NUM_ROWS, (count,), dtype=dtype)
        got, after = gather(ids)
        assert_bitwise_equal(got, rows[ids.long()])
        assert after.tolist() == (ids + 1).tolist()


@needs_compile
def test_the_operator_keeps_to_torchs_rules() -> None:
    store = CompressedFeatureStore.build(torch.randn(NUM_ROWS, 3), progress=False)  # a NaN differs from itself here
    operator: Any = torch.ops.ibp_gnn.gather
    torch.library.opcheck(operator, (torch.arange(5), store._name, None))
    torch.library.opcheck(operator, (torch.arange(0, dtype=torch.int32), store._name, torch.device("cpu")))


@needs_compile
def test_lengths_may_change_without_compiling_again(store: CompressedFeatureStore, rows: torch.Tensor) -> None:
    compiled_graphs = []

    def count(graph: torch.fx.GraphModule, inputs: list[Any]) -> Any:
        compiled_graphs.append(graph)
        return graph

    gather = compiled(lambda ids: store.gather(ids) * 1, backend=count, dynamic=True)
    for n in (5, 6, 100):
        assert_bitwise_equal(gather(torch.arange(n)), rows[:n] * 1)
    assert len(compiled_graphs) == 1
    targets = [node.target for node in compiled_graphs[0].graph.nodes if node.op == "call_function"]
    assert torch.ops.ibp_gnn.gather.default in targets or torch.ops.ibp_gnn.gather in targets


@needs_compile
@pytest.mark.slow
def test_inductor_trains_through_it() -> None:
    rows = torch.randn(NUM_ROWS, 12)
    store = CompressedFeatureStore.build(rows, progress=False)
    layer = torch.nn.Linear(12, 3)
    step = compiled(lambda ids: layer(store.gather(ids)).square().sum(), backend="inductor")
    ids = torch.arange(10, 40)
    step(ids).backward()
    got = layer.weight.grad.clone()  # type: ignore[union-attr]
    layer.zero_grad()
    layer(rows[ids]).square().sum().backward()
    torch.testing.assert_close(got, layer.weight.grad)  # of a layer, whose sums inductor may order anew


@needs_compile
def test_updates_are_seen(store: CompressedFeatureStore, rows: torch.Tensor) -> None:
    gather = compiled(lambda ids: store.gather(ids))
    ids = torch.tensor([4, 9, 4])
    assert_bitwise_equal(gather(ids), rows[ids])
    store.update(torch.tensor([9]), rows[:1])
    assert_bitwise_equal(gather(ids), torch.stack([rows[4], rows[0], rows[4]]))


@needs_compile
def test_each_store_is_its_own(store: CompressedFeatureStore, rows: torch.Tensor) -> None:
    """One function, and stores of other shapes and dtypes."""
    other = CompressedFeatureStore.build(torch.arange(60).reshape(20, 3), progress=False)
    gather = compiled(lambda source, ids: source.gather(ids, device="cpu"))
    ids = torch.tensor([1, 1, 19])
    for _ in range(2):
        assert_bitwise_equal(gather(store, ids), rows[ids])
        assert_bitwise_equal(gather(other, ids), torch.arange(60).reshape(20, 3)[ids])
    sent = pickle.loads(pickle.dumps(store))
    assert sent._name != store._name
    assert_bitwise_equal(gather(sent, ids), rows[ids])


@needs_compile
def test_modules_and_embeddings(store: CompressedFeatureStore, rows: torch.Tensor) -> None:
    embedding = ibp_gnn.CompressedEmbedding.from_pretrained(torch.nn.Embedding.from_pretrained(rows))
    assert_bitwise_equal(compiled(embedding)(torch.arange(9)), rows[:9])


@needs_compile
def test_errors_come_when_the_graph_runs(store: CompressedFeatureStore) -> None:
    gather = compiled(lambda ids: store.gather(ids))
    assert len(gather(torch.tensor([0]))) == 1
    with pytest.raises(IndexError, match="want 0 <= id < 200, got 200 at position 1"):
        gather(torch.tensor([0, NUM_ROWS]))
    store.close()
    with pytest.raises(ValueError, match="closed"):
        gather(torch.tensor([0]))


def test_a_source_that_was_dropped_is_said(store: CompressedFeatureStore) -> None:
    name = store._name
    assert len(compiled_gather.gather_by_name(torch.tensor([1, 2]), name, None)) == 2
    with pytest.raises(ValueError, match="want a source that is there, got one that was dropped"):
        compiled_gather.gather_by_name(torch.tensor([1]), "no such name", None)
    made = CompressedFeatureStore.build(torch.zeros(5, 2), progress=False)
    name = made._name
    del made
    gc.collect()  # names keep nothing alive
    with pytest.raises(ValueError, match="dropped"):
        compiled_gather.gather_by_name(torch.tensor([1]), name, None)


@needs_compile
@pytest.mark.cuda
@pytest.mark.parametrize("cached", [False, True], ids=["store", "cache"])
def test_on_a_gpu(store: CompressedFeatureStore, rows: torch.Tensor, cached: bool) -> None:
    source: Any = ibp_gnn.CompressedGPUCache(store, "50 rows") if cached else store
    gather = compiled(lambda ids: (source.gather(ids, device="cuda"), ids + 1), backend="inductor")
    for ids in (torch.arange(NUM_ROWS), torch.tensor([3, 3, 199])):
        assert_bitwise_equal(gather(ids)[0], rows[ids])
        assert_bitwise_equal(gather(ids.cuda())[0], rows[ids])


@needs_compile
@pytest.mark.cuda
def test_in_cuda_graphs_of_inductor(store: CompressedFeatureStore, rows: torch.Tensor) -> None:
    cache = ibp_gnn.CompressedGPUCache(store, "50 rows")
    gather = compiled(lambda ids: (cache.gather(ids), ids + 1), mode="reduce-overhead")
    for _ in range(4):
        ids = torch.randint(NUM_ROWS, (64,), device="cuda")
        torch.compiler.cudagraph_mark_step_begin()
        assert_bitwise_equal(gather(ids)[0], rows[ids.cpu()])

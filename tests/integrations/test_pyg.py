"""PyG reads the rows of the tensor, bit for bit, through its own loaders; and the sampler that stands in for pyg-lib.

scripts/test.sh runs this file where PyG is installed. NeighborLoader is tested where pyg-lib or torch-sparse is.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("torch_geometric")

import torch_geometric.typing  # noqa: E402
from cpu_cache import CpuCache  # noqa: E402
from exact_sources import CountingSource, TensorSource  # noqa: E402
from torch_geometric.data import Data, HeteroData, TensorAttr  # noqa: E402
from torch_geometric.data.feature_store import AttrView  # noqa: E402
from torch_geometric.loader import NeighborLoader, NodeLoader  # noqa: E402
from torch_geometric.nn import SAGEConv  # noqa: E402
from torch_geometric.sampler import NodeSamplerInput  # noqa: E402
from torch_geometric.utils import trim_to_layer  # noqa: E402

import ibp_gnn  # noqa: E402
from ibp_gnn.pyg import NeighborSampler, PyGFeatureStore  # noqa: E402
from ibp_gnn.testing import assert_bitwise_equal  # noqa: E402

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork.*:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:.*without a 'pyg-lib' installation.*"),
]
HAS_NEIGHBOR_LOADER = torch_geometric.typing.WITH_PYG_LIB or torch_geometric.typing.WITH_TORCH_SPARSE

NUM_NODES, NUM_EDGES, BATCH = 2000, 8000, 64
DTYPES = [torch.bfloat16, torch.int8, torch.float16, torch.float32, torch.int64, torch.bool]
ROW_SHAPES = [(), (1,), (3, 4)]
IDS = {
    "some": torch.tensor([5, 0, 77, 199]),
    "empty": torch.tensor([], dtype=torch.int64),
    "repeated": torch.tensor([9, 9, 0, 9, 0]),
    "int32": torch.tensor([3, 198, 3], dtype=torch.int32),
}


def rows_of(dtype: torch.dtype, *shape: int, seed: int = 0) -> torch.Tensor:
    """Rows that compress, and some values that do not."""
    generator = torch.Generator().manual_seed(seed)
    if dtype == torch.bool:
        return torch.rand(shape, generator=generator) < 0.1
    rows = torch.rand(shape, generator=generator) * 16 + 16  # one exponent
    rows[torch.rand(shape[0], generator=generator) < 0.05] *= -0.01
    return rows.to(dtype)


def compressed(features: Any = None, **options: Any) -> PyGFeatureStore:
    return PyGFeatureStore(features, progress=False, **options)


def plain_data() -> Data:
    generator = torch.Generator().manual_seed(1)
    edges = torch.randint(0, NUM_NODES - 5, (2, NUM_EDGES), generator=generator)  # the last 5 have no edges
    train = torch.rand(NUM_NODES, generator=generator) < 0.2
    return Data(
        x=rows_of(torch.float32, NUM_NODES, 16),
        half=rows_of(torch.bfloat16, NUM_NODES, 3, 4),
        y=torch.arange(NUM_NODES) % 5,
        train_mask=train,
        edge_index=edges,
    )


def structure(data: Data) -> Data:
    graph = Data(num_nodes=data.num_nodes)
    # With `edge_index=` in place of this, NeighborLoader cannot tell the number of nodes.
    graph.put_edge_index(data.edge_index, layout="coo", size=(data.num_nodes, data.num_nodes))
    return graph


def plain_hetero_data() -> HeteroData:
    generator = torch.Generator().manual_seed(2)
    paper, author = torch.randint(0, 300, (2, 2000), generator=generator)
    data = HeteroData()
    data["paper"].x = rows_of(torch.float32, 300, 8)
    data["paper"].y = torch.arange(300) % 4
    data["author"].x = rows_of(torch.bfloat16, 400, 6, seed=1)
    data["author", "writes", "paper"].edge_index = torch.stack([author, paper])
    data["paper", "written_by", "author"].edge_index = torch.stack([paper, author])
    data["paper", "cites", "paper"].edge_index = torch.stack([paper, paper.flip(0)])
    return data


def hetero_structure(data: HeteroData) -> HeteroData:
    graph = HeteroData()
    for name in data.node_types:
        graph[name].num_nodes = data[name].num_nodes
    for edge_type in data.edge_types:
        graph[edge_type].edge_index = data[edge_type].edge_index
    return graph


# The feature store


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.cuda)])
@pytest.mark.parametrize("ids", IDS)
@pytest.mark.parametrize("row_shape", ROW_SHAPES, ids=str)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_get_tensor(dtype: torch.dtype, row_shape: tuple[int, ...], ids: str, device: str) -> None:
    rows = rows_of(dtype, 200, *row_shape)
    store, wanted = compressed({("paper", "x"): rows}), IDS[ids].to(device)
    got = store["paper", "x", wanted]
    assert got.device == wanted.device
    assert_bitwise_equal(got, rows[IDS[ids].long()])
    assert_bitwise_equal(store.get_tensor("paper", "x", None), rows)
    assert store.get_tensor_size("paper", "x") == (200, *row_shape)


def test_other_ways_to_index() -> None:
    rows = rows_of(torch.float32, 200, 3)
    store = compressed({"x": rows})
    mask = torch.arange(200) % 7 == 0
    for index in (slice(None), slice(3, 50, 5), slice(-3, None), mask, ..., [7, 7], range(9, 2, -3)):
        assert_bitwise_equal(store.get_tensor(None, "x", index), rows[index])
    for index in ([], range(5, 2)):
        assert_bitwise_equal(store.get_tensor(None, "x", index), rows[:0])
    assert_bitwise_equal(store.get_tensor(None, "x", slice(None, None, -1)), rows.flip(0))
    assert_bitwise_equal(store.get_tensor(None, "x", mask.tolist()), rows[mask])
    for number in (7, -1, np.int64(7), np.int32(-1), torch.tensor(7)):
        assert_bitwise_equal(store[None, "x", number], rows[int(number)])
    store = compressed({("paper", "x"): rows})
    assert_bitwise_equal(store["paper"].x[torch.tensor([1])], rows[1:2])
    assert_bitwise_equal(store["paper", "x"](), rows)
    # PyG itself takes arrays of one element only.
    for dtype in (np.int64, np.uint8, np.int16):
        index = np.array([2, 5], dtype=dtype)
        as_array = store.get_tensor("paper", "x", index, convert_type=True)
        assert isinstance(as_array, np.ndarray) and np.array_equal(as_array, rows[[2, 5]].numpy())
        assert_bitwise_equal(store["paper", "x", index], rows[[2, 5]])
    assert_bitwise_equal(store.get_tensor("paper", "x", mask.numpy()), rows[mask])


@pytest.mark.parametrize(
    ("index", "error", "message"),
    [
        (torch.tensor([3, 200]), IndexError, "want 0 <= id < 200, got 200 at position 1"),
        (torch.tensor([-1]), IndexError, "want 0 <= id < 200, got -1"),
        (200, IndexError, "want 0 <= id < 200, got 200"),
        (torch.ones(199, dtype=torch.bool), IndexError, r"want a mask of shape \[200\], got \[199\]"),
        (torch.tensor([1.0]), TypeError, "ids: want int32 or int64, got torch.float32"),
        ([-1], IndexError, "want 0 <= id < 200, got -1"),
        (-201, IndexError, "want 0 <= id < 200, got -201"),
        ((1, 2), TypeError, "index: want a tensor, an array, a list, .*, an int, None or ..., got tuple"),
        (True, TypeError, "index: want a tensor, .*, got bool"),
    ],
)
def test_an_index_that_does_not_fit(index: Any, error: type[Exception], message: str) -> None:
    store = compressed({"x": rows_of(torch.float32, 200, 3)})
    with pytest.raises(error, match=message):
        store.get_tensor(None, "x", index)


def test_put_update_remove() -> None:
    rows, others = rows_of(torch.float32, 200, 3), rows_of(torch.float16, 100, 2)
    store = compressed()
    store["paper", "x", None] = rows
    assert store.put_tensor(others.numpy(), group_name="author", attr_name="x", index=None)
    assert [(attr.group_name, attr.attr_name) for attr in store.get_all_tensor_attrs()] == [
        ("paper", "x"),
        ("author", "x"),
    ]
    assert not store.get_all_tensor_attrs()[0].is_set("index")
    assert isinstance(store.source("x", "paper"), ibp_gnn.CompressedFeatureStore)
    assert_bitwise_equal(store["author", "x", None], others)
    assert store.update_tensor(rows.neg(), "paper", "x", None)
    assert_bitwise_equal(store["paper", "x", None], rows.neg())
    del store["paper", "x"]
    assert len(store) == 1 and store.get_tensor_size("paper", "x") is None
    assert not store.remove_tensor("paper", "x", None)
    with pytest.raises(KeyError, match="no feature .*'paper', 'x'.*there are: .*'author'"):
        store.get_tensor("paper", "x", None)


# index, and the rows of a feature of 200 that it names
WRITES = {
    "tensor": (torch.tensor([150, 3]), [150, 3]),
    "int32": (torch.tensor([150, 3], dtype=torch.int32), [150, 3]),
    "one": (torch.tensor([150]), [150]),
    "none": (torch.tensor([], dtype=torch.int64), []),
    "mask": (torch.arange(200) % 90 == 7, [7, 97, 187]),
    "slice": (slice(3, 9, 2), [3, 5, 7]),
    "slice from the end": (slice(-2, None), [198, 199]),
    "slice backwards": (slice(3, 0, -1), [3, 2, 1]),
    "int": (7, [7]),
    "int from the end": (-1, [199]),
    "np.int64": (np.int64(7), [7]),
    "0-d tensor": (torch.tensor(7), [7]),
    "list": ([150, 3], [150, 3]),
    "empty list": ([], []),
    "list of bools": ([number == 5 for number in range(200)], [5]),
    "array": (np.array([150, 3]), [150, 3]),
    "read-only array": (np.broadcast_to(np.int64(4), 1), [4]),
    "array of uint8": (np.array([150, 3], dtype=np.uint8), [150, 3]),
    "array of bools": (np.arange(200) == 5, [5]),
    "range": (range(10, 4, -3), [10, 7]),
    "all, but not as None": (torch.arange(199, -1, -1), list(range(199, -1, -1))),
}


@pytest.mark.parametrize("how", ["put_tensor", "update_tensor", "setitem"])
@pytest.mark.parametrize("write", WRITES)
def test_rows_are_written_by_index(write: str, how: str) -> None:
    rows, (index, ids) = rows_of(torch.float32, 200, 3), WRITES[write]
    store = compressed({("paper", "x"): rows})
    source, new = store.source("x", "paper"), rows_of(torch.float32, len(ids), 3, seed=7)
    if how == "setitem":
        store["paper", "x", index] = new
    else:
        assert getattr(store, how)(new, group_name="paper", attr_name="x", index=index)
    want = rows.clone()
    want[ids] = new
    assert_bitwise_equal(store["paper", "x", None], want)
    assert store.source("x", "paper") is source  # whoever else has it reads them, too


def test_one_row_may_come_without_its_first_dimension() -> None:
    rows = rows_of(torch.float32, 200, 3)
    store = compressed({"x": rows, "y": torch.arange(200)})
    store[None, "x", -1] = rows[0]
    store.update_tensor(rows[1].numpy(), None, "x", np.int64(2))
    store[None, "y", 4] = torch.tensor(77)
    assert_bitwise_equal(store[None, "x", torch.tensor([199, 2])], rows[:2])
    assert_bitwise_equal(store[None, "y", 4], torch.tensor(77))


def test_writes_reach_a_tensor_that_is_not_compressed() -> None:
    odd = torch.ones(4, 2, dtype=torch.complex64)
    store = compressed({"odd": odd})
    held = store.source("odd")
    store.update_tensor(torch.full((2, 2), 5j), None, "odd", [0, 3])
    assert torch.equal(store[None, "odd", None], torch.tensor([[5j, 5j], [1, 1], [1, 1], [5j, 5j]]))
    assert torch.equal(odd, torch.ones(4, 2, dtype=torch.complex64))  # the tensor is the user's
    assert store.source("odd") is not held
    for index, value, error in [
        ([0, 0], torch.full((2, 2), 5j), ValueError),
        ([4], torch.full((1, 2), 5j), IndexError),
        ([1], torch.full((1, 3), 5j), ValueError),
        ([1], torch.ones(1, 2), ValueError),
    ]:
        with pytest.raises(error, match="want"):
            store.update_tensor(value, None, "odd", index)


@pytest.mark.parametrize(
    "index",
    [
        None,
        ...,
        slice(None),
        slice(0, 50),
        torch.arange(50),
        torch.arange(50).flip(0),
        np.arange(50),
        range(50),
        list(range(50)),
        torch.ones(50, dtype=torch.bool),
    ],
    ids=lambda index: type(index).__name__,
)
@pytest.mark.parametrize("as_array", [False, True])
def test_a_first_put_of_all_rows(index: Any, as_array: bool) -> None:
    rows = rows_of(torch.float16, 50, 2)
    store = compressed()
    assert store.put_tensor(rows.numpy() if as_array else rows, group_name="paper", attr_name="x", index=index)
    want = rows.flip(0) if isinstance(index, torch.Tensor) and index[0] == 49 else rows
    assert_bitwise_equal(store["paper", "x", None], want)
    assert isinstance(store.source("x", "paper"), ibp_gnn.CompressedFeatureStore)


@pytest.mark.parametrize("index", [torch.tensor([0, 2]), slice(1, None), 0, [0, 0], torch.tensor([1, 2])], ids=str)
def test_a_first_put_of_some_rows(index: Any) -> None:
    store = compressed({("author", "x"): rows_of(torch.float32, 20, 2)})
    with pytest.raises(ValueError, match="'paper', 'x'.*: want all rows of a feature that is not here yet, got 2"):
        store.put_tensor(rows_of(torch.float32, 2, 2), "paper", "x", index)
    assert len(store) == 1


@pytest.mark.parametrize("index", [None, slice(None), torch.arange(200).flip(0)], ids=["None", "slice", "ids"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.complex64], ids=str)
def test_all_rows_may_change_their_shape_and_dtype(dtype: torch.dtype, index: Any) -> None:
    store = compressed({("paper", "x"): rows_of(torch.float32, 200, 3)})
    before = store.source("x", "paper")
    new = rows_of(torch.float32, 200, 5, seed=3).to(dtype)
    assert store.update_tensor(new, "paper", "x", index)
    want = new.flip(0) if isinstance(index, torch.Tensor) else new
    assert torch.equal(store["paper", "x", None], want) and store["paper", "x", None].dtype == dtype
    assert_bitwise_equal(before.gather(torch.arange(200)), rows_of(torch.float32, 200, 3))


def test_a_store_in_the_order_of_hotness_stays_so() -> None:
    rows, order = rows_of(torch.float32, 200, 3), torch.randperm(200)
    built = ibp_gnn.CompressedFeatureStore.build(rows, order=order, progress=False)
    store = compressed({"x": built})
    store.update_tensor(rows.double(), None, "x", None)
    assert torch.equal(store.source("x").slot_of, built.slot_of)
    assert_bitwise_equal(store[None, "x", None], rows.double())


@pytest.mark.parametrize("row_shape", ROW_SHAPES, ids=str)
@pytest.mark.parametrize("as_array", [False, True])
def test_a_type_without_rows(as_array: bool, row_shape: tuple[int, ...]) -> None:
    empty = torch.empty(0, *row_shape)
    store = compressed({("venue", "x"): empty.numpy() if as_array else empty, ("paper", "x"): torch.ones(5, 3)})
    store.put_tensor(empty, "venue", "y", torch.arange(0))  # its first rows, all of them
    for name in ("x", "y"):
        assert store.get_tensor_size("venue", name) == empty.shape
        for index in (None, [], torch.arange(0), torch.ones(0, dtype=torch.bool), slice(None)):
            assert_bitwise_equal(store["venue", name, index], empty)
            store["venue", name, index] = empty
        with pytest.raises(IndexError):
            store.get_tensor("venue", name, [0])
    some = rows_of(torch.float32, 5, *row_shape)
    store["venue", "x", None] = some
    assert_bitwise_equal(store["venue", "x", None], some)


def test_a_cache_follows() -> None:
    rows, wide = rows_of(torch.float32, 200, 3), rows_of(torch.float32, 200, 5)
    cache = CpuCache(ibp_gnn.CompressedFeatureStore.build(rows, progress=False), "7 rows")
    store = compressed({"x": cache})
    store[None, "x", [3, 4]] = rows[:2]
    assert store.source("x") is cache
    assert_bitwise_equal(cache.store.gather(torch.tensor([3, 4])), rows[:2])
    store.update_tensor(wide, None, "x", None)
    now = store.source("x")
    assert isinstance(now, CpuCache) and now is not cache and now.capacity == "7 rows"
    assert_bitwise_equal(store[None, "x", None], wide)
    now.fails = True
    with pytest.raises(ValueError, match="want more than that"):
        store.update_tensor(rows, None, "x", None)
    assert store.source("x") is now


@pytest.mark.parametrize("how", ["put_tensor", "update_tensor"])
@pytest.mark.parametrize(
    ("value", "index", "error", "message"),
    [
        ([1.0], None, TypeError, "'x'.*: want a tensor or a NumPy array, got list"),
        (torch.tensor(1.0), None, ValueError, r"want \[n, \*row_shape\], got a scalar"),
        (np.array(["a"] * 200), None, TypeError, "'x'"),
        ([1.0], [0], TypeError, "'x'.*: want a tensor or a NumPy array, got list"),
        (torch.ones(1, 4), [0], ValueError, "'x'.*: .*want"),
        (torch.ones(1, 3, dtype=torch.float64), [0], (TypeError, ValueError), "'x'.*: .*want"),
        (torch.ones(1, 3), [0, 1], ValueError, "'x'.*: rows: want 2 of them, as many as ids, got 1"),
        (torch.ones(2, 3), [0, 0], ValueError, "'x'.*: ids: want distinct ids, got 0 more than once"),
        (torch.ones(1, 3), [200], IndexError, "want 0 <= id < 200, got 200"),
        (torch.ones(1, 3), (0,), TypeError, "index: want .*got tuple"),
        (torch.ones(200, 4), range(1, 201), (IndexError, ValueError), "want"),
    ],
)
def test_after_a_failed_write_nothing_has_changed(
    value: Any, index: Any, error: type[Exception], message: str, how: str
) -> None:
    rows = rows_of(torch.float32, 200, 3)
    store = compressed({("paper", "x"): rows})
    source = store.source("x", "paper")
    with pytest.raises(error, match=message):
        getattr(store, how)(value, group_name="paper", attr_name="x", index=index)
    with pytest.raises(ValueError, match="not fully specified"):
        store.update_tensor(rows, group_name="paper")
    assert store.source("x", "paper") is source and len(store) == 1
    assert_bitwise_equal(store["paper", "x", None], rows)


def test_a_source_that_cannot_be_written() -> None:
    rows = rows_of(torch.float32, 200, 3)
    store = compressed({"x": TensorSource(rows)})
    with pytest.raises(NotImplementedError, match="'x'.*: want a CompressedFeatureStore, or a GPU cache of one"):
        store.update_tensor(rows[:1], None, "x", [0])
    assert_bitwise_equal(store[None, "x", None], rows)
    store.update_tensor(rows.neg(), None, "x", None)
    assert_bitwise_equal(store[None, "x", None], rows.neg())
    assert isinstance(store.source("x"), ibp_gnn.CompressedFeatureStore)


def test_an_empty_store_is_a_store() -> None:
    store = compressed()
    assert bool(store) is True and len(store) == 0


UNSET = TensorAttr().index


@dataclass
class AttrWithoutGroup(TensorAttr):
    """For a homogeneous graph: store["x", index]."""

    def __init__(self, attr_name: Any = UNSET, index: Any = UNSET) -> None:
        super().__init__(None, attr_name, index)


@dataclass
class AttrOfAll(TensorAttr):
    """Whose index is all rows if it is not given."""

    def __init__(self, group_name: Any = UNSET, attr_name: Any = UNSET, index: Any = None) -> None:
        super().__init__(group_name, attr_name, index)


def test_an_attr_class_of_another_order() -> None:
    rows, index = rows_of(torch.float32, 3, 3), torch.arange(3)
    store = compressed(tensor_attr_cls=AttrWithoutGroup)
    store["x", index] = rows
    assert isinstance(store["x"], AttrView)
    for got in (store["x", index], store["x"][index], store["x"][:], store["x", :], store["x", None]):
        assert_bitwise_equal(got, rows)
    (attr,) = store.get_all_tensor_attrs()
    assert type(attr) is AttrWithoutGroup and (attr.group_name, attr.attr_name) == (None, "x")
    assert not attr.is_set("index")
    attr.index = torch.tensor([2])
    assert_bitwise_equal(store.get_tensor(attr), rows[2:])

    class Subclass(PyGFeatureStore):
        """As PyG's own subclasses set it."""

        def __init__(self) -> None:
            super().__init__(progress=False)
            self._tensor_attr_cls = AttrOfAll

    of_all = Subclass()
    of_all["paper", "x"] = rows
    (attr,) = of_all.get_all_tensor_attrs()
    assert attr == AttrOfAll("paper", "x")
    assert_bitwise_equal(of_all.get_tensor(attr), rows)


def test_views_and_deletion() -> None:
    rows, index = rows_of(torch.float32, 3, 3), torch.arange(3)
    store, attr = compressed(), TensorAttr("A", "feat", index)
    store.put_tensor(rows, attr)
    assert torch.equal(attr.index, index)  # it is the caller's
    view = store.view(group_name="A")
    view.attr_name = "feat"
    view["index"] = index
    assert view == AttrView(store, TensorAttr("A", "feat", index))
    assert store["A"] == store.view(TensorAttr(group_name="A"))
    for got in (store[attr], store["A", "feat", :], store["A"]["feat"][:], store["A"].feat[:], store.view().A.feat[:]):
        assert_bitwise_equal(got, rows)
    assert store.update_tensor(torch.tensor([0.0, 2.0]), "A", "feat", None)
    assert_bitwise_equal(store["A", "feat", None], torch.tensor([0.0, 2.0]))
    del store["A", "feat", index]
    with pytest.raises(KeyError):
        store.get_tensor(attr)


def test_torchs_default_device_does_not_matter() -> None:
    rows = rows_of(torch.float32, 200, 3)
    store = compressed({"x": rows, "odd": torch.ones(200, 2, dtype=torch.complex64)})
    sampler = NeighborSampler(plain_data(), [2, 2])
    want = sample(sampler, [5, 9])
    torch.set_default_device("meta")
    try:
        for index in (None, slice(3, 9), [3, 4], range(3, 5), np.array([3]), 7):
            assert store[None, "x", index].device.type == "cpu"
        store[None, "odd", [3, 4]] = np.full((2, 2), 5j, dtype=np.complex64)
        torch.manual_seed(0)
        got = sampler.sample_from_nodes(NodeSamplerInput(None, torch.tensor([5, 9], device="cpu")))
    finally:
        torch.set_default_device(None)
    assert torch.equal(store[None, "odd", [3, 5]], torch.tensor([[5j, 5j], [1, 1]]))
    assert torch.equal(got.node, want.node) and torch.equal(got.edge, want.edge)


def test_what_it_can_be_made_from() -> None:
    rows = rows_of(torch.float32, 200, 3)
    source = CountingSource(TensorSource(rows))
    odd = torch.ones(200, 2, dtype=torch.complex64)
    store = compressed({"source": source, "array": rows.numpy(), "odd": odd})
    assert store.source("source") is source
    for name, want in {"source": rows, "array": rows, "odd": odd}.items():
        assert torch.equal(store[None, name, torch.tensor([7, 7])], want[[7, 7]])
    assert "(None, 'array'): CompressedFeatureStore(" in repr(store)


@pytest.mark.parametrize(
    ("features", "error", "message"),
    [
        ([1, 2], TypeError, "want a dict, a Data or a HeteroData, got list"),
        ({("a", "b", "c"): torch.ones(2, 2)}, ValueError, "want keys 'attr_name' or .*got .*'c'"),
        ({"x": [1.0]}, TypeError, "features.*'x'.*: want a tensor, a NumPy array or a RowSource, got list"),
        ({"x": torch.tensor(1.0)}, ValueError, "'x'.*got a scalar"),
    ],
)
def test_what_it_refuses(features: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        compressed(features)


def run_python(source: str, folder: Path) -> subprocess.CompletedProcess[str]:
    # With the package under test, installed or in the source tree; -c would put the current folder first.
    environment = {**os.environ, "PYTHONPATH": str(Path(ibp_gnn.__file__).parents[1])}
    command = [sys.executable, "-c", source]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=120)


def test_nothing_is_imported_before_it_is_needed(tmp_path: Path) -> None:
    source = "import sys, ibp_gnn; print('torch_geometric' in sys.modules); ibp_gnn.pyg; print('dgl' in sys.modules)"
    done = run_python(source, tmp_path)
    assert (done.stdout, done.returncode) == ("False\nFalse\n", 0), done.stderr


def test_without_pyg(tmp_path: Path) -> None:
    source = "import sys; sys.modules['torch_geometric'] = None; import ibp_gnn; ibp_gnn.pyg"
    done = run_python(source, tmp_path)
    assert "ibp_gnn.pyg needs torch_geometric, which is not installed. Run: pip install 'ibp-gnn[pyg]'" in done.stderr


# PyG's loaders

# How a loader is made of data, a structure and a number of workers.
MakeLoader = Callable[..., Any]


def node_loader(data: Any, graph: Any, hops: Any, **options: Any) -> Any:
    return NodeLoader(data, NeighborSampler(graph, hops), **options)


def neighbor_loader(data: Any, graph: Any, hops: Any, **options: Any) -> Any:
    return NeighborLoader(data, hops, **options)


LOADERS = [
    pytest.param(node_loader, id="NodeLoader"),
    pytest.param(
        neighbor_loader,
        id="NeighborLoader",
        marks=pytest.mark.skipif(not HAS_NEIGHBOR_LOADER, reason="NeighborLoader needs pyg-lib or torch-sparse"),
    ),
]


def same_batches(make: MakeLoader, graph: Any, data: Any, others: list[Any], **options: Any) -> list[Any]:
    """The batches of `data`, after comparing those of all others with them."""
    runs = []
    for source in [data, *others]:
        torch.manual_seed(3)
        runs.append(list(make(source, graph, [5, 5], batch_size=BATCH, shuffle=True, **options)))
    for run in runs[1:]:
        assert len(run) == len(runs[0])
    return list(zip(*runs, strict=True))


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("make", LOADERS)
def test_homogeneous_batches(make: MakeLoader, workers: int) -> None:
    data = plain_data()
    graph, features = structure(data), compressed(data)
    options = {"input_nodes": data.train_mask.nonzero().view(-1), "num_workers": workers}
    others = [(features, graph)] if make is neighbor_loader else [(features, graph), (features, data)]
    batches = same_batches(make, graph, data, others, **options)
    assert len(batches) > 3
    for plain, *ours in batches:
        assert_bitwise_equal(plain.x, data.x[plain.n_id])
        for batch in ours:
            assert torch.equal(batch.n_id, plain.n_id) and torch.equal(batch.edge_index, plain.edge_index)
            assert batch.batch_size == plain.batch_size
            for name in ("x", "half", "y", "train_mask"):
                assert_bitwise_equal(batch[name], plain[name])


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("make", LOADERS)
def test_heterogeneous_batches(make: MakeLoader, workers: int) -> None:
    data = plain_hetero_data()
    graph, features = hetero_structure(data), compressed(data)
    options = {"input_nodes": ("paper", torch.arange(0, 300, 2)), "num_workers": workers}
    for plain, ours in same_batches(make, graph, data, [(features, graph)], **options):
        for name in ("paper", "author"):
            assert torch.equal(ours[name].n_id, plain[name].n_id)
            assert_bitwise_equal(ours[name].x, data[name].x[ours[name].n_id])
            assert_bitwise_equal(ours[name].x, plain[name].x)
        assert_bitwise_equal(ours["paper"].y, plain["paper"].y)
        for edge_type in data.edge_types:
            assert torch.equal(ours[edge_type].edge_index, plain[edge_type].edge_index)


@pytest.mark.parametrize("options", [{"filter_per_worker": False}, {"multiprocessing_context": "spawn"}], ids=str)
def test_other_workers(options: dict[str, Any]) -> None:
    data = plain_data()
    graph, features = structure(data), compressed(data)
    loader = node_loader(
        (features, graph), graph, [5], input_nodes=torch.arange(150), batch_size=BATCH, num_workers=2, **options
    )
    for batch in loader:
        assert_bitwise_equal(batch.x, data.x[batch.n_id])


@pytest.mark.cuda
def test_rows_on_the_gpu() -> None:
    data = plain_data()
    graph, features = structure(data), compressed(data, device="cuda")
    options = {"batch_size": BATCH, "num_workers": 2, "filter_per_worker": False}
    for batch in node_loader((features, graph), graph, [5], input_nodes=torch.arange(150), **options):
        assert batch.x.is_cuda
        assert_bitwise_equal(batch.x, data.x[batch.n_id])


# Features of edges

EDGE_TYPE = ("author", "writes", "paper")


@pytest.mark.parametrize("how", ["init", "put_tensor", "update_tensor", "setitem"])
@pytest.mark.parametrize(
    ("key", "rows"),
    [
        ((None, "edge_attr"), torch.ones(20, 1)),
        ((None, "edge_weight"), torch.ones(20)),
        ((None, "my_edges"), TensorSource(torch.ones(20, 2))),
        ((None, "edge2"), torch.ones(20)),
        ((None, "weight"), torch.ones(55, 1)),  # by the number of its rows
        ((None, "weight"), TensorSource(torch.ones(55, 1))),
        ((EDGE_TYPE, "edge_attr"), torch.ones(55, 1)),
        ((EDGE_TYPE, "time"), torch.ones(20)),
        (("paper", "weight"), torch.ones(55)),
    ],
    ids=lambda value: str(value) if isinstance(value, tuple) else "",
)
def test_features_of_edges_are_refused(key: Any, rows: Any, how: str) -> None:
    nodes = {(None, "x"): torch.ones(20, 3), ("paper", "x"): torch.ones(20, 3)}
    message = r"want .*got|want .*without the word 'edge'.*"
    if how == "init":
        with pytest.raises(ValueError, match=message) as raised:
            compressed({**nodes, key: rows})
    else:
        store = compressed(nodes)
        with pytest.raises(ValueError, match=message) as raised:
            if how == "setitem":
                store[(*key, None)] = rows
            else:
                getattr(store, how)(rows, *key, index=None)
        assert set(store._features) == set(nodes)
    assert key[1] in str(raised.value) and "edges.gather(batch.e_id)" in str(raised.value)


def test_node_features_that_look_like_those_of_edges() -> None:
    data = Data(x=torch.ones(20, 3), edge_count=torch.arange(20), edge_index=torch.zeros(2, 7, dtype=torch.int64))
    store = compressed(data)  # PyG says that it is one of nodes
    assert_bitwise_equal(store[None, "edge_count", None], data.edge_count)
    store.update_tensor(data.edge_count + 1, None, "edge_count", None)
    assert_bitwise_equal(store[None, "edge_count", None], data.edge_count + 1)
    compressed({("paper", "edge_count"): torch.arange(20)})  # a node type has no edges
    store.update_tensor(torch.ones(25, 3), None, "x", None)  # the graph grows
    store.put_tensor(torch.ones(25), None, "z", None)


@pytest.mark.parametrize("name", ["knowledge", "hedges", "edgeless", "num_wedges", "ledger2"])
def test_edge_is_a_word_of_the_name(name: str) -> None:
    rows = torch.arange(20)
    store = compressed({(None, "x"): torch.ones(20, 3), (None, name): rows})
    assert_bitwise_equal(store[None, name, None], rows)
    compressed({(None, "x"): torch.ones(20, 3)}).put_tensor(rows, None, name, None)
    with pytest.raises(ValueError, match="edges"):
        compressed({(None, "x"): torch.ones(20, 3), (None, name): torch.arange(55)})


def test_lists_of_a_data_are_left_out() -> None:
    data = Data(x=torch.ones(3, 2), names=["a", "b", "c"], edge_index=torch.zeros(2, 7, dtype=torch.int64))
    assert list(compressed(data)._features) == [(None, "x")]
    hetero = HeteroData()
    hetero["paper"].x, hetero["paper"].names = torch.ones(3, 2), ["a", "b", "c"]
    assert list(compressed(hetero)._features) == [("paper", "x")]


class WithEdges:
    """What the error of an edge feature says to do, as a `transform` of the loader."""

    def __init__(self, stores: dict[Any, ibp_gnn.CompressedFeatureStore]) -> None:
        self.stores = stores

    def __call__(self, batch: Any) -> Any:
        for edge_type, store in self.stores.items():
            part = batch if edge_type is None else batch[edge_type]
            part.edge_attr = store.gather(part.e_id)
        return batch


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("make", LOADERS)
def test_features_of_edges_beside_the_store(make: MakeLoader, workers: int) -> None:
    data = plain_data()
    data.edge_attr = rows_of(torch.float32, NUM_EDGES, 2, seed=5)
    features = compressed({"x": data.x})
    edges = ibp_gnn.CompressedFeatureStore.build(data.edge_attr, progress=False)
    options = {"input_nodes": torch.arange(200), "batch_size": BATCH, "num_workers": workers}
    for batch in make((features, structure(data)), structure(data), [5], transform=WithEdges({None: edges}), **options):
        ends = batch.n_id[batch.edge_index]
        assert torch.equal(data.edge_index[:, batch.e_id], ends) and len(ends[0]) > 0
        assert_bitwise_equal(batch.edge_attr, data.edge_attr[batch.e_id])


@pytest.mark.parametrize("make", LOADERS)
def test_features_of_edges_beside_the_store_in_a_heterograph(make: MakeLoader) -> None:
    data = plain_hetero_data()
    stores = {}
    for seed, edge_type in enumerate(data.edge_types):
        data[edge_type].edge_attr = rows_of(torch.float32, data[edge_type].num_edges, 2, seed=seed)
        stores[edge_type] = ibp_gnn.CompressedFeatureStore.build(data[edge_type].edge_attr, progress=False)
    features, graph = compressed(data), hetero_structure(data)
    assert {group for group, _ in features._features} == {"paper", "author"}  # those of nodes
    options = {"input_nodes": ("paper", torch.arange(100)), "batch_size": BATCH}
    for batch in make((features, graph), graph, [4, 4], transform=WithEdges(stores), **options):
        for edge_type in data.edge_types:
            assert len(batch[edge_type].e_id) > 0
            assert_bitwise_equal(batch[edge_type].edge_attr, data[edge_type].edge_attr[batch[edge_type].e_id])


# Training


class SAGE(torch.nn.Module):
    def __init__(self, in_size: int, out_size: int) -> None:
        super().__init__()
        self.convs = torch.nn.ModuleList([SAGEConv(in_size, 16), SAGEConv(16, out_size)])

    def forward(self, batch: Data) -> torch.Tensor:
        x, edges = batch.x, batch.edge_index
        for layer, conv in enumerate(self.convs):
            if "num_sampled_nodes" in batch:  # not from torch-sparse
                x, edges, _ = trim_to_layer(layer, batch.num_sampled_nodes, batch.num_sampled_edges, x, edges)
            x = conv(torch.relu(x), edges)
        return x[: batch.batch_size]


def train(make: MakeLoader, data: Any, graph: Data, workers: int) -> list[float]:
    torch.manual_seed(0)
    model = SAGE(16, 5)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    loader = make(
        data, graph, [5, 5], input_nodes=torch.arange(600), batch_size=BATCH, shuffle=True, num_workers=workers
    )
    losses = []
    for _ in range(2):
        for batch in loader:
            loss = torch.nn.functional.cross_entropy(model(batch), batch.y[: batch.batch_size])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    return losses


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("make", LOADERS)
def test_the_same_losses(make: MakeLoader, workers: int) -> None:
    data = plain_data()
    graph = structure(data)
    plain = train(make, data, graph, workers)
    assert len(plain) == 20
    assert train(make, (compressed(data), graph), graph, workers) == plain  # every bit of every loss


# The sampler


def sample(sampler: NeighborSampler, seeds: list[int], seed: int = 0, name: str | None = None) -> Any:
    torch.manual_seed(seed)
    nodes = torch.tensor(seeds)
    return sampler.sample_from_nodes(NodeSamplerInput(input_id=None, node=nodes, input_type=name))


def test_sampler_takes_the_right_neighbors() -> None:
    data = plain_data()
    src, dst = data.edge_index
    degree = torch.bincount(dst, minlength=NUM_NODES)
    seeds = [3, 1999, 17, 0]
    out = sample(NeighborSampler(structure(data), [3, 2]), seeds)
    assert out.node[:4].tolist() == seeds
    assert len(out.node.unique()) == len(out.node) == sum(out.num_sampled_nodes)
    assert out.num_sampled_nodes[0] == 4 and len(out.num_sampled_nodes) == 3
    assert sum(out.num_sampled_edges) == len(out.edge) and len(out.num_sampled_edges) == 2

    # Every edge is one of the graph's, and none is taken twice.
    edge = NeighborSampler(structure(data), [3, 2]).edge_permutation[out.edge]
    assert torch.equal(src[edge], out.node[out.row]) and torch.equal(dst[edge], out.node[out.col])
    assert len(edge.unique()) == len(edge)

    # Each node is expanded once, in the hop after the one that reached it, to as many neighbours as there are.
    per_node = torch.bincount(out.col, minlength=len(out.node))
    first, second, _ = np.cumsum(out.num_sampled_nodes)
    assert torch.equal(per_node[:first], degree[out.node[:first]].clamp(max=3))
    assert torch.equal(per_node[first:second], degree[out.node[first:second]].clamp(max=2))
    assert int(per_node[second:].sum()) == 0
    assert int(out.col[: out.num_sampled_edges[0]].max()) < first
    assert int(out.row[: out.num_sampled_edges[0]].max()) < second


def test_sampler_takes_all_neighbors() -> None:
    data = plain_data()
    out = sample(NeighborSampler(data, [-1]), [8])
    wanted = data.edge_index[0][data.edge_index[1] == 8]
    assert sorted(out.node[out.row].tolist()) == sorted(wanted.tolist())


def test_sampler_takes_every_neighbor_equally_often() -> None:
    star = Data(edge_index=torch.stack([torch.arange(1, 11), torch.zeros(10, dtype=torch.int64)]), num_nodes=11)
    sampler = NeighborSampler(star, [4])
    counts = torch.zeros(11)
    torch.manual_seed(0)
    for _ in range(2000):
        out = sampler.sample_from_nodes(NodeSamplerInput(input_id=None, node=torch.tensor([0])))
        assert len(out.node.unique()) == 5
        counts[out.node[1:]] += 1
    # 800 each are expected, with a standard deviation of 22.
    assert 700 < int(counts[1:].min()) and int(counts.max()) < 900


def test_sampler_repeats_with_its_seed() -> None:
    sampler = NeighborSampler(plain_data(), [2, 2])
    first, again, other = (sample(sampler, [1, 2, 3], seed) for seed in (0, 0, 1))
    assert torch.equal(first.node, again.node) and torch.equal(first.edge, again.edge)
    assert not torch.equal(first.edge, other.edge)


def test_sampler_with_repeated_seeds() -> None:
    sampler = NeighborSampler(plain_data(), [-1])
    out = sample(sampler, [5, 9, 5])
    assert out.node[:3].tolist() == [5, 9, 5] and out.num_sampled_nodes[0] == 3
    assert set(out.col.tolist()) == {0, 1}  # edges go to the first of the two
    assert len(sample(sampler, [9]).node.unique()) == len(sample(sampler, [9]).node)  # nothing is left behind


def test_sampler_in_a_heterograph() -> None:
    data = plain_hetero_data()
    hops = {edge_type: [2, 1] for edge_type in data.edge_types}
    hops["paper", "cites", "paper"] = [0, 3]
    sampler = NeighborSampler(hetero_structure(data), hops)
    out = sample(sampler, [4, 0], name="paper")
    assert out.node["paper"][:2].tolist() == [4, 0]
    assert out.num_sampled_nodes["author"][0] == 0 < out.num_sampled_nodes["author"][1]
    assert out.num_sampled_edges["paper", "cites", "paper"][0] == 0
    assert out.num_sampled_edges["paper", "written_by", "author"][0] == 0  # no author to start from
    for edge_type in data.edge_types:
        source, _, target = edge_type
        edge = sampler.edge_permutation[edge_type][out.edge[edge_type]]
        wanted = data[edge_type].edge_index[:, edge]
        ends = [out.node[source][out.row[edge_type]], out.node[target][out.col[edge_type]]]
        assert torch.equal(wanted, torch.stack(ends))


def graph_with_gaps(sized: bool) -> HeteroData:
    """Types without nodes, relations without edges, and nodes whose only trace is their number."""
    graph = HeteroData()
    counts = {"paper": 5, "author": 7, "venue": 0, "lonely": 3}
    for name, count in counts.items():
        graph[name].num_nodes = count
    edges = {
        ("author", "writes", "paper"): [[0, 1], [0, 1]],
        ("paper", "in", "venue"): [[], []],
        ("venue", "has", "paper"): [[], []],
    }
    for edge_type, ends in edges.items():
        edge_index = torch.tensor(ends, dtype=torch.int64)
        if sized:
            size = (counts[edge_type[0]], counts[edge_type[2]])
            graph.put_edge_index(edge_index, edge_type=edge_type, layout="coo", size=size)
        else:
            graph[edge_type].edge_index = edge_index
    return graph


@pytest.mark.parametrize("sized", [False, True])
def test_batches_of_types_without_nodes_or_edges(sized: bool) -> None:
    graph = graph_with_gaps(sized)
    rows = {name: rows_of(torch.float32, graph[name].num_nodes, 4) for name in ("paper", "author", "lonely")}
    rows["venue"] = torch.empty(0, 4)
    features = compressed({(name, "x"): part for name, part in rows.items()})
    for name in ("paper", "author", "lonely"):
        seeds = torch.arange(len(rows[name]))
        (batch,) = node_loader((features, graph), graph, [2, 2], input_nodes=(name, seeds), batch_size=100)
        assert batch[name].n_id[: len(seeds)].tolist() == seeds.tolist()
        for other, part in rows.items():
            assert_bitwise_equal(batch[other].x, part[batch[other].n_id])
        assert batch["paper", "in", "venue"].edge_index.shape == (2, 0)
    with pytest.raises(IndexError, match="input_nodes: want 0 <= id < 7, got 7"):
        sample(NeighborSampler(graph, [1]), [7], name="author")


def test_batches_of_a_graph_without_edges() -> None:
    graph, rows = Data(num_nodes=6, edge_index=torch.empty(2, 0, dtype=torch.int64)), rows_of(torch.float32, 6, 4)
    (batch,) = node_loader((compressed({"x": rows}), graph), graph, [2], input_nodes=torch.arange(6), batch_size=6)
    assert_bitwise_equal(batch.x, rows)
    assert batch.edge_index.shape == (2, 0)


def test_the_number_of_nodes_is_that_of_the_graph() -> None:
    edges = torch.tensor([[0, 9], [1, 2]])  # node 9 has no incoming edge, nodes 10 and 11 have none at all
    for graph in (Data(edge_index=edges, num_nodes=12), Data(edge_index=edges, x=torch.ones(12, 1)), Data()):
        if not graph.keys():
            graph.put_edge_index(edges, layout="coo", size=(12, 12))
        assert sample(NeighborSampler(graph, [1]), [11]).node.tolist() == [11]
        with pytest.raises(IndexError, match="input_nodes: want 0 <= id < 12, got 12"):
            sample(NeighborSampler(graph, [1]), [12])


def test_what_the_sampler_refuses() -> None:
    data, hetero = plain_data(), plain_hetero_data()
    with pytest.raises(TypeError, match="want a GraphStore, such as Data or HeteroData, got Tensor"):
        NeighborSampler(data.edge_index, [1])
    with pytest.raises(ValueError, match="want one number >= -1 a hop"):
        NeighborSampler(data, [])
    with pytest.raises(ValueError, match="want one number >= -1 a hop"):
        NeighborSampler(data, [3, -2])
    with pytest.raises(ValueError, match="num_neighbors: want .*cites.*got"):
        NeighborSampler(hetero, {("paper", "cites", "paper"): [1]})
    with pytest.raises(IndexError, match="input_nodes: want 0 <= id < 2000, got 2000"):
        sample(NeighborSampler(data, [1]), [3, 2000])
    with pytest.raises(ValueError, match="want a node type among .*'paper'.*got 'venue'"):
        sample(NeighborSampler(hetero, [1]), [0], name="venue")
    sampler = NeighborSampler(data, [1])
    with pytest.raises(NotImplementedError, match="temporal sampling"):
        sampler.sample_from_nodes(NodeSamplerInput(None, torch.tensor([0]), time=torch.tensor([0])))
    with pytest.raises(NotImplementedError, match="LinkNeighborLoader"):
        sampler.sample_from_edges(None)


def test_tensor_attr_is_pygs() -> None:
    store = compressed({"x": rows_of(torch.float32, 10, 2)})
    assert all(type(attr) is TensorAttr for attr in store.get_all_tensor_attrs())

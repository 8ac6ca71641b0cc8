"""The feature store for PyG: the rows of the tensor, bit for bit; writes, and what is refused.

scripts/test.sh runs this file and its neighbours, test_pyg_*.py, where PyG is installed.
"""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("torch_geometric")

from adapter_cases import DTYPES, ROW_SHAPES, rows_of  # noqa: E402
from cpu_cache import CpuCache  # noqa: E402
from exact_sources import CountingSource, TensorSource  # noqa: E402
from pyg_cases import compressed, plain_data, sample  # noqa: E402
from torch_geometric.data import Data, HeteroData, TensorAttr  # noqa: E402
from torch_geometric.data.feature_store import AttrView  # noqa: E402
from torch_geometric.sampler import NodeSamplerInput  # noqa: E402

import ibp_gnn  # noqa: E402
from ibp_gnn._install import install_command  # noqa: E402
from ibp_gnn.pyg import NeighborSampler, PyGFeatureStore  # noqa: E402
from ibp_gnn.testing import assert_bitwise_equal  # noqa: E402

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork.*:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:.*without a 'pyg-lib' installation.*"),
]
IDS = {
    "some": torch.tensor([5, 0, 77, 199]),
    "empty": torch.tensor([], dtype=torch.int64),
    "repeated": torch.tensor([9, 9, 0, 9, 0]),
    "int32": torch.tensor([3, 198, 3], dtype=torch.int32),
}


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
    assert f"ibp_gnn.pyg needs torch_geometric, which is not installed. Run: {install_command('pyg')}" in done.stderr


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


def test_tensor_attr_is_pygs() -> None:
    store = compressed({"x": rows_of(torch.float32, 10, 2)})
    assert all(type(attr) is TensorAttr for attr in store.get_all_tensor_attrs())

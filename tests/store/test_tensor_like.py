"""A store has a tensor's sizes, and an index takes the rows that it takes of a tensor; what is no tensor says so."""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from ibp_gnn import CompressedFeatureStore, CompressedGPUCache
from ibp_gnn.testing import assert_bitwise_equal

NUM_ROWS = 60
MASK = torch.arange(NUM_ROWS) % 7 == 2
DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16, torch.int64, torch.uint8, torch.bool)

KEYS: dict[str, Any] = {
    "tensor": torch.tensor([5, 5, 59]),
    "int32": torch.tensor([5, -2], dtype=torch.int32),
    "two_dimensions": torch.tensor([[1, 2], [3, -4]]),
    "no_dimension": torch.tensor(7),
    "none": torch.zeros(0, dtype=torch.int64),
    "array": np.array([9, 3]),
    "number": 3,
    "numpy_number": np.int16(3),
    "from_the_end": -1,
    "slice": slice(1, 5),
    "steps": slice(50, None, 3),
    "all": slice(None),
    "ellipsis": ...,
    "empty_slice": slice(9, 3),
    "list": [4, 4, -60],
    "empty_list": [],
    "nested_list": [[0, 1], [2, 3]],
    "truth_values": MASK.tolist(),
    "range": range(3, 20, 4),
    "mask": MASK,
    "numpy_mask": MASK.numpy(),
    "column": (slice(2, 9), 0),
    "ids_and_column": ([3, 3, 8], [0, 1, 2]),
    "new_axis": None,
}


def build(rows: torch.Tensor, **options: Any) -> CompressedFeatureStore:
    return CompressedFeatureStore.build(rows, pin=False, progress=False, **options)


@pytest.fixture(scope="module")
def raw() -> torch.Tensor:
    return torch.randn(NUM_ROWS, 6, generator=torch.Generator().manual_seed(3))


@pytest.fixture(scope="module")
def store(raw: torch.Tensor) -> CompressedFeatureStore:
    return build(raw)


@pytest.mark.parametrize("key", KEYS.values(), ids=KEYS)
@pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: str(dtype).removeprefix("torch."))
def test_an_index_takes_what_it_takes_of_a_tensor(dtype: torch.dtype, key: Any) -> None:
    rows = torch.arange(NUM_ROWS * 6).reshape(NUM_ROWS, 6).to(dtype)
    if dtype.is_floating_point:
        rows[3, :3] = torch.tensor([float("nan"), -0.0, float("inf")], dtype=dtype)
    as_torch_says = key if not isinstance(key, list) else torch.tensor(key, dtype=None if key else torch.int64)
    order = torch.randperm(NUM_ROWS, generator=torch.Generator().manual_seed(4))
    for made in (build(rows), build(rows, order=order)):
        assert_bitwise_equal(made[key], rows[as_torch_says])


@pytest.mark.parametrize(
    ("key", "error", "message"),
    [
        (60, IndexError, r"want a row in \[-60, 60\), got 60"),
        (-61, IndexError, r"want a row in \[-60, 60\), got -61"),
        (torch.tensor([0, 60]), IndexError, r"want rows in \[-60, 60\), got 60"),
        ([0, -61], IndexError, r"want rows in \[-60, 60\), got -61"),
        (torch.ones(59, dtype=torch.bool), IndexError, r"mask: want \[60\], got \[59\]"),
        (torch.tensor([1.0]), IndexError, "index: want int32, int64 or a mask, got torch.float32"),
        ([0.5], IndexError, r"index: want a list of integers, or of truth values, got \[0.5\]"),
        ([[1], [2, 3]], IndexError, "index: want a list of integers, or of truth values"),
        (slice(None, None, -1), ValueError, "slice: want a step above 0, got -1"),
        ("feat", TypeError, "index: want numbers, slices, lists, ranges, masks, int32 or int64 ids, got 'feat'"),
        (0.5, IndexError, "index: want numbers, slices, lists, ranges, masks, int32 or int64 ids, got 0.5"),
    ],
)  # fmt: skip
def test_an_index_that_is_none(
    store: CompressedFeatureStore, key: Any, error: type[Exception], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(CompressedFeatureStore, "gather", lambda *_, **__: pytest.fail("want nothing decoded"))
    with pytest.raises(error, match=message):
        store[key]


def test_only_the_rows_of_an_index_are_decoded(store: CompressedFeatureStore, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[list[int]] = []
    gather = CompressedFeatureStore.gather

    def counting(self: Any, ids: torch.Tensor, **options: Any) -> torch.Tensor:
        asked.append(ids.tolist())
        return gather(self, ids, **options)

    monkeypatch.setattr(CompressedFeatureStore, "gather", counting)
    _ = store[3], store[1:3], store[[7, 7]], store[MASK], store[-1, 2]
    assert asked == [[3], [1, 2], [7, 7], MASK.nonzero()[:, 0].tolist(), [59]]


def test_what_an_index_gives_is_the_callers_own(store: CompressedFeatureStore, raw: torch.Tensor) -> None:
    row = store[3]
    row.zero_()
    assert_bitwise_equal(store[3], raw[3])


def test_sizes_are_those_of_a_tensor(store: CompressedFeatureStore, raw: torch.Tensor) -> None:
    assert (store.ndim, store.dim(), store.numel(), len(store)) == (raw.ndim, raw.dim(), raw.numel(), len(raw))
    assert store.size() == raw.size() and isinstance(store.size(), torch.Size)
    assert [store.size(dim) for dim in (0, 1, -1, -2)] == [raw.size(dim) for dim in (0, 1, -1, -2)]
    assert (store.device, store.dtype, store.is_pinned()) == (raw.device, raw.dtype, raw.is_pinned())
    with pytest.raises(IndexError, match=r"dim: want one in \[-2, 2\), got 2"):
        store.size(2)
    assert store.stats().misses == 0


@pytest.mark.parametrize("ids", [[1, 2], range(3), MASK, torch.tensor(3), 3, torch.tensor([[1]])])
def test_gather_takes_ids_alone_and_names_the_index(store: CompressedFeatureStore, ids: Any) -> None:
    with pytest.raises(
        (TypeError, ValueError), match=r"^ids: want .*, got .*; an index, x\[ids\], takes lists, ranges"
    ):
        store.gather(ids)
    assert len(store[ids]) > 0


def test_the_device_is_the_second_argument(store: CompressedFeatureStore, raw: torch.Tensor) -> None:
    ids = torch.tensor([1, 0])
    assert_bitwise_equal(store.gather(ids, "cpu"), raw[ids])
    with pytest.raises(TypeError):
        store.gather(ids, "cpu", torch.empty(2, 6))  # type: ignore[misc]


def test_numpy_decodes_all_rows(store: CompressedFeatureStore, raw: torch.Tensor, tmp_path: Path) -> None:
    array = np.asarray(store)
    assert array.dtype == np.float32
    assert_bitwise_equal(array, raw.numpy())
    np.save(tmp_path / "rows.npy", store)  # type: ignore[arg-type]
    assert_bitwise_equal(np.load(tmp_path / "rows.npy"), raw.numpy())
    assert_bitwise_equal(np.asarray(store, dtype=np.float64), raw.numpy().astype(np.float64))
    with pytest.raises(ValueError, match="copy: want None or True, since rows are decoded, got False"):
        store.__array__(copy=False)
    with pytest.raises(TypeError, match=r"want a dtype that NumPy has, got torch.bfloat16; gather\(ids\)"):
        np.asarray(build(raw.bfloat16()))


def test_torch_decodes_all_rows_where_it_makes_a_tensor(store: CompressedFeatureStore, raw: torch.Tensor) -> None:
    for made in (torch.from_dlpack(store), build(raw.bfloat16())[:].float()):
        assert made.shape == raw.shape
    assert_bitwise_equal(torch.from_dlpack(store), raw)


@pytest.mark.parametrize(
    ("call", "name"),
    [
        (lambda x: torch.nn.functional.linear(x, torch.ones(6, 6)), "linear"),
        (lambda x: torch.stack([x]), "stack"),
        (lambda x: torch.index_select(x, 0, torch.tensor([1])), "index_select"),
    ],
)
def test_functions_of_torch_name_the_ways(store: CompressedFeatureStore, call: Callable[[Any], Any], name: str) -> None:
    with pytest.raises(TypeError, match=f"torch's {name}: want a tensor, got a CompressedFeatureStore") as error:
        call(store)
    for way in ("gather(ids)", "[ids]", "ibp_gnn.attach(graph, key, store)", 'PyGFeatureStore({"x": store})', "data.x"):
        assert way in str(error.value)


def test_rows_are_written_by_update(store: CompressedFeatureStore) -> None:
    with pytest.raises(
        TypeError, match=r"want update\(ids, rows\) to write rows of a CompressedFeatureStore, got an as"
    ):
        store[3] = torch.zeros(6)


def test_dir_shows_what_is_public(store: CompressedFeatureStore) -> None:
    shown = set(dir(store))
    wanted = "build load save gather update close size ndim numel device is_pinned stats savings nbytes codec lock"
    assert set(wanted.split()) <= shown
    assert not {name for name in shown if name.startswith("_") and not name.startswith("__")}
    assert not {"gather_on", "mapped_rows", "add_cache", "remove_cache", "to_slots", "copy_of", "overflows"} & shown


def test_an_out_that_needs_grad_is_refused_as_torch_does(store: CompressedFeatureStore, raw: torch.Tensor) -> None:
    ids, leaf = torch.tensor([1, 2]), torch.zeros(2, 6, requires_grad=True)
    for gather in (lambda: store.gather(ids, out=leaf), lambda: torch.index_select(raw, 0, ids, out=leaf)):
        with pytest.raises(RuntimeError):
            gather()
    with pytest.raises(RuntimeError, match="out: want a tensor that does not need grad, got one that does"):
        store.gather(ids, out=leaf)
    assert not leaf.any()
    with torch.no_grad():
        assert_bitwise_equal(store.gather(ids, out=leaf), raw[ids])


@pytest.mark.parametrize(
    "call", [lambda x: CompressedFeatureStore(x), lambda x: CompressedFeatureStore(features=x, pin=False)]
)
def test_the_constructor_names_build_and_load(raw: torch.Tensor, call: Callable[[Any], Any]) -> None:
    with pytest.raises(TypeError, match=r"want a Codec and its rows, got Tensor.*\.build\(features\).*\.load\(path\)"):
        call(raw)


def test_a_pickled_store_that_torch_loads_names_save_and_load(store: CompressedFeatureStore, raw: torch.Tensor) -> None:
    file = io.BytesIO()
    torch.save(store, file)
    file.seek(0)
    assert_bitwise_equal(torch.load(file, weights_only=False)[:], raw)
    file.seek(0)
    if hasattr(torch.serialization, "add_safe_globals"):
        with pytest.raises(
            TypeError, match=r"weights_only=False.*store\.save\(path\) and CompressedFeatureStore\.load"
        ):
            torch.load(file, weights_only=True)


def test_copies_index_as_well(store: CompressedFeatureStore, raw: torch.Tensor) -> None:
    for other in (copy.deepcopy(store), pickle.loads(pickle.dumps(store))):
        assert_bitwise_equal(other[MASK], raw[MASK])
        assert other.device == torch.device("cpu")


@pytest.mark.cuda
@pytest.mark.parametrize("key", KEYS.values(), ids=KEYS)
def test_an_index_of_a_cache(raw: torch.Tensor, key: Any) -> None:
    """Rows come on its GPU, wherever the ids are; and of a store, on the GPU that the ids are on."""
    as_torch_says = key if not isinstance(key, list) else torch.tensor(key, dtype=None if key else torch.int64)
    with (
        CompressedFeatureStore.build(raw, progress=False) as on_cpu,
        CompressedGPUCache(on_cpu, "20 rows") as cache,
    ):
        rows = cache[key]
        assert rows.device == cache.device
        assert_bitwise_equal(rows.cpu(), raw[as_torch_says])
        if isinstance(key, torch.Tensor):
            assert_bitwise_equal(on_cpu[key.cuda()].cpu(), raw[key])
        assert (cache.ndim, cache.size(1), cache.numel()) == (2, 6, raw.numel())


@pytest.mark.cuda
def test_what_else_a_cache_has_of_a_tensor(raw: torch.Tensor) -> None:
    with (
        CompressedFeatureStore.build(raw, progress=False) as on_cpu,
        CompressedGPUCache(on_cpu, "20 rows") as cache,
    ):
        assert_bitwise_equal(cache.gather(torch.tensor([3, 59]), "cuda").cpu(), raw[[3, 59]])
        assert_bitwise_equal(np.asarray(cache), raw.numpy())
        assert not {"prepare_update", "prepare_move", "commit_update", "release", "plan"} & set(dir(cache))
        with pytest.raises(TypeError, match="torch's stack: want a tensor, got a CompressedGPUCache"):
            torch.stack([cache])

"""A FeatureTensor is the tensor of its rows to all of torch, reads what it must and refuses to be written to."""

from __future__ import annotations

import copy
import ctypes
import io
import pickle
from collections.abc import Callable
from multiprocessing.reduction import ForkingPickler
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional

from ibp_gnn import CompressedFeatureStore
from ibp_gnn.integrations.feature_tensor import METADATA, FeatureTensor, KeptRows
from ibp_gnn.testing import assert_bitwise_equal

N, DIM = 40, 6


class Rows:
    """The rows behind a FeatureTensor, and how many of them were read."""

    def __init__(self, dtype: torch.dtype = torch.float32, *row_shape: int, kept: KeptRows | None = None) -> None:
        generator = torch.Generator().manual_seed(0)
        row_shape = row_shape or (DIM,)
        self.values = (torch.randn(N, *row_shape, generator=generator) * 10).to(dtype)
        self.read = 0
        self.x = FeatureTensor((N, *row_shape), dtype, torch.device("cpu"), self.gather, kept)

    def gather(self, ids: torch.Tensor | None) -> torch.Tensor:
        if ids is None:
            self.read += N
            return self.values.clone()
        assert ids.dtype == torch.int64
        self.read += len(ids)
        return self.values.view(torch.uint8)[ids].view(self.values.dtype)  # also where torch cannot index the dtype


@pytest.fixture
def rows() -> Rows:
    return Rows()


# ---- metadata


@pytest.mark.parametrize("name", sorted(METADATA | {"is_pinned", "is_shared", "type"}))
def test_metadata_reads_nothing(rows: Rows, name: str) -> None:
    if not hasattr(rows.values, name):
        pytest.skip(f"torch {torch.__version__} has no Tensor.{name}")
    got, want = getattr(rows.x, name), getattr(rows.values, name)
    if callable(want) and name not in ("__hash__", "__dir__"):
        assert got() == want()
    elif name in ("__hash__", "__dir__"):
        assert got()
    else:
        assert got == want
    assert rows.read == 0


METADATA_FUNCTIONS: dict[str, Callable[[torch.Tensor], Any]] = {
    "shape": lambda x: x.shape[1],
    "len": len,
    "size": lambda x: x.size(-1),
    "is_tensor": lambda x: (torch.is_tensor(x), isinstance(x, torch.Tensor), bool(x is not None)),
    "is_floating_point": torch.is_floating_point,
    "numel": torch.numel,
    "result_type": lambda x: torch.result_type(x, torch.ones(1, dtype=torch.float64)),
    "hasattr": lambda x: hasattr(x, "no such attribute"),
}
LIKE: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "zeros_like": torch.zeros_like,
    "ones_like": lambda x: torch.ones_like(x, dtype=torch.int32),
    "full_like": lambda x: torch.full_like(x, 3),
    "new_zeros": lambda x: x.new_zeros(2, 3),
    "new_full": lambda x: x.new_full((2,), 7),
    "new_tensor": lambda x: x.new_tensor([1, 2]),
}


@pytest.mark.parametrize("name", METADATA_FUNCTIONS)
def test_functions_of_metadata_read_nothing(rows: Rows, name: str) -> None:
    assert METADATA_FUNCTIONS[name](rows.x) == METADATA_FUNCTIONS[name](rows.values)
    assert rows.read == 0


@pytest.mark.parametrize("name", LIKE)
def test_tensors_of_its_kind_read_nothing(rows: Rows, name: str) -> None:
    got, want = LIKE[name](rows.x), LIKE[name](rows.values)
    assert_bitwise_equal(got, want)
    assert type(got) is torch.Tensor and got.stride() == want.stride()
    assert rows.read == 0


def test_what_changes_nothing_reads_nothing(rows: Rows) -> None:
    x = rows.x
    for same in (
        x.detach(),
        x.data,
        x.detach_(),
        x.requires_grad_(False),
        x.to("cpu"),
        x.to(torch.device("cpu")),
        x.to(device="cpu"),
        x.to(torch.float32),
        x.cpu(),
        x.float(),
        x.type(torch.float32),
        x.type("torch.FloatTensor"),
    ):
        assert same is x
    x.requires_grad = False
    assert rows.read == 0


def test_printing(rows: Rows) -> None:
    assert repr(rows.x) == str(rows.x) == f"{rows.x}" == repr(rows.values)
    many = Rows(torch.float32, 100)
    assert repr(many.x).startswith("FeatureTensor([40, 100], dtype=torch.float32, device='cpu')")
    assert f"{many.x}" == str(many.x) == repr(many.x)
    assert many.read == 0


# ---- some rows


def test_an_index_reads_its_rows_alone(rows: Rows) -> None:
    x, values = rows.x, rows.values
    mask = torch.arange(N) % 10 == 3
    for key, read in (
        (7, 1),
        (-1, 1),
        (slice(3, 9, 2), 3),
        ([4, 4, -2], 3),
        (torch.tensor([5, 0], dtype=torch.int32), 2),
        (mask, 4),
        (np.array([1, 2]), 2),
        ((torch.tensor([5, 0]), slice(None), None), 2),
        ((torch.tensor([5, 0]), torch.tensor([1, 2])), 2),
        ((3, 2), 1),
    ):
        before = rows.read
        got = x[key]
        assert rows.read - before == read, key
        assert type(got) is torch.Tensor
        assert_bitwise_equal(got, values[key])
    with pytest.raises(IndexError, match=r"want a row in \[-40, 40\), got 40"):
        x[40]


@pytest.mark.parametrize("dtype", [torch.float8_e5m2, torch.bfloat16, torch.bool, torch.int16])
def test_an_index_works_for_every_dtype(dtype: torch.dtype) -> None:
    rows = Rows(dtype)
    assert_bitwise_equal(
        rows.x[torch.tensor([[3, 1], [0, 3]])].view(torch.uint8),
        rows.values.view(torch.uint8)[[3, 1, 0, 3]].view(2, 2, -1),
    )
    assert rows.read == 4


def test_index_select_reads_its_rows_alone(rows: Rows) -> None:
    ids = torch.tensor([3, 9, 3])
    out = torch.empty(3, DIM)
    for got in (
        rows.x.index_select(0, ids),
        torch.index_select(rows.x, 0, ids.int()),
        torch.index_select(rows.x, dim=-2, index=ids),
        torch.index_select(rows.x, 0, ids, out=out),
        torch.index_select(rows.x, 0, ids, out=torch.empty(0)),
    ):
        assert_bitwise_equal(got, rows.values[ids])
    assert_bitwise_equal(out, rows.values[ids])
    assert rows.read == 15
    for bad in ([0, N], [-1]):
        with pytest.raises(IndexError):
            rows.x.index_select(0, torch.tensor(bad))
    assert_bitwise_equal(rows.x.index_select(1, torch.tensor([2])), rows.values[:, [2]])


# ---- all rows

READS: dict[str, Callable[[torch.Tensor], Any]] = {
    "add": lambda x: x + 1,
    "radd": lambda x: 1 - x,
    "matmul": lambda x: x @ x.T,
    "eq": lambda x: x == x,
    "mean": lambda x: x.mean(0),
    "max": lambda x: x.max(0),
    "std": torch.std,
    "cat": lambda x: torch.cat([x, x, torch.ones(1, DIM)]),
    "stack": lambda x: torch.stack((x, x)),
    "split": lambda x: x.split(7),
    "unbind": lambda x: list(x),
    "view": lambda x: x.view(-1),
    "transpose": lambda x: x.t(),
    "mT": lambda x: x.mT,
    "whole": lambda x: x[:],
    "columns": lambda x: x[:, 1:3],
    "ellipsis": lambda x: x[..., 0],
    "none": lambda x: x[None],
    "mask": lambda x: x[x > 0],
    "gather": lambda x: x.gather(1, torch.zeros(N, 1, dtype=torch.int64)),
    "index_copy": lambda x: x.index_copy(0, torch.tensor([1]), torch.zeros(1, DIM)),
    "where": lambda x: torch.where(x > 0, x, torch.zeros(())),
    "clone": lambda x: x.clone(),
    "contiguous": lambda x: x.contiguous(),
    "double": lambda x: x.double(),
    "to": lambda x: x.to("cpu", torch.float16, non_blocking=True),
    "type": lambda x: x.type(torch.int32),
    "numpy": lambda x: x.numpy(),
    "asarray": np.asarray,
    "asarray_dtype": lambda x: np.asarray(x, dtype=np.float64),
    "np_mean": lambda x: np.mean(np.asarray(x), axis=0),
    "tolist": lambda x: x.tolist(),
    "item": lambda x: x.sum().item(),
    "contains": lambda x: 1e9 in x,
    "relu": functional.relu,
    "dropout": lambda x: functional.dropout(x, 0.5, training=False),
    "embedding": lambda x: functional.embedding(torch.tensor([[1, 2]]), x),
    "linear": lambda x: functional.linear(x, torch.ones(2, DIM)),
    "normalize": functional.normalize,
    "layer_norm": lambda x: torch.nn.LayerNorm(DIM)(x).detach(),
    "batch_norm": lambda x: torch.nn.BatchNorm1d(DIM)(x).detach(),
    "frozen": lambda x: torch.nn.Embedding.from_pretrained(x)(torch.tensor([1, 2])),
    "sparse": lambda x: torch.sparse.mm(torch.eye(N).to_sparse(), x),
    "einsum": lambda x: torch.einsum("ij,kj->ik", x, x),
    "copy_from": lambda x: torch.zeros(N, DIM).copy_(x),
    "add_to": lambda x: torch.ones(N, DIM).add_(x),
    "out": lambda x: torch.add(x, 1, out=torch.empty(N, DIM)),
    "assign_from": lambda x: torch.ones(N, DIM).index_copy_(0, torch.arange(N), x),
    "apply": lambda x: torch.vmap(lambda row: row.sum())(x),
    "pickle": lambda x: pickle.loads(pickle.dumps(x)),
    "multiprocessing": lambda x: pickle.loads(ForkingPickler.dumps(x)),
    "deepcopy": copy.deepcopy,
    "copy": copy.copy,
    "save": lambda x: _saved(x),
    "collate": lambda x: torch.utils.data.default_collate([x, x]),
    "collate_rows": lambda x: torch.utils.data.default_collate([(x[i], i) for i in range(3)]),
    "dlpack": lambda x: torch.from_dlpack(x),
    "to_dlpack": lambda x: torch.utils.dlpack.from_dlpack(torch.utils.dlpack.to_dlpack(x.contiguous())),
    "as_tensor": torch.as_tensor,
    "as_tensor_dtype": lambda x: torch.as_tensor(x, dtype=torch.float64),
    "untyped_storage": lambda x: x.untyped_storage().nbytes(),
    "script": lambda x: torch.jit.script(_double)(x),
    "store": lambda x: CompressedFeatureStore.build(x, progress=False, pin=False).gather(torch.arange(N)),
}


def _double(x: torch.Tensor) -> torch.Tensor:
    return x * 2


def _saved(x: torch.Tensor) -> torch.Tensor:
    buffer = io.BytesIO()
    torch.save(x, buffer)
    buffer.seek(0)
    return torch.load(buffer, weights_only=True)


def assert_same(got: Any, want: Any) -> None:
    if isinstance(want, torch.Tensor):
        assert_bitwise_equal(got.to_dense(), want.to_dense())
    elif isinstance(want, np.ndarray):
        assert_bitwise_equal(got, want)
    elif isinstance(want, (list, tuple)):
        assert len(got) == len(want)
        for pair in zip(got, want, strict=True):
            assert_same(*pair)
    else:
        assert got == want


@pytest.mark.filterwarnings("ignore:.*torch.jit.script.*", "ignore:.*overflow:RuntimeWarning")
@pytest.mark.parametrize("name", READS)
def test_operations_give_what_the_tensor_of_all_rows_gives(rows: Rows, name: str) -> None:
    assert_same(READS[name](rows.x), READS[name](rows.values.clone()))
    if name not in ("as_tensor", "frozen"):
        assert type(READS[name](Rows().x)) is type(READS[name](rows.values.clone()))


def test_memory_that_is_not_there_is_not_read(rows: Rows) -> None:
    try:
        got = torch.utils.dlpack.from_dlpack(torch.utils.dlpack.to_dlpack(rows.x))  # does not ask __torch_function__
    except RuntimeError as error:
        assert "data pointer" in str(error)
    else:
        assert_bitwise_equal(got, rows.values)


def test_a_column_of_scalars() -> None:
    rows = Rows(torch.int64, kept=None)
    rows.x = FeatureTensor((N,), torch.int64, torch.device("cpu"), lambda ids: rows.gather(ids)[:, 0])
    assert rows.x[3].item() == rows.values[3, 0].item() and rows.read == 1
    assert_bitwise_equal(functional.one_hot(rows.x % 3), functional.one_hot(rows.values[:, 0] % 3))


def test_all_rows_are_decoded_once_a_tensor(rows: Rows) -> None:
    for _ in range(3):
        assert_bitwise_equal(rows.x + 1, rows.values + 1)
        assert_bitwise_equal(rows.x[torch.tensor([3, 1])], rows.values[[3, 1]])
    assert rows.read == N


def test_kept_rows_are_found_by_others() -> None:
    kept = KeptRows()
    rows = Rows(kept=kept)
    other = FeatureTensor(rows.x.shape, rows.x.dtype, rows.x.device, rows.gather, kept)
    rows.x.sum()
    assert_bitwise_equal(other.clone(), rows.values)
    assert rows.read == N
    other.clone().zero_()
    assert_bitwise_equal(rows.x.contiguous(), rows.values)


@pytest.mark.parametrize(
    "derive",
    [lambda x: x.view(-1), lambda x: x.t(), lambda x: x.contiguous(), lambda x: x[:], lambda x: x[3:9], lambda x: x[3]],
    ids=["view", "t", "contiguous", "whole", "slice", "row"],
)
@pytest.mark.parametrize("read_before", [False, True])
def test_what_is_read_is_the_users_own(rows: Rows, read_before: bool, derive: Any) -> None:
    if read_before:
        rows.x.sum()
    y = derive(rows.x)
    y.zero_()
    assert not y.any()
    assert_bitwise_equal(rows.x.clone(), rows.values)


def _array_written(array: np.ndarray) -> torch.Tensor:
    array.fill(0)
    return torch.from_numpy(array)


# What a result can share with the rows that are kept, where their version does not tell of a write.
SHARED: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "view": lambda x: x.view(-1),
    "view_dtype": lambda x: x.view(torch.int32),
    "contiguous": lambda x: x.contiguous(),
    "whole": lambda x: x[:],
    "rows": lambda x: x[2:5],
    "row": lambda x: x[2],
    "columns": lambda x: x[:, 1:3],
    "t": lambda x: x.t(),
    "expand": lambda x: x.expand(3, N, DIM)[0],
    "unbind": lambda x: x.unbind()[1],
    "iter": lambda x: next(iter(x)),
    "split": lambda x: x.split(2)[0],
    "hsplit": lambda x: torch.hsplit(x, 2)[1],
    "broadcast": lambda x: torch.broadcast_tensors(torch.ones(1), x)[1],
    "dropout": lambda x: functional.dropout(x, 0.5, training=False),
    "set_": lambda x: torch.empty(0).set_(x),
    "sparse": lambda x: torch.sparse_coo_tensor(torch.arange(N)[None], x, (N, DIM))._values(),
    "c++": lambda x: _detached_below_python(x),
    "vmap": lambda x: torch.vmap(lambda row: row.view(-1))(x),
    "vmap_expand": lambda x: torch.vmap(lambda y: x.expand_as(y))(torch.ones(2, N, DIM)),
    "dlpack": torch.from_dlpack,
    "numpy": lambda x: _array_written(x.numpy()),
    "asarray": lambda x: _array_written(np.asarray(x)),
    "rows_numpy": lambda x: _array_written(x[2:5].numpy()),
    "view_numpy": lambda x: _array_written(x.view(-1).numpy()),
    "detach_numpy": lambda x: _array_written(x.cpu().detach().numpy()),
    "untyped_storage": lambda x: torch.empty(0).set_(x.untyped_storage(), 0, x.shape),
    "typed_storage": lambda x: torch.empty(0).set_(x.storage()),
    "copy": copy.copy,
    "reduce": lambda x: (lambda make, arguments: make(*arguments))(*x.__reduce_ex__(2)[:2]),
    "multiprocessing": lambda x: pickle.loads(ForkingPickler.dumps(x)),
    "share_memory_": lambda x: x.share_memory_(),
    "address": lambda x: _array_written(_array_at(x.data_ptr())),
}


def _detached_below_python(x: torch.Tensor) -> torch.Tensor:
    with torch._C.DisableTorchFunctionSubclass():
        return torch.ops.aten.detach.default(x)


def _array_at(address: int) -> np.ndarray:
    return np.ctypeslib.as_array((ctypes.c_float * (N * DIM)).from_address(address))


@pytest.mark.filterwarnings("ignore:TypedStorage is deprecated", "ignore:Sparse invariant checks")
@pytest.mark.parametrize("name", SHARED)
@pytest.mark.parametrize("read_before", [False, True])
@pytest.mark.parametrize("kept", [None, KeptRows], ids=["alone", "with others"])
def test_no_result_shares_memory_with_kept_rows(name: str, read_before: bool, kept: type[KeptRows] | None) -> None:
    rows = Rows(kept=kept and kept())
    if read_before:
        rows.x.sum()
    own = SHARED[name](rows.x)
    assert type(own) is torch.Tensor
    own.data.zero_()
    assert_bitwise_equal(rows.x.clone(), rows.values)
    assert_bitwise_equal(rows.x + 0, rows.values + 0)


def test_results_of_one_call_share_memory_with_each_other(rows: Rows) -> None:
    first, second = rows.x.split(20)
    assert first.untyped_storage().data_ptr() == second.untyped_storage().data_ptr()
    assert first.data_ptr() != second.data_ptr()


def test_an_index_of_kept_rows_copies_no_others(rows: Rows) -> None:
    rows.x.sum()
    for key, read in ((3, 1), (slice(2, 5), 3), ((slice(2, 5), slice(1, 3)), 1)):
        assert rows.x[key].untyped_storage().nbytes() == read * DIM * 4
    assert rows.read == N
    assert rows.x.expand(9, N, DIM).untyped_storage().nbytes() == N * DIM * 4


def test_copies_keep_every_bit() -> None:
    values = torch.tensor([[135, 0], [1, 2]], dtype=torch.uint8).view(torch.bool)
    x = FeatureTensor((2, 2), torch.bool, torch.device("cpu"), lambda ids: values, KeptRows())
    x.any()
    for got in (x.contiguous(), x[:], x.split(1)[0], torch.from_numpy(x.numpy())):
        assert_bitwise_equal(got.view(torch.uint8), values.view(torch.uint8)[: len(got)])


def test_rows_in_shared_memory(rows: Rows) -> None:
    shared = rows.x.share_memory_()
    assert shared.is_shared() and not rows.x.is_shared()
    assert_bitwise_equal(shared, rows.values)


def test_an_address_lives_as_long_as_the_tensor(rows: Rows) -> None:
    address = rows.x.data_ptr()
    rows.x.sum()
    assert rows.x.data_ptr() == address
    assert_bitwise_equal(_array_at(address), rows.values.numpy().reshape(-1))


# ---- gradients


def test_gradients_of_what_is_computed(rows: Rows) -> None:
    gradients = []
    for x in (rows.x, rows.values):
        weight = torch.ones(DIM, 2, requires_grad=True)
        (x @ weight).sum().backward()
        gradients.append(weight.grad)
    assert_bitwise_equal(*gradients)
    some = rows.x[torch.tensor([2, 5])].requires_grad_()
    (some * 3).sum().backward()
    assert_bitwise_equal(some.grad, torch.full((2, DIM), 3.0))
    own = rows.x.clone().requires_grad_()
    own.sum().backward()
    assert own.grad is not None
    torch.nn.Parameter(rows.x.clone())


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x, weight)
        return x.contiguous() * weight

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[None, torch.Tensor]:
        x, _ = ctx.saved_tensors
        return None, (gradient * x).sum(0)


def test_custom_autograd_function(rows: Rows) -> None:
    weight = torch.ones(DIM, requires_grad=True)
    Doubled.apply(rows.x, weight).sum().backward()
    assert_bitwise_equal(weight.grad, rows.values.sum(0))
    assert rows.read == N


# ---- writes


def _augmented(x: torch.Tensor) -> None:
    x += 1


def _divided(x: torch.Tensor) -> None:
    x /= 2


def _below_python(x: torch.Tensor) -> None:
    with torch._C.DisableTorchFunctionSubclass():  # as code written in C++, and TorchScript
        x.zero_()


def _set_rows(x: torch.Tensor) -> None:
    x[:1] = 0


def _set_data_rows(x: torch.Tensor) -> None:
    x.data[torch.tensor([1])] = 0


def _set_data(x: torch.Tensor) -> None:
    x.data = torch.zeros(N, DIM)


def _set_requires_grad(x: torch.Tensor) -> None:
    x.requires_grad = True


WRITES: dict[str, Callable[[torch.Tensor], Any]] = {
    "mul_": lambda x: x.mul_(2),
    "+=": _augmented,
    "/=": _divided,
    "setitem": _set_rows,
    "mask": lambda x: x.__setitem__((slice(None), torch.ones(DIM, dtype=torch.bool)), 0),
    "data[...]": _set_data_rows,
    "detach()": lambda x: x.detach().zero_(),
    "float()": lambda x: x.float().zero_(),
    "to": lambda x: x.to("cpu").zero_(),
    ".data": _set_data,
    "copy_": lambda x: x.copy_(torch.zeros(N, DIM)),
    "fill_": lambda x: x.fill_(0),
    "torch.fill_": lambda x: torch.fill_(x, 0),
    "out": lambda x: torch.add(torch.ones(N, DIM), 1, out=x),
    "out_tuple": lambda x: torch.max(torch.ones(3, N, DIM), 0, out=(x, torch.zeros(N, DIM, dtype=torch.int64))),
    "index_copy_": lambda x: x.index_copy_(0, torch.tensor([1]), torch.zeros(1, DIM)),
    "resize_": lambda x: x.resize_(3, 3),
    "set_": lambda x: x.set_(torch.zeros(3)),
    "requires_grad_": lambda x: x.requires_grad_(),
    ".requires_grad": _set_requires_grad,
    "Parameter": torch.nn.Parameter,
    "relu": lambda x: functional.relu(x, inplace=True),
    "relu_": torch.relu_,
    "dropout": lambda x: torch.nn.Dropout(0.5, inplace=True)(x),
    "init": torch.nn.init.xavier_uniform_,
    "foreach": lambda x: torch._foreach_mul_([torch.ones(2), x], 2.0),
    "aten": lambda x: torch.ops.aten.mul_.Tensor(x, torch.tensor(2.0)),
    "c++": _below_python,
}


@pytest.mark.parametrize("name", WRITES)
@pytest.mark.parametrize("read_before", [False, True])
def test_writes_are_refused(rows: Rows, name: str, read_before: bool) -> None:
    if read_before:
        rows.x.sum()
    before = rows.read
    with pytest.raises(RuntimeError, match=r"want a tensor that can be written to.* store\.update\(ids, rows\)"):
        WRITES[name](rows.x)
    assert rows.read == before  # a refusal decodes nothing
    assert_bitwise_equal(rows.x.clone(), rows.values)


def test_every_in_place_method_is_refused(rows: Rows) -> None:
    methods = {
        f.__name__: f for f in torch.overrides.get_overridable_functions()[torch.Tensor] if hasattr(f, "__name__")
    }
    in_place = [name for name in methods if name.endswith("_") and not name.endswith("__")]
    in_place += [name for name in methods if name.startswith("__i") and name[2:-2] not in ("index", "int", "invert")]
    assert len(in_place) > 150 and {"mul_", "__iadd__", "__ixor__", "index_put_"} <= {*in_place}
    for name in {*in_place} - {"detach_", "share_memory_", "__iter__"}:
        with pytest.raises(RuntimeError, match="want a tensor that can be written to"):
            FeatureTensor.__torch_function__(methods[name], (FeatureTensor,), (rows.x,))
    assert rows.read == 0


def test_parameters_take_a_copy(rows: Rows) -> None:
    for device in ("cpu", "meta"):
        parameter = torch.nn.Parameter(torch.ones(N, DIM, device=device))
        with pytest.raises(RuntimeError, match="incompatible tensor type"):
            parameter.data = rows.x  # torch asks neither tensor, and would read the memory that x does not have
    assert rows.read == 0
    parameter = torch.nn.Parameter(torch.ones(N, DIM))
    parameter.data.copy_(rows.x)
    assert_bitwise_equal(parameter.detach(), rows.values)
    parameter.data = rows.x.clone()
    assert_bitwise_equal(parameter.detach(), rows.values)


def test_gradients_that_are_features(rows: Rows) -> None:
    for use in (lambda p: p * 1, lambda p: p):
        parameter = torch.nn.Parameter(torch.ones(N, DIM))
        use(parameter).backward(rows.x)
        assert_bitwise_equal(parameter.grad, rows.values)
    parameter = torch.nn.Parameter(torch.zeros(N, DIM))
    parameter.grad = rows.x
    torch.optim.SGD([parameter], 1.0).step()
    assert_bitwise_equal(parameter.detach(), 0 - rows.values)


def test_a_write_that_its_name_does_not_tell_is_refused(rows: Rows) -> None:
    for _ in range(2):
        with pytest.raises(RuntimeError, match=r"embedding: want a tensor that can be written to"):
            functional.embedding(torch.tensor([1, 2]), rows.x, max_norm=0.1)
        assert_bitwise_equal(rows.x.contiguous(), rows.values)

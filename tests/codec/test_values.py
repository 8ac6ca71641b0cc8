"""Rows as bytes: dtypes, arrays of every layout, ids, out= and devices."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch

from ibp_gnn.codec.values import (
    SUPPORTED_DTYPES,
    as_ids,
    as_tensor,
    check_gpu,
    check_row_shape,
    dtype_from_name,
    num_values,
    prepare_out,
    resolve_device,
    to_bytes,
)
from ibp_gnn.testing import assert_bitwise_equal, special_rows

NUMPY_NAMES = ("float64", "float32", "float16", "int8", "int16", "int32", "int64", "uint8", "bool")
CPU = torch.device("cpu")


def test_the_dtypes():
    names = {str(dtype).removeprefix("torch.") for dtype in SUPPORTED_DTYPES}
    assert names == {*NUMPY_NAMES, "bfloat16", "float8_e4m3fn", "float8_e5m2"}
    for dtype in SUPPORTED_DTYPES:
        assert dtype_from_name(str(dtype).removeprefix("torch.")) is dtype
    with pytest.raises(ValueError, match="dtype: want one of .*'bfloat16'.*, got 'complex64'"):
        dtype_from_name("complex64")


def test_num_values():
    assert [num_values(shape) for shape in ((), (1,), (3, 4), (2, 0))] == [1, 1, 12, 0]
    assert num_values((1 << 20, 1 << 20)) == 1 << 40


@pytest.mark.parametrize("name", NUMPY_NAMES)
def test_numpy_dtypes_keep_their_bits(name):
    rows = special_rows(dtype_from_name(name), 4, "random_bits")
    assert_bitwise_equal(as_tensor(rows.numpy()), rows)


def test_numpy_memory_is_shared_where_it_can_be():
    array = np.zeros((4, 3), np.float32)
    as_tensor(array)[1, 2] = 5
    assert array[1, 2] == 5
    as_tensor(array.T)[0, 0] = 6
    assert array[0, 0] == 6


def test_numpy_arrays_that_torch_does_not_take_are_copied(tmp_path):
    values = np.arange(24, dtype=np.float32).reshape(6, 4)
    np.save(tmp_path / "rows.npy", values)
    read_only = values.copy()
    read_only.flags.writeable = False
    fields = np.zeros((6, 4), np.dtype([("flag", "u1"), ("value", "f4")]))
    fields["value"] = values
    unaligned = np.frombuffer(b"x" + values.tobytes(), np.uint8)[1:].view(np.float32).reshape(6, 4)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # torch warns about memory that must not be written
        for source in (
            read_only,
            np.load(tmp_path / "rows.npy", mmap_mode="r"),
            values[::-1].copy()[::-1],
            values[:, ::-1].copy()[:, ::-1],
            fields["value"],
            unaligned,
            np.broadcast_to(values[:1], (1, 4)),
        ):
            tensor = as_tensor(source)
            assert_bitwise_equal(tensor, values[: len(source)])
            assert_bitwise_equal(to_bytes(tensor), values[: len(source)].view(np.uint8))
            tensor.add_(1)  # its own memory
        assert read_only[0, 0] == 0 and fields["value"][0, 0] == 0


@pytest.mark.parametrize("name", ["bfloat16", "float8_e4m3fn", "float8_e5m2"])
def test_dtypes_of_ml_dtypes_keep_their_bits(name):
    ml_dtypes = pytest.importorskip("ml_dtypes")
    rows = special_rows(dtype_from_name(name), 6, "random_bits")
    array = to_bytes(rows).numpy().view(getattr(ml_dtypes, name))
    assert_bitwise_equal(as_tensor(array), rows)
    assert_bitwise_equal(as_tensor(array[:, ::2]), rows[:, ::2])


def test_tensors_are_detached_and_materialised():
    rows = torch.ones(3, 2, requires_grad=True)
    assert not as_tensor(rows).requires_grad and as_tensor(rows).data_ptr() == rows.data_ptr()
    values = torch.arange(6.0).view(3, 2)
    assert_bitwise_equal(to_bytes(as_tensor(torch._neg_view(values))), to_bytes(-values))
    assert type(as_tensor(torch.nn.Parameter(values))) is torch.Tensor


class _Frame:
    """As a data frame of pandas."""

    to_numpy = None


@pytest.mark.parametrize(
    ("rows", "error", "got"),
    [
        ([1.0], TypeError, "want a torch.Tensor or a numpy.ndarray, got list"),
        (None, TypeError, "got NoneType"),
        (1.5, TypeError, "got float"),
        (torch.zeros(2, dtype=torch.complex64), TypeError, r"got torch.complex64; torch.view_as_real\(features\)"),
        (torch.zeros(2, dtype=torch.uint16), TypeError, r"got torch.uint16; features.view\(torch.int16\) has the same"),
        (torch.zeros(2, 2).to_sparse(), TypeError, r"got layout torch.sparse_coo; features.to_dense\(\) makes one"),
        ("a.npy", TypeError, r"got str; read the file first: numpy.load\('a.npy', mmap_mode='r'\)"),
        (
            np.ma.masked_array([1.0, 2.0], [True, False]),
            TypeError,
            r"got a masked array; fill it: features.filled\(VAL",
        ),
        (_Frame(), TypeError, r"got _Frame; features.to_numpy\(\) makes one"),
        (torch.zeros(2, device="meta"), ValueError, "want a tensor on cpu or cuda, got meta"),
        (np.zeros(2, np.complex128), TypeError, r"got numpy complex128; features.view\(numpy.float64\) has the same"),
        (
            np.zeros(2, ">f4"),
            TypeError,
            r">f4; features.astype\(features.dtype.newbyteorder\('='\)\) has the same values",
        ),
        (np.zeros(2, ">i8"), TypeError, r"in native byte order, got numpy >i8; features.astype\("),
        (np.zeros(2, ">u2"), TypeError, "got numpy >u2$"),
        (np.zeros(2, np.uint16), TypeError, r"got numpy uint16; features.view\(numpy.int16\) has the same bits"),
        (np.zeros(2, np.uint32), TypeError, r"got numpy uint32; features.view\(numpy.int32\) has the same bits"),
        (np.zeros(2, "U3"), TypeError, "got numpy <U3"),
        (np.zeros(2, "M8[s]"), TypeError, r"got numpy datetime64\[s\]"),
        (np.zeros(2, object), TypeError, "got numpy object"),
        (np.zeros(2, [("a", "f4")]), TypeError, "got numpy "),
    ],
)
def test_other_rows_are_refused_by_name(rows, error, got):
    with pytest.raises(error, match=f"^features: .*{got}"):
        as_tensor(rows, "features")


def test_row_shapes():
    for shape in ((0, 3), (5,), (0,), (2, 3, 4)):
        check_row_shape(shape)
    with pytest.raises(ValueError, match=r"^x: want \[n, \*row_shape\], got a scalar"):
        check_row_shape((), "x")
    for shape in ((3, 0), (3, 2, 0), (0, 0)):
        with pytest.raises(ValueError, match=r"want at least 1 value per row, got shape \["):
            check_row_shape(shape)


@pytest.mark.parametrize("dtype", SUPPORTED_DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(0,), (3,), (0, 2), (4, 2), (0, 2, 3), (4, 2, 3), (1, 1), (5, 1)])
def test_bytes_of_rows(dtype, shape):
    rows = special_rows(dtype, max(1, num_values(shape)), "random_bits", n=1).flatten()[: num_values(shape)].view(shape)
    matrix = to_bytes(rows)
    assert matrix.shape == (shape[0], num_values(shape[1:]) * dtype.itemsize)
    assert matrix.dtype == torch.uint8 and matrix.is_contiguous()
    assert matrix.data_ptr() == rows.data_ptr(), "memory is shared"
    assert_bitwise_equal(matrix.view(dtype).view(shape), rows)


def test_bytes_of_strided_rows():
    base = torch.arange(60.0).view(6, 10)
    for view in (base.t(), base[:, ::3], base[::2], base[:, 4], base[:1].t(), base[:1, 3].as_strided((1,), (7,))):
        matrix = to_bytes(view)
        assert matrix.stride() == (matrix.shape[1], 1)
        assert_bitwise_equal(matrix.view(torch.float32).view(view.shape), view)
    column = base[:1, :5].t()
    assert column.is_contiguous() and column.stride() == (1, 10), "a case that torch's own view does not take"


def test_ids_are_taken_as_they_are():
    for dtype in (torch.int32, torch.int64):
        ids = torch.arange(5, dtype=dtype)
        assert as_ids(ids).data_ptr() == ids.data_ptr()
        assert_bitwise_equal(as_ids(ids.numpy()), ids)
        assert_bitwise_equal(as_ids(ids[::2]), torch.tensor([0, 2, 4], dtype=dtype))
        assert as_ids(ids[::2]).is_contiguous()
        assert_bitwise_equal(as_ids(ids.numpy()[::-1]), ids.flip(0))
    read_only = np.arange(5)
    read_only.flags.writeable = False
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert_bitwise_equal(as_ids(read_only), torch.arange(5))
    assert as_ids(np.zeros(0, np.int32)).shape == (0,)


@pytest.mark.parametrize(
    ("ids", "error", "got"),
    [
        (torch.tensor([float("nan")]), TypeError, "want int32 or int64, got torch.float32"),
        (torch.tensor([1], dtype=torch.int16), TypeError, "want int32 or int64, got torch.int16"),
        (torch.tensor([True]), TypeError, "want int32 or int64, got torch.bool"),
        (np.array([np.nan]), TypeError, "want an int32 or int64 tensor, got numpy float64"),
        (np.array([1], np.uint64), TypeError, "want an int32 or int64 tensor, got numpy uint64"),
        (np.array([1], ">i4"), TypeError, "want an int32 or int64 tensor, got numpy >i4"),
        ([1], TypeError, "want an int32 or int64 tensor, got list"),
        (None, TypeError, "want an int32 or int64 tensor, got NoneType"),
        (torch.tensor(1), ValueError, r"want shape \[n\], got \[\]"),
        (torch.tensor([[1], [2]]), ValueError, r"want shape \[n\], got \[2, 1\]"),
        (np.zeros((2, 2), np.int64), ValueError, r"want shape \[n\], got \[2, 2\]"),
    ],
)
def test_other_ids_are_refused_by_name(ids, error, got):
    with pytest.raises(error, match=f"^hot: {got}"):
        as_ids(ids, "hot")


def test_out_is_made_or_taken():
    made = prepare_out(None, (2, 3), torch.float16, CPU)
    assert made.shape == (2, 3) and made.dtype == torch.float16 and made.device == CPU
    assert prepare_out(made, (2, 3), torch.float16, CPU) is made


@pytest.mark.parametrize(
    ("out", "error", "message"),
    [
        (torch.zeros(2, 4), ValueError, r"want \[2, 3\] torch.float32 on cpu, contiguous, got \[2, 4\] torch.float32"),
        (torch.zeros(2, 3, dtype=torch.int32), ValueError, r"got \[2, 3\] torch.int32 on cpu$"),
        (torch.zeros(3, 2).t(), ValueError, r"got \[2, 3\] torch.float32 on cpu, not contiguous$"),
        (torch.zeros(1, 3).expand(2, 3), ValueError, "not contiguous$"),
        (torch.zeros(2, 3, device="meta"), ValueError, r"got \[2, 3\] torch.float32 on meta$"),
        (np.zeros((2, 3), np.float32), TypeError, "want a torch.Tensor, got ndarray"),
        ([0.0], TypeError, "want a torch.Tensor, got list"),
    ],
)
def test_other_out_is_refused(out, error, message):
    with pytest.raises(error, match=f"^out: .*{message}"):
        prepare_out(out, (2, 3), torch.float32, CPU)


def test_devices():
    assert resolve_device(None, CPU) == CPU
    assert resolve_device("cpu", torch.device("cuda", 1)) == CPU
    with pytest.raises(ValueError, match="device: want cpu or cuda, got meta"):
        resolve_device("meta", CPU)


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_cuda_devices_have_an_index():
    assert resolve_device("cuda", CPU) == torch.device("cuda", torch.cuda.current_device())
    assert resolve_device("cuda:0", CPU) == torch.device("cuda", 0)


@pytest.mark.parametrize("values", [np.arange(6, dtype=">f4"), np.arange(6, dtype=np.uint16), np.arange(6) * 1j])
def test_the_ways_that_errors_name_keep_all_bits(values):
    with pytest.raises(TypeError) as error:
        as_tensor(values, "features")
    way = str(error.value).split("; ")[-1].split(" has the same")[0]
    rows = as_tensor(eval(way, {"features": values, "numpy": np}))
    np.testing.assert_array_equal(rows.numpy().view(values.dtype.newbyteorder("=")), values)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_gpu_that_is_not_there_names_the_cpu():
    for check in (lambda: check_gpu(torch.device("cuda")), lambda: resolve_device("cuda:1", torch.device("cpu"))):
        with pytest.raises(RuntimeError, match=r"is_available\(\) is False. Without a GPU: device='cpu'"):
            check()
    check_gpu(torch.device("cpu"))
    with pytest.raises(ValueError, match="device: want cpu or cuda, got meta"):
        resolve_device("meta", CPU)

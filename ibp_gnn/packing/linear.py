"""Products with packed weights. On a GPU codes become floats in registers: what is read of memory is the codes."""

from __future__ import annotations

import functools

import torch
import torch.nn.functional as F

from .. import _native
from .narrow import outlive, widen
from .packed_tensor import DTYPES, PackedTensor

_TYPES = {torch.float32: 0, torch.float16: 1, torch.bfloat16: 2}  # ValueType of csrc/cuda/packed_linear.h
# x of float32 goes to the tensor cores as so many bfloat16 parts, whose sum it is.
_PARTS = 3
_STEP_VALUES = 16  # of rows of x, for the tensor cores
_CPU_BLOCK_BYTES = 64 << 20


def packed_gemv(w: PackedTensor, x: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """Products of a packed matrix with one vector or a few, summed up in float32. On a GPU up to 32 vectors read only
    packed values; more unpack the matrix first. No gradient goes through it.

    Args:
        w: [m, k], its first values in the low bits; its scale, if any, is one number, or of rows or columns.
        x: [k] or [..., k] of torch.float32, torch.float16 or torch.bfloat16, on the device of w.
        bias: [m] of x's dtype, which is added. None: none.

    Returns:
        [m] or [..., m] of x's dtype, on the same device. On CUDA enqueued on the current stream.

    Raises:
        TypeError: other types or dtypes.
        ValueError: shapes, devices, an order or a scale that do not fit.
        RuntimeError: x needs grad, but under torch.no_grad().

    Example:
        >>> w = ibp_gnn.packing.pack_fp8(torch.tensor([[1.0, 2.0], [3.0, 4.0]]))
        >>> ibp_gnn.packing.packed_gemv(w, torch.tensor([1.0, 10.0]))
        tensor([21., 43.])
    """
    row_scale, column_scale = _check(w, x, bias)
    rows, columns = w.shape
    flat = x.detach().reshape(-1, columns).contiguous()
    if x.device.type == "cpu":
        out = _on_cpu(w, flat)
    elif len(flat) == 1 and columns <= _most_gemv_values(w.kind.number, x.device):
        with torch.cuda.device(x.device):
            return _gemv(w, flat[0], row_scale, column_scale, bias).view(*x.shape[:-1], rows)
    elif w.format == "fp16" or len(flat) > _native.cuda().MAX_PACKED_BATCH or _is_old(x.device):
        return F.linear(flat, w.unpack(x.dtype), bias).view(*x.shape[:-1], rows)
    else:
        with torch.cuda.device(x.device):
            out = _gemm(w, flat, row_scale, column_scale)
    if bias is not None:
        out = out + bias
    return out.to(x.dtype).view(*x.shape[:-1], rows)


def check_weight(w: PackedTensor) -> tuple[torch.Tensor | None, torch.Tensor | None]:
    """Returns its scale of rows, [m], and of columns, [k]. Raises TypeError and ValueError for one that has no
    products."""
    if not isinstance(w, PackedTensor):
        raise TypeError(f"w: want a PackedTensor, got {type(w).__name__}")
    if len(w.shape) != 2 or w.first != "low":
        raise ValueError(f"w: want [m, k] with first='low', got {list(w.shape)} with first={w.first!r}")
    if w.scale is None:
        return None, None
    rows, columns = w.shape
    shape = (1,) * (2 - w.scale.ndim) + tuple(w.scale.shape)
    if shape[1] == 1:
        return w.scale.reshape(-1, 1).expand(rows, 1).reshape(-1).contiguous(), None
    if shape == (1, columns):
        return None, w.scale.reshape(-1).contiguous()
    raise ValueError(f"w: want a scale of rows or of columns, got one of shape {list(w.scale.shape)}")


def _check(
    w: PackedTensor, x: torch.Tensor, bias: torch.Tensor | None
) -> tuple[torch.Tensor | None, torch.Tensor | None]:
    scales = check_weight(w)
    rows, columns = w.shape
    if not isinstance(x, torch.Tensor) or x.dtype not in DTYPES:
        of_type = str(x.dtype) if isinstance(x, torch.Tensor) else type(x).__name__
        raise TypeError(f"x: want a tensor of one of {[str(one) for one in DTYPES]}, got {of_type}")
    if x.ndim == 0 or x.shape[-1] != columns or x.device != w.device:
        raise ValueError(f"x: want [..., {columns}] on {w.device}, got {list(x.shape)} on {x.device}")
    if bias is not None and (tuple(bias.shape) != (rows,) or bias.dtype != x.dtype or bias.device != x.device):
        got = f"{list(bias.shape)} {bias.dtype} on {bias.device}"
        raise ValueError(f"bias: want [{rows}] {x.dtype} on {x.device}, got {got}")
    if x.requires_grad and torch.is_grad_enabled():
        raise RuntimeError("x: want a tensor that does not need grad: no gradient goes through packed weights")
    return scales


def _on_cpu(w: PackedTensor, x: torch.Tensor) -> torch.Tensor:
    """x: [n, k]. Returns float32 [n, m]."""
    rows, columns = w.shape
    codes, row_bytes = w.codes(), columns * w.kind.nbytes
    out = torch.empty(len(x), rows, dtype=torch.float32, device="cpu")
    step = max(1, _CPU_BLOCK_BYTES // max(1, 4 * columns))
    scale = None if w.scale is None else w.scale.expand(w.shape)
    for first in range(0, rows, step):
        block = widen(codes[first * row_bytes : (first + step) * row_bytes], w.kind).view(-1, columns)
        if scale is not None:
            block *= scale[first : first + step]
        out[:, first : first + step] = F.linear(x.to(torch.float32), block)
    return out


def _matrix(w: PackedTensor, row_scale: torch.Tensor | None) -> object:
    return _native.cuda().PackedMatrix(
        format=w.kind.number,
        words=w.words.data_ptr(),
        num_rows=w.shape[0],
        num_values=w.shape[1],
        row_words=w.words.shape[1],
        row_scale=_address(row_scale),
    )


def _gemv(
    w: PackedTensor,
    x: torch.Tensor,
    row_scale: torch.Tensor | None,
    column_scale: torch.Tensor | None,
    bias: torch.Tensor | None,
) -> torch.Tensor:
    """x: [k] on the current GPU. Returns [m] of x's dtype."""
    out = torch.empty(w.shape[0], dtype=x.dtype, device=x.device)
    bias = None if bias is None else bias.detach().contiguous()
    stream = torch.cuda.current_stream(x.device)
    _native.cuda().packed_gemv(
        _matrix(w, row_scale),
        x.data_ptr(),
        _TYPES[x.dtype],
        _address(column_scale),
        _address(bias),
        out.data_ptr(),
        _TYPES[out.dtype],
        stream.cuda_stream,
    )
    outlive(stream, w.words, x, row_scale, column_scale, bias)
    return out


def _gemm(
    w: PackedTensor, x: torch.Tensor, row_scale: torch.Tensor | None, column_scale: torch.Tensor | None
) -> torch.Tensor:
    """x: [n, k] on the current GPU. Returns float32 [n, m]."""
    cuda, count = _native.cuda(), len(x)
    if column_scale is not None:
        x = x.to(torch.float32) * column_scale
    if x.dtype == torch.float32:
        x = torch.cat(_split(x))
    x = F.pad(x, (0, -x.shape[1] % _STEP_VALUES)).contiguous()
    if x.data_ptr() % 16 != 0:
        x = x.clone()
    out = torch.empty(len(x), w.shape[0], dtype=torch.float32, device=x.device)
    stream = torch.cuda.current_stream(x.device)
    matrix, most = _matrix(w, row_scale), cuda.MAX_PACKED_BATCH
    for first in range(0, len(x), most):
        part, of_part = x[first : first + most], out[first : first + most]
        where = part.data_ptr(), _TYPES[x.dtype], x.shape[1], len(part), of_part.data_ptr()
        cuda.packed_gemm(matrix, *where, stream.cuda_stream)
    outlive(stream, w.words, x, row_scale)
    if len(x) == count:
        return out
    parts = out.view(_PARTS, count, -1)
    # What is not finite in the first part is so whatever the others add: 0 times inf, for one.
    return torch.where(parts[0].isfinite(), parts.sum(0), parts[0])


def _split(x: torch.Tensor) -> list[torch.Tensor]:
    """x: float32. Returns bfloat16 parts of decreasing size whose sum it is; for what is not finite, the first one."""
    parts = [x.to(torch.bfloat16)]
    rest = torch.where(x.isfinite(), x - parts[0], 0)
    for _ in range(_PARTS - 1):
        parts.append(rest.to(torch.bfloat16))
        rest = rest - parts[-1]
    return parts


@functools.cache
def _most_gemv_values(format: int, device: torch.device) -> int:
    """Longer rows go where others of several vectors go: x is kept in shared memory."""
    with torch.cuda.device(device):
        most: int = _native.cuda().most_gemv_values(format)
    return most


def _is_old(device: torch.device) -> bool:
    """Whether the GPU has no tensor cores that take bfloat16."""
    return torch.cuda.get_device_capability(device)[0] < 8


def _address(tensor: torch.Tensor | None) -> int:
    return 0 if tensor is None else tensor.data_ptr()

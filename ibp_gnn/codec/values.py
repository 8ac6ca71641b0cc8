"""Feature arrays as rows of bytes: which dtypes are taken, and how values and bytes are turned into each other."""

from __future__ import annotations

import math
import os
from typing import Any

import numpy as np
import torch

SUPPORTED_DTYPES = (
    torch.float64,
    torch.float32,
    torch.float16,
    torch.bfloat16,
    torch.float8_e4m3fn,
    torch.float8_e5m2,
    torch.int8,
    torch.int16,
    torch.int32,
    torch.int64,
    torch.uint8,
    torch.bool,
)
_BY_NAME = {str(dtype).removeprefix("torch."): dtype for dtype in SUPPORTED_DTYPES}


def num_values(row_shape: tuple[int, ...]) -> int:
    return math.prod(row_shape)


def dtype_from_name(name: str) -> torch.dtype:
    if name not in _BY_NAME:
        raise ValueError(f"dtype: want one of {sorted(_BY_NAME)}, got {name!r}")
    return _BY_NAME[name]


def as_tensor(rows: Any, name: str = "rows") -> torch.Tensor:
    """rows: a tensor, or a NumPy array or memmap (copied if it is read-only or its strides are none that torch
    takes; bfloat16 and float8 from ml_dtypes are understood). Returns a tensor of the same values on the same
    device. Raises TypeError for other types and for dtypes outside SUPPORTED_DTYPES, ValueError for a device other
    than cpu and cuda."""
    if isinstance(rows, np.ndarray):
        dtype = _BY_NAME.get(rows.dtype.name)
        if isinstance(rows, np.ma.MaskedArray):
            raise TypeError(f"{name}: want an array without a mask, got a masked array; fill it: {name}.filled(VALUE)")
        if dtype is None or not rows.dtype.isnative:
            raise TypeError(
                f"{name}: want one of {sorted(_BY_NAME)} in native byte order, got numpy {rows.dtype}"
                f"{_numpy_way(rows.dtype, name)}"
            )
        if not rows.flags.behaved or any(stride < 0 for stride in rows.strides):
            rows = np.array(rows, order="C")
        try:
            return torch.from_numpy(rows)
        except TypeError:  # a dtype that NumPy knows from an extension only; pass its bits
            bits = {1: np.uint8, 2: np.int16}[rows.dtype.itemsize]
            return torch.from_numpy(np.ascontiguousarray(rows).view(bits)).view(dtype)
    if not isinstance(rows, torch.Tensor):
        raise TypeError(
            f"{name}: want a torch.Tensor or a numpy.ndarray, got {type(rows).__name__}{_way_to_array(rows, name)}"
        )
    if rows.layout != torch.strided:
        raise TypeError(f"{name}: want a dense tensor, got layout {rows.layout}; {name}.to_dense() makes one")
    if rows.dtype not in SUPPORTED_DTYPES:
        raise TypeError(f"{name}: want one of {sorted(_BY_NAME)}, got {rows.dtype}{_torch_way(rows.dtype, name)}")
    if rows.device.type not in ("cpu", "cuda"):
        raise ValueError(f"{name}: want a tensor on cpu or cuda, got {rows.device}")
    return rows.detach().resolve_neg()  # a lazily negated view has other bits in memory than it shows


def _numpy_way(dtype: np.dtype[Any], name: str) -> str:
    """How to make an array of this dtype one that is taken; "" where there is no way without loss."""
    if not dtype.isnative and dtype.newbyteorder("=").name in _BY_NAME:
        return f"; {name}.astype({name}.dtype.newbyteorder('=')) has the same values"
    if dtype.kind == "u" and f"int{8 * dtype.itemsize}" in _BY_NAME and dtype.isnative:
        return f"; {name}.view(numpy.int{8 * dtype.itemsize}) has the same bits"
    if dtype.kind == "c" and f"float{4 * dtype.itemsize}" in _BY_NAME and dtype.isnative:
        return f"; {name}.view(numpy.float{4 * dtype.itemsize}) has the same bits"
    return ""


def _torch_way(dtype: torch.dtype, name: str) -> str:
    """As _numpy_way."""
    kind = str(dtype).removeprefix("torch.")
    if kind in ("uint16", "uint32", "uint64"):
        return f"; {name}.view(torch.{kind[1:]}) has the same bits, and .view({dtype}) makes rows of them again"
    return f"; torch.view_as_real({name}) has the same bits" if dtype.is_complex else ""


def _way_to_array(value: Any, name: str) -> str:
    if isinstance(value, (str, os.PathLike)):
        path = os.fspath(value)
        return f"; read the file first: numpy.load({path!r}, mmap_mode='r') for a .npy"
    if isinstance(value, (list, tuple)):
        return f"; numpy.array({name}) or torch.tensor({name}) makes one"
    for method in ("toarray", "to_numpy"):  # scipy.sparse; pandas
        if hasattr(value, method):
            return f"; {name}.{method}() makes one"
    return ""


def check_row_shape(shape: tuple[int, ...], name: str = "rows") -> None:
    """shape: [n, *row_shape]. Raises ValueError unless there is a row dimension and each row has a value."""
    if len(shape) == 0:
        raise ValueError(f"{name}: want [n, *row_shape], got a scalar")
    if num_values(shape[1:]) == 0:
        raise ValueError(f"{name}: want at least 1 value per row, got shape {list(shape)}")


def to_bytes(rows: torch.Tensor) -> torch.Tensor:
    """rows: [n, *row_shape], any strides. Returns uint8 [n, row_bytes], contiguous, sharing memory if it can."""
    size = num_values(tuple(rows.shape[1:]))
    # torch calls a [n, 1] tensor contiguous whatever its last stride; the byte view needs a stride of 1.
    return rows.contiguous().as_strided((rows.shape[0], size), (size, 1)).view(torch.uint8)


def as_ids(ids: Any, name: str = "ids", advice: str = "") -> torch.Tensor:
    """ids: [n] int32/int64 tensor, or NumPy array of these. Returns it as a tensor on its own device. advice: what
    errors end with."""
    if isinstance(ids, np.ndarray) and ids.dtype in (np.int32, np.int64):
        ids = torch.from_numpy(np.require(ids, requirements=("C", "A", "W")))
    if not isinstance(ids, torch.Tensor):
        got = f"numpy {ids.dtype}" if isinstance(ids, np.ndarray) else type(ids).__name__
        raise TypeError(f"{name}: want an int32 or int64 tensor, got {got}{advice}")
    if ids.dtype not in (torch.int32, torch.int64):
        raise TypeError(f"{name}: want int32 or int64, got {ids.dtype}{advice}")
    if ids.ndim != 1:
        raise ValueError(f"{name}: want shape [n], got {list(ids.shape)}{advice}")
    return ids.contiguous()


def check_ids_on_cpu(ids: torch.Tensor, num_rows: int) -> None:
    """Raises IndexError naming the first id outside [0, num_rows), if the ids are in CPU memory."""
    if ids.is_cuda or len(ids) == 0:
        return
    lowest, highest = torch.aminmax(ids)  # a quarter of the time that it takes to look for bad ids
    if lowest < 0 or highest >= num_rows:
        position = int(torch.nonzero((ids < 0) | (ids >= num_rows))[0])
        raise IndexError(f"ids: want 0 <= id < {num_rows}, got {int(ids[position])} at position {position}")


def prepare_out(
    out: torch.Tensor | None, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device
) -> torch.Tensor:
    """`out` if it can take the rows, or a new tensor. Raises TypeError and ValueError saying what was wanted and
    got."""
    if out is None:
        return torch.empty(shape, dtype=dtype, device=device)
    if not isinstance(out, torch.Tensor):
        raise TypeError(f"out: want a torch.Tensor, got {type(out).__name__}")
    if out.shape != shape or out.dtype != dtype or out.device != device or not out.is_contiguous():
        got = f"{list(out.shape)} {out.dtype} on {out.device}{'' if out.is_contiguous() else ', not contiguous'}"
        raise ValueError(f"out: want {list(shape)} {dtype} on {device}, contiguous, got {got}")
    if out.requires_grad and torch.is_grad_enabled():
        raise RuntimeError(
            "out: want a tensor that does not need grad, got one that does: no gradient goes through a gather. Give "
            "out.detach(), or gather under torch.no_grad()"
        )
    if out.is_neg():  # a lazily negated view has other bits in memory than it shows
        raise ValueError("out: want a tensor, got a view that is negated when it is read")
    return out


def resolve_device(device: torch.device | str | None, default: torch.device) -> torch.device:
    """A device with its index spelled out, so that devices compare equal."""
    if (device is None or device == default) and default.type == "cuda" and default.index is not None:
        return default  # the usual call, in a third of the time
    resolved = default if device is None else torch.device(device)
    if resolved.type not in ("cpu", "cuda"):
        raise ValueError(f"device: want cpu or cuda, got {resolved}")
    check_gpu(resolved)
    if resolved.type == "cuda" and resolved.index is None:
        return torch.device("cuda", torch.cuda.current_device())
    return resolved


def check_gpu(device: torch.device) -> None:
    """Raises RuntimeError for a GPU where torch has none. Does not initialise CUDA."""
    if device.type == "cuda" and not torch.cuda.is_initialized() and not torch.cuda.is_available():
        raise RuntimeError(
            f"device: want one that torch can use, got {device}; torch.cuda.is_available() is False. Without a GPU: "
            "device='cpu' (for ids in CPU memory device=None is the same), and the store itself in the place of a cache"
        )

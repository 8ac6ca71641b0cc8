"""Packing values: casting, scaling, and laying codes out in words."""

from __future__ import annotations

import math
from typing import Any, Literal

import torch
import torch.nn.functional as F

from .narrow import FORMATS, NarrowFormat, fp8_format, narrow
from .packed_tensor import First, PackedTensor, check_scale_shape

Scale = Literal["row", "column"] | torch.Tensor | None
Overflow = Literal["saturate", "inf"] | None
_FLOATS = (torch.float64, torch.float32, torch.float16, torch.bfloat16)


def pack_fp16(x: torch.Tensor, *, first: First = "low") -> PackedTensor:
    """Packs values as float16, two in a word. LOSSY unless they are float16. Rounds as torch's cast does: to nearest,
    ties to even, inf where that is too large, subnormals kept.

    Args:
        x: [..., n] of float64, float32, float16 or bfloat16, on CPU or CUDA, any strides.
        first: whether the first value of a word is in its low or high bits. "high" is Feather's order.

    Returns:
        The packed values, on the same device. On CUDA enqueued on the current stream.

    Raises:
        TypeError: x of another type or dtype.
        ValueError: a scalar, or another `first`.

    Example:
        >>> w = ibp_gnn.packing.pack_fp16(torch.tensor([1.0, 1.0005]))
        >>> w.nbytes, w.unpack().tolist()
        (4, [1.0, 1.0009765625])
    """
    _check(x, first)
    return _pack(x, FORMATS["fp16"], None, False, None, first)


def pack_fp8(
    x: torch.Tensor,
    format: Literal["e4m3", "e5m2"] = "e4m3",
    *,
    scale: Scale = None,
    rounding: Literal["nearest", "stochastic"] = "nearest",
    overflow: Overflow = None,
    generator: torch.Generator | None = None,
    first: First = "low",
) -> PackedTensor:
    """Packs values as floats of 8 bits, four in a word. LOSSY. By bit operations: no GPU needs units for such floats.

    Args:
        x: [..., n] of float64, float32, float16 or bfloat16, on CPU or CUDA, any strides.
        format: "e4m3" has 3 bits of mantissa, and values of 2^-9 to 448; "e5m2" has 2, and 2^-16 to 57344.
        scale: values are divided by it first. "row": for each row (of the last dimension) the smallest power of two by
            which the row's finite values are in range; "column": for each column of all rows; or a tensor of positive
            float32, of a shape that broadcasts to x's. None: 1.
        rounding: "nearest", ties to even; or "stochastic": up or down by chance, so that the mean is the value.
        overflow: what becomes of values that are too large, inf too: "saturate", the largest value; "inf", or NaN for
            "e4m3", which has no inf. None: as torch's casts do since 2.12: "saturate" for "e4m3", "inf" for "e5m2".
        generator: of the chance. None: torch's of x's device.
        first: as for `pack_fp16`.

    Returns:
        The packed values, on the same device. On CUDA enqueued on the current stream.

    Raises:
        TypeError: x of another type or dtype.
        ValueError: a scalar x, or other bad arguments.

    Example:
        >>> x = torch.tensor([[1000.0, 3.0], [0.001, 0.002]])
        >>> ibp_gnn.packing.pack_fp8(x, "e5m2", scale="row").unpack()
        tensor([[1.0240e+03, 3.0000e+00],
                [9.7656e-04, 1.9531e-03]])
    """
    to = fp8_format(format)
    _check(x, first)
    if rounding not in ("nearest", "stochastic"):
        raise ValueError(f"rounding: want 'nearest' or 'stochastic', got {rounding!r}")
    if overflow not in ("saturate", "inf", None):
        raise ValueError(f"overflow: want 'saturate', 'inf' or None, got {overflow!r}")
    saturate = to.saturates if overflow is None else overflow == "saturate"
    random = None
    if rounding == "stochastic":
        random = torch.randint(
            -(1 << 31), 1 << 31, (x.numel(),), generator=generator, dtype=torch.int32, device=x.device
        )
    return _pack(x, to, _scale_of(x, to, scale), saturate, random, first)


def unpack(packed: PackedTensor, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """The values of a packed tensor.

    Args:
        packed: from `pack_fp16` or `pack_fp8`.
        dtype: torch.float32, torch.float16 or torch.bfloat16.

    Returns:
        The values, as of PackedTensor.unpack.

    Raises:
        TypeError: no packed tensor.
        ValueError: another dtype.

    Example:
        >>> x = torch.tensor([0.5, 448.0, 1e6])
        >>> ibp_gnn.packing.unpack(ibp_gnn.packing.pack_fp8(x, "e4m3")).tolist()
        [0.5, 448.0, 448.0]
    """
    if not isinstance(packed, PackedTensor):
        raise TypeError(f"packed: want a PackedTensor, got {type(packed).__name__}")
    return packed.unpack(dtype)


def power_of_two_scale(largest: torch.Tensor, to: NarrowFormat) -> torch.Tensor:
    """largest: float32, of some values each. Returns the smallest powers of two by which these fit the format; 1 where
    they are 0."""
    mantissa, exponent = torch.frexp(largest / to.largest)
    exponent = torch.where(mantissa == 0.5, exponent - 1, exponent).clamp(min=-126)
    return torch.where(largest > 0, power_of_two(exponent), 1.0)


def power_of_two(exponents: torch.Tensor) -> torch.Tensor:
    """exponents: int32, -126 to 127. Returns float32, exact on every device, as torch.ldexp need not be."""
    return ((exponents + 127) << 23).view(torch.float32)


def _scale_of(x: torch.Tensor, to: NarrowFormat, scale: Scale) -> torch.Tensor | None:
    if scale is None:
        return None
    if isinstance(scale, torch.Tensor):
        if scale.dtype != torch.float32 or scale.device != x.device:
            raise ValueError(f"scale: want torch.float32 on {x.device}, got {scale.dtype} on {scale.device}")
        if not bool(((scale > 0) & scale.isfinite()).all()):
            raise ValueError("scale: want finite numbers > 0, got others")
        check_scale_shape(scale, tuple(x.shape))
        return scale.detach().clone()
    if scale not in ("row", "column"):
        raise ValueError(f"scale: want 'row', 'column', a tensor or None, got {scale!r}")
    values = x.detach().to(torch.float32)
    magnitudes = torch.where(values.isfinite(), values, 0).abs()
    if scale == "row":
        largest = magnitudes.amax(-1, keepdim=True) if x.shape[-1] else magnitudes.new_zeros((*x.shape[:-1], 1))
    else:
        rows = magnitudes.flatten(0, -2) if x.ndim > 1 else magnitudes[None]
        largest = rows.amax(0) if len(rows) else magnitudes.new_zeros(x.shape[-1])
    return power_of_two_scale(largest, to)


def _check(x: Any, first: Any) -> None:
    if not isinstance(x, torch.Tensor):
        raise TypeError(f"x: want a torch.Tensor, got {type(x).__name__}")
    if x.dtype not in _FLOATS:
        raise TypeError(f"x: want one of {[str(dtype) for dtype in _FLOATS]}, got {x.dtype}")
    if x.device.type not in ("cpu", "cuda") or x.layout != torch.strided:
        raise TypeError(f"x: want a dense tensor on cpu or cuda, got layout {x.layout} on {x.device}")
    if x.ndim == 0:
        raise ValueError("x: want [..., n], got a scalar")
    if first not in ("low", "high"):
        raise ValueError(f"first: want 'low' or 'high', got {first!r}")
    if not hasattr(torch, "uint32"):
        raise RuntimeError(f"packing: want torch 2.3 or later, which has torch.uint32, got {torch.__version__}")


def _pack(
    x: torch.Tensor,
    to: NarrowFormat,
    scale: torch.Tensor | None,
    saturate: bool,
    random: torch.Tensor | None,
    first: First,
) -> PackedTensor:
    x = x.detach().resolve_neg()
    if x.dtype == to.dtype:
        codes = x.contiguous().flatten().view(torch.uint8)
    else:
        values = x.to(torch.float32)
        codes = narrow(values if scale is None else values / scale, to, saturate=saturate, random=random)
    rows = codes.view(math.prod(x.shape[:-1]), x.shape[-1] * to.nbytes)
    rows = F.pad(rows, (0, -rows.shape[1] % 4))
    if first == "high":
        rows = rows.unflatten(1, (-1, to.per_word, to.nbytes)).flip(2).flatten(1)
    row_words = rows.shape[1] // 4
    words = rows.contiguous().clone() if rows.data_ptr() == x.data_ptr() else rows.contiguous()
    words = words.flatten().view(torch.uint32).view(*x.shape[:-1], row_words)
    return PackedTensor(words, tuple(x.shape), to.name, scale, first)

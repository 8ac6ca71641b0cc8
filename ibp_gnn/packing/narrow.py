"""Narrow floats: which formats there are, and values to codes and back by the extensions' bit operations
(csrc/core/narrow_floats.h), the same on CPU and GPU."""

from __future__ import annotations

import dataclasses

import torch

from .. import _native


@dataclasses.dataclass(frozen=True)
class NarrowFormat:
    """name: as in arguments. number: NarrowFloat of csrc/core/narrow_floats.h. nbytes: of a code. largest: finite
    value. bits_of_mantissa: without the leading 1. least_exponent: of a normal value; below it, values are
    subnormal. dtype: torch's of the same codes. saturates: whether torch's cast to it does."""

    name: str
    number: int
    nbytes: int
    largest: float
    bits_of_mantissa: int
    least_exponent: int
    dtype: torch.dtype
    saturates: bool

    @property
    def per_word(self) -> int:
        """Values in 32 bits."""
        return 4 // self.nbytes


FORMATS = {
    one.name: one
    for one in (
        NarrowFormat("fp16", 0, 2, 65504.0, 10, -14, torch.float16, False),
        NarrowFormat("e5m2", 1, 1, 57344.0, 2, -14, torch.float8_e5m2, False),
        NarrowFormat("e4m3", 2, 1, 448.0, 3, -6, torch.float8_e4m3fn, True),
    )
}


def fp8_format(name: object) -> NarrowFormat:
    """Raises ValueError for a name that is not one of 8 bits."""
    if name not in ("e4m3", "e5m2"):
        raise ValueError(f"format: want 'e4m3' or 'e5m2', got {name!r}")
    return FORMATS[str(name)]


def narrow(
    values: torch.Tensor, to: NarrowFormat, *, saturate: bool, random: torch.Tensor | None = None
) -> torch.Tensor:
    """The codes of values.

    Args:
        values: float32 of any shape, on CPU or CUDA.
        to: the format.
        saturate: whether what is too large becomes the largest value; else inf, or NaN where the format has no inf.
        random: int32 [values.numel()] on the same device, for stochastic rounding. None: to nearest, ties to even.

    Returns:
        uint8 [numel * nbytes] on the same device. On CUDA enqueued on the current stream.
    """
    values = values.contiguous()
    codes = torch.empty(values.numel() * to.nbytes, dtype=torch.uint8, device=values.device)
    if not values.is_cuda:
        _native.cpu.narrow(to.number, values.flatten(), random, codes, saturate, _native.threads())
        return codes
    with torch.cuda.device(values.device):
        stream = torch.cuda.current_stream(values.device)
        drawn = 0 if random is None else random.data_ptr()
        where = values.data_ptr(), drawn, values.numel(), codes.data_ptr()
        _native.cuda().narrow(to.number, *where, saturate, stream.cuda_stream)
        outlive(stream, values, random)
    return codes


def widen(codes: torch.Tensor, of: NarrowFormat) -> torch.Tensor:
    """The values of codes.

    Args:
        codes: uint8 [n * nbytes], contiguous, on CPU or CUDA.
        of: their format.

    Returns:
        float32 [n] on the same device. On CUDA enqueued on the current stream.
    """
    values = torch.empty(codes.numel() // of.nbytes, dtype=torch.float32, device=codes.device)
    if not codes.is_cuda:
        _native.cpu.widen(of.number, codes, values, _native.threads())
        return values
    if codes.data_ptr() % 4 != 0:  # the kernel reads words
        codes = codes.clone()
    with torch.cuda.device(codes.device):
        stream = torch.cuda.current_stream(codes.device)
        _native.cuda().widen(of.number, codes.data_ptr(), values.numel(), values.data_ptr(), stream.cuda_stream)
        outlive(stream, codes)
    return values


def outlive(stream: torch.cuda.Stream, *tensors: torch.Tensor | None) -> None:
    """After a launch that reads them: their memory outlives it, whatever stream they were made on."""
    for tensor in tensors:
        if tensor is not None:
            tensor.record_stream(stream)

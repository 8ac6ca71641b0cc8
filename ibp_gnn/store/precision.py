"""LOSSY stores: values rounded to fewer bits before they are compressed. Nothing takes one unless it is asked to.

A value is rounded to the precision and written in the store's dtype, where the bits that are left end with zeros. The
lossless codecs leave such zeros out, and shorten the exponents on top. So a LOSSY store is an ordinary one of rounded
rows: gathers decode to its dtype, and give the rounded rows bit for bit.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Literal, get_args

import numpy as np
import torch

from ..codec.mapped_arrays import page_releaser
from ..codec.values import as_tensor, check_row_shape, num_values
from ..packing.narrow import FORMATS, NarrowFormat, narrow, widen
from ..packing.pack import power_of_two, power_of_two_scale
from .progress import progress_bar

PrecisionName = Literal["bf16", "fp16", "fp8_e4m3", "fp8_e5m2"]
PRECISIONS: tuple[str, ...] = get_args(PrecisionName)
_CAST = {"bf16": torch.bfloat16, "fp16": torch.float16}
# What can be rounded to each, and what holds all its values. (Those of fp8 have a scale beside them.)
_NEED_BITS = {"bf16": 8, "fp16": 11, "fp8_e4m3": 4, "fp8_e5m2": 3}
_MANTISSA_BITS = {torch.float64: 53, torch.float32: 24, torch.float16: 11, torch.bfloat16: 8}
_MOST_EXPONENT = 127  # of a scale


@dataclasses.dataclass(frozen=True)
class Precision:
    """What the values of a LOSSY store are rounded to.

    name: one of PRECISIONS. dtype: of the store's rows. scale_exponents: of "fp8_*", for each value of a row: it is
    divided by 2 to this power, rounded, and multiplied again. Empty for others.
    """

    name: str
    dtype: torch.dtype
    scale_exponents: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if self.name not in PRECISIONS:
            raise ValueError(f"precision: want one of {list(PRECISIONS)} or None, got {self.name!r}")
        bits = _MANTISSA_BITS.get(self.dtype, 0)
        if bits < _NEED_BITS[self.name]:
            fitting = [str(dtype) for dtype, has in _MANTISSA_BITS.items() if has >= _NEED_BITS[self.name]]
            raise ValueError(f"out_dtype: want one of {fitting} for precision {self.name!r}, got {self.dtype}")
        if any(not -_MOST_EXPONENT < exponent <= _MOST_EXPONENT for exponent in self.scale_exponents):
            raise ValueError(f"scale_exponents: want more than -{_MOST_EXPONENT} and at most {_MOST_EXPONENT}")

    @classmethod
    def fit(
        cls, features: Any, name: str, out_dtype: torch.dtype | None, step: int, progress: bool | None = None
    ) -> Precision:
        """features: [n, *row_shape] tensor, NumPy array or memmap, of which all rows are read for "fp8_*": each column
        gets the smallest power of two by which its finite values are in range. out_dtype: None is that of features.
        step: rows to read at a time. progress: of `progress_bar`. Raises TypeError and ValueError."""
        check_row_shape(tuple(features.shape), "features")
        dtype = as_tensor(features[:0], "features").dtype
        if dtype not in _MANTISSA_BITS:
            wanted = [str(one) for one in _MANTISSA_BITS]
            raise TypeError(f"features: want one of {wanted} for precision {name!r}, got {dtype}")
        unscaled = cls(name, dtype if out_dtype is None else out_dtype)
        to = unscaled._format
        if to is None:
            return unscaled
        width, release = num_values(tuple(features.shape[1:])), page_releaser(features)
        largest = torch.zeros(width, device=features.device if isinstance(features, torch.Tensor) else "cpu")
        with progress_bar("scaling", len(features) * width * dtype.itemsize, progress) as bar:
            for first in range(0, len(features), step):
                rows = features[first : first + step]
                if isinstance(rows, np.ndarray):
                    rows = np.array(rows, order="C")
                values = as_tensor(rows, "features").to(torch.float32).reshape(-1, width)
                release(slice(first, first + step))
                largest = torch.maximum(largest, torch.where(values.isfinite(), values, 0).abs().amax(0))
                bar.update(len(values) * width * dtype.itemsize)
        exponents = torch.frexp(power_of_two_scale(largest.cpu(), to)).exponent - 1
        return dataclasses.replace(unscaled, scale_exponents=tuple(exponents.tolist()))

    @property
    def _format(self) -> NarrowFormat | None:
        """Of 8 bits."""
        return FORMATS[self.name.removeprefix("fp8_")] if self.name.startswith("fp8_") else None

    def round(self, rows: torch.Tensor) -> torch.Tensor:
        """rows: [n, *row_shape] of float64, float32, float16 or bfloat16. Returns them as the store has them, of
        `dtype`, on the same device. What is too large becomes the largest value of its column for "fp8_*", and inf for
        "fp16"."""
        to = self._format
        if to is None:
            return rows.to(_CAST[self.name]).to(self.dtype)
        exponents = torch.tensor(self.scale_exponents, dtype=torch.int32, device=rows.device)
        scale = power_of_two(exponents)
        values = rows.to(torch.float32).reshape(len(rows), -1) / scale
        rounded = widen(narrow(values, to, saturate=True), to).view_as(values) * scale
        return rounded.to(self.dtype).view(rows.shape)

    def __str__(self) -> str:
        return f"LOSSY {self.name}"

"""Codec "flip": a row XOR a constant, without its last byte, which is then 0."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from .forms import Form, Sample, own


@dataclasses.dataclass(frozen=True, eq=False)
class FlipForm(Form):
    """constant: uint8 [row_bytes]."""

    constant: np.ndarray

    kind: ClassVar[str] = "flip"
    most_table_bytes_per_row_byte: ClassVar[int] = 1
    miss_blocks: ClassVar[int] = 16

    def __post_init__(self) -> None:
        object.__setattr__(self, "constant", own(self.constant, np.uint8))
        _ = self.native

    @classmethod
    def fit(cls, sample: Sample, options: Mapping[str, Any]) -> FlipForm:
        return cls(sample.row_bytes[0].cpu().numpy())

    @property
    def row_bytes(self) -> int:  # type: ignore[override]
        return len(self.constant)

    @property
    def nbytes(self) -> int:
        return self.constant.nbytes

"""Codec "dict": a form with a dictionary of symbols, the parts of values that repeat. fit_dict.py counts what fits."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
import torch

from .. import _native
from .fit_dict import ESCAPE_SYMBOLS, SIGNED, best_parts
from .forms import Form, Sample, own, short
from .slot_length import size_to_minimize
from .values import to_bytes

_MAX_CODE_BITS = 4  # csrc/core/dict_layout.h
# Codes of fewer than 3 bits must take one part in so many off the slots: they leave more values to escape codes, and a
# GPU decodes them 2 to 12 % slower.
_SHORT_CODE_BITS = 3
_SHORT_CODES_MUST_SAVE = 40
_MISS_BLOCKS, _MISS_BLOCKS_ZERO_CODE = 16, 32  # a zero code has payloads whose offsets are not known beforehand
_MISS_BLOCKS_TRIMMED = 64  # short payloads: it takes more warps to have as many bytes on their way
_VALUES_PER_STEP = 1 << 22  # bounds temporaries


@dataclasses.dataclass(frozen=True, eq=False)
class DictForm(Form):
    """Codec "dict" (csrc/core/dict_layout.h). dictionary: uint16 [columns, 2^code_bits], columns = num_values if
    per_column else 1; the symbols that have a code come first, most frequent first, the rest of a column is 0.
    escape_dictionary: uint16 [7], the symbols of the escape codes, most frequent first."""

    num_values: int
    value_bits: int
    symbol_bits: int
    trim_bits: int
    code_bits: int
    sign_low: bool
    zero_code: bool
    per_column: bool
    dictionary: np.ndarray
    escape_dictionary: np.ndarray

    kind: ClassVar[str] = "dict"
    # At most 16 symbols of 2 bytes for each value, and some for all of them.
    most_table_bytes_per_row_byte: ClassVar[int] = 64

    def __post_init__(self) -> None:
        for name in ("num_values", "value_bits", "symbol_bits", "trim_bits", "code_bits"):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool):
                raise ValueError(f"{name}: want an int, got {short(value)}")
        # Before anything is as long as they say. The extension checks the rest.
        for name, most in (("num_values", _native.cpu.MAX_ROW_BYTES), ("code_bits", _MAX_CODE_BITS)):
            if not 1 <= getattr(self, name) <= most:
                raise ValueError(f"{name}: want 1 to {most}, got {short(getattr(self, name))}")
        columns = self.num_values if self.per_column else 1
        for name, shape in (("dictionary", (columns, 1 << self.code_bits)), ("escape_dictionary", (ESCAPE_SYMBOLS,))):
            given = np.asarray(getattr(self, name))
            outside = given[(given < 0) | (given > 0xFFFF)]
            if outside.size:  # the conversion would wrap them around
                raise ValueError(f"{name}: want symbols of 0 to 65535, got {outside[0]}")
            if given.shape != shape:
                raise ValueError(f"{name}: want {list(shape)}, got {list(given.shape)}")
            object.__setattr__(self, name, own(given, np.uint16))
        _ = self.native  # refuses parts that do not go together

    @classmethod
    def fit(cls, sample: Sample, options: Mapping[str, Any]) -> DictForm:
        forms = fit_dictionaries(sample.rows, sample.total_rows)
        if sample.minimize == "payloads":
            return forms[0]

        def cost(form: DictForm) -> int:
            size = size_to_minimize(form, sample.row_bytes, sample.minimize)
            return size * (_SHORT_CODES_MUST_SAVE - (form.code_bits >= _SHORT_CODE_BITS))

        return min(forms, key=cost)

    @property
    def fetches_once(self) -> bool:
        """Lengths differ by a few escapes, unless zeros are left out."""
        return not self.zero_code

    @property
    def miss_blocks(self) -> int:
        if self.trim_bits:
            return _MISS_BLOCKS_TRIMMED
        return _MISS_BLOCKS_ZERO_CODE if self.zero_code else _MISS_BLOCKS

    def escape_share(self, rows: torch.Tensor) -> float:
        data, value_bytes = to_bytes(rows), self.value_bits // 8
        columns = len(self.dictionary)
        has_code = np.zeros((columns, 1 << self.symbol_bits), np.bool_)
        np.put_along_axis(has_code, self.dictionary[:, : self.num_symbols].astype(np.int64), True, axis=1)
        lookup = torch.from_numpy(has_code.reshape(-1)).to(rows.device)
        column = (torch.arange(self.num_values, device=rows.device) % columns) << self.symbol_bits
        below, escapes = self.value_bits - self.symbol_bits - self.sign_low, 0
        for part in data.split(max(1, _VALUES_PER_STEP // self.num_values)):
            values = part.view(SIGNED[value_bytes]).to(torch.int64)
            symbols = (values >> below) & ((1 << self.symbol_bits) - 1)
            escaped = ~lookup[symbols + column]
            if self.zero_code:
                escaped &= values != 0
            escapes += int(escaped.sum())
        return escapes / (len(data) * self.num_values)

    @property
    def row_bytes(self) -> int:  # type: ignore[override]
        return self.num_values * self.value_bits // 8

    @property
    def num_symbols(self) -> int:
        """Symbols with a code, per column; one code is the escape, one may be the zero code."""
        return (1 << self.code_bits) - 1 - self.zero_code

    @property
    def nbytes(self) -> int:
        return self.dictionary.nbytes + self.escape_dictionary.nbytes


def fit_dictionaries(rows: torch.Tensor, total_rows: int) -> list[DictForm]:
    """The forms of `best_parts`, for each length of codes one; the smallest first."""
    return [DictForm(**parts) for parts in best_parts(rows, total_rows)]

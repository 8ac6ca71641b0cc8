"""Fitting codec "dict": which symbols get a code, how long codes are, and whether zeros get one of their own.

Everything is counted on the sample: for each candidate the payload's bits are the codes', the low bits' of the values
that have them, and the escaped symbols'. Counting runs on the rows' device; ties go to the first candidate.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import torch

from .forms import DictForm
from .rows import to_bytes

# Exponent bits of floats; the exponent is their symbol, and the sign moves below it. For integers the symbol is a
# number of high bits.
EXPONENT_BITS = {
    torch.float64: 11,
    torch.float32: 8,
    torch.float16: 5,
    torch.bfloat16: 8,
    torch.float8_e4m3fn: 4,
    torch.float8_e5m2: 5,
}
_INTEGER_SYMBOLS = (4, 8, 12, 16)
_CODE_BITS = (1, 2, 3, 4)
_MAX_COLUMN_SYMBOL_BITS = 8
# A dictionary per column makes decoding slower; it must take at least this share off the payload.
_COLUMNS_MUST_SAVE = 0.01
_VALUES_PER_STEP = 1 << 22  # bounds temporaries
_SIGNED = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


@dataclasses.dataclass(frozen=True)
class _Counts:
    """Of the sample, for one way to cut values: symbols [columns or 1, 2^symbol_bits], with all-0 values or not."""

    symbol_bits: int
    sign_low: bool
    trim_bits: int
    with_zeros: np.ndarray
    without_zeros: np.ndarray


def fit_dictionary(rows: torch.Tensor) -> DictForm:
    """rows: [n, *row_shape] of a supported dtype, n >= 1, on CPU or CUDA. Returns the form with the smallest payload of
    the sample."""
    value_bits = 8 * rows.dtype.itemsize
    values = to_bytes(rows).view(_SIGNED[rows.dtype.itemsize]).to(torch.int64)  # [n, num_values]
    best: tuple[float, DictForm] | None = None
    for symbol_bits, sign_low in _cuts(rows.dtype):
        counts = _count(values, value_bits, symbol_bits, sign_low)
        for zero_code in (False, True):
            for per_column in (False, True):
                if per_column and symbol_bits > _MAX_COLUMN_SYMBOL_BITS:
                    continue
                for code_bits in _CODE_BITS[zero_code:]:
                    bits, dictionary = _evaluate(counts, value_bits, code_bits, zero_code, per_column)
                    cost = bits / (1 - _COLUMNS_MUST_SAVE) if per_column else bits
                    if best is None or cost < best[0]:
                        best = cost, DictForm(
                            num_values=values.shape[1],
                            value_bits=value_bits,
                            symbol_bits=symbol_bits,
                            trim_bits=counts.trim_bits,
                            code_bits=code_bits,
                            sign_low=sign_low,
                            zero_code=zero_code,
                            per_column=per_column,
                            dictionary=dictionary,
                        )
    if best is None:  # every dtype has a cut
        raise RuntimeError("fit: no candidate")
    return best[1]


def escape_share(form: DictForm, rows: torch.Tensor) -> float:
    """rows: [n, *row_shape], n >= 1, of the form's dtype and shape, on CPU or CUDA. Returns the share of values whose
    symbol has no code, and so is appended to the row."""
    data, value_bytes = to_bytes(rows), form.value_bits // 8
    columns = len(form.dictionary)
    has_code = np.zeros((columns, 1 << form.symbol_bits), np.bool_)
    np.put_along_axis(has_code, form.dictionary[:, : form.num_symbols].astype(np.int64), True, axis=1)
    lookup = torch.from_numpy(has_code.reshape(-1)).to(rows.device)
    column = (torch.arange(form.num_values, device=rows.device) % columns) << form.symbol_bits
    below, escapes = form.value_bits - form.symbol_bits - form.sign_low, 0
    for part in data.split(max(1, _VALUES_PER_STEP // form.num_values)):
        values = part.view(_SIGNED[value_bytes]).to(torch.int64)
        symbols = (values >> below) & ((1 << form.symbol_bits) - 1)
        escaped = ~lookup[symbols + column]
        if form.zero_code:
            escaped &= values != 0
        escapes += int(escaped.sum())
    return escapes / (len(data) * form.num_values)


def _cuts(dtype: torch.dtype) -> list[tuple[int, bool]]:
    if dtype in EXPONENT_BITS:
        return [(EXPONENT_BITS[dtype], True)]
    value_bits = 8 * dtype.itemsize
    if dtype is torch.bool:
        return [(value_bits - 1, False)]
    return [(bits, False) for bits in _INTEGER_SYMBOLS if bits < value_bits]


def _count(values: torch.Tensor, value_bits: int, symbol_bits: int, sign_low: bool) -> _Counts:
    """values: int64 [n, num_values], sign extended."""
    below = value_bits - symbol_bits - sign_low
    symbols = (values >> below) & ((1 << symbol_bits) - 1)
    # Longer symbols have no dictionary per column, and counting them so would take a lot of memory.
    num_columns = values.shape[1] if symbol_bits <= _MAX_COLUMN_SYMBOL_BITS else 1
    columns = (torch.arange(values.shape[1], device=values.device) % num_columns) << symbol_bits
    keys, zero = symbols + columns, values == 0
    size = num_columns << symbol_bits

    def count(flat_keys: torch.Tensor) -> np.ndarray:
        return torch.bincount(flat_keys, minlength=size).reshape(num_columns, -1).cpu().numpy()

    with_zeros = count(keys.flatten())
    without_zeros = with_zeros - count(columns.expand_as(keys)[zero])  # the symbol of an all-0 value is 0
    return _Counts(symbol_bits, sign_low, _trim_bits(values, below), with_zeros, without_zeros)


def _trim_bits(values: torch.Tensor, below: int) -> int:
    """How many of the lowest bits are 0 in all values, leaving at least one low bit."""
    trim = 0
    while trim < below - 1 and not bool(((values >> trim) & 1).any()):
        trim += 1
    return trim


def _evaluate(
    counts: _Counts, value_bits: int, code_bits: int, zero_code: bool, per_column: bool
) -> tuple[int, np.ndarray]:
    """The sample's payload in bits, and the dictionary, uint16 [columns or 1, 2^code_bits]."""
    symbols = counts.without_zeros if zero_code else counts.with_zeros
    total = int(counts.with_zeros.sum())
    if not per_column:
        symbols = symbols.sum(0, keepdims=True)
    num_symbols = min((1 << code_bits) - 1 - zero_code, symbols.shape[1])
    # Most frequent first, ties by the lower symbol: the same on every machine.
    order = np.argsort(-symbols, axis=1, kind="stable")[:, :num_symbols]
    coded = int(np.take_along_axis(symbols, order, 1).sum())
    with_low = int(symbols.sum())
    low_bits = value_bits - counts.symbol_bits - counts.trim_bits
    symbol_bytes = 1 if counts.symbol_bits <= 8 else 2
    bits = total * code_bits + with_low * low_bits + (with_low - coded) * 8 * symbol_bytes
    dictionary = np.zeros((len(symbols), 1 << code_bits), np.uint16)
    dictionary[:, :num_symbols] = order
    return bits, dictionary

"""Fitting codec "dict": where values are cut, which symbols get a code, how long codes are, and whether zeros get one.

Everything is counted on the sample: for each candidate the bits of all payloads (escape codes not rounded up to bytes),
and the dictionaries' own, by the sample's share of all rows. Counting runs on the rows' device; ties go to the first
candidate.
"""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any

import numpy as np
import torch

from .values import to_bytes

# Symbols in the escape dictionary; this number as an escape code says that the symbol is written out.
ESCAPE_SYMBOLS = 7

# Of floats.
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
_ESCAPE_CODE_BITS = ESCAPE_SYMBOLS.bit_length()
_MAX_COLUMN_SYMBOL_BITS = 8
# What makes decoding slower must take one part in so many off the payload: a dictionary per column, and a cut of floats
# other than below the exponent with the sign moved there, which GPUs decode fastest.
_MUST_SAVE = 200
_VALUES_PER_STEP = 1 << 22  # bounds temporaries
SIGNED = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


@dataclasses.dataclass(frozen=True)
class _Cut:
    """Where values are cut into symbol and low part, as in DictForm."""

    symbol_bits: int
    sign_low: bool

    @property
    def top_bits(self) -> int:
        """Bits of a value that its symbol depends on, and the sign."""
        return self.symbol_bits + self.sign_low


@dataclasses.dataclass(frozen=True)
class _Counts:
    """Of the sample: how often the top_bits highest bits of a value are what, [columns or 1, 2^top_bits], all-0 values
    counted or not; how many values of a row are not 0, for each row; trailing_zeros, bits that are 0 at the end of all
    values."""

    num_values: int
    value_bits: int
    with_zeros: np.ndarray
    without_zeros: np.ndarray
    nonzeros: np.ndarray
    trailing_zeros: int

    def of_symbols(self, cut: _Cut, zero_code: bool) -> np.ndarray:
        """Returns [columns or 1, 2^symbol_bits]: values per symbol, without the all-0 ones if zero_code."""
        counts = self.without_zeros if zero_code else self.with_zeros
        signs = 1 + cut.sign_low
        return counts.reshape(len(counts), signs, 1 << cut.symbol_bits, -1).sum(axis=(1, 3))


def best_parts(rows: torch.Tensor, total_rows: int) -> list[dict[str, Any]]:
    """rows: a sample, [n, *row_shape] of a supported dtype, n >= 1, on CPU or CUDA; of total_rows rows. Returns for
    each length of codes the fields of the DictForm that makes the sample's payloads smallest; the smallest first. Short
    codes have shorter payloads on average, long ones payloads of more equal lengths, which matters to slots."""
    value_bits = 8 * rows.dtype.itemsize
    values = to_bytes(rows).view(SIGNED[rows.dtype.itemsize])  # [n, num_values]
    cuts = _cuts(rows.dtype)
    best: dict[int, tuple[int, dict[str, Any]]] = {}
    for with_columns in (True, False):  # longer symbols have no dictionary per column: counting would take much memory
        of_kind = [cut for cut in cuts if (cut.symbol_bits <= _MAX_COLUMN_SYMBOL_BITS) == with_columns]
        if not of_kind:
            continue
        counts = _count(values, value_bits, max(cut.top_bits for cut in of_kind), with_columns)
        for cut in of_kind:
            for zero_code, per_column in itertools.product((False, True), (False, True)[: 1 + with_columns]):
                for code_bits in _CODE_BITS[zero_code:]:
                    payload_bits, dictionary, escape_dictionary = _evaluate(
                        counts, cut, code_bits, zero_code, per_column
                    )
                    dictionary_bits = 8 * (dictionary.nbytes + escape_dictionary.nbytes)
                    cost = payload_bits * total_rows + dictionary_bits * len(values)
                    cost *= _MUST_SAVE - (not per_column)
                    cost *= _MUST_SAVE - (cut == cuts[0] or not cuts[0].sign_low)
                    if code_bits not in best or cost < best[code_bits][0]:
                        parts = dict(
                            num_values=values.shape[1],
                            value_bits=value_bits,
                            symbol_bits=cut.symbol_bits,
                            trim_bits=_trim_bits(counts, cut),
                            code_bits=code_bits,
                            sign_low=cut.sign_low,
                            zero_code=zero_code,
                            per_column=per_column,
                            dictionary=dictionary,
                            escape_dictionary=escape_dictionary,
                        )
                        best[code_bits] = cost, parts
    return [parts for _, parts in sorted(best.values(), key=lambda of_length: of_length[0])]


def _cuts(dtype: torch.dtype) -> list[_Cut]:
    """For floats: the exponent, with the sign below it; or as many bits from the top, which suits values of one sign.
    For integers: a number of high bits; for bool all but the bit that is not 0."""
    if dtype in EXPONENT_BITS:
        return [_Cut(EXPONENT_BITS[dtype], True), _Cut(EXPONENT_BITS[dtype], False)]
    value_bits = 8 * dtype.itemsize
    if dtype is torch.bool:
        return [_Cut(value_bits - 1, False)]
    return [_Cut(bits, False) for bits in _INTEGER_SYMBOLS if bits < value_bits]


def _count(values: torch.Tensor, value_bits: int, top_bits: int, with_columns: bool) -> _Counts:
    """values: [n, num_values], signed."""
    num_values = values.shape[1]
    num_columns = num_values if with_columns else 1
    columns = (torch.arange(num_values, device=values.device) % num_columns) << top_bits
    size = num_columns << top_bits
    counts = torch.zeros(size, dtype=torch.int64, device=values.device)
    zeros = torch.zeros(num_values, dtype=torch.int64, device=values.device)
    nonzeros, trailing_zeros = [], value_bits
    for part in values.split(max(1, _VALUES_PER_STEP // num_values)):
        wide = part.to(torch.int64)
        top = (wide >> (value_bits - top_bits)) & ((1 << top_bits) - 1)
        counts += torch.bincount((top + columns).flatten(), minlength=size)
        zero = part == 0
        zeros += zero.sum(0)
        nonzeros.append(num_values - zero.sum(1))
        trailing_zeros = _trailing_zeros(part, trailing_zeros)
    with_zeros = counts.cpu().numpy().reshape(num_columns, -1)
    without_zeros = with_zeros.copy()
    without_zeros[:, 0] -= zeros.cpu().numpy().reshape(-1, num_columns).sum(0)  # the top bits of an all-0 value are 0
    return _Counts(num_values, value_bits, with_zeros, without_zeros, torch.cat(nonzeros).cpu().numpy(), trailing_zeros)


def _trailing_zeros(values: torch.Tensor, most: int) -> int:
    """How many of the lowest bits, up to `most`, are 0 in all values."""
    count = 0
    while count < most and not bool(((values >> count) & 1).any()):
        count += 1
    return count


def _trim_bits(counts: _Counts, cut: _Cut) -> int:
    """How many of the lowest bits are 0 in all values, leaving at least one low bit."""
    return min(counts.trailing_zeros, counts.value_bits - cut.symbol_bits - 1)


def _evaluate(
    counts: _Counts, cut: _Cut, code_bits: int, zero_code: bool, per_column: bool
) -> tuple[int, np.ndarray, np.ndarray]:
    """Bits of the sample's payloads; the dictionary, uint16 [columns or 1, 2^code_bits]; the escape dictionary, uint16
    [ESCAPE_SYMBOLS]."""
    symbols = counts.of_symbols(cut, zero_code)
    if not per_column:
        symbols = symbols.sum(0, keepdims=True)
    num_symbols = min((1 << code_bits) - 1 - zero_code, symbols.shape[1])
    # Most frequent first, ties by the lower symbol: the same on every machine.
    order = np.argsort(-symbols, axis=1, kind="stable")[:, :num_symbols]
    escaped = symbols.copy()
    np.put_along_axis(escaped, order, 0, axis=1)
    escaped = escaped.sum(0)
    escape_order = np.argsort(-escaped, kind="stable")[:ESCAPE_SYMBOLS]
    escapes = int(escaped.sum())
    plain_symbols = escapes - int(escaped[escape_order].sum())
    num_rows = len(counts.nonzeros)
    with_low = counts.nonzeros if zero_code else np.full(num_rows, counts.num_values)
    low_bits = counts.value_bits - cut.symbol_bits - _trim_bits(counts, cut)
    symbol_bytes = 1 if cut.symbol_bits <= 8 else 2
    codes_bytes = num_rows * -(-counts.num_values * code_bits // 8)
    low_bytes = int((-(-with_low * low_bits // 8)).sum())
    dictionary = np.zeros((len(symbols), 1 << code_bits), np.uint16)
    dictionary[:, :num_symbols] = order
    escape_dictionary = np.zeros(ESCAPE_SYMBOLS, np.uint16)
    escape_dictionary[: len(escape_order)] = escape_order
    payload_bits = 8 * (codes_bytes + low_bytes + plain_symbols * symbol_bytes) + escapes * _ESCAPE_CODE_BITS
    return payload_bits, dictionary, escape_dictionary

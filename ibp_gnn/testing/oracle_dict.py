"""The oracle of codec "dict": csrc/core/dict_layout.h once more, slow and plain, for tests to compare with.

It was written from that file alone and reads nothing of a DictForm but its fields; slots are oracle.py's. Rows and
buffers are NumPy uint8 arrays, values are uint64.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from .._native import FormatError
from ..codec.dict import DictForm
from .oracle import Bits, Bytes, Encoded, read_slots, to_bits, to_bytes, write_slots

Values = npt.NDArray[np.uint64]

ESCAPE_CODE_BITS = 3
PLAIN_SYMBOL = 7  # the escape code of a symbol that is written out; lower ones are places in the escape dictionary


class Cut(NamedTuple):
    """One way to cut values into symbols and low parts."""

    symbol_bits: int
    sign_low: bool
    trim_bits: int = 0


class Coded(NamedTuple):
    """codes, symbols, low, escape_codes: [n, num_values]; an escape code counts where escapes is True. has_low,
    escapes, plain (escapes whose symbol is written out): bool, the same shape. has_payload: bool [n]."""

    codes: Values
    symbols: Values
    low: Values
    escape_codes: Values
    has_low: Bits
    escapes: Bits
    plain: Bits
    has_payload: Bits


def split(values: Values, value_bits: int, cut: Cut) -> tuple[Values, Values]:
    """Returns symbols and low parts; the trimmed bits are dropped."""
    below = value_bits - cut.symbol_bits - cut.sign_low
    symbols, low = (values >> _u64(below)) & _ones(cut.symbol_bits), (values & _ones(below)) >> _u64(cut.trim_bits)
    if cut.sign_low:
        low = (low << _u64(1)) | (values >> _u64(value_bits - 1))
    return symbols, low


def join(symbols: Values, low: Values, value_bits: int, cut: Cut) -> Values:
    """The inverse of `split`."""
    if not cut.sign_low:
        return (symbols << _u64(value_bits - cut.symbol_bits)) | (low << _u64(cut.trim_bits))
    mantissa, sign = (low >> _u64(1)) << _u64(cut.trim_bits), (low & _u64(1)) << _u64(value_bits - 1)
    return sign | (symbols << _u64(value_bits - cut.symbol_bits - 1)) | mantissa


def code(rows: Bytes, form: DictForm) -> Coded:
    """rows: [n, row_bytes]."""
    values = _to_values(rows, form.value_bits)
    symbols, low = split(values, form.value_bits, _cut(form))
    codes = np.full(values.shape, _escape(form), np.uint64)
    for at in range(_num_symbols(form)):
        codes[symbols == form.dictionary[:, at]] = at  # one dictionary for the row, or one per column
    if form.zero_code:
        codes[values == 0] = _num_symbols(form)
    escapes = codes == _escape(form)
    escape_codes = np.full(values.shape, PLAIN_SYMBOL, np.uint64)
    for at in reversed(range(PLAIN_SYMBOL)):  # the lowest of a symbol's codes stays
        escape_codes[symbols == form.escape_dictionary[at]] = at
    has_low = ~(values == 0) if form.zero_code else np.ones(values.shape, np.bool_)
    has_payload = np.all((values & _ones(form.trim_bits)) == 0, axis=1)
    plain = escapes & (escape_codes == PLAIN_SYMBOL)
    return Coded(codes, symbols, low, escape_codes, has_low, escapes, plain, has_payload)


def measure(rows: Bytes, form: DictForm) -> npt.NDArray[np.int32]:
    """rows: [n, row_bytes]. Returns [n]: every payload's length in bytes; row_bytes for a row that has none."""
    lengths = [rows.shape[1] if payload is None else len(payload) for payload in payloads(rows, form)]
    return np.array(lengths, np.int32)


def payload_bytes(rows: Bytes, form: DictForm) -> int:
    """Bytes of all payloads, also where they are not below the row's. All rows must have one."""
    coded = code(rows, form)
    escape_codes = sum(_ceil_bytes(int(escapes) * ESCAPE_CODE_BITS) for escapes in coded.escapes.sum(axis=1))
    return _bytes_without_escape_codes(coded, form) + escape_codes


def payload_bits(rows: Bytes, form: DictForm) -> int:
    """What `fit` counts: as payload_bytes in bits, but each escape code as no more than its own."""
    coded = code(rows, form)
    return 8 * _bytes_without_escape_codes(coded, form) + ESCAPE_CODE_BITS * int(coded.escapes.sum())


def payloads(rows: Bytes, form: DictForm) -> list[Bytes | None]:
    """rows: [n, row_bytes]. One payload for each row, None for a row that has none."""
    coded = code(rows, form)
    made: list[Bytes | None] = []
    for i in range(len(rows)):
        codes = to_bytes(_fields_to_bits(coded.codes[i], form.code_bits))
        low = to_bytes(_fields_to_bits(coded.low[i][coded.has_low[i]], _low_bits(form)))
        escape_codes = to_bytes(_fields_to_bits(coded.escape_codes[i][coded.escapes[i]], ESCAPE_CODE_BITS))
        plain = to_bytes(_fields_to_bits(coded.symbols[i][coded.plain[i]], 8 * _symbol_bytes(form)))
        made.append(np.concatenate([codes, low, escape_codes, plain]) if coded.has_payload[i] else None)
    return made


def encode(rows: Bytes, form: DictForm, slot_bytes: int) -> Encoded:
    """rows: [n, row_bytes]."""
    return write_slots(rows, payloads(rows, form), slot_bytes)


def decode(
    slots: Bytes,
    bitmask: Bytes,
    overflow: Bytes,
    slot_bytes: int,
    num_rows: int,
    form: DictForm,
    ids: npt.NDArray[np.integer] | None = None,
) -> Bytes:
    """slots, bitmask, overflow: as from encode; ids: [m], None means all rows in order. Returns [m, row_bytes].
    Raises IndexError and FormatError as oracle.decode does. Of a payload only the length is checked: bits that fill
    up bytes are ignored, those above a plain symbol too; a symbol may be escaped although it has a code, have any of
    its escape codes, and be plain although it has one."""

    def row_of(i: int, payload: Bytes) -> Bytes:
        return _decode_payload(i, payload, form)

    row_bytes = form.num_values * form.value_bits // 8
    return read_slots(Encoded(slots, bitmask, overflow), slot_bytes, num_rows, row_bytes, row_of, ids)


def fit(rows: Bytes, value_bits: int, cuts: list[Cut]) -> DictForm:
    """rows: [n, row_bytes], n >= 1. Tries every candidate on all rows and keeps the first with the lowest cost: bits of
    payloads, escape codes not rounded up to bytes, and of dictionaries. Those of a dictionary per column, which symbols
    of more than 8 bits do not have, count 1/199 more, those of another cut than the first 1/199 more if the first moves
    the sign."""
    return fit_each(rows, value_bits, cuts)[0]


def fit_each(rows: Bytes, value_bits: int, cuts: list[Cut]) -> list[DictForm]:
    """As `fit`, but the best form for each code_bits, best first."""
    best: dict[int, tuple[int, int, DictForm]] = {}
    candidates = [(cut, *rest) for cut in cuts for rest in _candidates(cut)]
    for order, (cut, zero_code, per_column, code_bits) in enumerate(candidates):
        form = make_form(rows, value_bits, cut, code_bits, zero_code=zero_code, per_column=per_column)
        cost = payload_bits(rows, form) + 8 * (form.dictionary.nbytes + form.escape_dictionary.nbytes)
        cost *= (200 if per_column else 199) * (200 if cut != cuts[0] and cuts[0].sign_low else 199)
        if code_bits not in best or cost < best[code_bits][0]:
            best[code_bits] = cost, order, form
    if not best:
        raise ValueError("fit: want at least one cut, got none")
    return [form for _, _, form in sorted(best.values(), key=lambda found: found[:2])]


def make_form(
    rows: Bytes,
    value_bits: int,
    cut: Cut,
    code_bits: int,
    *,
    zero_code: bool = False,
    per_column: bool = False,
    trim_bits: int | None = None,
) -> DictForm:
    """The form with the best dictionaries for these rows: the most frequent symbols, ties by the lower one; with a zero
    code, all-0 values do not count. In the escape dictionary those of the values, in all columns, that the dictionary
    leaves without a code. trim_bits: None means as many as are 0 in all values, leaving one bit below the symbol."""
    values = _to_values(rows, value_bits)
    symbols, _ = split(values, value_bits, cut)
    counted = ~(zero_code & (values == 0))
    num_symbols = (1 << code_bits) - 1 - zero_code
    columns = (symbols.T, counted.T) if per_column else (symbols.reshape(1, -1), counted.reshape(1, -1))
    dictionary = np.zeros((len(columns[0]), 1 << code_bits), np.uint16)
    escaped: list[Values] = []
    for at, (of_column, counts_here) in enumerate(zip(*columns, strict=True)):
        ranked = _most_frequent(of_column[counts_here], cut.symbol_bits, num_symbols)
        dictionary[at, : len(ranked)] = ranked
        escaped.append(of_column[counts_here & ~np.isin(of_column, ranked)])
    escape_dictionary = np.zeros(PLAIN_SYMBOL, np.uint16)
    ranked = _most_frequent(np.concatenate(escaped), cut.symbol_bits, PLAIN_SYMBOL)
    escape_dictionary[: len(ranked)] = ranked
    if trim_bits is None:
        trim_bits = _zero_bits(values, value_bits - cut.symbol_bits - 1)
    return DictForm(
        num_values=values.shape[1],
        value_bits=value_bits,
        symbol_bits=cut.symbol_bits,
        trim_bits=trim_bits,
        code_bits=code_bits,
        sign_low=cut.sign_low,
        zero_code=zero_code,
        per_column=per_column,
        dictionary=dictionary,
        escape_dictionary=escape_dictionary,
    )


def _decode_payload(i: int, payload: Bytes, form: DictForm) -> Bytes:
    def refuse_below(wanted: int) -> None:
        if wanted > len(payload):
            raise FormatError(f"row {i}: want a payload of at most {len(payload)} bytes, got at least {wanted}")

    codes_end = _ceil_bytes(form.num_values * form.code_bits)
    refuse_below(codes_end)
    codes = _bits_to_fields(to_bits(payload[:codes_end]), form.code_bits, form.num_values)
    has_low = codes != _num_symbols(form) if form.zero_code else np.ones(len(codes), np.bool_)
    escapes = codes == _escape(form)
    low_end = codes_end + _ceil_bytes(int(has_low.sum()) * _low_bits(form))
    escape_codes_end = low_end + _ceil_bytes(int(escapes.sum()) * ESCAPE_CODE_BITS)
    refuse_below(escape_codes_end)
    escape_codes = np.zeros(len(codes), np.uint64)
    escape_codes[escapes] = _bits_to_fields(
        to_bits(payload[low_end:escape_codes_end]), ESCAPE_CODE_BITS, int(escapes.sum())
    )
    plain = escapes & (escape_codes == PLAIN_SYMBOL)
    end = escape_codes_end + int(plain.sum()) * _symbol_bytes(form)
    refuse_below(end)
    low = np.zeros(len(codes), np.uint64)
    low[has_low] = _bits_to_fields(to_bits(payload[codes_end:low_end]), _low_bits(form), int(has_low.sum()))
    symbols = np.zeros(len(codes), np.uint64)
    written = _bits_to_fields(to_bits(payload[escape_codes_end:end]), 8 * _symbol_bytes(form), int(plain.sum()))
    symbols[plain] = written & _ones(form.symbol_bits)
    for at in range(PLAIN_SYMBOL):
        symbols[escapes & (escape_codes == at)] = form.escape_dictionary[at]
    for at in range(_num_symbols(form)):
        of_column = np.broadcast_to(form.dictionary[:, at], codes.shape)
        symbols[codes == at] = of_column[codes == at]
    values = join(symbols, low, form.value_bits, _cut(form))
    return values.astype(f"<u{form.value_bits // 8}").view(np.uint8)  # without low bits, both parts are 0


def _bytes_without_escape_codes(coded: Coded, form: DictForm) -> int:
    """Of the payloads of all rows, which must have one."""
    if not coded.has_payload.all():
        raise ValueError("rows: want rows that have a payload, got one whose trimmed bits are not 0")
    low = sum(_ceil_bytes(int(values) * _low_bits(form)) for values in coded.has_low.sum(axis=1))
    plain = _symbol_bytes(form) * int(coded.plain.sum())
    return len(coded.codes) * _ceil_bytes(form.num_values * form.code_bits) + low + plain


def _most_frequent(symbols: Values, symbol_bits: int, most: int) -> npt.NDArray[np.int64]:
    """symbols: [n]. Up to `most` of all symbols of so many bits, the most frequent first, ties by the lower one."""
    counts = np.bincount(symbols.astype(np.int64), minlength=1 << symbol_bits)
    return np.lexsort((np.arange(len(counts)), -counts))[:most]


def _candidates(cut: Cut) -> Iterator[tuple[bool, bool, int]]:
    for zero_code in (False, True):
        for per_column in (False, True) if cut.symbol_bits <= 8 else (False,):
            for code_bits in (2, 3, 4) if zero_code else (1, 2, 3, 4):
                yield zero_code, per_column, code_bits


def _cut(form: DictForm) -> Cut:
    return Cut(form.symbol_bits, form.sign_low, form.trim_bits)


def _escape(form: DictForm) -> int:
    return 2**form.code_bits - 1


def _num_symbols(form: DictForm) -> int:
    return _escape(form) - (1 if form.zero_code else 0)


def _low_bits(form: DictForm) -> int:
    return form.value_bits - form.symbol_bits - form.trim_bits


def _symbol_bytes(form: DictForm) -> int:
    return 1 if form.symbol_bits <= 8 else 2


def _ceil_bytes(bits: int) -> int:
    return -(-bits // 8)


def _to_values(rows: Bytes, value_bits: int) -> Values:
    return np.ascontiguousarray(rows).view(f"<u{value_bits // 8}").astype(np.uint64)


def _zero_bits(values: Values, most: int) -> int:
    """How many of the lowest bits, at most `most`, are 0 in all values."""
    trim = 0
    while trim < most and not np.any((values >> _u64(trim)) & _u64(1)):
        trim += 1
    return trim


def _fields_to_bits(fields: Values, width: int) -> Bits:
    """[n] to [n * width], the least significant bit of each first."""
    return ((fields[:, None] >> np.arange(width, dtype=np.uint64)) & _u64(1)).astype(np.bool_).reshape(-1)


def _bits_to_fields(bits: Bits, width: int, count: int) -> Values:
    fields = bits[: count * width].reshape(count, width).astype(np.uint64)
    return (fields << np.arange(width, dtype=np.uint64)).sum(axis=1, dtype=np.uint64)


def _u64(value: int) -> np.uint64:
    return np.uint64(value)


def _ones(count: int) -> np.uint64:
    return np.uint64((1 << count) - 1)

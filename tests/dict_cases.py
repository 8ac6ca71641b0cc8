"""Forms and rows of codec "dict", and what the oracle makes of them."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import torch
from backends import DICT_BACKENDS, ask_oracle_once
from codec_cases import byte_matrix
from hypothesis import strategies as st

from ibp_gnn import Codec
from ibp_gnn.codec.dict import DictForm
from ibp_gnn.testing import MANTISSA_BITS, assert_bitwise_equal
from ibp_gnn.testing import oracle_dict as oracle
from ibp_gnn.testing.oracle_dict import Cut

FASTEST_BACKENDS = DICT_BACKENDS[2:]
WORDS = {8: torch.uint8, 16: torch.int16, 32: torch.int32, 64: torch.int64}
SLACK = [0] * 64


class Parts(NamedTuple):
    """A form but for the row's length and the dictionaries."""

    cut: Cut
    code_bits: int
    zero_code: bool
    per_column: bool
    trim_bits: int

    def is_valid(self, value_bits: int) -> bool:
        codes = (1 << self.code_bits) - 1 - self.zero_code
        return (
            self.cut.symbol_bits <= min(16, value_bits - 1)
            and self.trim_bits < value_bits - self.cut.symbol_bits
            and codes >= 1
            and codes <= 1 << self.cut.symbol_bits
            and not (self.per_column and self.cut.symbol_bits > 8)
        )


def all_parts(cuts: list[Cut], trims: tuple[int, ...], value_bits: int) -> list[Parts]:
    product = itertools.product(cuts, (1, 2, 3, 4), (False, True), (False, True), trims)
    return [parts for parts in itertools.starmap(Parts, product) if parts.is_valid(value_bits)]


def cuts_of(dtype: torch.dtype) -> list[Cut]:
    """Exponents of floats, or as many bits from the top; of integers 4, 8, 12 or 16 high bits; of bools all but the
    bit that is not 0."""
    bits = 8 * dtype.itemsize
    if dtype in MANTISSA_BITS:
        return [Cut(bits - 1 - MANTISSA_BITS[dtype], sign_low) for sign_low in (True, False)]
    return [Cut(7, False)] if dtype is torch.bool else [Cut(high, False) for high in (4, 8, 12, 16) if high < bits]


def as_words(rows: torch.Tensor) -> torch.Tensor:
    """The same memory as integers, which can be indexed with masks; floats of 8 bits cannot."""
    return rows.view(WORDS[8 * rows.dtype.itemsize])


def trimmed(rows: torch.Tensor, trim_bits: int) -> torch.Tensor:
    """The lowest bits of every value 0, but in every fifth row."""
    words = as_words(rows.clone())
    clear = torch.arange(len(rows)) % 5 != 4
    words[clear] = (words[clear] >> trim_bits) << trim_bits
    return words.view(rows.dtype)


def make_codec(rows: torch.Tensor, parts: Parts) -> Codec:
    bits = 8 * rows.dtype.itemsize
    options = dict(zero_code=parts.zero_code, per_column=parts.per_column, trim_bits=parts.trim_bits)
    form = oracle.make_form(byte_matrix(rows), bits, parts.cut, parts.code_bits, **options)
    return Codec(rows.dtype, tuple(rows.shape[1:]), form)


def codec_of(form: DictForm) -> Codec:
    return Codec(WORDS[form.value_bits], (form.num_values,), form)


def assert_as_the_oracle(codec: Codec, rows: torch.Tensor, device: torch.device, slot_bytes: int | None) -> None:
    """Lengths, slots, bitmask, overflow, and the rows back from slots made by the oracle."""
    matrix, there = byte_matrix(rows), rows.to(device)
    lengths, compressed = codec.measure(there), codec.compress(there, slot_bytes=slot_bytes)
    buffers = compressed.slots, compressed.bitmask, compressed.overflow

    def compare() -> None:
        assert_bitwise_equal(lengths, oracle.measure(matrix, codec.form))
        expected = oracle.encode(matrix, codec.form, compressed.slot_bytes)
        for buffer, wanted in zip(buffers, expected, strict=True):
            assert_bitwise_equal(buffer, wanted)

    ask_oracle_once(("dict", codec.form, matrix, compressed.slot_bytes), (lengths, *buffers), compare)
    ids = torch.arange(2 * len(rows)) * 7 % max(1, len(rows))
    decoded = codec.decompress(compressed, ids)
    assert decoded.device == device
    assert_bitwise_equal(decoded, rows[ids])


# --- the oracle ---------------------------------------------------------------------------------------------


def form_by_hand(**changes: object) -> DictForm:
    """Values of 8 bits with 3 symbol bits below the sign, so 5 low bits; codes of 2 bits for the symbols 5, 1, 6.
    Escape codes 0, 1 and 2 for 7, 2 and 0; 3 and 4 are plain; the rest is there twice or has a code."""
    parts: dict = dict(
        num_values=3,
        value_bits=8,
        symbol_bits=3,
        trim_bits=0,
        code_bits=2,
        sign_low=True,
        zero_code=False,
        per_column=False,
        dictionary=np.array([[5, 1, 6, 0]]),
        escape_dictionary=np.array([7, 2, 0, 2, 7, 5, 0]),
    )
    return DictForm(**(parts | changes))


# --- the same bytes from every backend ----------------------------------------------------------------------


def mixed_rows(form: DictForm, n: int, seed: int) -> np.ndarray:
    """Symbols of the dictionary and few others, some zeros. Every eighth row in turn has only zeros, escapes only, one
    escape, trimmed bits that are not 0, noise. Of the others none, half or all are in the escape dictionary."""
    rng = np.random.default_rng(seed)
    shape = n, form.num_values
    codes = (1 << form.code_bits) - 1 - form.zero_code
    chosen = form.dictionary[np.arange(len(form.dictionary)), rng.integers(0, codes, shape)].astype(np.uint64)
    any_symbol = rng.integers(0, 1 << form.symbol_bits, shape, np.uint64, endpoint=False)
    noise = rng.integers(0, 1 << form.value_bits, shape, np.uint64, endpoint=False)
    escapes = rng.random(shape) < rng.choice([0, 0.03, 0.3], (n, 1))
    escapes[2::8] = True
    escapes[3::8] = np.arange(form.num_values) == rng.integers(0, form.num_values, (len(escapes[3::8]), 1))
    listed = rng.random(shape) < rng.choice([0, 0.5, 1], (n, 1))
    others = np.where(listed, form.escape_dictionary[rng.integers(0, 7, shape)], any_symbol)
    zeros = rng.random(shape) < rng.choice([0, 0.1, 0.7], (n, 1))
    zeros[1::8] = True
    cut = Cut(form.symbol_bits, form.sign_low, form.trim_bits)
    low = noise & np.uint64((1 << (form.value_bits - form.symbol_bits - form.trim_bits)) - 1)
    values = np.where(zeros, 0, oracle.join(np.where(escapes, others, chosen), low, form.value_bits, cut))
    values[4::8, -1] |= np.uint64(1 if form.trim_bits else 0)
    values[5::8] = noise[5::8]
    return values.astype(f"<u{form.value_bits // 8}").view(np.uint8)


def some_form(parts: Parts, value_bits: int, width: int, seed: int) -> DictForm:
    """A form with any symbols in its dictionaries. One or more escape codes stand for the same symbol, and one, or all
    if there are hardly any symbols, for a symbol with a code."""
    rng = np.random.default_rng(seed)
    symbols, codes = 1 << parts.cut.symbol_bits, 1 << parts.code_bits
    dictionary = np.zeros((width if parts.per_column else 1, codes), np.uint16)
    used = codes - 1 - parts.zero_code
    for column in dictionary:
        column[:used] = rng.choice(symbols, used, replace=False)
    escape_dictionary = rng.integers(0, symbols, 7)
    places = rng.permutation(7)
    escape_dictionary[places[0]] = escape_dictionary[places[1]]
    escape_dictionary[places[2]] = dictionary[-1, 0]
    return DictForm(
        width,
        value_bits,
        parts.cut.symbol_bits,
        parts.trim_bits,
        parts.code_bits,
        parts.cut.sign_low,
        parts.zero_code,
        parts.per_column,
        dictionary,
        escape_dictionary,
    )


def forms_of_floats(value_bits: int, symbol_bits: int) -> Iterator[tuple[DictForm, int]]:
    """Those that fit takes of floats, with rows of every length that kernels treat differently; and the length of
    slots, which some payloads fit or almost all do."""
    product = itertools.product((30, 64, 100, 129, 300, 768, 1030), (2, 3), (False, True), (False, True))
    for seed, (width, code_bits, zero_code, sign_low) in enumerate(product):
        form = some_form(Parts(Cut(symbol_bits, sign_low), code_bits, zero_code, False, 0), value_bits, width, seed)
        yield form, (3 + seed // 3 % 2) * form.row_bytes // 16 * 4


@st.composite
def forms(draw: st.DrawFn) -> DictForm:
    value_bits = draw(st.sampled_from([8, 16, 32, 64]))
    symbol_bits = draw(st.integers(1, min(16, value_bits - 1)))
    zero_code = draw(st.booleans())
    most = max(bits for bits in (1, 2, 3, 4) if (1 << bits) - 1 - zero_code <= 1 << symbol_bits)
    parts = Parts(
        Cut(symbol_bits, draw(st.booleans())),
        draw(st.integers(1 + zero_code, max(1 + zero_code, most))),
        zero_code,
        symbol_bits <= 8 and draw(st.booleans()),
        draw(st.integers(0, value_bits - symbol_bits - 1)),
    )
    return some_form(parts, value_bits, draw(st.integers(1, 40)), draw(st.integers(0, 2**32)))


# --- fit ----------------------------------------------------------------------------------------------------


def assert_same_form(form: DictForm, wanted: DictForm) -> None:
    for field in dataclasses.fields(DictForm):
        found, part = getattr(form, field.name), getattr(wanted, field.name)
        if isinstance(part, np.ndarray):
            assert_bitwise_equal(found, part)
        else:
            assert found == part, field.name

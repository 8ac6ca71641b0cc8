"""Codec "dict": the same bytes from every backend."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import pytest
import torch
from backends import dict_backend
from codec_cases import every_dtype, every_kind
from dict_cases import (
    FASTEST_BACKENDS,
    WORDS,
    Parts,
    all_parts,
    as_words,
    assert_as_the_oracle,
    codec_of,
    cuts_of,
    forms,
    forms_of_floats,
    make_codec,
    mixed_rows,
    some_form,
    trimmed,
)
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from matrices import pairs, part_of

from ibp_gnn import Codec
from ibp_gnn.codec.dict import DictForm
from ibp_gnn.codec.values import SUPPORTED_DTYPES
from ibp_gnn.testing import KINDS, assert_bitwise_equal, special_rows
from ibp_gnn.testing import oracle_dict as oracle
from ibp_gnn.testing.oracle_dict import Cut

backend = dict_backend  # with AVX-512
WIDTHS = (1, 2, 3, 7, 8, 9, 31, 33, 50, 64, 100, 128, 602)


@every_dtype
@every_kind
def test_same_bytes_as_the_oracle(dtype, kind, backend):
    bits = 8 * dtype.itemsize
    rng = np.random.default_rng([SUPPORTED_DTYPES.index(dtype), KINDS.index(kind)])
    forced = all_parts(cuts_of(dtype), (0,) if dtype is torch.bool else (0, 1, 3), bits)
    for width in part_of(WIDTHS, SUPPORTED_DTYPES.index(dtype), KINDS.index(kind), of=4):
        rows = special_rows(dtype, width, kind, n=34 if width < 100 else 10)
        codec = Codec.fit(rows.to(backend), codec="dict")
        assert_as_the_oracle(codec, rows, backend, None)
        for share in (1, 0.8):
            parts = forced[rng.integers(len(forced))]
            some = trimmed(rows, parts.trim_bits)
            codec = make_codec(some, parts)
            assert_as_the_oracle(codec, some, backend, max(min(4, codec.row_bytes), int(share * codec.row_bytes)))


@pytest.mark.parametrize("value_bits", [8, 16, 32, 64])
def test_every_form(value_bits, backend):
    """Including those that no fit makes."""
    cuts = [Cut(*cut) for cut in itertools.product((1, 2, 3, 5, 7, 8, 9, 12, 15, 16), (False, True))]
    forms = 0
    for parts in all_parts(cuts, (0, 2, 9, 23), value_bits):
        width = (9, 16, 33)[forms % 3]
        form = some_form(parts, value_bits, width, seed=forms)
        rows = torch.from_numpy(mixed_rows(form, 16, seed=forms)).view(WORDS[value_bits])
        slot_bytes = form.row_bytes if forms % 2 else max(4, int(0.7 * form.row_bytes))
        assert_as_the_oracle(codec_of(form), rows, backend, slot_bytes)
        forms += 1
    assert forms > 80


@pytest.mark.parametrize(("value_bits", "symbol_bits"), [(32, 8), (16, 8), (16, 5)])
@pytest.mark.parametrize("backend", FASTEST_BACKENDS, indirect=True)
def test_the_forms_of_floats(value_bits, symbol_bits, backend):
    """There is code of their own for them."""
    for seed, (form, slot_bytes) in enumerate(forms_of_floats(value_bits, symbol_bits)):
        rows = torch.from_numpy(mixed_rows(form, 40, seed)).view(WORDS[value_bits])
        assert_as_the_oracle(codec_of(form), rows, backend, slot_bytes)


def test_the_matrix_has_every_kind_of_row():
    """Or the test above could not fail where it matters."""
    form = some_form(Parts(Cut(8, True), 3, True, True, 9), 32, 33, seed=0)
    rows = mixed_rows(form, 64, seed=0)
    coded = oracle.code(rows, form)
    assert not coded.has_payload.all() and coded.has_payload.any()
    assert coded.escapes.any(axis=0).all() and (~coded.has_low).any(axis=0).all()
    assert (coded.escapes.sum(1) == 1).any() and (coded.escapes.sum(1) > 30).any()
    assert (~coded.has_low).all(axis=1).any()
    assert set(coded.codes.reshape(-1).tolist()) == set(range(8))
    listed = coded.escapes & ~coded.plain
    assert (listed.any(axis=0) & coded.plain.any(axis=0)).all()
    for one, other in ((listed, coded.plain), (coded.plain, listed)):
        assert (one.sum(1)[~other.any(axis=1)] > 30).any(), "also rows with this kind of escape only"
    assert ((listed.sum(1) > 5) & (coded.plain.sum(1) > 5)).any()
    lowest = {form.escape_dictionary.tolist().index(symbol) for symbol in form.escape_dictionary}
    assert len(lowest) == 6 and set(coded.escape_codes[coded.escapes].tolist()) == lowest | {7}
    assert np.isin(form.dictionary[:, :7], form.escape_dictionary).any()


class EscapeKind(NamedTuple):
    """Which escapes are plain: every `period`th, from the `first`th on."""

    period: int
    first: int


ESCAPE_KINDS = {
    "listed": EscapeKind(1 << 30, 1 << 29),
    "plain": EscapeKind(1, 0),
    "first_plain": EscapeKind(1 << 30, 0),
    "mixed": EscapeKind(2, 1),
    "few_plain": EscapeKind(9, 7),
}


def form_with_free_symbols(parts: Parts, value_bits: int, width: int) -> DictForm:
    """No column has a code for the upper half of the symbols; six of them are in the escape dictionary, one twice, and
    between them a symbol that the last column has a code for."""
    form = some_form(parts._replace(cut=Cut(parts.cut.symbol_bits - 1, True)), value_bits, width, seed=width)
    half = 1 << (parts.cut.symbol_bits - 1)
    listed = half + np.array([5, 1, 0, 1, 2, 4, 3])
    listed[4] = form.dictionary[-1, 0]
    changes = dict(symbol_bits=parts.cut.symbol_bits, sign_low=parts.cut.sign_low, escape_dictionary=listed)
    return dataclasses.replace(form, **changes)


def rows_with_escapes(form: DictForm, escapes: np.ndarray, kind: EscapeKind) -> np.ndarray:
    """escapes: bool [n, num_values], where they are. The form is one with free symbols."""
    rng = np.random.default_rng(len(escapes))
    half = 1 << (form.symbol_bits - 1)
    codes = form.num_symbols
    chosen = form.dictionary[np.arange(len(form.dictionary)), rng.integers(0, codes, escapes.shape)]
    listed = form.escape_dictionary[form.escape_dictionary >= half][rng.integers(0, 6, escapes.shape)]
    plain = rng.integers(half + 6, 2 * half, escapes.shape)
    number = np.cumsum(escapes, axis=1) - 1  # of a row's escapes
    is_plain = (number >= kind.first) & ((number - kind.first) % kind.period == 0)
    symbols = np.where(escapes, np.where(is_plain, plain, listed), chosen).astype(np.uint64)
    low_bits = form.value_bits - form.symbol_bits - form.trim_bits
    # With a zero code, no value is to be 0.
    low = rng.integers(int(form.zero_code), 1 << low_bits, escapes.shape, np.uint64, endpoint=False)
    values = oracle.join(symbols, low, form.value_bits, Cut(form.symbol_bits, form.sign_low, form.trim_bits))
    matrix = values.astype(f"<u{form.value_bits // 8}").view(np.uint8)
    coded = oracle.code(matrix, form)
    assert_bitwise_equal(coded.escapes, escapes)
    assert_bitwise_equal(coded.plain, escapes & is_plain)
    return matrix


@pytest.mark.parametrize("kind", ESCAPE_KINDS)
@pytest.mark.parametrize("value_bits", [16, 32])
@pytest.mark.parametrize("per_column", [False, True])
def test_escapes_at_every_position(value_bits, per_column, kind, backend):
    """One escape, all but one, all, none; with trimmed bits so that a payload with many is shorter than its row."""
    for width, trim_bits in itertools.product((7, 8, 9, 20, 50, 64), (0, 2, 7)):
        form = form_with_free_symbols(Parts(Cut(8, True), 3, False, per_column, trim_bits), value_bits, width)
        escapes = np.concatenate([np.eye(width), 1 - np.eye(width), np.ones((1, width)), np.zeros((1, width))]) == 1
        rows = torch.from_numpy(rows_with_escapes(form, escapes, ESCAPE_KINDS[kind])).view(WORDS[value_bits])
        for slot_bytes in (form.row_bytes, None):
            assert_as_the_oracle(codec_of(form), rows, backend, slot_bytes)


def some_escapes(width: int, seed: int) -> np.ndarray:
    """bool [n, width]: every number of escapes up to 17, some more up to all; at the start, the end, anywhere."""
    rng = np.random.default_rng(seed)
    numbers = {*range(18), 31, 32, 33, 63, 64, 65, 127, 128, 129, 255, 256, 257, width // 2, width - 1, width}
    counts = np.array(sorted(number for number in numbers if number <= width))[:, None]
    at = np.arange(width)
    anywhere = np.argsort(rng.random((len(counts), width)), axis=1)
    return np.concatenate([at < counts, at >= width - counts, anywhere < counts])


def forms_with_escapes(value_bits: int, code_bits: int) -> Iterator[tuple[DictForm, str, np.ndarray]]:
    """Forms, each with a kind of escapes and rows of it. Short and long rows, plain symbols of one and two bytes; of
    the low bits all but one are trimmed, or only one: then payloads with many escapes are longer than rows."""
    cuts = [Cut(5, True)] if value_bits == 8 else [Cut(8, True), Cut(8, False), Cut(12, False)]
    rng = np.random.default_rng([value_bits, code_bits])
    product = itertools.product((5, 16, 33, 100, 1500), cuts, (False, True), (False, True))
    for width, cut, zero_code, per_column in product:
        trims = 1, value_bits - cut.symbol_bits - 1
        parts = Parts(cut, code_bits, zero_code, per_column, trims[rng.integers(2)])
        if parts.is_valid(value_bits):
            form, kind = form_with_free_symbols(parts, value_bits, width), list(ESCAPE_KINDS)[rng.integers(5)]
            yield form, kind, rows_with_escapes(form, some_escapes(width, seed=code_bits), ESCAPE_KINDS[kind])


ESCAPE_CASES = pairs((8, 16, 32, 64), (1, 2, 3, 4), of=2)


@pytest.mark.parametrize(("value_bits", "code_bits"), ESCAPE_CASES)
def test_every_number_of_escapes(value_bits, code_bits, backend):
    for form, _, matrix in forms_with_escapes(value_bits, code_bits):
        rows = torch.from_numpy(matrix).view(WORDS[value_bits])
        assert_as_the_oracle(codec_of(form), rows, backend, form.row_bytes)


def test_every_number_of_escapes_has_every_kind_of_row():
    """Or the test above could not fail where it matters."""
    kinds, numbers = set(), set()
    for value_bits, code_bits in ESCAPE_CASES:
        for form, kind, matrix in forms_with_escapes(value_bits, code_bits):
            held = oracle.measure(matrix, form) < form.row_bytes
            if held.any():
                names = ("value_bits", "code_bits", "zero_code", "per_column", "sign_low")
                kinds |= {(name, getattr(form, name), kind) for name in names}
                kinds |= {("long symbols", form.symbol_bits > 8, kind), ("long row", form.num_values == 1500, kind)}
            numbers |= set(oracle.code(matrix[held], form).escapes.sum(axis=1).tolist())
    assert len(kinds) == (4 + 4 + 2 + 2 + 2 + 2 + 2) * len(ESCAPE_KINDS)
    assert numbers >= {*range(18), 31, 32, 33, 63, 64, 65, 127, 128, 129, 255, 256, 257, 1499, 1500}


def test_columns_of_zeros_and_rows_of_zeros(backend):
    rows = special_rows(torch.float32, 33, "random_bits")
    rows[:, ::3] = 0
    rows[::4] = 0
    for parts in all_parts([Cut(8, True)], (0, 5), 32):
        assert_as_the_oracle(make_codec(rows, parts), rows, backend, None)
    zeros = torch.zeros(40, 33)
    codec = Codec.fit(zeros.to(backend), codec="dict")
    assert_as_the_oracle(codec, zeros, backend, None)
    assert codec.form.zero_code and codec.measure(zeros.to(backend)).tolist() == [9] * 40, "2 bits a value"


def test_no_rows_and_row_shapes(backend):
    rows = special_rows(torch.float16, 24, "outliers", n=33).reshape(33, 2, 3, 4)
    codec = Codec.fit(rows.to(backend), codec="dict")
    assert codec.row_shape == (2, 3, 4)
    for n in (0, 1, 33):
        assert_bitwise_equal(codec.decompress(codec.compress(rows[:n].to(backend))), rows[:n])
    scalars = rows[:, 0, 0, 0]
    codec = Codec.fit(scalars.to(backend), codec="dict")
    assert_bitwise_equal(codec.decompress(codec.compress(scalars.to(backend))), scalars)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    form=forms(), n=st.integers(0, 40), slot_share=st.floats(0, 1.3), seed=st.integers(0, 2**32), hostile=st.binary()
)
def test_any_form_and_any_bytes(backend, form, n, slot_share, seed, hostile):
    matrix = mixed_rows(form, n, seed)
    flat = matrix.reshape(-1)
    flat[: len(hostile)] = np.frombuffer(hostile, np.uint8)[: len(flat)]
    rows = torch.from_numpy(matrix).view(WORDS[form.value_bits])
    slot_bytes = max(min(4, form.row_bytes), int(slot_share * form.row_bytes))
    assert_as_the_oracle(codec_of(form), rows, backend, slot_bytes)


@pytest.mark.slow
@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.bfloat16, torch.float16, torch.int64, torch.uint8], ids=lambda dtype: str(dtype)[6:]
)
def test_ten_million_values(dtype, backend):
    """Normal values of other sizes in each column, some zeros, some values and rows of random bits."""
    generator = torch.Generator().manual_seed(7)
    n, width = 100_000, 100
    scale = torch.randn(width, generator=generator).exp() * (1 if dtype.is_floating_point else 20)
    rows = (torch.randn(n, width, generator=generator) * scale).to(dtype)
    rows[torch.rand(n, width, generator=generator) < 0.1] = 0
    words = as_words(rows)
    most = torch.iinfo(words.dtype).max
    noise = torch.randint(-most - 1 if dtype is not torch.uint8 else 0, most, (n // 50, width), generator=generator)
    words[::50] = noise.to(words.dtype)
    assert rows.numel() == 10_000_000
    rows = rows.to(backend)
    codec = Codec.fit(rows, codec="dict")
    compressed = codec.compress(rows)
    assert compressed.nbytes < rows.nbytes and compressed.num_overflow > 0
    assert_bitwise_equal(codec.decompress(compressed), rows)

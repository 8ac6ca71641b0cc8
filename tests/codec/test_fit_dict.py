"""Fits of codec "dict": the forms that the oracle finds, and what they save."""

from __future__ import annotations

import itertools
import pickle

import numpy as np
import pytest
import torch
from backends import ask_oracle_once, dict_backend
from codec_cases import byte_matrix, every_dtype, some_dtypes_and_kinds
from dict_cases import WORDS, as_words, assert_as_the_oracle, assert_same_form, cuts_of, trimmed

from ibp_gnn import Codec
from ibp_gnn.codec import dispatch, fit_dict
from ibp_gnn.codec.dict import fit_dictionaries
from ibp_gnn.codec.values import SUPPORTED_DTYPES, to_bytes
from ibp_gnn.testing import KINDS, MANTISSA_BITS, assert_bitwise_equal, special_rows
from ibp_gnn.testing import oracle_dict as oracle

backend = dict_backend  # with AVX-512


def assert_fits_are_the_oracles(rows: torch.Tensor, device: torch.device) -> None:
    """The best form for each length of codes, best first; a codec's is the first."""
    matrix, found = byte_matrix(rows), fit_dictionaries(rows.to(device), len(rows))
    of_codec = Codec.fit(rows.to(device), codec="dict", minimize="payloads").form

    def compare() -> None:
        wanted = oracle.fit_each(matrix, 8 * rows.dtype.itemsize, cuts_of(rows.dtype))
        assert [form.code_bits for form in found] == [form.code_bits for form in wanted]
        for form, wanted_form in zip((*found, of_codec), (*wanted, wanted[0]), strict=True):
            assert_same_form(form, wanted_form)

    ask_oracle_once(("fit dict", matrix, str(rows.dtype)), (*found, of_codec), compare)


def rows_to_fit(dtype: torch.dtype, kind: str, width: int, n: int) -> torch.Tensor:
    """Wide rows get zeros, more in some columns, and trailing zeros."""
    rows = special_rows(dtype, width, kind, n=n)
    if width < 33 or dtype is torch.bool:
        return rows
    rare = torch.rand(n, width, generator=torch.Generator().manual_seed(0)) * torch.linspace(0.5, 1.5, width)
    as_words(rows)[rare < (0.2 if KINDS.index(kind) % 2 else 0.8)] = 0
    return trimmed(rows, 2)[torch.arange(n) % 5 != 4]


@some_dtypes_and_kinds
def test_fit_finds_what_the_oracle_finds(dtype, kind, backend):
    for width, n in ((1, 40), (3, 7), (33, 400)):
        assert_fits_are_the_oracles(rows_to_fit(dtype, kind, width, n), backend)


def learned_rows() -> list[torch.Tensor]:
    """As weights and activations are: dense, of several scales, of one sign, half of them zeros."""
    normal = torch.randn(400, 33, generator=torch.Generator().manual_seed(0)) * 0.1
    scaled = normal * torch.logspace(-3, 3, 33, base=2)
    return [rows.to(dtype) for rows in (normal, scaled, normal.abs(), normal.relu()) for dtype in MANTISSA_BITS]


def test_fit_finds_what_the_oracle_finds_in_learned_rows(backend):
    for rows in learned_rows():
        assert_fits_are_the_oracles(rows, backend)


def test_the_fits_are_of_every_kind():
    """Or the tests above could not fail where it matters."""
    found = set()
    tried = [rows_to_fit(dtype, kind, 33, 400) for dtype, kind in itertools.product(SUPPORTED_DTYPES, KINDS)]
    for rows in tried + learned_rows():
        form = Codec.fit(rows, codec="dict", minimize="payloads").form
        names = ("symbol_bits", "code_bits", "zero_code", "per_column", "sign_low")
        found |= {(name, getattr(form, name)) for name in names} | {("trim", form.trim_bits > 0)}
    assert found >= {("code_bits", bits) for bits in (1, 2, 3, 4)}
    assert found >= {("symbol_bits", bits) for bits in (4, 5, 7, 8, 11)}
    assert found >= {
        (name, value) for name in ("zero_code", "per_column", "sign_low", "trim") for value in (False, True)
    }


def rows_of_three_symbols(rare: int) -> torch.Tensor:
    """24 columns with a symbol of their own, one of three, in all rows but `rare` of 1000, which have another
    column's."""
    symbols = torch.tensor([100, 101, 102]).repeat(1000, 8)
    symbols[:rare] = symbols[:rare].roll(1, dims=1)
    low = torch.randint(0, 1 << 24, symbols.shape, generator=torch.Generator().manual_seed(0))
    words = (low >> 23 << 31) | (symbols << 23) | (low & 0x7FFFFF)
    return torch.from_numpy(words.numpy().astype(np.uint32).view(np.float32))


@pytest.mark.parametrize(("rare", "per_column"), [(0, True), (277, True), (284, False), (400, False)])
def test_a_dictionary_per_column_must_save_half_a_percent(rare, per_column):
    """A row takes 3 + 72 bytes with a dictionary per column, 24 escape codes or 9 bytes more if it is rare; 6 + 72 with
    one for all. The dictionaries are 0.11 and 0.022 bytes a row, and 0.995 * 78.022 is 75.11 + 0.2802 * 9."""
    rows = rows_of_three_symbols(rare)
    form = Codec.fit(rows, codec="dict", minimize="payloads").form
    assert (form.per_column, form.code_bits) == (per_column, 1 if per_column else 2)
    assert_same_form(form, oracle.fit(byte_matrix(rows), 32, cuts_of(torch.float32)))


def test_the_dictionary_counts_by_the_share_of_rows_that_are_looked_at():
    """96 bytes of dictionaries per column: more than they save in 16 rows, less than in 1000."""
    sample = rows_of_three_symbols(0)[:16]
    assert not fit_dictionaries(sample, 16)[0].per_column
    assert fit_dictionaries(sample, 1000)[0].per_column


@pytest.mark.parametrize(("negative", "sign_low"), [(0, False), (0.27, False), (0.31, True), (0.5, True)])
def test_values_of_one_sign_do_not_pay_for_it(negative, sign_low, backend):
    """Two exponents and a sign take 2 + 24 bits where the symbol is the exponent. From the top both have the same
    symbol: 1 + 24 bits, but 3 more for negative values, until there are 29 % of them."""
    generator = torch.Generator().manual_seed(0)
    rows = torch.rand(4000, 64, generator=generator) * 1.5 + 0.5
    rows[torch.rand(4000, 64, generator=generator) < negative] *= -1
    codec = Codec.fit(rows.to(backend), codec="dict", minimize="payloads")
    assert (codec.form.sign_low, codec.form.symbol_bits) == (sign_low, 8)
    assert_as_the_oracle(codec, rows[:34], backend, None)


@pytest.mark.parametrize(("rare", "sign_low"), [(0.286, False), (0.294, True)])
def test_another_cut_must_save_half_a_percent(rare, sign_low):
    """Exponents 124, 126 and 127, all positive: 2 + 24 bits, or 1 + 24 and 3 more for each 124. 0.995 * 26 is
    25 + 0.29 * 3, and dictionaries are bytes."""
    generator = torch.Generator().manual_seed(0)
    low = torch.randint(0, 1 << 23, (4000, 64), generator=generator)
    exponents = torch.where(torch.rand(low.shape, generator=generator) < rare, 124, 126 + (low & 1))
    rows = (exponents << 23 | low).int().view(torch.float32)
    assert Codec.fit(rows, codec="dict", minimize="payloads").form.sign_low is sign_low


def test_nothing_is_stored_of_a_mantissa_that_is_always_0(backend):
    rows = torch.randint(0, 2, (40, 64), generator=torch.Generator().manual_seed(0)) * 2.0 - 1.0
    codec = Codec.fit(rows.to(backend), codec="dict")
    assert codec.form.trim_bits == 23 and codec.form.sign_low
    assert codec.measure(rows.to(backend)).tolist() == [8 + 8] * 40, "a code and a sign for each value"
    assert_as_the_oracle(codec, rows, backend, None)


@every_dtype
def test_counts_with_and_without_zeros(dtype, backend):
    rows = special_rows(dtype, 9, "random_bits")
    rows[::3, :4] = 0
    bits = 8 * dtype.itemsize
    matrix = byte_matrix(rows)
    values = matrix.view(f"<u{bits // 8}").astype(np.uint64)
    signed = to_bytes(rows.to(backend)).view(WORDS[bits] if bits > 8 else torch.int8)
    for cut, more in itertools.product(cuts_of(dtype), (0, 2)):
        with_columns = cut.symbol_bits <= 8
        counts = fit_dict._count(signed, bits, min(bits, cut.symbol_bits + cut.sign_low + more), with_columns)
        assert_bitwise_equal(counts.nonzeros, np.sum(values != 0, axis=1))
        symbols, _ = oracle.split(values, bits, cut)
        for zero_code, counted in ((False, values == values), (True, values != 0)):
            columns = [
                np.bincount(symbols[counted[:, j], j].astype(np.int64), minlength=1 << cut.symbol_bits)
                for j in range(values.shape[1])
            ]
            wanted = np.stack(columns) if with_columns else np.sum(columns, axis=0)[None]
            assert_bitwise_equal(counts.of_symbols(fit_dict._Cut(*cut[:2]), zero_code), wanted)


def test_fit_is_repeatable(backend):
    rows = torch.randn(3000, 64, generator=torch.Generator().manual_seed(0))
    codecs = [Codec.fit(rows.to(device), codec="dict", max_rows=1000, seed=3) for device in (backend, backend, "cpu")]
    assert len({pickle.dumps(codec) for codec in codecs}) == 1


def test_long_symbols_of_wide_rows_are_counted_in_little_memory():
    """65536 counts for each of 5000 columns would be 2.6 GB."""
    rows = torch.randint(0, 1 << 20, (4, 5_000))
    assert_same_form(
        Codec.fit(rows, codec="dict", minimize="payloads").form, oracle.fit(byte_matrix(rows), 64, cuts_of(torch.int64))
    )


@pytest.mark.parametrize("option", [dict(word_bits=8), dict(words_per_chunk=1), dict(threshold=0.9)])
def test_fit_refuses_options_of_codec_ibp(option):
    with pytest.raises(ValueError, match="want None with codec 'dict', which has none"):
        Codec.fit(torch.ones(4, 3), codec="dict", **option)


@some_dtypes_and_kinds
def test_auto_is_the_smaller_of_the_two(dtype, kind, backend):
    rows = special_rows(dtype, 33, kind).to(backend)

    def payloads(codec: Codec) -> int:
        return dispatch.stored_bytes(codec.form, to_bytes(rows))

    def slots(codec: Codec) -> int:
        report = codec.report(rows)
        return report.compact_bytes - report.metadata_bytes

    for minimize, size in (("payloads", payloads), ("slots", slots)):
        sizes = {codec: size(Codec.fit(rows, codec=codec, minimize=minimize)) for codec in ("auto", "dict", "ibp")}
        assert sizes["auto"] == min(sizes["dict"], sizes["ibp"])


def test_what_fit_minimizes(backend):
    """Codes of 2 bits have the shorter payloads; where rows differ in scale, those of 3 bits differ less in length."""
    rows = torch.randn(4000, 50, generator=torch.Generator().manual_seed(0))
    rows *= torch.where(torch.arange(4000) % 2 == 0, 1, 0.5)[:, None]
    rows = rows.to(backend)
    reports = {}
    for minimize in ("payloads", "slots"):
        codec = Codec.fit(rows, codec="dict", minimize=minimize)
        assert codec.form.code_bits == (2 if minimize == "payloads" else 3)
        reports[minimize] = codec.report(rows)
    assert reports["payloads"].payload_bytes < reports["slots"].payload_bytes
    assert reports["payloads"].compact_bytes > reports["slots"].compact_bytes
    assert codec.form.code_bits == Codec.fit(rows, codec="dict").form.code_bits
    with pytest.raises(ValueError, match=r"minimize: want one of \['slots', 'payloads'\], got 'time'"):
        Codec.fit(rows, codec="dict", minimize="time")

"""The form of codec "dict": what it refuses, what it ignores, and its sizes."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from backends import dict_backend
from codec_cases import byte_matrix
from dict_cases import WORDS, Parts, codec_of, form_by_hand, mixed_rows, some_form

from ibp_gnn import Codec, _native
from ibp_gnn.codec.dict import DictForm
from ibp_gnn.testing import assert_bitwise_equal
from ibp_gnn.testing import oracle_dict as oracle
from ibp_gnn.testing.oracle_dict import Cut

backend = dict_backend  # with AVX-512


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (dict(dictionary=np.zeros((1, 3))), r"dictionary: want \[1, 4\], got \[1, 3\]"),
        (dict(dictionary=np.zeros(4)), r"dictionary: want \[1, 4\], got \[4\]"),
        (dict(per_column=True), r"dictionary: want \[3, 4\], got \[1, 4\]"),
        (dict(dictionary=np.array([[5, 1, 5, 0]])), "dictionary: want distinct symbols, got 5 twice"),
        (dict(dictionary=np.array([[5, 1, 8, 0]])), "dictionary: want symbols of 3 bits, got 8"),
        (dict(dictionary=np.array([[5, 1, 65536, 0]])), "dictionary: want symbols of 0 to 65535, got 65536"),
        (dict(dictionary=np.array([[5, 1, -1, 0]])), "dictionary: want symbols of 0 to 65535, got -1"),
        (dict(escape_dictionary=np.zeros(6)), r"escape_dictionary: want \[7\], got \[6\]"),
        (dict(escape_dictionary=np.zeros((1, 7))), r"escape_dictionary: want \[7\], got \[1, 7\]"),
        (dict(escape_dictionary=np.arange(2, 9)), "escape_dictionary: want symbols of 3 bits, got 8"),
        (
            dict(escape_dictionary=np.array([0, 0, 0, 0, 0, 0, 65536])),
            "escape_dictionary: want symbols of 0 to 65535, got 65536",
        ),
        (
            dict(escape_dictionary=np.array([0, 0, 0, -1, 0, 0, 0])),
            "escape_dictionary: want symbols of 0 to 65535, got -1",
        ),
        (dict(value_bits=24), "value_bits: want 8, 16, 32 or 64, got 24"),
        (dict(num_values=0), "num_values: want 1 to 134217727, got 0"),
        (dict(num_values=-3), "num_values: want 1 to 134217727, got -3"),
        (dict(num_values=1 << 25, value_bits=64), "num_values: want 1 to 16777215, got 33554432"),
        (dict(code_bits=0, dictionary=np.zeros((1, 1))), "code_bits: want 1 to 4, got 0"),
        (dict(code_bits=5, dictionary=np.zeros((1, 32))), "code_bits: want 1 to 4, got 5"),
        (
            dict(code_bits=1, zero_code=True, dictionary=np.zeros((1, 2))),
            "code_bits with zero_code: want 2 to 4, got 1",
        ),
        (dict(symbol_bits=0), "symbol_bits: want 1 to 7, got 0"),
        (dict(symbol_bits=8), "symbol_bits: want 1 to 7, got 8"),
        (dict(symbol_bits=17, value_bits=32), "symbol_bits: want 1 to 16, got 17"),
        (dict(trim_bits=-1), "trim_bits: want 0 to 4, got -1"),
        (dict(trim_bits=5), "trim_bits: want 0 to 4, got 5"),
        (
            dict(symbol_bits=9, value_bits=16, per_column=True, dictionary=np.zeros((3, 4))),
            "symbol_bits of a dictionary per column: want at most 8, got 9",
        ),
    ],
)
def test_bad_forms(changes, message):
    with pytest.raises(ValueError, match=message):
        form_by_hand(**changes)


def test_the_extension_refuses_a_dictionary_of_another_length():
    parts = {field.name: getattr(form_by_hand(), field.name) for field in dataclasses.fields(DictForm)}
    with pytest.raises(ValueError, match="dictionary entries: want 4, got 5"):
        _native.cpu.codec("dict", **(parts | {"dictionary": np.zeros(5, np.uint16)}))
    with pytest.raises(ValueError, match="escape_dictionary entries: want 7, got 8"):
        changes = {"dictionary": parts["dictionary"].reshape(-1), "escape_dictionary": np.zeros(8, np.uint16)}
        _native.cpu.codec("dict", **(parts | changes))
    with pytest.raises(ValueError, match="form: want one for rows of 4 bytes, got one for 3"):
        Codec(torch.uint8, (4,), form_by_hand())


@pytest.mark.parametrize("per_column", [False, True])
@pytest.mark.parametrize("value_bits", [16, 32, 64])
def test_symbols_behind_the_codes_are_ignored(value_bits, per_column, backend):
    form = some_form(Parts(Cut(8, True), 3, False, per_column, 0), value_bits, 33, seed=0)
    dictionary = form.dictionary.copy()
    dictionary[:, -1] = 255
    other = dataclasses.replace(form, dictionary=dictionary)
    rows = torch.from_numpy(mixed_rows(form, 30, seed=0)).view(WORDS[value_bits])
    assert oracle.code(byte_matrix(rows), form).escapes.any()
    one, two = (codec_of(f).compress(rows.to(backend), slot_bytes=form.row_bytes) for f in (form, other))
    assert_bitwise_equal(one.slots, two.slots)
    assert_bitwise_equal(codec_of(other).decompress(one), rows)


def test_nbytes_and_report_by_hand():
    rows = torch.tensor([[1.0, 1.5, 1.25], [1.0, -1.75, 1.0]])
    codec = Codec.fit(rows, codec="dict", minimize="payloads")
    # One symbol, so codes of 1 bit; 21 of 23 mantissa bits are 0: 3 + 3 * (1 + 2) bits in 2 bytes.
    assert (codec.form.code_bits, codec.form.trim_bits, codec.form.dictionary.tolist()) == (1, 21, [[127, 0]])
    report = codec.report(rows)
    assert (codec.nbytes, report.codec, report.payload_bytes, report.metadata_bytes) == (4 + 14, "dict", 6, 4 + 18)

"""The oracle of codec "dict": payloads and dictionaries by hand."""

from __future__ import annotations

import dataclasses
import itertools

import numpy as np
import pytest
from dict_cases import SLACK, form_by_hand

from ibp_gnn.codec.dict import DictForm
from ibp_gnn.testing import assert_bitwise_equal
from ibp_gnn.testing import oracle_dict as oracle
from ibp_gnn.testing.oracle_dict import Cut


def test_a_value_is_cut_by_hand():
    values = np.array([0b1_101_0011], np.uint64)
    for cut, symbol, low in (
        (Cut(3, True), 0b101, 0b0011_1),
        (Cut(3, False), 0b110, 0b10011),
        (Cut(7, True), 0b1010011, 0b1),
        (Cut(7, False), 0b1101001, 0b1),
        (Cut(1, True), 0b1, 0b010011_1),
    ):
        assert [part.tolist() for part in oracle.split(values, 8, cut)] == [[symbol], [low]]
        assert oracle.join(np.array([symbol], np.uint64), np.array([low], np.uint64), 8, cut).tolist() == [0b1_101_0011]


@pytest.mark.parametrize("value_bits", [8, 16, 32, 64])
def test_join_inverts_split(value_bits):
    values = np.random.default_rng(value_bits).integers(0, 1 << value_bits, 200, np.uint64, endpoint=False)
    for symbol_bits, sign_low in itertools.product(range(1, min(16, value_bits - 1) + 1), (False, True)):
        symbols, low = oracle.split(values, value_bits, Cut(symbol_bits, sign_low))
        assert symbols.max() < 1 << symbol_bits and int(low.max()) < 1 << (value_bits - symbol_bits)
        assert_bitwise_equal(oracle.join(symbols, low, value_bits, Cut(symbol_bits, sign_low)), values)


def test_a_payload_made_by_hand():
    """Symbols 5, 2, 1, low parts 6, 31, 1: codes 0, 3 (the escape), 1; low bits 00110, 11111, 00001; escape code 1."""
    rows = np.array([[0b0_101_0011, 0b1_010_1111, 0b1_001_0000]], np.uint8)
    codes, low = 0b01_11_00, 0b00001_11111_00110
    wanted = [codes, low & 255, low >> 8, 1]
    assert [payload.tolist() for payload in oracle.payloads(rows, form_by_hand())] == [wanted]
    assert oracle.payload_bytes(rows, form_by_hand()) == 1 + 2 + 1
    assert oracle.payload_bits(rows, form_by_hand()) == 8 + 16 + 3
    encoded = oracle.encode(rows, form_by_hand(), 3)
    assert encoded.slots.tolist() == [*rows[0], *SLACK] and encoded.bitmask.tolist() == [0, 0, 0, 0], "no shorter"


def test_zeros_and_trimmed_bits_by_hand():
    """Codes of 2 bits: 0 and 1 stand for symbols 5 and 0, 2 for zero, 3 for others. One bit is trimmed, 4 are left."""
    form = form_by_hand(num_values=5, zero_code=True, trim_bits=1, dictionary=np.array([[5, 0, 9, 9]]))
    rows = np.array(
        [[0, 0b0_101_0110, 0b1_000_0000, 0b0_000_0010, 0], [0, 0, 0, 0, 0], [0, 0, 0, 0, 0b0_101_0001]], np.uint8
    )
    codes, low = 0b10_01_01_00_10, 0b0010_0001_0110
    payloads = oracle.payloads(rows, form)
    assert payloads[0].tolist() == [codes & 255, codes >> 8, low & 255, low >> 8]
    assert payloads[1].tolist() == [0b10101010, 0b10]
    assert payloads[2] is None
    assert oracle.measure(rows, form).tolist() == [4, 2, 5]
    encoded = oracle.encode(rows, form, 4)
    assert encoded.slots.tolist() == [*payloads[0], *payloads[1], 0, 0, 0, 0, 0, 0, *SLACK]
    assert encoded.bitmask.tolist() == [0b011, 0, 0, 0]
    assert encoded.overflow.tolist() == [*rows[2], *SLACK]
    ids = np.array([2, 0, 0, 1])
    assert_bitwise_equal(oracle.decode(*encoded, 4, 3, form, ids), rows[ids])
    with pytest.raises(ValueError, match="want rows that have a payload"):
        oracle.payload_bytes(rows, form)


def test_columns_and_two_symbol_bytes_by_hand():
    columns = np.array([[1, 0], [2, 0]])
    form = form_by_hand(num_values=2, code_bits=1, per_column=True, dictionary=columns)
    rows = np.array([[0b0_001_0000, 0b0_001_0000]], np.uint8)  # symbol 1 twice, which only column 0 has
    assert [payload.tolist() for payload in oracle.payloads(rows, form)] == [[0b10, 0, 0, 7, 1]]
    form = dataclasses.replace(form, escape_dictionary=np.array([2, 1, 0, 1, 0, 0, 0]))
    assert [payload.tolist() for payload in oracle.payloads(rows, form)] == [[0b10, 0, 0, 1]]
    form = DictForm(1, 32, 12, 8, 1, False, False, False, np.array([[3, 0]]), np.zeros(7))
    rows = np.array([[0xABC45600]], "<u4").view(np.uint8)
    assert [payload.tolist() for payload in oracle.payloads(rows, form)] == [[1, 0x56, 0x04, 7, 0xBC, 0x0A]]


def test_the_dictionaries_are_the_most_frequent_symbols():
    """Of 8 bits, 4 of them the symbol; 3 symbols have a code."""
    symbols = [9] * 5 + [4] * 4 + [15] * 3 + [7] * 3 + [2] * 2 + [8] * 2 + [0, 1, 5, 6, 10]
    rows = np.array(symbols, np.uint8)[:, None] << 4
    form = oracle.make_form(rows, 8, Cut(4, False), 2)
    assert form.dictionary.tolist() == [[9, 4, 7, 0]]
    assert form.escape_dictionary.tolist() == [15, 2, 8, 0, 1, 5, 6]
    form = oracle.make_form(rows[:22], 8, Cut(4, False), 2, zero_code=True)
    assert form.dictionary.tolist() == [[9, 4, 0, 0]]
    assert form.escape_dictionary.tolist() == [7, 15, 2, 8, 1, 5, 0], "the all-0 value does not count"


@pytest.mark.parametrize("symbol_bits", [1, 2, 3])
def test_fewer_symbols_than_the_escape_dictionary_has(symbol_bits):
    form = oracle.make_form(np.zeros((1, 4), np.uint8), 8, Cut(symbol_bits, False), 1)
    symbols = min(7, 1 << symbol_bits)
    assert form.escape_dictionary.tolist() == [*range(symbols), *[0] * (7 - symbols)]


def test_the_escape_dictionary_is_of_all_columns():
    """Codes of 1 bit: each column's most frequent symbol. The others count wherever they are, those of the row's other
    columns that have a code there, too."""
    columns = [[3, 3, 3, 3, 1, 2], [1, 1, 1, 3, 3, 2], [2, 2, 2, 1, 0, 3]]
    rows = np.array(columns, np.uint8).T << 5
    form = oracle.make_form(np.ascontiguousarray(rows), 8, Cut(3, False), 1, per_column=True)
    assert form.dictionary.tolist() == [[3, 0], [1, 0], [2, 0]]
    assert form.escape_dictionary.tolist() == [3, 1, 2, 0, 4, 5, 6]

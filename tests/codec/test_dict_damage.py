"""Codec "dict": payloads that no encoder wrote are read alike everywhere, or refused everywhere."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from backends import dict_backend, skip_without
from dict_cases import FASTEST_BACKENDS, Parts, codec_of, form_by_hand, forms, forms_of_floats, mixed_rows, some_form
from guarded_memory import FILL, filled, guarded
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ibp_gnn import CompressedRows, FormatError, _native
from ibp_gnn.codec.dict import DictForm
from ibp_gnn.codec.values import to_bytes
from ibp_gnn.testing import assert_bitwise_equal
from ibp_gnn.testing import oracle_dict as oracle
from ibp_gnn.testing.oracle_dict import Cut

backend = dict_backend  # with AVX-512


@pytest.fixture(params=["scalar", "avx2", "avx512"])
def cpu_path(request: pytest.FixtureRequest) -> str:
    """Instead of the fixture of conftest.py, which has no AVX-512."""
    skip_without(request.param)
    return request.param


def random_slots(form: DictForm, slot_bytes: int, seed: int) -> tuple[int, list[np.ndarray]]:
    """n and the buffers: payloads of random bytes, mostly with few escapes, some with few or many plain symbols, and
    some indices that lead somewhere."""
    rng = np.random.default_rng(seed)
    n, num_overflow = 12, 3
    slots = rng.integers(0, 256, (n, slot_bytes), np.uint8)
    slots[::2] &= rng.integers(0, 256, slots[::2].shape, np.uint8)
    codes_bytes = -(-form.num_values * form.code_bits // 8)
    slots[8:10, :codes_bytes] |= rng.integers(0, 256, slots[8:10, :codes_bytes].shape, np.uint8)
    slots[9:11, codes_bytes:] &= rng.integers(0, 256, slots[9:11, codes_bytes:].shape, np.uint8)
    slots[11, codes_bytes:] = 255
    bitmask = rng.integers(0, 256, 4, np.uint8)
    for i in range(0, n, 2) if slot_bytes < form.row_bytes else ():
        if not bitmask[i // 8] >> i % 8 & 1:
            slots[i, :4] = [rng.integers(0, num_overflow + 1), 0, 0, 0]
    overflow = rng.integers(0, 256, num_overflow * form.row_bytes + 64, np.uint8)
    return n, [np.append(slots.reshape(-1), rng.integers(0, 256, 64, np.uint8)), bitmask, overflow]


def read_as_by_the_oracle(form: DictForm, slot_bytes: int, seed: int, device: torch.device) -> set[bool]:
    """Whether random slots had a row; checks that it is the same one, or an error that names it."""
    n, buffers = random_slots(form, slot_bytes, seed)
    codec = codec_of(form)
    stored = CompressedRows(n, form.row_bytes, slot_bytes, *(torch.from_numpy(part).to(device) for part in buffers))
    found = set()
    for i in range(n):
        ids = np.array([i])
        try:
            expected = oracle.decode(*buffers, slot_bytes, n, form, ids)
        except FormatError:
            with pytest.raises(FormatError, match=f"row {i}\\b"):
                codec.decompress(stored, torch.from_numpy(ids))
            found.add(False)
        else:
            assert_bitwise_equal(to_bytes(codec.decompress(stored, torch.from_numpy(ids))), expected)
            found |= {True} if buffers[1][i // 8] >> i % 8 & 1 else set()
    return found


def read_within_the_buffers(form: DictForm, slot_bytes: int, seed: int, path: str) -> None:
    """The same for a code path; guard pages behind the inputs and a border around the output watch that nothing else is
    touched."""
    n, buffers = random_slots(form, slot_bytes, seed)
    hidden = [guarded(part) for part in buffers]
    for i in range(n):
        ids, border = np.array([i]), filled(3, form.row_bytes)
        arguments = form.native, hidden[0], slot_bytes, hidden[1], hidden[2], n, ids, border[1:2], 1, path
        try:
            expected = oracle.decode(*buffers, slot_bytes, n, form, ids)
        except FormatError:
            with pytest.raises(FormatError, match=f"^row {i}: want "):
                _native.cpu.decode(*arguments)
        else:
            _native.cpu.decode(*arguments)
            assert_bitwise_equal(border[1:2], expected)
        assert (border[[0, 2]] == FILL).all()


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(form=forms(), slot_share=st.floats(0, 1.3), seed=st.integers(0, 2**32))
def test_random_bytes_decode_as_by_the_oracle_or_not_at_all(backend, form, slot_share, seed):
    read_as_by_the_oracle(form, max(min(4, form.row_bytes), int(slot_share * form.row_bytes)), seed, backend)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(form=forms(), slot_share=st.floats(0, 1.3), seed=st.integers(0, 2**32))
def test_random_bytes_are_survived(cpu_path, form, slot_share, seed):
    read_within_the_buffers(form, max(min(4, form.row_bytes), int(slot_share * form.row_bytes)), seed, cpu_path)


def forms_of_long_rows(value_bits: int) -> Iterator[tuple[DictForm, int]]:
    """And the length of slots: half the row's, or as much as a payload may have, where random bytes often are one."""
    cuts = [Cut(4, True)] if value_bits == 8 else [Cut(8, True), Cut(8, False), Cut(11, True)]
    product = itertools.product((64, 129, 300, 1500), cuts, (1, 2, 3, 4), (False, True), (False, True))
    for seed, (width, cut, *parts) in enumerate(product):
        trim_bits = (value_bits - cut.symbol_bits) * (1 + seed % 3) // 4
        if Parts(cut, *parts, trim_bits).is_valid(value_bits):
            form = some_form(Parts(cut, *parts, trim_bits), value_bits, width, seed)
            yield form, form.row_bytes // 2 if seed // 5 % 2 else form.row_bytes


@pytest.mark.parametrize("value_bits", [8, 16, 32, 64])
def test_random_bytes_of_long_rows_decode_as_by_the_oracle_or_not_at_all(value_bits, backend):
    found = [read_as_by_the_oracle(*form, seed, backend) for seed, form in enumerate(forms_of_long_rows(value_bits))]
    assert sum(True in some for some in found) > 20 and sum(False in some for some in found) > 20


@pytest.mark.parametrize(("value_bits", "symbol_bits"), [(32, 8), (16, 8), (16, 5)])
@pytest.mark.parametrize("backend", FASTEST_BACKENDS, indirect=True)
def test_random_bytes_of_floats_decode_as_by_the_oracle_or_not_at_all(value_bits, symbol_bits, backend):
    forms = enumerate(forms_of_floats(value_bits, symbol_bits))
    found = [read_as_by_the_oracle(*form, seed, backend) for seed, form in forms]
    assert sum(True in some for some in found) > 20 and sum(False in some for some in found) > 20


@pytest.mark.parametrize("value_bits", [8, 16, 32, 64])
def test_random_bytes_of_long_rows_are_survived(value_bits, cpu_path):
    for seed, form in enumerate(forms_of_long_rows(value_bits)):
        read_within_the_buffers(*form, seed, cpu_path)


def test_nothing_outside_the_buffers_is_touched(cpu_path):
    for value_bits, per_column, zero_code in itertools.product((8, 16, 32, 64), (False, True), (False, True)):
        symbol_bits = (7,) if per_column or value_bits == 8 else (7, 11)
        for width, high in itertools.product((1, 7, 8, 9, 33), symbol_bits):
            form = some_form(Parts(Cut(high, True), 3, zero_code, per_column, 0), value_bits, width, seed=width)
            matrix = mixed_rows(form, 40, seed=width)
            lengths = guarded(np.zeros(40, np.int32))
            _native.cpu.measure(form.native, guarded(matrix), lengths, 1, cpu_path)
            assert_bitwise_equal(lengths, oracle.measure(matrix, form))
            expected = oracle.encode(matrix, form, form.row_bytes)
            outputs = [guarded(filled(len(part))) for part in expected]
            index = np.full(40, -1)
            _native.cpu.encode(
                form.native, guarded(matrix), index, outputs[0], form.row_bytes, *outputs[1:], 1, path=cpu_path
            )
            assert_bitwise_equal(outputs[0][:-64], expected.slots[:-64])
            assert_bitwise_equal(outputs[1], expected.bitmask)
            out = guarded(filled(40, form.row_bytes))
            slots, bitmask, overflow = (guarded(part) for part in expected)
            _native.cpu.decode(
                form.native, slots, form.row_bytes, bitmask, overflow, 40, np.arange(40), out, 1, cpu_path
            )
            assert_bitwise_equal(out, matrix)


def one_slot(payload: np.ndarray, slot_bytes: int, behind: np.ndarray) -> list[np.ndarray]:
    """Buffers with one row, which says that it is compressed: the payload's first bytes, `behind` where it ends."""
    slots = np.concatenate([payload[:slot_bytes], behind, np.zeros(64 + slot_bytes, np.uint8)])
    return [slots[: slot_bytes + 64], np.array([1, 0, 0, 0], np.uint8), np.zeros(64, np.uint8)]


def as_stored(form: DictForm, slot_bytes: int, buffers: list[np.ndarray], device: torch.device) -> CompressedRows:
    return CompressedRows(1, form.row_bytes, slot_bytes, *(torch.from_numpy(part).to(device) for part in buffers))


def assert_refused(form: DictForm, slot_bytes: int, buffers: list[np.ndarray], device: torch.device) -> None:
    with pytest.raises(FormatError, match="row 0: want a payload of at most"):
        oracle.decode(*buffers, slot_bytes, 1, form)
    with pytest.raises(FormatError, match="row 0\\b"):
        codec_of(form).decompress(as_stored(form, slot_bytes, buffers, device))


def assert_read(form: DictForm, slot_bytes: int, buffers: list[np.ndarray], device: torch.device) -> np.ndarray:
    """Returns the row that the oracle reads, too."""
    expected = oracle.decode(*buffers, slot_bytes, 1, form)
    decoded = codec_of(form).decompress(as_stored(form, slot_bytes, buffers, device))
    assert_bitwise_equal(to_bytes(decoded), expected)
    return expected


@pytest.mark.parametrize("value_bits", [8, 16, 32, 64])
def test_payloads_that_would_not_fit_are_refused(value_bits, backend):
    """Slots of every length that is too short for codes, low bits, escape codes or plain symbols; also where there are
    none. The rest of the payload, or its complement, lies behind the slot."""
    for zero_code, symbol_bits in itertools.product((False, True), (7, 7 if value_bits == 8 else 11)):
        form = some_form(Parts(Cut(symbol_bits, True), 3, zero_code, False, 0), value_bits, 33, seed=1)
        matrix = mixed_rows(form, 64, seed=1)
        coded = oracle.code(matrix, form)
        plain, listed = coded.plain.any(axis=1), (coded.escapes & ~coded.plain).any(axis=1)
        for which in (plain & listed, plain & ~listed, ~plain & listed, ~plain & ~listed):
            payloads = oracle.payloads(matrix[which], form)
            payload = max((part for part in payloads if part is not None and len(part) < form.row_bytes), key=len)
            assert len(payload) > (25 if coded.escapes[which].any() else 17)
            for slot_bytes in {*range(4, len(payload), 5), *range(max(4, len(payload) - 20), len(payload))}:
                for behind in (payload[slot_bytes:], ~payload[slot_bytes:]):
                    assert_refused(form, slot_bytes, one_slot(payload, slot_bytes, behind), backend)
            for slot_bytes in (len(payload), len(payload) + 1, form.row_bytes):
                row = assert_read(form, slot_bytes, one_slot(payload, slot_bytes, payload[:0]), backend)
                assert any((row[0] == matrix[i]).all() for i in np.flatnonzero(which))


def payload_of_escapes(form: DictForm, escape_codes: list[int], plain: list[int]) -> np.ndarray:
    """One escape for each escape code, at the row's end; all low bits are 1."""
    codes = [0] * (form.num_values - len(escape_codes)) + [(1 << form.code_bits) - 1] * len(escape_codes)
    low_bits = form.value_bits - form.symbol_bits - form.trim_bits
    low = [(1 << low_bits) - 1] * form.num_values
    plain_bits = 8 if form.symbol_bits <= 8 else 16
    parts = ((codes, form.code_bits), (low, low_bits), (escape_codes, 3), (plain, plain_bits))
    bits = [[number >> bit & 1 for number in numbers for bit in range(width)] for numbers, width in parts]
    return np.concatenate([np.packbits(np.array(part, np.uint8), bitorder="little") for part in bits])


@pytest.mark.parametrize("value_bits", [16, 32, 64])
@pytest.mark.parametrize("symbol_bits", [7, 11])
def test_the_last_escape_code_says_that_the_symbol_is_plain(value_bits, symbol_bits, backend):
    """A slot with no room for that symbol, or for its first byte only, is refused; escape codes and plain symbols may
    end with the slot, and with the last byte that a payload may have."""
    for width, per_column in itertools.product((9, 16, 33, 300), (False, True)[: 1 + (symbol_bits < 8)]):
        form = some_form(Parts(Cut(symbol_bits, True), 2, False, per_column, 2), value_bits, width, seed=width)
        for escapes in {1, 2, 3, 5, 8, 9, width - 1, width}:
            listed = payload_of_escapes(form, [6] * escapes, [])
            at_end = payload_of_escapes(form, [6] * (escapes - 1) + [7], [])
            whole = payload_of_escapes(form, [6] * (escapes - 1) + [7], [(1 << symbol_bits) - 2])
            assert len(listed) == len(at_end) == len(whole) - (1 if symbol_bits < 8 else 2)
            for slot_bytes in range(len(listed), len(whole) + 1):
                assert_read(form, slot_bytes, one_slot(listed, slot_bytes, np.full(9, 255, np.uint8)), backend)
                buffers = one_slot(whole, slot_bytes, whole[slot_bytes:])
                if slot_bytes < len(whole):
                    assert_refused(form, slot_bytes, buffers, backend)
                    continue
                row = assert_read(form, slot_bytes, buffers, backend)
                values = row.view(f"<u{value_bits // 8}").astype(np.uint64)
                symbols, low = oracle.split(values, value_bits, Cut(symbol_bits, True, 2))
                assert symbols[0, -1] == (1 << symbol_bits) - 2
                assert symbols[0, width - escapes : -1].tolist() == [form.escape_dictionary[6]] * (escapes - 1)
                assert (low == (1 << (value_bits - symbol_bits - 2)) - 1).all()


def test_payloads_as_long_as_the_row_are_refused(backend):
    """Such a row is stored raw; format.h asks for payload_bytes < row_bytes also where the slot has room."""
    form = DictForm(8, 8, 4, 0, 4, False, False, False, np.arange(16)[None], np.zeros(7))
    # Codes 0, then 1, 2 ...: the escape has none; 4 + 4 bytes are as long as the row.
    buffers = [np.zeros(16 + 64, np.uint8), np.array([1, 0, 0, 0], np.uint8), np.zeros(64, np.uint8)]
    stored = CompressedRows(1, 8, 16, *(torch.from_numpy(part).to(backend) for part in buffers))
    with pytest.raises(FormatError, match="want a payload of at most 7 bytes"):
        oracle.decode(*buffers, 16, 1, form)
    with pytest.raises(FormatError, match="row 0\\b"):
        codec_of(form).decompress(stored)
    # 8 + 16 bytes, which leaves 7: escape codes for 18 values, or 5 plain symbols and 5 escape codes for them.
    form = DictForm(32, 8, 4, 0, 2, False, False, False, np.array([[1, 2, 3, 0]]), np.arange(7))
    for escape_codes, fits in (([7] * 5, True), ([7] * 5 + [6], False), ([6] * 18, True), ([6] * 19, False)):
        payload = payload_of_escapes(form, escape_codes, [9] * escape_codes.count(7))
        assert len(payload) == (31 if fits else 32)
        check = assert_read if fits else assert_refused
        check(form, 40, one_slot(payload, 40, payload[:0]), backend)


def test_other_payloads_of_a_row_are_read(backend):
    """Bits above a plain symbol, bits that fill up bytes, an escaped symbol that has a code, a plain one that has one
    or an escape code, an escape code that is not the lowest: no encoder writes them, every decoder takes them alike."""
    form = form_by_hand(num_values=9, value_bits=32, trim_bits=8)
    codes = np.array([0b11_11_01_11, 0b10_11_11_00, 0b111111_11], np.uint8)  # values 1, 3, 4, 6, 7, 9 have the escape
    low = np.random.default_rng(0).integers(0, 256, 24, np.uint8)
    low[-1] = 255  # 9 * 21 bits: 3 of the last byte are left over
    escape_codes = 0b111111_111_000_111_111_011_101  # 5 and 3: for symbols 5 and 2; then plain, plain, 0, plain
    escape_bytes = [escape_codes & 255, escape_codes >> 8 & 255, escape_codes >> 16]
    payload = np.concatenate([codes, low, np.array([*escape_bytes, 0b11111_101, 0b00000_010, 0b10101_011], np.uint8)])
    assert len(payload) == 33
    row = assert_read(form, 35, one_slot(payload, 35, payload[:0]), backend)
    symbols, _ = oracle.split(row.view("<u4").astype(np.uint64), 32, Cut(3, True))
    assert symbols.tolist() == [[5, 1, 2, 0b101, 5, 0b010, 7, 6, 0b011]]

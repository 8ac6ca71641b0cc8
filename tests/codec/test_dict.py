"""Codec "dict": the oracle by hand, the same bytes from every backend, hostile payloads, fits, real data, the store."""

from __future__ import annotations

import dataclasses
import functools
import importlib.util
import itertools
import pickle
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

import numpy as np
import pytest
import torch
from backends import DICT_BACKENDS, ask_oracle_once, skip_without, use_backend
from codec_cases import byte_matrix, every_dtype, every_kind, needs_glove, some_dtypes_and_kinds
from guarded_memory import FILL, filled, guarded
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from matrices import pairs, part_of

from ibp_gnn import Codec, CodecReport, CompressedFeatureStore, CompressedGPUCache, CompressedRows, FormatError, _native
from ibp_gnn.codec import dispatch as dispatch
from ibp_gnn.codec import fit_dict
from ibp_gnn.codec.dict import DictForm, fit_dictionaries
from ibp_gnn.codec.values import SUPPORTED_DTYPES, dtype_from_name, to_bytes
from ibp_gnn.datasets import load_dataset
from ibp_gnn.testing import KINDS, MANTISSA_BITS, assert_bitwise_equal, special_rows
from ibp_gnn.testing import oracle as slots_oracle
from ibp_gnn.testing import oracle_dict as oracle
from ibp_gnn.testing.oracle_dict import Cut

GOLDEN_FILES = sorted((Path(__file__).parents[1] / "golden" / "dict").glob("*.npz"))
WIDTHS = (1, 2, 3, 7, 8, 9, 31, 33, 50, 64, 100, 128, 602)
FASTEST_BACKENDS = DICT_BACKENDS[2:]
WORDS = {8: torch.uint8, 16: torch.int16, 32: torch.int32, 64: torch.int64}
SLACK = [0] * 64

skip_without_cuda = pytest.mark.skipif(
    not (torch.cuda.is_available() and _native.cuda_is_built()), reason="no CUDA device, or no CUDA extension"
)


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


@pytest.fixture(params=DICT_BACKENDS)
def backend(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> torch.device:
    return use_backend(request.param, monkeypatch)


@pytest.fixture(params=["scalar", "avx2", "avx512"])
def cpu_path(request: pytest.FixtureRequest) -> str:
    """Instead of the fixture of conftest.py, which has no AVX-512."""
    skip_without(request.param)
    return request.param


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


def assert_payload(form: DictForm, values: list[int], payload: list[int], device: torch.device) -> None:
    """One row that every backend, too, writes and reads like this."""
    matrix = np.array([values], f"<u{form.value_bits // 8}").view(np.uint8)
    assert [made.tolist() for made in oracle.payloads(matrix, form)] == [payload]
    assert oracle.payload_bytes(matrix, form) == len(payload) < form.row_bytes
    codec, rows = codec_of(form), torch.from_numpy(matrix).view(WORDS[form.value_bits])
    assert codec.compress(rows.to(device), slot_bytes=len(payload)).slots.tolist() == [*payload, *SLACK]
    assert_as_the_oracle(codec, rows, device, len(payload))


def test_escape_codes_and_plain_symbols_by_hand(backend):
    """Symbols 5, 3, 2, 6, 4, 0, 7, 3: codes 0, 3, 3, 2, 3, 3, 3, 3; escape codes 7, 1, 7, 2, 0, 7; plain symbols 3, 4,
    3. Symbols 2, 7 and 0 have a higher escape code, too, and symbol 5 has one although it has a code."""
    form = form_by_hand(num_values=8, value_bits=32, sign_low=False, trim_bits=28)
    values = [0xB << 28, 0x6 << 28, 0x5 << 28, 0xD << 28, 0x8 << 28, 0x1 << 28, 0xE << 28, 0x6 << 28]
    codes, low, escape_codes = 0b11_11_11_11_10_11_11_00, 0b0_0_1_0_1_1_0_1, 0b111_000_010_111_001_111
    escape_bytes = [escape_codes & 255, escape_codes >> 8 & 255, escape_codes >> 16]
    assert_payload(form, values, [codes & 255, codes >> 8, low, *escape_bytes, 3, 4, 3], backend)


def test_escape_codes_and_plain_symbols_of_two_bytes_by_hand(backend):
    """Symbols ABC, FFF, 456, 123 with low parts DEF, 012, 345, 678: codes 1, 3, 3, 3; escape codes 1, 7, 0."""
    dictionaries = np.array([[3, 0xABC, 9, 0]]), np.array([0x123, 0xFFF, 0, 0xFFF, 0, 0, 3])
    form = DictForm(4, 32, 12, 8, 2, False, False, False, *dictionaries)
    values = [0xABCDEF00, 0xFFF01200, 0x45634500, 0x12367800]
    low = [0xEF, 0x2D, 0x01, 0x45, 0x83, 0x67]
    assert_payload(form, values, [0b11_11_11_01, *low, 0b00_111_001, 0, 0x56, 0x04], backend)


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


@pytest.fixture(scope="module")
def make_golden() -> ModuleType:
    path = Path(__file__).resolve().parents[2] / "scripts" / "make_golden.py"
    spec = importlib.util.spec_from_file_location("make_golden", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(params=GOLDEN_FILES, ids=lambda path: path.stem)
def golden(request: pytest.FixtureRequest) -> dict[str, np.ndarray]:
    with np.load(request.param, allow_pickle=False) as npz:
        return dict(npz)


def golden_codec(golden: dict[str, np.ndarray]) -> Codec:
    parts = {field.name: golden[field.name] for field in dataclasses.fields(DictForm)}
    form = DictForm(**{name: part if part.ndim else part.item() for name, part in parts.items()})
    return Codec(dtype_from_name(str(golden["dtype"])), (form.num_values,), form)


def test_golden_files(golden, backend):
    assert golden["format_version"] == _native.cpu.FORMAT_VERSION == 2
    codec, slot_bytes = golden_codec(golden), int(golden["slot_bytes"])
    rows = torch.from_numpy(golden["rows"]).view(codec.dtype).to(backend)
    assert_bitwise_equal(oracle.measure(golden["rows"], codec.form), golden["payload_bytes"])
    assert_bitwise_equal(codec.measure(rows), golden["payload_bytes"])
    compressed = codec.compress(rows, slot_bytes=slot_bytes)
    expected = oracle.encode(golden["rows"], codec.form, slot_bytes)
    for name in ("slots", "bitmask", "overflow"):
        assert_bitwise_equal(getattr(compressed, name), golden[name])
        assert_bitwise_equal(getattr(expected, name), golden[name])
    buffers = [golden[name] for name in ("slots", "bitmask", "overflow")]
    assert_bitwise_equal(oracle.decode(*buffers, slot_bytes, len(rows), codec.form), golden["rows"])
    stored = CompressedRows(len(rows), codec.row_bytes, slot_bytes, *(torch.from_numpy(b).to(backend) for b in buffers))
    assert_bitwise_equal(codec.decompress(stored), rows)


def test_golden_files_are_what_the_script_writes(make_golden, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["make_golden.py", "--codec", "dict", "--folder", str(tmp_path)])
    make_golden.main()
    assert sorted(path.name for path in tmp_path.iterdir()) == [path.name for path in GOLDEN_FILES]
    assert len(capsys.readouterr().out.splitlines()) == len(GOLDEN_FILES)
    for path in GOLDEN_FILES:
        with np.load(tmp_path / path.name) as new, np.load(path) as old:
            assert new.files == old.files
            for key in new.files:
                assert_bitwise_equal(new[key], old[key])


def test_golden_files_cover_every_kind_of_slot_and_form():
    kinds, parts, escapes = set(), set(), set()
    for path in GOLDEN_FILES:
        with np.load(path, allow_pickle=False) as golden:
            form = golden_codec(golden).form
            compact = int(golden["slot_bytes"]) < form.row_bytes
            held = slots_oracle.to_bits(golden["bitmask"])[: len(golden["rows"])]
            kinds |= {("compact" if compact else "inplace", bool(bit)) for bit in held}
            coded = oracle.code(golden["rows"][held], form)
            escapes |= {(form.symbol_bits > 8, int(code)) for code in coded.escape_codes[coded.escapes]}
        names = ("value_bits", "code_bits", "sign_low", "zero_code", "per_column")
        parts |= {(name, getattr(form, name)) for name in names}
    assert kinds == set(itertools.product(("compact", "inplace"), (False, True)))
    assert len(parts) == 4 + 4 + 2 + 2 + 2
    assert escapes == set(itertools.product((False, True), range(8)))
    assert sum(path.stat().st_size for path in GOLDEN_FILES) < 120_000


# --- the same bytes from every backend ----------------------------------------------------------------------


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


def forms_of_floats(value_bits: int, symbol_bits: int) -> Iterator[tuple[DictForm, int]]:
    """Those that fit takes of floats, with rows of every length that kernels treat differently; and the length of
    slots, which some payloads fit or almost all do."""
    product = itertools.product((30, 64, 100, 129, 300, 768, 1030), (2, 3), (False, True), (False, True))
    for seed, (width, code_bits, zero_code, sign_low) in enumerate(product):
        form = some_form(Parts(Cut(symbol_bits, sign_low), code_bits, zero_code, False, 0), value_bits, width, seed)
        yield form, (3 + seed // 3 % 2) * form.row_bytes // 16 * 4


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


# --- damage -------------------------------------------------------------------------------------------------


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


# --- forms --------------------------------------------------------------------------------------------------


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


def test_attributes_of_codec_ibp_are_refused():
    codec = Codec.fit(torch.randn(40, 8), codec="dict")
    assert codec.kind == "dict"
    for name in ("mask", "bitval", "threshold", "word_bits", "words_per_chunk"):
        with pytest.raises(AttributeError, match="only codec 'ibp' has this attribute; this is codec 'dict'"):
            getattr(codec, name)
        assert not hasattr(codec, name)
    assert "'dict', num_values=8, value_bits=32, symbol_bits=8" in repr(codec) and "dictionary" not in repr(codec)


def test_codecs_can_be_pickled(backend):
    rows = special_rows(torch.float16, 33, "outliers").to(backend)
    codec = Codec.fit(rows, codec="dict")
    compressed = codec.compress(rows)  # the extension's own form of the codec exists by now
    copy = pickle.loads(pickle.dumps(codec))
    assert len(pickle.dumps(codec)) < 2500
    assert (copy.dtype, copy.row_shape, copy.kind) == (torch.float16, (33,), "dict")
    assert repr(copy) == repr(codec)
    assert_same_form(copy.form, codec.form)
    assert_bitwise_equal(copy.decompress(compressed), rows)
    assert_bitwise_equal(copy.compress(rows).slots, compressed.slots)


def test_nbytes_and_report_by_hand():
    rows = torch.tensor([[1.0, 1.5, 1.25], [1.0, -1.75, 1.0]])
    codec = Codec.fit(rows, codec="dict", minimize="payloads")
    # One symbol, so codes of 1 bit; 21 of 23 mantissa bits are 0: 3 + 3 * (1 + 2) bits in 2 bytes.
    assert (codec.form.code_bits, codec.form.trim_bits, codec.form.dictionary.tolist()) == (1, 21, [[127, 0]])
    report = codec.report(rows)
    assert (codec.nbytes, report.codec, report.payload_bytes, report.metadata_bytes) == (4 + 14, "dict", 6, 4 + 18)


# --- fit ----------------------------------------------------------------------------------------------------


def assert_same_form(form: DictForm, wanted: DictForm) -> None:
    for field in dataclasses.fields(DictForm):
        found, part = getattr(form, field.name), getattr(wanted, field.name)
        if isinstance(part, np.ndarray):
            assert_bitwise_equal(found, part)
        else:
            assert found == part, field.name


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


# --- real data ----------------------------------------------------------------------------------------------


@functools.cache
def glove() -> torch.Tensor:
    return load_dataset("wordnet", "glove").features


@needs_glove
def test_savings_on_glove(backend):
    rows = glove().to(backend)

    def round_trip(rows: torch.Tensor, minimize: str) -> tuple[CodecReport, CompressedRows]:
        codec = Codec.fit(rows, codec="auto", minimize=minimize)
        assert codec.kind == "dict"
        compressed = codec.compress(rows)
        assert_bitwise_equal(codec.decompress(compressed), rows)
        return codec.report(rows), compressed

    assert round_trip(rows, "payloads")[0].savings >= 0.15
    compressed = round_trip(rows, "slots")[1]
    assert compressed.nbytes <= 0.88 * compressed.raw_nbytes
    assert round_trip(rows.bfloat16(), "payloads")[0].savings >= 0.305
    half = rows.half()
    assert round_trip(half, "payloads")[0].savings > Codec.fit(half, codec="ibp").report(half).savings


def test_savings_on_bags_of_words(backend):
    rows = load_dataset("wordnet", "bow").features[::16].to(backend)
    codec = Codec.fit(rows, codec="auto", minimize="payloads", max_rows=2000)
    assert codec.report(rows).savings >= 0.96
    assert_bitwise_equal(codec.decompress(codec.compress(rows)), rows)


def test_savings_on_rectified_values(backend):
    rows = torch.relu(torch.randn(10_000, 128, generator=torch.Generator().manual_seed(0))).to(backend)
    codec = Codec.fit(rows)  # "auto"
    assert codec.kind == "dict" and codec.form.zero_code and codec.report(rows).savings >= 0.51
    assert_bitwise_equal(codec.decompress(codec.compress(rows)), rows)


# --- the store ----------------------------------------------------------------------------------------------


def features(dtype: torch.dtype, width: int, n: int = 300) -> torch.Tensor:
    """Normal values of other sizes in each column; here and there an escape; every 40th row is noise."""
    generator = torch.Generator().manual_seed(width)
    scale = torch.randn(width, generator=generator).exp() * (1 if dtype.is_floating_point else 1000)
    rows = (torch.randn(n, width, generator=generator) * scale).to(dtype)
    noise = as_words(special_rows(dtype, width, "random_bits", n))
    as_words(rows)[torch.rand(n, width, generator=generator) < 0.01] = noise[0, 0]
    as_words(rows)[::40] = noise[::40]
    return rows


@pytest.mark.parametrize("codec", ["dict", "auto", "ibp"])
@pytest.mark.parametrize("layout", ["compact", "inplace"])
def test_a_store_on_the_cpu(codec, layout):
    for dtype, width in itertools.product(SUPPORTED_DTYPES, (1, 33, 50)):
        rows = special_rows(dtype, width, "outliers", 300) if dtype is torch.bool else features(dtype, width)
        with CompressedFeatureStore.build(rows, codec, layout=layout, chunk_rows=64, progress=False) as store:
            assert store.codec.kind in ("ibp", "dict") and (codec == "auto" or store.codec.kind == codec)
            assert_bitwise_equal(store.rows.slots, store.codec.compress(rows, slot_bytes=store.slot_bytes).slots)
            ids = torch.randint(0, 300, (500,), generator=torch.Generator().manual_seed(0))
            assert_bitwise_equal(store.gather(ids), rows[ids])
            assert_bitwise_equal(pickle.loads(pickle.dumps(store)).gather(ids), rows[ids])
            if dtype is torch.float32 and width == 50 and codec != "ibp":
                assert store.layout == layout and (layout == "inplace" or store.savings > 0.05)


def store_codecs() -> dict[str, tuple[torch.dtype, bool, Parts | None]]:
    """dtype, whether negative values become 0, the parts to force (None: fitted)."""
    columns, shared = Parts(Cut(8, True), 3, False, True, 0), Parts(Cut(8, True), 3, False, False, 0)
    return {
        "float32": (torch.float32, False, None),
        "float32_shared": (torch.float32, False, shared),
        "float32_columns": (torch.float32, False, columns),
        "float32_zeros": (torch.float32, True, Parts(Cut(8, True), 3, True, False, 0)),
        "bfloat16": (torch.bfloat16, False, None),
        "bfloat16_shared": (torch.bfloat16, False, shared),
        "bfloat16_columns": (torch.bfloat16, False, columns),
        "bfloat16_zeros": (torch.bfloat16, True, Parts(Cut(8, True), 2, True, True, 0)),
        "float16": (torch.float16, False, None),
        "float16_zeros": (torch.float16, True, Parts(Cut(5, True), 3, True, False, 0)),
        "int64": (torch.int64, False, None),
        "int64_columns": (torch.int64, False, Parts(Cut(8, False), 1, False, True, 0)),
    }


def store_case(name: str, width: int) -> tuple[torch.Tensor, Codec]:
    dtype, without_negatives, parts = store_codecs()[name]
    rows = features(dtype, width)
    if without_negatives:
        rows[(rows < 0).any(1, keepdim=True) & (rows <= 0)] = 0
    return rows, Codec.fit(rows, codec="dict") if parts is None else make_codec(rows, parts)


@pytest.mark.cuda
@skip_without_cuda
@pytest.mark.parametrize("layout", ["compact", "inplace"])
@pytest.mark.parametrize("name", store_codecs())
def test_rows_gathered_by_a_gpu(name, layout):
    for width in (32, 50, 64, 100, 128, 256, 602, 768, 1433, 5000):
        rows, codec = store_case(name, width)
        n, row_bytes = len(rows), codec.row_bytes
        with CompressedFeatureStore.build(rows, codec, layout=layout, progress=False) as store:
            ids = torch.randint(0, n, (700,), generator=torch.Generator().manual_seed(width))
            assert_bitwise_equal(store.gather(ids, device="cuda").cpu(), rows[ids])
            stats = store.stats()
            assert (stats.hits, stats.misses, stats.raw_bytes) == (0, 700, 700 * row_bytes)
            lengths = codec.measure(rows).to(torch.int64)
            held = store.rows.is_compressed().to(torch.bool)
            least = torch.where(held, lengths, row_bytes)[ids].sum()
            # A payload: up to whole loads around the first bytes of the slot and the rest, or again from its start.
            most = torch.where(held, 2 * lengths + store.slot_bytes + 64, row_bytes + 4)[ids].sum()
            assert int(least) <= stats.pcie_bytes <= int(most)
            for offset in (1, 2, 3, 4):  # out begins at another multiple of the value's length
                room = torch.zeros(offset + 50 * width + 1, dtype=rows.dtype, device="cuda")
                out = room[offset:-1].view(50, width)
                store.gather(ids[:50].cuda(), out=out)
                assert_bitwise_equal(out.cpu(), rows[ids[:50]])
                border = torch.cat([room[:offset], room[-1:]])
                assert_bitwise_equal(border.cpu(), torch.zeros(offset + 1, dtype=rows.dtype))
            store.check()
            cache = CompressedGPUCache(store, f"{n // 2} rows", hotness=torch.arange(n).flip(0))
            cache.reset_stats()
            assert_bitwise_equal(cache.gather(ids.cuda()).cpu(), rows[ids])
            stats = cache.stats()
            misses = int((ids >= n // 2).sum())
            assert (stats.hits, stats.misses) == (700 - misses, misses)
            assert int(least) * misses / 1400 < stats.pcie_bytes <= int(most)
            cache.check()


@pytest.mark.parametrize("name", store_codecs())
def test_damaged_bitmasks(name, backend):
    """Slots far too short for the payloads that the bitmask says they hold: an error, and no read of other memory."""
    for width in (32, 64, 1433):
        rows, codec = store_case(name, width)
        for slot_bytes in (4, 32, codec.row_bytes // 2 // 4 * 4):
            compressed = codec.compress(rows.to(backend), slot_bytes=slot_bytes)
            damaged = dataclasses.replace(compressed, bitmask=torch.full_like(compressed.bitmask, 255))
            spilled = int(torch.nonzero(compressed.is_compressed() == 0)[0])
            with pytest.raises(FormatError, match=f"row {spilled}\\b"):
                codec.decompress(damaged, torch.tensor([spilled]))
            assert_bitwise_equal(codec.decompress(compressed), rows)


@pytest.mark.cuda
@skip_without_cuda
def test_a_cache_holds_no_tables_for_encoding():
    form = some_form(Parts(Cut(8, True), 3, False, True, 0), 32, 33, seed=0)
    device = torch.device("cuda", torch.cuda.current_device())
    of_gathers, of_encoders = form.on_device(device), form.on_device(device, encoder=True)
    assert of_gathers.tables.nbytes == form.device_nbytes == 33 * (16 + 8)
    assert of_encoders.tables.nbytes == form.device_nbytes + 33 * 256 + 256
    rows, lengths = torch.zeros(2, form.row_bytes, dtype=torch.uint8, device=device), torch.zeros(2, dtype=torch.int32)
    with pytest.raises(ValueError, match="codec: want one with code_of_symbol, got one without"):
        _native.cuda().measure(of_gathers.native, rows, lengths.to(device), 0)

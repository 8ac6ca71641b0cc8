"""Codec "dict": payloads by hand and golden files, from every backend."""

from __future__ import annotations

import dataclasses
import itertools
from pathlib import Path

import numpy as np
import pytest
import torch
from backends import dict_backend
from dict_cases import SLACK, WORDS, assert_as_the_oracle, codec_of, form_by_hand

from ibp_gnn import Codec, CompressedRows, _native
from ibp_gnn.codec.dict import DictForm
from ibp_gnn.codec.values import dtype_from_name
from ibp_gnn.testing import assert_bitwise_equal
from ibp_gnn.testing import oracle as slots_oracle
from ibp_gnn.testing import oracle_dict as oracle

GOLDEN_FILES = sorted((Path(__file__).parents[1] / "golden" / "dict").glob("*.npz"))
backend = dict_backend  # with AVX-512


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

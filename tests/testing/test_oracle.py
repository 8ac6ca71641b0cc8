"""The oracle against vectors written out by hand from csrc/core/format.h, the golden files, and its own fit."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ibp_gnn import FormatError, _native
from ibp_gnn.codec import ibp
from ibp_gnn.testing import assert_bitwise_equal, oracle

SLACK = [0] * 64


def array(*values: int) -> np.ndarray:
    return np.array(values, np.uint8)


def test_a_vector_made_by_hand():
    """Rows of 3 bytes, chunks of 8 bits. The upper nibble of byte 0 is 1010, byte 1 is 7, byte 2 has no invariant bit:
    4 + 0 + 8 bits are left of a row that agrees everywhere."""
    mask, bitval = array(0xF0, 0xFF, 0x00), array(0xA0, 0x07, 0x00)
    rows = np.stack([array(0xA3, 0x07, 0xC5), array(0xA1, 0x08, 0xFF), array(0x51, 0x08, 0x80)])
    # Row 0: bits 1 1 1 | 3 = 1100 | c5 = 10100011, first bit first: 11111001 0100011(0) -> 9f, 62 as bytes read
    # from their least significant bit. Row 1: chunk 1 does not participate: 1 0 1 | 1000 | 00010000 | 11111111, 23
    # bits = 3 bytes, no shorter than the row. Row 2: 0 0 1 and all 24 bits, 27 bits = 4 bytes.
    lengths = oracle.measure(rows, mask, bitval, 8)
    assert_bitwise_equal(lengths, np.array([2, 3, 4], np.int32))
    encoded = oracle.encode(rows, mask, bitval, 8, 3)
    assert encoded.slots.tolist() == [0b10011111, 0b01100010, 0, 0xA1, 0x08, 0xFF, 0x51, 0x08, 0x80, *SLACK]
    assert encoded.bitmask.tolist() == [0b001, 0, 0, 0]
    assert encoded.overflow.tolist() == SLACK
    assert_bitwise_equal(oracle.decode(*encoded, 3, 3, mask, bitval, 8), rows)


def test_overflow_made_by_hand():
    """Rows of 6 bytes in slots of 4; one chunk of 64 bits, which ends with the row. Invariant: bytes 0 to 3."""
    mask, bitval = array(255, 255, 255, 255, 0, 0), array(1, 2, 3, 4, 0, 0)
    rows = np.stack([array(9, 2, 3, 4, 5, 6), array(1, 2, 3, 4, 0xFF, 0x01), array(1, 2, 3, 0, 5, 6)])
    encoded = oracle.encode(rows, mask, bitval, 64, 4)
    # Row 1: participation bit 1, then ff 01: 1 11111111 10000000 -> ff 03 00.
    assert encoded.slots.tolist() == [0, 0, 0, 0, 0xFF, 0x03, 0x00, 0, 1, 0, 0, 0, *SLACK]
    assert encoded.bitmask.tolist() == [0b010, 0, 0, 0]
    assert encoded.overflow.tolist() == [9, 2, 3, 4, 5, 6, 1, 2, 3, 0, 5, 6, *SLACK]
    ids = np.array([2, 1, 1, 0])
    assert_bitwise_equal(oracle.decode(*encoded, 4, 3, mask, bitval, 64, ids), rows[ids])


def test_golden_files(golden):
    codec = golden.codec
    parts = codec.form.mask_bytes, codec.form.bitval_bytes, codec.form.chunk_bits
    assert golden.format_version == _native.cpu.FORMAT_VERSION == 2
    assert_bitwise_equal(oracle.measure(golden.rows, *parts), golden.payload_bytes)
    encoded = oracle.encode(golden.rows, *parts, golden.slot_bytes)
    for name in ("slots", "bitmask", "overflow"):
        assert_bitwise_equal(getattr(encoded, name), getattr(golden, name))
    buffers = golden.slots, golden.bitmask, golden.overflow
    decoded = oracle.decode(*buffers, golden.slot_bytes, len(golden.rows), *parts)
    assert_bitwise_equal(decoded, golden.rows)


def test_golden_files_are_what_the_script_writes(make_golden, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["make_golden.py", "--folder", str(tmp_path)])
    make_golden.main()
    written = sorted(path.name for path in tmp_path.iterdir())
    assert written == sorted(path.name for path in make_golden.GOLDEN_FOLDER.glob("*.npz"))
    assert len(capsys.readouterr().out.splitlines()) == len(written)
    for name in written:
        with np.load(tmp_path / name) as new, np.load(make_golden.GOLDEN_FOLDER / name) as old:
            assert new.files == old.files
            for key in new.files:
                assert_bitwise_equal(new[key], old[key])


def test_golden_files_cover_every_kind_of_slot(all_golden, make_golden):
    assert {8, 16, 32, 64, 128, 4096} == {golden.codec.form.chunk_bits for golden in all_golden}
    kinds = set()
    for golden in all_golden:
        compact = golden.slot_bytes < golden.rows.shape[1]
        is_payload = oracle.to_bits(golden.bitmask)[: len(golden.rows)]
        kinds |= {("compact" if compact else "inplace", bool(bit)) for bit in is_payload}
    assert kinds == set(itertools.product(("compact", "inplace"), (False, True)))
    assert sum(path.stat().st_size for path in make_golden.GOLDEN_FOLDER.glob("*.npz")) < 200_000


def test_constants_are_the_extensions():
    assert oracle.SLACK_BYTES == _native.cpu.SLACK_BYTES
    assert oracle.OVERFLOW_INDEX_BYTES == _native.cpu.OVERFLOW_INDEX_BYTES
    for n in (0, 1, 31, 32, 33, 1000):
        assert oracle.bitmask_bytes(n) == _native.cpu.bitmask_bytes(n)
    assert oracle.THRESHOLDS == ibp.THRESHOLDS


@given(st.data())
def test_decode_inverts_encode(data):
    row_bytes, n = data.draw(st.integers(1, 40)), data.draw(st.integers(0, 34))
    mask = np.frombuffer(data.draw(st.binary(min_size=row_bytes, max_size=row_bytes)), np.uint8)
    bitval = np.frombuffer(data.draw(st.binary(min_size=row_bytes, max_size=row_bytes)), np.uint8) & mask
    noise = np.random.default_rng(data.draw(st.integers(0, 99))).integers(0, 256, (n, row_bytes), np.uint8)
    rows = np.where(np.arange(n)[:, None] % 3 > 0, bitval | (noise & ~mask), noise)
    chunk_bits = data.draw(st.sampled_from([8, 16, 32, 64, 128, 4096]))
    slot_bytes = data.draw(st.integers(min(4, row_bytes), row_bytes + 3))
    encoded = oracle.encode(rows, mask, bitval, chunk_bits, slot_bytes)
    decoded = oracle.decode(*encoded, slot_bytes, n, mask, bitval, chunk_bits)
    assert_bitwise_equal(decoded, rows)


def test_invariant_bits_by_hand():
    """Of 4 rows, bit 0 is set in all, bit 1 in three, bit 2 in two, bit 3 in one, bit 4 in none."""
    rows = array(0b00001, 0b00011, 0b00111, 0b01111)[:, None]
    ones = oracle.count_ones(rows)
    assert ones.tolist() == [4, 3, 2, 1, 0, 0, 0, 0]
    for threshold, mask, bitval in ((1, 0b11110001, 0b1), (0.75, 0b11111011, 0b11), (0.5, 0xFF, 0b11)):
        got = oracle.invariant_bits(ones, 4, threshold)
        assert [part.tolist() for part in got] == [[mask], [bitval]]


def test_fit_by_hand():
    """Equal rows of 10 bytes: 10 participation bits with chunks of 8 bits, 5 with 16, so one byte fewer; longer chunks
    and other thresholds are no better and come later."""
    rows = np.full((8, 10), 0x5A, np.uint8)
    for value_bits, word_bits, words_per_chunk in ((8, 8, 2), (16, 16, 1), (64, 16, 1)):
        fitted = oracle.fit(rows, value_bits)
        assert (fitted.word_bits, fitted.words_per_chunk, fitted.threshold) == (word_bits, words_per_chunk, 0.5)
        assert (fitted.mask.tolist(), fitted.bitval.tolist()) == ([255] * 10, [0x5A] * 10)
    # Byte 0 agrees in 12 rows of 20, bytes 1 to 3 in all. One chunk a row: up to a threshold of 0.6, 12 rows of 1 byte
    # and 8 of 4 = 44 bytes; above, 20 rows of 1 + 8 bits = 40 bytes.
    rows = np.full((20, 4), 7, np.uint8)
    rows[:8, 0] = 0xF8
    fitted = oracle.fit(rows, 8, word_bits=32, words_per_chunk=1)
    assert (fitted.mask.tolist(), fitted.bitval.tolist(), fitted.threshold) == ([0, 255, 255, 255], [0, 7, 7, 7], 0.65)
    # Chunks of 8 bits: 12 rows of 4 bits and 8 of 12 bits = 28 bytes; chunks of 16 bits: 12 of 2, 8 of 18 bits = 36.
    fitted = oracle.fit(rows, 8)
    assert (fitted.mask.tolist(), fitted.bitval.tolist(), fitted.threshold) == ([255] * 4, [7] * 4, 0.5)
    assert (fitted.word_bits, fitted.words_per_chunk) == (8, 1)


def test_fit_tries_these_chunks():
    assert oracle.fit_chunks(24, 32, None, None) == [(8, 1), (16, 1), (32, 1)]
    assert oracle.fit_chunks(32, 8, None, None) == [(8, 1), (8, 2), (8, 4)]
    assert oracle.fit_chunks(100, 8, 16, None) == [(16, 1), (16, 2), (16, 4), (16, 8)]
    assert oracle.fit_chunks(99_999, 64, 64, None)[-1] == (64, 64)
    assert oracle.fit_chunks(100, 8, None, 2) == [(8, 2), (16, 2), (32, 2), (64, 2)]
    assert oracle.fit_chunks(100, 8, 32, 2) == [(32, 2)]


def test_decode_refuses_damage():
    mask, bitval = array(255, 255, 255, 255, 0, 0), array(1, 2, 3, 4, 0, 0)
    rows = np.stack([array(1, 2, 3, 4, i, i) for i in range(3)] + [array(0, 0, 0, 0, 0, 0)])
    slots, bitmask, overflow = oracle.encode(rows, mask, bitval, 8, 4)
    assert overflow[:6].tolist() == [0] * 6 and len(overflow) == 70
    arguments = 4, 4, mask, bitval, 8
    assert_bitwise_equal(oracle.decode(slots, bitmask, overflow, *arguments), rows)
    for length in range(len(slots)):
        with pytest.raises(FormatError, match=f"slots: want at least 80 bytes, got {length}"):
            oracle.decode(slots[:length], bitmask, overflow, *arguments)
    for length in range(len(bitmask)):
        with pytest.raises(FormatError, match=f"bitmask: want at least 4 bytes, got {length}"):
            oracle.decode(slots, bitmask[:length], overflow, *arguments)
    for length in range(len(overflow)):
        with pytest.raises(FormatError, match="overflow: want at least 64|row 3: want an overflow index below 0"):
            oracle.decode(slots, bitmask, overflow[:length], *arguments)
    damaged = slots.copy()
    damaged[0] = 0  # no chunk participates: 6 + 48 bits
    with pytest.raises(FormatError, match="row 0: want a payload of at most 4 bytes, got 54 bits"):
        oracle.decode(damaged, bitmask, overflow, *arguments)
    damaged = slots.copy()
    damaged[12] = 1
    with pytest.raises(FormatError, match="row 3: want an overflow index below 1, got 1"):
        oracle.decode(damaged, bitmask, overflow, *arguments)
    for bad in (-1, 4):
        with pytest.raises(IndexError, match=f"want 0 <= id < 4, got {bad} at position 1"):
            oracle.decode(slots, bitmask, overflow, *arguments, ids=np.array([0, bad]))


def test_bad_arguments():
    rows, mask, bitval = np.zeros((2, 8), np.uint8), np.full(8, 15, np.uint8), np.zeros(8, np.uint8)
    for chunk_bits in (0, 4, 24, -8):
        with pytest.raises(ValueError, match=f"chunk_bits: want a power of two from 8, got {chunk_bits}"):
            oracle.measure(rows, mask, bitval, chunk_bits)
    with pytest.raises(ValueError, match="bitval: want 0 wherever mask is 0"):
        oracle.measure(rows, mask, np.full(8, 16, np.uint8), 8)
    with pytest.raises(ValueError, match=r"want \[8\], got \[7\], \[8\]"):
        oracle.encode(rows, mask[:7], bitval, 8, 8)
    with pytest.raises(ValueError, match="slot_bytes: want at least 4, got 3"):
        oracle.encode(rows, mask, bitval, 8, 3)

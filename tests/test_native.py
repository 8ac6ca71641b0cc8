"""Raw calls of the CPU extension: wrong buffers are refused before anything is written, damaged ones are survived."""

from __future__ import annotations

import importlib.util
import os
import struct
import subprocess
import sys

import numpy as np
import pytest
import torch
from guarded_memory import FILL, filled, guarded
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ibp_gnn import FormatError, _native
from ibp_gnn.testing import assert_bitwise_equal, oracle

cpu = _native.cpu

ROW_BYTES, NUM_ROWS, SLOT_BYTES, CHUNK_BITS = 24, 40, 16, 16


@pytest.fixture(scope="module")
def rows() -> np.ndarray:
    """The upper half of every byte is 0, but in every fourth row, which is noise."""
    noise = np.random.default_rng(0).integers(0, 256, (NUM_ROWS, ROW_BYTES), np.uint8)
    return np.where(np.arange(NUM_ROWS)[:, None] % 4 == 0, noise, noise & 15).astype(np.uint8)


MASK, BITVAL = np.full(ROW_BYTES, 0xF0, np.uint8), np.zeros(ROW_BYTES, np.uint8)


@pytest.fixture(scope="module")
def codec():
    return cpu.codec("ibp", mask=MASK, bitval=BITVAL, chunk_bits=CHUNK_BITS)


@pytest.fixture(scope="module")
def encoded(rows) -> oracle.Encoded:
    return oracle.encode(rows, MASK, BITVAL, CHUNK_BITS, SLOT_BYTES)


def decode(codec, encoded, out, *, ids=None, num_rows=NUM_ROWS, slot_bytes=SLOT_BYTES, path=""):
    ids = np.arange(len(out)) if ids is None else ids
    slots, bitmask, overflow = encoded
    cpu.decode(codec, slots, slot_bytes, bitmask, overflow, num_rows, ids, out, 1, path)


def encode_arguments(rows) -> dict:
    lengths = oracle.measure(rows, MASK, BITVAL, CHUNK_BITS)
    spills = lengths > SLOT_BYTES
    return dict(
        rows=rows,
        overflow_index=np.where(spills, np.cumsum(spills) - 1, -1),
        slots=filled(NUM_ROWS * SLOT_BYTES + 64),
        slot_bytes=SLOT_BYTES,
        bitmask=filled(8),
        overflow=filled(int(spills.sum()) * ROW_BYTES + 64),
        threads=1,
    )


# --- the right arguments ------------------------------------------------------------------------------------


def test_encode_fills_everything_but_the_slack(codec, rows, encoded, cpu_path):
    arguments = encode_arguments(rows)
    cpu.encode(codec, **arguments, path=cpu_path)
    assert_bitwise_equal(arguments["slots"][:-64], encoded.slots[:-64])
    assert_bitwise_equal(arguments["bitmask"], encoded.bitmask)
    assert_bitwise_equal(arguments["overflow"][:-64], encoded.overflow[:-64])
    for name in ("slots", "overflow"):
        assert_bitwise_equal(arguments[name][-64:], filled(64))


def test_nothing_outside_the_buffers_is_touched(codec, rows, encoded, cpu_path):
    arguments = encode_arguments(rows)
    arguments["slots"], arguments["overflow"] = (arguments[name][:-64] for name in ("slots", "overflow"))
    outputs = {name: guarded(arguments[name]) for name in ("slots", "overflow", "bitmask")}
    # The extension asks for slack behind what it writes; encoding must not need it.
    with pytest.raises(ValueError, match="slots bytes"):
        cpu.encode(codec, **{**arguments, **outputs}, path=cpu_path)
    outputs = {name: guarded(np.append(arguments[name], filled(64))) for name in ("slots", "overflow")}
    outputs["bitmask"] = guarded(arguments["bitmask"])
    inputs = {name: guarded(arguments[name]) for name in ("rows", "overflow_index")}
    cpu.encode(codec, **{**arguments, **inputs, **outputs}, path=cpu_path)
    assert_bitwise_equal(outputs["slots"][:-64], encoded.slots[:-64])
    buffers = [guarded(buffer) for buffer in encoded]
    ids = guarded(np.array([*range(NUM_ROWS), NUM_ROWS - 1]))
    out = guarded(filled(NUM_ROWS + 1, ROW_BYTES))
    decode(codec, buffers, out, ids=ids, path=cpu_path)
    assert_bitwise_equal(out, rows[ids])
    lengths = guarded(np.zeros(NUM_ROWS, np.int32))
    cpu.measure(codec, guarded(rows), lengths, 1, cpu_path)
    assert_bitwise_equal(lengths, oracle.measure(rows, MASK, BITVAL, CHUNK_BITS))
    ones = guarded(np.zeros(8 * ROW_BYTES, np.int64))
    cpu.count_ones(guarded(rows), ones, 1)
    assert_bitwise_equal(ones, oracle.count_ones(rows))


def test_counts_of_many_rows():
    """More than the 255 rows that a counter of one byte could hold, and more than one thread's share."""
    rows = np.random.default_rng(1).integers(0, 256, (200_003, 5), np.uint8)
    rows[:, 2] = 255
    for threads in (1, 3):
        ones = np.full(40, -1, np.int64)
        cpu.count_ones(rows, ones, threads)
        assert_bitwise_equal(ones, np.unpackbits(rows, axis=1, bitorder="little").sum(0, dtype=np.int64))


def test_num_chunks():
    for row_bytes, chunk_bits, num_chunks in ((1, 8, 1), (3, 16, 2), (8, 64, 1), (9, 64, 2), (600, 4096, 2)):
        ones = np.full(row_bytes, 0xFF, np.uint8)  # all bits are invariant: a row of them is a bit a chunk
        codec, lengths = cpu.codec("ibp", mask=ones, bitval=ones, chunk_bits=chunk_bits), np.zeros(1, np.int32)
        cpu.measure(codec, ones[None], lengths, 1, "scalar")
        assert lengths[0] == -(-num_chunks // 8)


@pytest.mark.parametrize("chunk_bits", [8, 16, 32, 64, 256])
def test_tables_pack_and_spread_bits(chunk_bits):
    """What GPU kernels do with the tables of csrc/core/ibp_tables.h, in Python, against a bit-by-bit packing."""
    rng = np.random.default_rng(chunk_bits)
    row_bytes = 46
    mask = rng.integers(0, 256, row_bytes, np.uint8) & rng.integers(0, 256, row_bytes, np.uint8)
    mask[:8] = [0, 0, 0, 0, 255, 255, 255, 255]
    bitval = rng.integers(0, 256, row_bytes, np.uint8) & mask
    units = -(-row_bytes // 4)
    codec = cpu.codec("ibp", mask=mask, bitval=bitval, chunk_bits=chunk_bits)
    tables = np.full((8, 4 * -(-units // 4)), FILL, np.uint32)
    assert codec.device_table_bytes(False) == codec.device_table_bytes(True) == tables.nbytes
    codec.write_device_tables(False, tables.reshape(-1).view(np.uint8))
    padded = [np.append(part, np.zeros(2, np.uint8)).view("<u4") for part in (mask, bitval)]
    valid = np.append(np.full(row_bytes, 255, np.uint8), np.zeros(2, np.uint8)).view("<u4")
    assert_bitwise_equal(tables[0, :units], valid & ~padded[0])
    assert_bitwise_equal(tables[1, :units], padded[1])
    assert_bitwise_equal(tables[2, :units], valid)
    assert not tables[:, units:].any()
    field_bits = min(chunk_bits, 32)
    for unit in range(units):
        keep, moves = int(tables[0, unit]), [int(move) for move in tables[3:, unit]]
        for x in (0xFFFFFFFF, 0x55555555, *(int(word) for word in rng.integers(0, 1 << 32, 4))):
            wanted = 0
            for base in range(0, 32, field_bits):
                kept = [bit for bit in range(base, base + field_bits) if keep >> bit & 1]
                wanted |= sum((x >> bit & 1) << (base + at) for at, bit in enumerate(kept))
            packed = x & keep
            for step in range(5):
                moving = packed & moves[step]
                packed = (packed ^ moving) | (moving >> (1 << step))
            assert packed == wanted
            spread = packed
            for step in reversed(range(5)):
                spread = (spread & ~moves[step]) | (spread << (1 << step) & moves[step])
            assert spread & keep == x & keep


# --- wrong arguments: refused, and nothing written ----------------------------------------------------------


@pytest.mark.parametrize(
    ("mask", "bitval", "chunk_bits", "message"),
    [
        (MASK, BITVAL[1:], 8, "bitval bytes: want 24, got 23"),
        (MASK, MASK ^ 255, 8, "bitval: want 0 wherever mask is 0, got 15 under mask 240 at byte 0"),
        (MASK[:0], BITVAL[:0], 8, "row_bytes: want 1 to 134217727, got 0"),
        (MASK, BITVAL, 4, "chunk_bits: want a power of two from 8 to 2.30, got 4"),
        (MASK, BITVAL, 24, "chunk_bits: want a power of two from 8 to 2.30, got 24"),
        (MASK, BITVAL, 0, "chunk_bits: want a power of two from 8 to 2.30, got 0"),
        (MASK, BITVAL, -8, "chunk_bits: want a power of two from 8 to 2.30, got -8"),
        (MASK, BITVAL, 1 << 31, "chunk_bits: want a power of two from 8 to 2.30, got 2147483648"),
    ],
)
def test_bad_codecs(mask, bitval, chunk_bits, message):
    with pytest.raises(ValueError, match=message):
        cpu.codec("ibp", mask=mask, bitval=bitval, chunk_bits=chunk_bits)


def test_tables_of_another_length(codec):
    for length in (0, 255, 257):
        tables = np.full(length, FILL, np.uint8)
        with pytest.raises(ValueError, match=f"tables bytes: want 256, got {length}"):
            codec.write_device_tables(False, tables)
        assert (tables == FILL).all()


@pytest.mark.parametrize("length", [0, 191, 193])
def test_counts_of_another_length(rows, length):
    ones = np.full(length, -7, np.int64)
    with pytest.raises(ValueError, match=f"ones: want 192, got {length}"):
        cpu.count_ones(rows, ones, 1)
    assert (ones == -7).all()


def test_measure_refuses(codec, rows, cpu_path):
    for length in (0, NUM_ROWS - 1, NUM_ROWS + 1):
        lengths = np.full(length, -7, np.int32)
        with pytest.raises(ValueError, match=f"payload_bytes: want 40, got {length}"):
            cpu.measure(codec, rows, lengths, 1, cpu_path)
        assert (lengths == -7).all()
    lengths = np.full(NUM_ROWS, -7, np.int32)
    for width in (0, ROW_BYTES - 1, ROW_BYTES + 1):
        with pytest.raises(ValueError, match=f"row_bytes: want 24, got {width}"):
            cpu.measure(codec, np.zeros((NUM_ROWS, width), np.uint8), lengths, 1, cpu_path)
    assert (lengths == -7).all()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (dict(rows=np.zeros((NUM_ROWS, 23), np.uint8)), "row_bytes: want 24, got 23"),
        (dict(overflow_index=np.zeros(39, np.int64)), "overflow_index: want 40, got 39"),
        (dict(overflow_index=np.full(NUM_ROWS, 10)), "overflow_index: want below 10, got 10"),
        (dict(overflow_index=np.full(NUM_ROWS, 1 << 40)), "overflow_index: want below 10, got 1099511627776"),
        (dict(slots=filled(NUM_ROWS * SLOT_BYTES + 63)), "slots bytes.*: want at least 704, got 703"),
        (dict(slots=filled(0)), "slots bytes.*: want at least 704, got 0"),
        (dict(bitmask=filled(7)), "bitmask bytes.*: want at least 8, got 7"),
        (dict(overflow=filled(63)), "overflow bytes.*: want at least 64, got 63"),
        (dict(overflow=filled(10 * ROW_BYTES + 63)), "overflow_index: want below 9, got 9"),
        (dict(slot_bytes=3), "slot_bytes: want at least 4, got 3"),
        (dict(slot_bytes=0), "slot_bytes: want at least 4, got 0"),
        (dict(slot_bytes=-16), "slot_bytes: want at least 4, got -16"),
        (dict(slot_bytes=17), "slots bytes.*: want at least 744, got 704"),
        (dict(slot_bytes=1 << 27), "slot_bytes: want at most 134217727, got 134217728"),
        (dict(slot_bytes=(1 << 32) + 16), "slot_bytes: want at most 134217727, got 4294967312"),
        (dict(path="sse2"), "cpu code path: want 'auto', 'scalar'.*, got 'sse2'"),
    ],
)
def test_encode_refuses(codec, rows, changes, message):
    arguments = encode_arguments(rows) | changes
    with pytest.raises(ValueError, match=message):
        cpu.encode(codec, **arguments)
    for name in ("slots", "bitmask", "overflow"):
        assert (arguments[name] == FILL).all(), "nothing is written"


CHANGED = "its payload has another length than when it was measured: the rows changed meanwhile"


@pytest.mark.parametrize("first_row", [0, 1_000])
def test_rows_that_need_an_overflow_index_and_have_none(codec, rows, first_row, cpu_path):
    """Only encoding can tell that they need one. It must not write to where a negative index would lead."""
    for missing in (-1, -2, -(1 << 63)):
        arguments = encode_arguments(rows)
        arguments["overflow_index"][8] = missing
        arguments["overflow"] = guarded(arguments["overflow"])
        with pytest.raises(ValueError, match=f"^row {first_row + 8}: {CHANGED}$"):
            cpu.encode(codec, **arguments, path=cpu_path, first_row=first_row)
        assert_bitwise_equal(arguments["overflow"][: 2 * ROW_BYTES], rows[[0, 4]].reshape(-1))
        assert (arguments["overflow"][2 * ROW_BYTES :] == FILL).all()


def test_rows_that_have_an_overflow_index_and_need_none(codec, rows, cpu_path):
    """A row that was too long when it was measured and is shorter now would leave a hole in the overflow area, with the
    bytes of nobody."""
    arguments = encode_arguments(rows)
    changed = rows.copy()
    changed[36] = rows[35]
    with pytest.raises(ValueError, match=f"^row 36: {CHANGED}$"):
        cpu.encode(codec, **arguments | dict(rows=changed), path=cpu_path)
    assert (arguments["overflow"][9 * ROW_BYTES :] == FILL).all()


def test_rows_that_changed_and_need_as_much_as_before(codec, rows, cpu_path):
    """What counts is where a row goes. It is stored as it was when it was encoded."""
    arguments = encode_arguments(rows)
    changed = rows.copy()
    changed[4] ^= 255
    changed[5] ^= 15
    cpu.encode(codec, **arguments | dict(rows=changed), path=cpu_path)
    encoded = oracle.encode(changed, MASK, BITVAL, CHUNK_BITS, SLOT_BYTES)
    for name in ("slots", "overflow"):
        assert_bitwise_equal(arguments[name][:-64], getattr(encoded, name)[:-64])
    assert_bitwise_equal(arguments["bitmask"], encoded.bitmask)


def test_a_row_that_changed_is_named_whichever_thread_has_it(cpu_path):
    """Big enough to be shared out among the threads."""
    n, row_bytes, slot_bytes = 20_000, 100, 70
    mask, bitval = np.full(row_bytes, 0xF0, np.uint8), np.zeros(row_bytes, np.uint8)
    codec = cpu.codec("ibp", mask=mask, bitval=bitval, chunk_bits=8)
    rows = np.zeros((n, row_bytes), np.uint8)
    buffers = filled(n * slot_bytes + 64), slot_bytes, filled(cpu.bitmask_bytes(n)), filled(row_bytes + 64)
    for row in (0, n // 2, n - 1):
        changed = rows.copy()
        changed[row] = 255
        for threads in (1, 2, 7):
            with pytest.raises(ValueError, match=f"^row {row}: {CHANGED}$"):
                cpu.encode(codec, changed, np.full(n, -1), *buffers, threads, cpu_path)


def test_slots_that_hold_raw_rows_need_no_overflow_index(codec, rows, cpu_path):
    expected = oracle.encode(rows, MASK, BITVAL, CHUNK_BITS, ROW_BYTES)
    for index in (-1, 0):
        slots, bitmask, overflow = filled(NUM_ROWS * ROW_BYTES + 64), filled(8), filled(ROW_BYTES + 64)
        cpu.encode(codec, rows, np.full(NUM_ROWS, index), slots, ROW_BYTES, bitmask, overflow, 1, cpu_path)
        assert_bitwise_equal(slots[:-64], expected.slots[:-64])
        assert_bitwise_equal(bitmask, expected.bitmask)
        assert (overflow == FILL).all()


def test_a_part_of_the_overflow_area(codec, rows, encoded, cpu_path):
    """The area starts with the row of this index; indices of rows before it are refused."""
    arguments = encode_arguments(rows)
    arguments["overflow_index"][arguments["overflow_index"] >= 0] += 1_000
    cpu.encode(codec, **arguments, path=cpu_path, first_overflow=1_000)
    assert_bitwise_equal(arguments["overflow"][:-64], encoded.overflow[:-64])
    assert_bitwise_equal(arguments["slots"][:4].view("<u4"), np.array([1_000], np.uint32))
    for index, message in ((999, "want at least 1000, got 999"), (1_010, "want below 1010, got 1010")):
        arguments = encode_arguments(rows)
        arguments["overflow_index"][arguments["overflow_index"] >= 0] = index
        with pytest.raises(ValueError, match=f"overflow_index: {message}"):
            cpu.encode(codec, **arguments, path=cpu_path, first_overflow=1_000)
        for name in ("slots", "bitmask", "overflow"):
            assert (arguments[name] == FILL).all(), "nothing is written"
    for first in ((1 << 32) - 9, (1 << 63) - 1):
        with pytest.raises(ValueError, match=f"overflow rows: want at most 4294967296, got 10 from {first} on"):
            cpu.encode(codec, **encode_arguments(rows), path=cpu_path, first_overflow=first)
    for name in ("first_overflow", "first_row"):
        with pytest.raises(ValueError, match=f"{name}: want at least 0, got -1"):
            cpu.encode(codec, **encode_arguments(rows), path=cpu_path, **{name: -1})


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        (dict(slots=filled(703)), ValueError, "slots bytes.*: want at least 704, got 703"),
        (dict(bitmask=filled(7)), ValueError, "bitmask bytes.*: want at least 8, got 7"),
        (dict(overflow=filled(63)), ValueError, "overflow bytes.*: want at least 64, got 63"),
        (dict(slot_bytes=3), ValueError, "slot_bytes: want at least 4, got 3"),
        (dict(slot_bytes=1 << 40), ValueError, "slot_bytes: want at most 134217727, got 1099511627776"),
        (dict(num_rows=41), ValueError, "slots bytes.*: want at least 720, got 704"),
        (dict(num_rows=-1), ValueError, "num_rows: want .*, got -1"),
        (dict(num_rows=1 << 62), ValueError, "num_rows: want .*, got 4611686018427387904"),
        (dict(num_rows=(1 << 63) - 1), ValueError, "num_rows: want .*, got 9223372036854775807"),
        (dict(ids=np.zeros(0, np.int64)), ValueError, "out rows: want 0, got 2"),
        (dict(ids=np.zeros(3, np.int64)), ValueError, "out rows: want 3, got 2"),
        (dict(out=filled(2, 23)), ValueError, "out row_bytes: want 24, got 23"),
        (dict(out=filled(2, 25)), ValueError, "out row_bytes: want 24, got 25"),
        (dict(ids=np.array([3, 40])), IndexError, "ids: want 0 <= id < 40, got 40 at position 1"),
        (dict(ids=np.array([-1, 40])), IndexError, "ids: want 0 <= id < 40, got -1 at position 0"),
        (dict(ids=np.array([0, -(1 << 63)])), IndexError, "got -9223372036854775808 at position 1"),
        (dict(ids=np.array([0, (1 << 63) - 1])), IndexError, "got 9223372036854775807 at position 1"),
        (dict(path="neon"), ValueError, "cpu code path: want 'auto', 'scalar'.*, got 'neon'"),
    ],
)
def test_decode_refuses(codec, encoded, changes, error, message):
    arguments = dict(
        slots=encoded.slots,
        slot_bytes=SLOT_BYTES,
        bitmask=encoded.bitmask,
        overflow=encoded.overflow,
        num_rows=NUM_ROWS,
        ids=np.array([0, 1]),
        out=filled(2, ROW_BYTES),
        threads=1,
    )
    arguments |= changes
    with pytest.raises(error, match=message):
        cpu.decode(codec, **arguments)
    assert (arguments["out"] == FILL).all(), "nothing is written"


def test_other_arrays_are_refused_and_not_copied(codec, rows, encoded):
    """A converted copy of an output would be written and thrown away, one of an input would cost what nobody sees."""
    lengths = np.full(NUM_ROWS, -7, np.int32)
    read_only = lengths.copy()
    read_only.flags.writeable = False
    for bad in (lengths.astype(np.int64), np.repeat(lengths, 2)[::2], read_only, lengths[None], lengths.tolist(), None):
        with pytest.raises(TypeError, match="incompatible function arguments"):
            cpu.measure(codec, rows, bad, 1)
    for bad in (rows.astype(np.int8), rows.astype(np.float32), np.asfortranarray(rows), rows[:, 0], None):
        with pytest.raises(TypeError, match="incompatible function arguments"):
            cpu.measure(codec, bad, lengths, 1)
        with pytest.raises(TypeError, match="incompatible function arguments"):
            cpu.count_ones(bad, np.zeros(192, np.int64), 1)
    for ids in (np.array([0.0]), np.array([np.nan]), np.array([0], np.int32), np.array([True])):
        with pytest.raises(TypeError, match="incompatible function arguments"):
            decode(codec, encoded, filled(1, ROW_BYTES), ids=ids)
    for out in (filled(1, ROW_BYTES).astype(np.int64), np.asfortranarray(filled(2, ROW_BYTES)), filled(ROW_BYTES)):
        with pytest.raises(TypeError, match="incompatible function arguments"):
            decode(codec, encoded, out)
    for name in ("slots", "bitmask", "overflow", "overflow_index"):
        arguments = encode_arguments(rows)
        arguments[name] = arguments[name].astype(np.int16)
        with pytest.raises(TypeError, match="incompatible function arguments"):
            cpu.encode(codec, **arguments)
    with pytest.raises(
        TypeError, match=r"mask: want an int, a bool, or contiguous uint8 or uint16 \[n\] in CPU memory"
    ):
        cpu.codec("ibp", mask=MASK.astype(np.int32), bitval=BITVAL, chunk_bits=8)
    assert (lengths == -7).all()


def test_codecs_by_name():
    with pytest.raises(ValueError, match="codec: want one of core/codec_list.h, got 'zip'"):
        cpu.codec("zip", mask=MASK)
    with pytest.raises(ValueError, match="bitval: want uint8 .*, got none"):
        cpu.codec("ibp", mask=MASK, chunk_bits=8)
    with pytest.raises(ValueError, match="chunk_bits: want a number, got none"):
        cpu.codec("ibp", mask=MASK, bitval=BITVAL)
    with pytest.raises(ValueError, match="chunk_bits: want 64 bits, got a larger number"):
        cpu.codec("ibp", mask=MASK, bitval=BITVAL, chunk_bits=1 << 70)


# --- damaged rows -------------------------------------------------------------------------------------------


def test_every_prefix_is_refused(codec, encoded, cpu_path):
    out = filled(NUM_ROWS, ROW_BYTES)
    for which, name in enumerate(("slots", "bitmask", "overflow")):
        for length in range(len(encoded[which])):
            buffers = list(encoded)
            buffers[which] = guarded(encoded[which][:length])
            with pytest.raises(
                ValueError, match=rf"{name} bytes.*, got {length}$|row 36: want an overflow index below [0-9], got 9$"
            ):
                decode(codec, buffers, out, ids=np.arange(NUM_ROWS)[::-1].copy(), path=cpu_path)


def test_one_more_byte_changes_nothing(codec, rows, encoded, cpu_path):
    for which in range(3):
        buffers = list(encoded)
        buffers[which] = np.append(encoded[which], np.uint8(255))
        out = filled(NUM_ROWS, ROW_BYTES)
        decode(codec, buffers, out, path=cpu_path)
        assert_bitwise_equal(out, rows)


def test_payloads_that_would_not_fit_are_refused(codec, encoded, cpu_path):
    """Row 1 is a payload of 12 participation bits and half of its 24 bytes, 108 bits in a slot of 128; each chunk that
    does not participate adds 8."""
    assert oracle.to_bits(encoded.bitmask)[1]
    for unset, fits in ((1, True), (2, True), (3, False), (12, False)):
        slots = encoded.slots.copy()
        participation = (1 << 12) - 1 & ~((1 << unset) - 1)
        at = SLOT_BYTES
        slots[at] = participation & 255
        slots[at + 1] = (slots[at + 1] & 0xF0) | (participation >> 8)
        buffers, out = (slots, encoded.bitmask, encoded.overflow), filled(1, ROW_BYTES)
        arguments = dict(ids=np.array([1]), path=cpu_path)
        if fits:
            decode(codec, buffers, out, **arguments)
            wanted = oracle.decode(*buffers, SLOT_BYTES, NUM_ROWS, MASK, BITVAL, CHUNK_BITS, ids=np.array([1]))
            assert_bitwise_equal(out, wanted)
        else:
            with pytest.raises(FormatError, match="row 1: want a payload of at most 16 bytes, got "):
                decode(codec, buffers, out, **arguments)


def test_payloads_as_long_as_the_row_are_refused(cpu_path):
    """Such a row is stored raw; format.h asks for payload_bytes < row_bytes also where the slot has room."""
    mask, bitval = np.array([255, 0], np.uint8), np.zeros(2, np.uint8)
    codec = cpu.codec("ibp", mask=mask, bitval=bitval, chunk_bits=8)
    slots, bitmask = np.zeros(8 + 64, np.uint8), np.array([1, 0, 0, 0], np.uint8)
    out = filled(1, 2)
    slots[0] = 0b10 | 0b1  # 2 participation bits, 8 others: 2 bytes
    with pytest.raises(FormatError, match="row 0: want a payload of at most 1 bytes"):
        decode(codec, (slots, bitmask, slots[8:]), out, num_rows=1, slot_bytes=8, path=cpu_path)


def test_overflow_indices_that_lead_nowhere_are_refused(codec, encoded, cpu_path):
    assert not oracle.to_bits(encoded.bitmask)[0]
    for index in (10, 255, 256, 1 << 31, (1 << 32) - 1):
        slots = encoded.slots.copy()
        slots[:4] = np.array([index], "<u4").view(np.uint8)
        with pytest.raises(FormatError, match=f"row 0: want an overflow index below 10, got {index}$"):
            decode(codec, (slots, encoded.bitmask, encoded.overflow), filled(1, ROW_BYTES), path=cpu_path)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    row_bytes=st.integers(1, 300),
    num_rows=st.integers(1, 40),
    chunk_log2=st.integers(3, 13),
    slot_share=st.floats(0, 1.3),
    num_overflow=st.integers(0, 3),
    mask_density=st.sampled_from([0, 0.1, 0.5, 0.9, 1]),
    seed=st.integers(0, 2**32),
)
def test_random_bytes_are_survived(
    cpu_path, row_bytes, num_rows, chunk_log2, slot_share, num_overflow, mask_density, seed
):
    """Random slots, bitmask and indices decode to what the oracle says, or are refused; guard pages and a border around
    the output watch that nothing else is touched."""
    rng = np.random.default_rng(seed)
    slot_bytes = max(min(4, row_bytes), int(slot_share * row_bytes))
    mask = np.packbits(rng.random((row_bytes, 8)) < mask_density, axis=1).reshape(-1)
    bitval = rng.integers(0, 256, row_bytes, np.uint8) & mask
    codec = cpu.codec("ibp", mask=mask, bitval=bitval, chunk_bits=1 << chunk_log2)
    slots = rng.integers(0, 256, num_rows * slot_bytes + 64, np.uint8)
    if rng.random() < 0.7:  # mostly participating, so that payloads fit more often
        slots |= rng.integers(0, 256, len(slots), np.uint8) | rng.integers(0, 256, len(slots), np.uint8)
    if slot_bytes < row_bytes:
        for i in rng.integers(0, num_rows, num_rows // 2):
            slots[i * slot_bytes : i * slot_bytes + 4] = [rng.integers(0, num_overflow + 1), 0, 0, 0]
    buffers = [
        guarded(slots),
        guarded(rng.integers(0, 256, cpu.bitmask_bytes(num_rows), np.uint8)),
        guarded(rng.integers(0, 256, num_overflow * row_bytes + 64, np.uint8)),
    ]
    for i in range(num_rows):
        ids = np.array([i])
        border = filled(3, row_bytes)
        out = border[1:2]
        try:
            wanted = oracle.decode(*buffers, slot_bytes, num_rows, mask, bitval, 1 << chunk_log2, ids)
        except FormatError:
            with pytest.raises(FormatError, match=f"^row {i}: want "):
                decode(codec, buffers, out, ids=ids, num_rows=num_rows, slot_bytes=slot_bytes, path=cpu_path)
        else:
            decode(codec, buffers, out, ids=ids, num_rows=num_rows, slot_bytes=slot_bytes, path=cpu_path)
            assert_bitwise_equal(out, wanted)
        assert (border[[0, 2]] == FILL).all()


def test_errors_in_threads_reach_the_caller(cpu_path):
    """Big enough to be shared out; the damaged row is in the last thread's part."""
    n, row_bytes = 20_000, 100
    mask, zeros = np.full(row_bytes, 255, np.uint8), np.zeros(row_bytes, np.uint8)
    codec = cpu.codec("ibp", mask=mask, bitval=zeros, chunk_bits=8)
    bitmask = np.zeros(cpu.bitmask_bytes(n), np.uint8)
    slots, overflow = np.zeros(n * 4 + 64, np.uint8), filled(row_bytes + 64)
    slots[(n - 1) * 4] = 1
    for threads in (1, 2, 7):
        out = filled(n, row_bytes) ^ 1
        with pytest.raises(FormatError, match=f"row {n - 1}: want an overflow index below 1, got 1"):
            cpu.decode(codec, slots, 4, bitmask, overflow, n, np.arange(n), out, threads, cpu_path)
        assert (out[:-1] == FILL).all(), "the other rows are there"


# --- choice of the code path --------------------------------------------------------------------------------


def load_alone(environment: dict[str, str]) -> subprocess.CompletedProcess:
    """Prints the default path of the extension, loaded without its package in a fresh process."""
    program = (
        "import importlib.util, sys; spec = importlib.util.spec_from_file_location('_cpu', sys.argv[1]); "
        "cpu = importlib.util.module_from_spec(spec); spec.loader.exec_module(cpu); print(cpu.default_path())"
    )
    arguments = [sys.executable, "-c", program, cpu.__file__]
    inherited = {key: value for key, value in os.environ.items() if key != "IBP_GNN_CPU"}
    return subprocess.run(arguments, env=inherited | environment, capture_output=True, text=True, timeout=60)


def test_the_environment_can_force_a_path():
    assert load_alone({}).stdout.strip() in ("avx512", "avx2", "scalar")
    assert load_alone({"IBP_GNN_CPU": ""}).stdout == load_alone({}).stdout
    assert load_alone({"IBP_GNN_CPU": "scalar"}).stdout.strip() == "scalar"
    refused = load_alone({"IBP_GNN_CPU": "mmx"})
    assert refused.returncode == 1 and "cpu code path: want 'auto', 'scalar'" in refused.stderr
    assert "got 'mmx'" in refused.stderr


def dynamic_symbols(path: str) -> tuple[set[bytes], set[bytes]]:
    """Names that a shared library defines for others, and names that it wants from others: the table `.dynsym` of a
    little-endian ELF file of 64 bits."""
    with open(path, "rb") as file:
        content = file.read()
    assert content[:6] == b"\x7fELF\x02\x01"
    sections_at, section_bytes, num_sections = (
        struct.unpack_from("<Q", content, 40)[0],
        *struct.unpack_from("<HH", content, 58),
    )
    sections = [
        struct.unpack_from("<IIQQQQIIQQ", content, sections_at + i * section_bytes) for i in range(num_sections)
    ]
    (symbols,) = (section for section in sections if section[1] == 11)  # SHT_DYNSYM
    names_at = sections[symbols[6]][4]
    defined, wanted = set(), set()
    for at in range(symbols[4], symbols[4] + symbols[5], symbols[9]):
        name_at, _, _, section = struct.unpack_from("<IBBH", content, at)
        name = content[names_at + name_at : content.index(b"\0", names_at + name_at)]
        (defined if section else wanted).add(name)
    return defined, wanted - {b""}


@pytest.mark.parametrize("name", ["_cpu", "_cuda"])
def test_the_extension_exports_its_entry_point_alone(name):
    """Where the linker puts the C++ library into each extension, exported copies of it mix with torch's, and the first
    error ends the process. Streams would share the state of locales all the same."""
    if name == "_cuda" and not _native.cuda_is_built():
        pytest.skip("the CUDA extension is not built")
    extension = cpu if name == "_cpu" else _native.cuda()
    defined, wanted = dynamic_symbols(extension.__file__)
    assert defined == {b"PyInit_" + name.encode()}
    assert b"PyErr_SetString" in wanted
    assert [symbol for symbol in wanted if b"stream" in symbol and symbol.startswith(b"_ZNSt")] == []


def test_the_extension_links_no_torch():
    with open(cpu.__file__, "rb") as file:
        content = file.read()
    assert b"libtorch" not in content and b"libc10" not in content
    assert importlib.util.find_spec("torch") is not None and torch.__version__.encode() not in content

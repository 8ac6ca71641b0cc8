"""Codec "ibp": the same bytes from every backend, any bytes survived, and what it saves on real data."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from codec_cases import every_dtype, every_kind, needs_glove
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from ibp_cases import assert_as_the_oracle, fit, forced_codec, make_codec
from matrices import part_of

from ibp_gnn import CompressedRows, FormatError
from ibp_gnn.codec.values import SUPPORTED_DTYPES
from ibp_gnn.datasets import load_dataset
from ibp_gnn.testing import KINDS, assert_bitwise_equal, oracle, special_rows

WIDTHS = (1, 2, 3, 31, 32, 33, 50, 100, 128, 602, 1433)
# None: fitted. The others: bits of a chunk, and a slot's length as a share of the row's (1 is in place).
FORMS = (None, (8, 0.75), (16, 1), (64, 0.5), (4096, 0.875))


@every_dtype
@every_kind
def test_same_bytes_as_the_oracle(dtype, kind, backend):
    for width in part_of(WIDTHS, SUPPORTED_DTYPES.index(dtype), KINDS.index(kind), of=4):
        rows = special_rows(dtype, width, kind, n=40 if width <= 128 else 14)  # the oracle is slow
        rows_there = rows.to(backend)
        for form in FORMS:
            if form is None:
                codec, slot_bytes = fit(rows_there), None
            else:
                codec = forced_codec(rows, form[0])
                slot_bytes = codec.row_bytes if form[1] == 1 else max(4, int(form[1] * codec.row_bytes))
            compressed = codec.compress(rows_there, slot_bytes=slot_bytes)
            assert compressed.device == backend
            assert_as_the_oracle(codec, rows, compressed)
            decoded = codec.decompress(compressed)
            assert decoded.device == backend
            assert_bitwise_equal(decoded, rows)


def test_the_matrix_has_every_kind_of_slot():
    """Or the test above could not fail where it matters."""
    kinds = set()
    for kind in KINDS:
        rows = special_rows(torch.float32, 50, kind)
        for form in FORMS[1:]:
            codec = forced_codec(rows, form[0])
            slot_bytes = int(form[1] * codec.row_bytes)
            compressed = codec.compress(rows, slot_bytes=slot_bytes).is_compressed()
            kinds |= {(form[0], form[1] == 1, bool(bit)) for bit in compressed}
    assert kinds == {(bits, share == 1, bit) for bits, share in FORMS[1:] for bit in (False, True)}


def test_golden_files(golden, backend):
    codec, rows = golden.codec, golden.tensor(backend)
    assert_bitwise_equal(codec.measure(rows), golden.payload_bytes)
    compressed = codec.compress(rows, slot_bytes=golden.slot_bytes)
    for name in ("slots", "bitmask", "overflow"):
        assert_bitwise_equal(getattr(compressed, name), getattr(golden, name))
    buffers = [torch.from_numpy(part).to(backend) for part in (golden.slots, golden.bitmask, golden.overflow)]
    stored = CompressedRows(len(rows), codec.row_bytes, golden.slot_bytes, *buffers)
    assert_bitwise_equal(codec.decompress(stored), rows)


@pytest.mark.slow
@every_dtype
def test_ten_million_values(dtype, backend):
    """Random bits but for the upper third of a value, which is that of its column in about 999 of 1000 values, so that
    most rows are payloads, some are raw, and every chunk of a payload may be whole or packed."""
    n, width = 100_000, 100
    generator = torch.Generator().manual_seed(7)
    bits = 8 * dtype.itemsize
    # bool values are only ever 0 and 1: bit 0 of mostly equal bytes.
    high = ((1 << bits) - 1) ^ ((1 << (bits - bits // 3)) - 1) if dtype is not torch.bool else 1
    word = {8: torch.uint8, 16: torch.int16, 32: torch.int32, 64: torch.int64}[bits]

    def words(*shape: int) -> torch.Tensor:
        count = int(np.prod(shape)) * bits // 8
        padded = torch.randint(-(1 << 63), (1 << 63) - 1, (-(-count // 8),), generator=generator)
        return padded.view(torch.uint8)[:count].view(word).view(*shape)

    signed_high = torch.tensor(high - (1 << bits) if high >> (bits - 1) and bits > 8 else high, dtype=word)
    escapes = torch.randint(1000, (n, width), generator=generator) == 0
    raw = torch.randint(10, (n, 1), generator=generator) == 0
    random = words(n, width)
    values = torch.where(escapes | raw, random, (random & ~signed_high) | (words(1, width) & signed_high))
    if dtype is torch.bool:
        values &= 1
    rows = values.view(dtype).to(backend)
    assert rows.numel() == 10_000_000
    codec = fit(rows, threshold=0.8)
    compressed = codec.compress(rows)
    assert 0.5 < compressed.is_compressed().double().mean() <= 1 - 0.05 * (dtype is not torch.bool)
    assert compressed.nbytes < rows.nbytes
    assert_bitwise_equal(codec.decompress(compressed), rows)


@st.composite
def hostile_rows(draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray, np.ndarray, int, int]:
    """rows [n, row_bytes], mask, bitval, chunk_bits, slot_bytes; some rows agree with bitval, some nearly."""
    row_bytes, n = draw(st.integers(1, 70)), draw(st.integers(0, 40))
    mask = np.frombuffer(draw(st.binary(min_size=row_bytes, max_size=row_bytes)), np.uint8)
    bitval = np.frombuffer(draw(st.binary(min_size=row_bytes, max_size=row_bytes)), np.uint8) & mask
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    noise = rng.integers(0, 256, (n, row_bytes), np.uint8)
    flips = (noise & mask) * (rng.random((n, row_bytes)) < rng.choice([0, 0.02, 0.2, 1], (n, 1)))
    rows = (bitval ^ flips.astype(np.uint8)) | (noise & ~mask)
    chunk_bits = 1 << draw(st.integers(3, 12))
    slot_bytes = draw(st.integers(min(4, row_bytes), row_bytes + 9))
    return rows, mask, bitval, chunk_bits, slot_bytes


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(case=hostile_rows())
@example(case=(np.zeros((0, 5), np.uint8), np.zeros(5, np.uint8), np.zeros(5, np.uint8), 8, 4))
@example(case=(np.full((33, 1), 9, np.uint8), np.full(1, 255, np.uint8), np.full(1, 9, np.uint8), 8, 1))
def test_any_bytes_masks_chunks_and_slots(backend, case):
    rows, mask, bitval, chunk_bits, slot_bytes = case
    tensor = torch.from_numpy(rows)
    codec = make_codec(tensor, mask, bitval, chunk_bits)
    compressed = codec.compress(tensor.to(backend), slot_bytes=slot_bytes)
    assert_as_the_oracle(codec, tensor, compressed)
    ids = torch.from_numpy(np.random.default_rng(len(rows)).permutation(len(rows)))
    assert_bitwise_equal(codec.decompress(compressed, ids), rows[ids.numpy()])


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(case=hostile_rows())
def test_slots_made_by_the_oracle_are_read(backend, case):
    rows, mask, bitval, chunk_bits, slot_bytes = case
    encoded = oracle.encode(rows, mask, bitval, chunk_bits, slot_bytes)
    codec = make_codec(torch.from_numpy(rows), mask, bitval, chunk_bits)
    buffers = [torch.from_numpy(part).to(backend) for part in encoded]
    stored = CompressedRows(len(rows), codec.row_bytes, slot_bytes, *buffers)
    assert_bitwise_equal(codec.decompress(stored), rows)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(case=hostile_rows(), seed=st.integers(0, 2**32))
def test_random_bytes_decode_as_by_the_oracle_or_not_at_all(backend, case, seed):
    _, mask, bitval, chunk_bits, slot_bytes = case
    row_bytes, n, num_overflow = len(mask), 9, 3
    rng = np.random.default_rng(seed)
    slots = rng.integers(0, 256, n * slot_bytes + 64, np.uint8)
    bitmask, overflow = rng.integers(0, 256, 4, np.uint8), rng.integers(0, 256, 3 * row_bytes + 64, np.uint8)
    for i in range(0, n, 2) if slot_bytes < row_bytes else ():  # some indices that lead somewhere
        slots[i * slot_bytes : i * slot_bytes + 4] = [rng.integers(0, num_overflow + 1), 0, 0, 0]
    codec = make_codec(torch.zeros(0, row_bytes, dtype=torch.uint8), mask, bitval, chunk_bits)
    buffers = [torch.from_numpy(part).to(backend) for part in (slots, bitmask, overflow)]
    stored = CompressedRows(n, row_bytes, slot_bytes, *buffers)
    for i in range(n):
        ids = np.array([i])
        arguments = slots, bitmask, overflow, slot_bytes, n, mask, bitval, chunk_bits, ids
        try:
            expected = oracle.decode(*arguments)
        except FormatError:
            with pytest.raises(FormatError, match=f"row {i}\\b"):
                codec.decompress(stored, torch.from_numpy(ids))
        else:
            assert_bitwise_equal(codec.decompress(stored, torch.from_numpy(ids)), expected)


@pytest.mark.parametrize(("features", "savings"), [pytest.param("glove", 0.125, marks=needs_glove), ("bow", 0.95)])
def test_wordnet_savings(backend, features, savings):
    rows = load_dataset("wordnet", features).features.to(backend)
    assert rows.dtype == torch.float32
    codec = fit(rows)
    report = codec.report(rows)
    assert report.savings >= savings
    rows = rows[:: 1 if features == "glove" else 8]
    compressed = codec.compress(rows)
    assert_bitwise_equal(codec.decompress(compressed), rows)
    assert compressed.nbytes + codec.nbytes <= 0.93 * compressed.raw_nbytes

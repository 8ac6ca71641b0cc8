"""Codec: the same bytes from every backend, the same bits back, the smallest codec, and what is refused."""

from __future__ import annotations

import dataclasses
import functools
import pickle

import numpy as np
import pytest
import torch
from backends import ask_oracle_once
from codec_cases import byte_matrix, every_dtype, every_kind, needs_glove, some_dtypes_and_kinds
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from matrices import part_of

from ibp_gnn import Codec, CompressedRows, FormatError, _native
from ibp_gnn.codec import dispatch as dispatch
from ibp_gnn.codec import slot_length
from ibp_gnn.codec.ibp import IbpForm
from ibp_gnn.codec.values import SUPPORTED_DTYPES, to_bytes
from ibp_gnn.datasets import load_dataset
from ibp_gnn.testing import KINDS, assert_bitwise_equal, oracle, special_rows

WIDTHS = (1, 2, 3, 31, 32, 33, 50, 100, 128, 602, 1433)
# None: fitted. The others: bits of a chunk, and a slot's length as a share of the row's (1 is in place).
FORMS = (None, (8, 0.75), (16, 1), (64, 0.5), (4096, 0.875))

fit = functools.partial(Codec.fit, codec="ibp")  # tests/codec/test_dict.py has the others


def make_codec(rows: torch.Tensor, mask: np.ndarray, bitval: np.ndarray, chunk_bits: int) -> Codec:
    return Codec(rows.dtype, tuple(rows.shape[1:]), IbpForm(mask, bitval, 8, chunk_bits // 8, threshold=0.7))


def forced_codec(rows: torch.Tensor, chunk_bits: int) -> Codec:
    matrix = byte_matrix(rows)
    mask, bitval = oracle.invariant_bits(oracle.count_ones(matrix), len(matrix), 0.7)
    return make_codec(rows, mask, bitval, chunk_bits)


def assert_as_the_oracle(codec: Codec, rows: torch.Tensor, compressed: CompressedRows) -> None:
    form = codec.form.mask_bytes, codec.form.bitval_bytes, codec.form.chunk_bits
    question = byte_matrix(rows), *form, compressed.slot_bytes
    buffers = compressed.slots, compressed.bitmask, compressed.overflow

    def compare() -> None:
        for buffer, wanted in zip(buffers, oracle.encode(*question), strict=True):
            assert_bitwise_equal(buffer, wanted)

    ask_oracle_once(("ibp", *question), buffers, compare)


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


@some_dtypes_and_kinds
def test_measure_and_count_ones_as_the_oracle(dtype, kind, backend):
    for width in (1, 3, 33, 602):
        rows = special_rows(dtype, width, kind)
        matrix = byte_matrix(rows)
        ones = dispatch.count_ones(to_bytes(rows.to(backend)))
        assert_bitwise_equal(ones, oracle.count_ones(matrix))
        for chunk_bits in (8, 32, 128):
            codec = forced_codec(rows, chunk_bits)
            lengths = codec.measure(rows.to(backend))
            assert lengths.device == backend
            assert_bitwise_equal(
                lengths, oracle.measure(matrix, codec.form.mask_bytes, codec.form.bitval_bytes, chunk_bits)
            )


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


# --- shapes, strides, and where rows come from --------------------------------------------------------------


@pytest.mark.parametrize("row_shape", [(), (1,), (7,), (2, 3), (1, 1, 4), (5, 1)])
@pytest.mark.parametrize("n", [0, 1, 33])
def test_row_shapes_come_back(backend, row_shape, n):
    rows = special_rows(torch.float32, int(np.prod(row_shape)), "outliers", n=40).reshape(40, *row_shape)
    rows = rows.to(backend)
    codec = fit(rows)
    assert codec.row_shape == row_shape
    compressed = codec.compress(rows[:n])
    assert (compressed.num_rows, compressed.raw_nbytes) == (n, n * codec.row_bytes)
    assert_bitwise_equal(codec.decompress(compressed), rows[:n])
    empty = codec.decompress(compressed, torch.empty(0, dtype=torch.int32))
    assert_bitwise_equal(empty, rows[:0])
    assert len(codec.measure(rows[:n])) == n


def test_strided_rows_are_taken(backend):
    base = special_rows(torch.float32, 60, "outliers", n=80).to(backend)
    codec = fit(base[:, ::2])
    one_value = fit(base[:, 0])
    views = {
        "every other column": (codec, base[:, ::2]),
        "every other row": (codec, base[::2, :30]),
        "transposed": (codec, base.t()[:, :30]),
        "one row repeated": (codec, base[:1, :30].expand(40, 30)),
        "a column": (one_value, base[:, 3]),
        "a stride on one value": (one_value, base[:1, 3].as_strided((1,), (7,))),
        "offset": (codec, base.view(-1)[1:31].view(1, 30)),
    }
    for name, (fitted, view) in views.items():
        assert name == "offset" or view.stride(-1) != 1 or view.stride(0) != view[0].numel(), name
        assert_bitwise_equal(fitted.decompress(fitted.compress(view)), view.contiguous())
    column = base[:1, :20].t()  # [20, 1] with strides (1, 60), which torch calls contiguous
    fitted = fit(column)
    assert_bitwise_equal(fitted.decompress(fitted.compress(column)), column.clone())


def test_gradients_and_lazy_negation_are_only_values(backend):
    rows = special_rows(torch.float32, 8, "outliers").to(backend)
    codec = fit(rows.clone().requires_grad_())
    decoded = codec.decompress(codec.compress(rows.clone().requires_grad_()))
    assert not decoded.requires_grad
    assert_bitwise_equal(decoded, rows)
    negated = torch._neg_view(rows)
    assert negated.is_neg()
    assert_bitwise_equal(codec.decompress(codec.compress(negated)), -rows)


def test_numpy_rows_are_taken(tmp_path):
    rows = special_rows(torch.float16, 12, "outliers", n=50)
    array = rows.numpy()
    codec = fit(array)
    np.save(tmp_path / "rows.npy", array)
    read_only = array.copy()
    read_only.flags.writeable = False
    unaligned = np.frombuffer(b"x" + array.tobytes(), np.uint8)[1:].view(np.float16).reshape(array.shape)
    packed = np.zeros(array.shape, np.dtype([("flag", "u1"), ("value", "f2")]))
    packed["value"] = array
    assert not unaligned.flags.aligned and packed["value"].strides[-1] == 3
    for source in (
        array,
        read_only,
        np.load(tmp_path / "rows.npy", mmap_mode="r"),
        np.load(tmp_path / "rows.npy", mmap_mode="r+"),
        np.asfortranarray(array),
        np.ascontiguousarray(array[::-1])[::-1],
        unaligned,
        packed["value"],
    ):
        assert_bitwise_equal(codec.decompress(codec.compress(source)), rows)
        assert_bitwise_equal(codec.measure(source), codec.measure(rows))
        assert fit(source).form.mask_bytes.tobytes() == codec.form.mask_bytes.tobytes()


def test_ids(backend):
    rows = special_rows(torch.int32, 9, "outliers").to(backend)
    codec = fit(rows)
    compressed = codec.compress(rows)
    for ids in ([3, 3, 0, 39, 3], [], list(range(39, -1, -1))):
        for dtype in (torch.int64, torch.int32):
            tensor = torch.tensor(ids, dtype=dtype)
            assert_bitwise_equal(codec.decompress(compressed, tensor), rows[tensor.to(backend).long()])
            assert_bitwise_equal(codec.decompress(compressed, tensor.numpy()), rows[tensor.to(backend).long()])
    strided = torch.arange(40, device=backend)[::3]
    assert_bitwise_equal(codec.decompress(compressed, strided), rows[::3])
    read_only = np.arange(40)
    read_only.flags.writeable = False
    assert_bitwise_equal(codec.decompress(compressed, read_only[::-2]), rows[torch.arange(39, -1, -2)])


def test_out_is_filled(backend):
    rows = special_rows(torch.bfloat16, 5, "outliers").to(backend)
    codec = fit(rows)
    compressed = codec.compress(rows)
    room = torch.zeros(12, 5, dtype=torch.bfloat16, device=backend)
    ids = torch.tensor([7, 5])
    out = codec.decompress(compressed, ids, out=room[4:6])
    assert out.data_ptr() == room[4:6].data_ptr()
    assert_bitwise_equal(room[4:6], rows[ids.to(backend)])
    assert_bitwise_equal(torch.cat([room[:4], room[6:]]), torch.zeros(10, 5, dtype=torch.bfloat16))


def test_threads_do_not_change_bytes(monkeypatch, cpu_path):
    """Enough rows to be shared out, and not a multiple of the 32 that share a bitmask word."""
    monkeypatch.setattr(_native, "cpu_path", cpu_path)
    rows = special_rows(torch.float32, 50, "outliers", n=20_011)
    ids = torch.from_numpy(np.random.default_rng(0).integers(0, len(rows), 30_000))
    results = []
    before = torch.get_num_threads()
    try:
        for threads in (1, 2, 5):
            torch.set_num_threads(threads)
            codec = fit(rows)
            compressed = codec.compress(rows)
            buffers = compressed.slots, compressed.bitmask, compressed.overflow
            results.append(
                (*buffers, codec.measure(rows), dispatch.count_ones(to_bytes(rows)), codec.decompress(compressed, ids))
            )
            damaged = compressed.slots.clone()
            damaged[: compressed.slot_bytes * (len(rows) - 1)] = 0
            with pytest.raises(FormatError, match="row "):
                codec.decompress(dataclasses.replace(compressed, slots=damaged))
    finally:
        torch.set_num_threads(before)
    assert results[0][2].numel() > 64
    for other in results[1:]:
        for one, two in zip(results[0], other, strict=True):
            assert_bitwise_equal(one, two)
    assert_bitwise_equal(results[0][-1], rows[ids])


def test_codecs_can_be_pickled(backend):
    rows = special_rows(torch.float16, 33, "outliers").to(backend)
    codec = fit(rows)
    compressed = codec.compress(rows)  # the extension's own form of the codec exists by now
    copy = pickle.loads(pickle.dumps(codec))
    assert len(pickle.dumps(codec)) < 2000
    assert (copy.dtype, copy.row_shape, copy.row_bytes) == (torch.float16, (33,), 66)
    assert (copy.word_bits, copy.words_per_chunk, copy.threshold) == (
        codec.word_bits,
        codec.words_per_chunk,
        codec.threshold,
    )
    assert_bitwise_equal(copy.decompress(compressed), rows)
    assert_bitwise_equal(copy.compress(rows).slots, compressed.slots)


# --- fit ----------------------------------------------------------------------------------------------------


def assert_fit_is_the_oracles(rows: torch.Tensor, device: torch.device) -> None:
    matrix, bits, codec = byte_matrix(rows), 8 * rows.dtype.itemsize, fit(rows.to(device))
    found = codec.form.mask_bytes, codec.form.bitval_bytes, codec.word_bits, codec.words_per_chunk, codec.threshold

    def compare() -> None:
        wanted = oracle.fit(matrix, bits)
        assert_bitwise_equal(found[0], wanted.mask)
        assert_bitwise_equal(found[1], wanted.bitval)
        assert found[2:] == wanted[2:]

    ask_oracle_once(("fit ibp", matrix, bits), found, compare)


@every_dtype
@every_kind
def test_fit_finds_what_the_oracle_finds(dtype, kind, backend):
    for width, n in ((1, 40), (3, 7), (33, 40)):
        assert_fit_is_the_oracles(special_rows(dtype, width, kind, n=n), backend)


@pytest.mark.parametrize(
    ("word_bits", "words_per_chunk", "threshold"),
    [(16, None, None), (None, 4, None), (None, None, 0.7), (64, 2, None), (8, 1, 1.0), (32, None, 0.5), (64, 64, 0.9)],
)
def test_fit_keeps_what_it_is_given(backend, word_bits, words_per_chunk, threshold):
    rows = special_rows(torch.float32, 33, "powers_of_two")
    rows[:20] = special_rows(torch.float32, 33, "outliers")[:20]
    given_parts = dict(word_bits=word_bits, words_per_chunk=words_per_chunk, threshold=threshold)
    codec = fit(rows.to(backend), **given_parts)
    wanted = oracle.fit(byte_matrix(rows), 32, **given_parts)
    assert_bitwise_equal(codec.form.mask_bytes, wanted.mask)
    assert (codec.word_bits, codec.words_per_chunk, codec.threshold) == wanted[2:]
    for name, value in given_parts.items():
        assert value is None or getattr(codec, name) == value


def test_fit_stops_at_chunks_of_4096_bits(backend):
    """Equal rows of 8 KiB: longer chunks are better, 2 bytes of participation bits with the longest that is tried."""
    rows = torch.full((3, 8192), 7, dtype=torch.uint8, device=backend)
    codec = fit(rows)
    assert (codec.word_bits, codec.words_per_chunk, codec.threshold) == (8, 512, 0.5)
    assert codec.measure(rows).tolist() == [2, 2, 2]


def test_fit_looks_at_a_sample_of_max_rows(backend, tmp_path):
    rows = special_rows(torch.float32, 6, "outliers", n=500)
    rows[::2] = special_rows(torch.float32, 6, "powers_of_two", n=250)
    np.save(tmp_path / "rows.npy", rows.numpy())
    for seed in (0, 5):
        codec = fit(rows.to(backend), max_rows=60, seed=seed)
        picked = np.sort(np.random.default_rng(seed).choice(500, 60, replace=False))
        wanted = oracle.fit(byte_matrix(rows)[picked], 32)
        assert_bitwise_equal(codec.form.mask_bytes, wanted.mask)
        assert_bitwise_equal(codec.form.bitval_bytes, wanted.bitval)
        mapped = fit(np.load(tmp_path / "rows.npy", mmap_mode="r"), max_rows=60, seed=seed)
        assert mapped.form.mask_bytes.tobytes() == codec.form.mask_bytes.tobytes()


@every_dtype
def test_fit_samples_every_dtype(dtype, backend):
    rows = special_rows(dtype, 4, "outliers", n=100).to(backend)
    codec = fit(rows, max_rows=50)
    assert_bitwise_equal(codec.decompress(codec.compress(rows)), rows)


def test_fit_is_repeatable(backend):
    rows = special_rows(torch.float32, 64, "outliers", n=3000).to(backend)
    one, two = (fit(rows, max_rows=1000, seed=3) for _ in range(2))
    assert pickle.dumps(one) == pickle.dumps(two)


def test_mask_and_bitval_are_words():
    rows = torch.tensor([[1.0, -1.0, 0.5], [1.0, -1.0, 0.5]])
    codec = fit(rows, word_bits=32, words_per_chunk=1)
    assert codec.mask.dtype == np.uint32 and codec.mask.tolist() == [0xFFFFFFFF] * 3
    assert codec.bitval.tolist() == [0x3F800000, 0xBF800000, 0x3F000000]
    codec = fit(rows, word_bits=64, words_per_chunk=1)
    assert codec.mask.tolist() == [0xFFFFFFFFFFFFFFFF, 0x00000000FFFFFFFF], "a row may end inside a word"
    assert codec.bitval.tolist() == [0xBF8000003F800000, 0x3F000000]
    assert codec.nbytes == 24


def test_best_slot_bytes_by_hand():
    # 10 rows of 20 bytes: 6 payloads of 5 bytes, 3 of 9, one row that does not get shorter.
    histogram = slot_length.payload_histogram(torch.tensor([5] * 6 + [9] * 3 + [21], dtype=torch.int32), 20)
    assert histogram.tolist() == [0] * 5 + [6] + [0] * 3 + [3] + [0] * 10 + [1]
    # Slots of 4: 40 + 10 * 20; of 8: 80 + 4 * 20 = 160; of 12: 120 + 1 * 20 = 140; of 16: 180; in place: 200.
    assert slot_length.best_slot_bytes(histogram, 20) == 12
    raw = slot_length.payload_histogram(torch.tensor([30, 30], dtype=torch.int32), 20)
    assert slot_length.best_slot_bytes(raw, 20) == 20
    assert slot_length.best_slot_bytes(torch.tensor([0, 5, 0, 0]), 3) == 3, "no slot is shorter than an overflow index"


@pytest.mark.parametrize(
    ("payload_bytes", "slot_bytes"),
    [
        (443, 448),
        (436, 448),  # 2.8 % more; slots of 436 bytes would be 464 in whole sectors, 3.6 % more
        (432, 432),  # 448 in whole sectors: nothing to gain
        (449, 452),  # 480 is 6 % more
        (684, 684),  # 704 is 2.9 % more, and saves 1.1 %
    ],
)
def test_slots_start_sectors_where_that_is_worth_it(payload_bytes, slot_bytes):
    lengths = torch.full((100,), payload_bytes, dtype=torch.int32)
    assert slot_length.best_slot_bytes(slot_length.payload_histogram(lengths, 1024), 1024) == slot_bytes


def test_compress_takes_the_smallest_total(backend):
    rows = special_rows(torch.float32, 50, "outliers").to(backend)
    codec = fit(rows)
    sizes = {slot_bytes: codec.compress(rows, slot_bytes=slot_bytes).nbytes for slot_bytes in range(4, 204, 4)}
    assert codec.compress(rows).nbytes == min(sizes.values())
    assert len(set(sizes.values())) > 10


def test_report_counts_every_byte(backend):
    """Rows of 4 bytes in chunks of 8 bits; the first three are invariant, but not in all rows, the last is noise."""
    regular = [[1, 2, 3, 17 * i] for i in range(5)]
    rows = torch.tensor([[1, 2, 9, 1], [9, 9, 9, 2], *regular, [9, 9, 3, 3]], dtype=torch.uint8)
    mask, bitval = np.array([255, 255, 255, 0], np.uint8), np.array([1, 2, 3, 0], np.uint8)
    codec = make_codec(rows, mask, bitval, 8)
    report = codec.report(rows.to(backend))
    # Payloads: 4 + 8 bits = 2 bytes, 5 times; 20 bits = 3 bytes; 28 bits = 4 bytes and 36 bits = 5 bytes are no
    # shorter than the row, so these two are stored raw, 4 bytes each.
    assert report.codec == "ibp"
    assert (report.num_rows, report.raw_bytes, report.payload_bytes) == (8, 32, 5 * 2 + 3 + 2 * 4)
    assert report.metadata_bytes == 4 + 8, "8 bitmask bits take 4 bytes; mask and bitval"
    assert report.bits_per_value == 8 * (21 + 12) / 32
    assert report.savings == 1 - 33 / 32
    assert report.compressed_share == 0.75
    assert report.payload_percentiles == {"p0": 2, "p5": 2, "p50": 2, "p95": 4, "p100": 4}


# --- what is refused ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rows", "error", "message"),
    [
        (torch.zeros(0, 3), ValueError, r"want at least 1 row to fit a codec, got shape \[0, 3\]"),
        (torch.zeros(3, 0), ValueError, r"want at least 1 value per row, got shape \[3, 0\]"),
        (np.zeros((3, 2, 0)), ValueError, r"want at least 1 value per row, got shape \[3, 2, 0\]"),
        (torch.zeros(()), ValueError, r"want \[n, \*row_shape\], got a scalar"),
        (torch.zeros(3, 2, dtype=torch.complex64), TypeError, "want one of .*'float32'.*, got torch.complex64"),
        (np.zeros((3, 2), np.complex64), TypeError, "want one of .*'float32'.*, got numpy complex64"),
        (np.zeros((3, 2), ">f4"), TypeError, ".* in native byte order, got numpy >f4"),
        (np.zeros((3, 2), np.uint16), TypeError, ".*got numpy uint16"),
        (np.zeros((3, 2), object), TypeError, ".*got numpy object"),
        (torch.zeros(3, 2).to_sparse(), TypeError, "want a dense tensor, got layout torch.sparse_coo"),
        (torch.zeros(3, 2, device="meta"), ValueError, "want a tensor on cpu or cuda, got meta"),
        ([[1.0, 2.0]], TypeError, "want a torch.Tensor or a numpy.ndarray, got list"),
        (None, TypeError, "want a torch.Tensor or a numpy.ndarray, got NoneType"),
    ],
)
def test_fit_refuses_rows(rows, error, message):
    with pytest.raises(error, match=f"rows: {message}"):
        fit(rows)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (dict(codec="zip"), r"codec: want one of \[.*'ibp'.*\], got 'zip'"),
        (dict(word_bits=24), r"word_bits: want one of \[8, 16, 32, 64\], got 24"),
        (dict(word_bits=0), r"word_bits: want one of \[8, 16, 32, 64\], got 0"),
        (dict(words_per_chunk=3), "words_per_chunk: want a power of two, got 3"),
        (dict(words_per_chunk=0), "words_per_chunk: want a power of two, got 0"),
        (dict(words_per_chunk=-2), "words_per_chunk: want a power of two, got -2"),
        (dict(words_per_chunk=2.0), "words_per_chunk: want a power of two, got 2.0"),
        (dict(words_per_chunk=1 << 40), "words_per_chunk: want at most 134217728, got 1099511627776"),
        (dict(threshold=0.49), "threshold: want 0.5 to 1, got 0.49"),
        (dict(threshold=1.01), "threshold: want 0.5 to 1, got 1.01"),
        (dict(threshold=float("nan")), "threshold: want 0.5 to 1, got nan"),
        (dict(max_rows=0), "max_rows: want at least 1, got 0"),
    ],
)
def test_fit_refuses_arguments(arguments, message):
    with pytest.raises(ValueError, match=message):
        fit(torch.ones(4, 3), **arguments)


@pytest.mark.parametrize("method", ["compress", "measure", "report"])
def test_other_rows_are_refused(backend, method):
    codec = fit(torch.ones(4, 3))
    call = getattr(codec, method)
    for rows, got in (
        (torch.ones(4, 2), r"\[4, 2\] torch.float32"),
        (torch.ones(4, 3, 1), r"\[4, 3, 1\] torch.float32"),
        (torch.ones(3), r"\[3\] torch.float32"),
        (torch.ones(()), r"\[\] torch.float32"),
        (torch.ones(4, 3, dtype=torch.float64), r"\[4, 3\] torch.float64"),
        (torch.ones(4, 3, dtype=torch.int32), r"\[4, 3\] torch.int32"),
    ):
        with pytest.raises(ValueError, match=rf"rows: want \[n, 3\] torch.float32, got {got}"):
            call(rows.to(backend))
    with pytest.raises(TypeError, match="rows: want a torch.Tensor or a numpy.ndarray, got list"):
        call([[1.0, 2.0, 3.0]])


def test_report_refuses_no_rows(backend):
    with pytest.raises(ValueError, match="rows: want at least 1 row to report on, got 0"):
        fit(torch.ones(4, 3)).report(torch.ones(0, 3, device=backend))


def test_compress_refuses_slot_lengths(backend):
    rows = special_rows(torch.float32, 8, "outliers").to(backend)
    codec = fit(rows)
    for slot_bytes in (3, 1, 0, -1, -100):
        with pytest.raises(ValueError, match=f"slot_bytes: want .*at least 4.*, got {slot_bytes}\\b"):
            codec.compress(rows, slot_bytes=slot_bytes)
    narrow = fit(rows[:, 0].to(torch.int8))
    assert narrow.compress(rows[:, 0].to(torch.int8), slot_bytes=1).slot_bytes == 1, "a raw row fits"


def test_decompress_refuses_ids(backend):
    rows = special_rows(torch.float32, 8, "outliers", n=10).to(backend)
    codec = fit(rows)
    compressed = codec.compress(rows)
    for bad in (10, -1, 1 << 40, -(1 << 40), -(1 << 63), (1 << 63) - 1):
        with pytest.raises(IndexError, match=f"ids: want 0 <= id < 10, got {bad}\\b"):
            codec.decompress(compressed, torch.tensor([0, 9, bad, 3]))
    for bad in (10, -1, (1 << 31) - 1, -(1 << 31)):
        with pytest.raises(IndexError, match=f"ids: want 0 <= id < 10, got {bad}\\b"):
            codec.decompress(compressed, torch.tensor([0, 9, bad, 3], dtype=torch.int32))
    nothing = codec.compress(rows[:0])
    with pytest.raises(IndexError, match="ids: want 0 <= id < 0, got 0"):
        codec.decompress(nothing, torch.tensor([0]))
    assert_bitwise_equal(codec.decompress(compressed), rows)  # an error leaves nothing behind


@pytest.mark.parametrize(
    ("ids", "error", "message"),
    [
        (torch.tensor([float("nan")]), TypeError, "ids: want int32 or int64, got torch.float32"),
        (torch.tensor([1.0]), TypeError, "ids: want int32 or int64, got torch.float32"),
        (torch.tensor([True]), TypeError, "ids: want int32 or int64, got torch.bool"),
        (torch.tensor([1], dtype=torch.uint8), TypeError, "ids: want int32 or int64, got torch.uint8"),
        (np.array([np.nan]), TypeError, "ids: want an int32 or int64 tensor, got numpy float64"),
        (np.array([1], ">i8"), TypeError, "ids: want an int32 or int64 tensor, got numpy >i8"),
        ([1, 2], TypeError, "ids: want an int32 or int64 tensor, got list"),
        (3, TypeError, "ids: want an int32 or int64 tensor, got int"),
        (torch.tensor(3), ValueError, r"ids: want shape \[n\], got \[\]"),
        (torch.tensor([[1, 2]]), ValueError, r"ids: want shape \[n\], got \[1, 2\]"),
    ],
)
def test_decompress_refuses_kinds_of_ids(backend, ids, error, message):
    rows = torch.ones(4, 3, device=backend)
    codec = fit(rows)
    with pytest.raises(error, match=message):
        codec.decompress(codec.compress(rows), ids)


def test_decompress_refuses_out(backend):
    rows = torch.ones(4, 3, device=backend)
    codec = fit(rows)
    compressed, ids = codec.compress(rows), torch.tensor([1, 2])
    wanted = r"out: want \[2, 3\] torch.float32 on .*, contiguous, got "
    for out, got in (
        (torch.full((3, 3), 5.0, device=backend), r"\[3, 3\] torch.float32"),
        (torch.full((2, 4), 5.0, device=backend), r"\[2, 4\] torch.float32"),
        (torch.full((6,), 5.0, device=backend), r"\[6\] torch.float32"),
        (torch.full((2, 3), 5, dtype=torch.int32, device=backend), r"\[2, 3\] torch.int32"),
        (torch.full((3, 2), 5.0, device=backend).t(), r"\[2, 3\] torch.float32 on .*, not contiguous"),
        (torch.full((2, 3), 5.0, device="meta"), r"\[2, 3\] torch.float32 on meta"),
    ):
        with pytest.raises(ValueError, match=wanted + got):
            codec.decompress(compressed, ids, out=out)
        assert out.is_meta or bool((out == 5).all()), "nothing is written"
    with pytest.raises(TypeError, match="out: want a torch.Tensor, got list"):
        codec.decompress(compressed, ids, out=[0.0])


def test_decompress_refuses_other_rows(backend):
    rows = torch.ones(4, 3, device=backend)
    compressed = fit(rows).compress(rows)
    with pytest.raises(ValueError, match="compressed rows: want 16 bytes per row, got 12"):
        fit(torch.ones(4, 4)).decompress(compressed)


def test_decompress_refuses_damage(backend):
    rows = special_rows(torch.float32, 50, "outliers").to(backend)
    codec = fit(rows)
    compressed = codec.compress(rows)
    held = compressed.is_compressed().tolist()
    payload, spilled = held.index(True), held.index(False)
    slots = compressed.slots.clone()
    slots[payload * compressed.slot_bytes : (payload + 1) * compressed.slot_bytes] = 0
    with pytest.raises(FormatError, match=f"row {payload}\\b"):
        codec.decompress(dataclasses.replace(compressed, slots=slots))
    slots = compressed.slots.clone()
    slots[spilled * compressed.slot_bytes] = compressed.num_overflow
    with pytest.raises(FormatError, match=f"row {spilled}\\b"):
        codec.decompress(dataclasses.replace(compressed, slots=slots))
    others = torch.tensor([i for i in range(40) if i != spilled])
    assert_bitwise_equal(
        codec.decompress(dataclasses.replace(compressed, slots=slots), others), rows[others.to(backend)]
    )


@pytest.mark.parametrize("buffer", ["slots", "bitmask", "overflow"])
def test_decompress_refuses_short_buffers(backend, buffer):
    rows = special_rows(torch.float32, 50, "outliers").to(backend)
    codec = fit(rows)
    compressed = codec.compress(rows)
    whole = getattr(compressed, buffer)
    for length in (0, 1, len(whole) // 2, len(whole) - 1):
        with pytest.raises(ValueError, match=rf"{buffer}: want at least|row \d+"):
            codec.decompress(dataclasses.replace(compressed, **{buffer: whole[:length].clone()}))


def test_codecs_refuse_inconsistent_parts():
    rows = torch.zeros(1, 2)
    ones, zeros = np.full(8, 255, np.uint8), np.zeros(8, np.uint8)
    with pytest.raises(ValueError, match="form: want one for rows of 8 bytes, got one for 7"):
        make_codec(rows, ones[:7], zeros[:7], 8)
    with pytest.raises(ValueError, match="bitval bytes: want 8, got 7"):
        make_codec(rows, ones, zeros[:7], 8)
    with pytest.raises(ValueError, match="bitval: want 0 wherever mask is 0, got 255 under mask 0 at byte 0"):
        make_codec(rows, zeros, ones, 8)


# --- real data ----------------------------------------------------------------------------------------------


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

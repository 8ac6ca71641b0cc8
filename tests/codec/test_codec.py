"""Codec: rows of every kind in, the same bits out; slots, reports, and what is refused."""

from __future__ import annotations

import dataclasses
import pickle

import numpy as np
import pytest
import torch
from ibp_cases import fit, make_codec

from ibp_gnn import FormatError
from ibp_gnn.testing import assert_bitwise_equal, special_rows

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


# --- slots and reports ---------------------------------------------------------------------------------------


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

"""CompressedRows: sizes, the bitmask, and copies of some of the rows."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch

from ibp_gnn import Codec, CompressedRows, FormatError, _native
from ibp_gnn.codec.compressed_rows import pack_bits
from ibp_gnn.testing import assert_bitwise_equal, special_rows

SLACK = 64


@pytest.fixture
def rows(backend) -> torch.Tensor:
    return special_rows(torch.float32, 50, "outliers", n=75).to(backend)


def test_sizes(backend):
    compressed = CompressedRows.empty(33, 20, 12, 2, backend)
    assert (len(compressed.slots), len(compressed.bitmask), len(compressed.overflow)) == (
        33 * 12 + SLACK,
        8,
        2 * 20 + SLACK,
    )
    assert compressed.nbytes == 33 * 12 + 8 + 2 * 20 + 2 * SLACK
    assert (compressed.raw_nbytes, compressed.num_overflow, compressed.device) == (33 * 20, 2, backend)
    for buffer in (compressed.slots, compressed.overflow):
        assert_bitwise_equal(buffer[-SLACK:], torch.zeros(SLACK, dtype=torch.uint8))


def test_no_rows(backend):
    compressed = CompressedRows.empty(0, 20, 12, 0, backend)
    assert (compressed.nbytes, compressed.raw_nbytes, compressed.num_overflow) == (2 * SLACK, 0, 0)
    assert compressed.is_compressed().shape == (0,)
    assert compressed.select(torch.zeros(0, dtype=torch.int64, device=backend)).num_rows == 0


@pytest.mark.parametrize("n", [0, 1, 7, 8, 31, 32, 33, 100])
def test_pack_bits(backend, n):
    bits = torch.from_numpy(np.random.default_rng(n).integers(0, 2, n).astype(np.bool_))
    wanted = np.zeros(-(-n // 32) * 4, np.uint8)
    packed = np.packbits(bits.numpy(), bitorder="little")
    wanted[: len(packed)] = packed
    assert_bitwise_equal(pack_bits(bits.to(backend)), wanted)


@pytest.mark.parametrize("share", [0.75, 1])
def test_which_rows_are_compressed(rows, share):
    codec = Codec.fit(rows)
    compressed = codec.compress(rows, slot_bytes=int(share * codec.row_bytes))
    wanted = (codec.measure(rows) < codec.row_bytes) & (codec.measure(rows) <= compressed.slot_bytes)
    assert 0 < int(wanted.sum()) < len(rows)
    assert_bitwise_equal(compressed.is_compressed(), wanted)
    ids = torch.tensor([74, 5, 5, 0, 13], device=rows.device)
    assert_bitwise_equal(compressed.is_compressed(ids), wanted[ids])
    assert_bitwise_equal(compressed.overflows(), ~wanted if share < 1 else torch.zeros_like(wanted))


@pytest.mark.parametrize("share", [0.75, 1])
@pytest.mark.parametrize(
    "ids",
    [[], [5], [0], [13, 5, 5, 0, 74, 21], list(range(74, -1, -1)), list(range(75))],
    ids=lambda ids: str(len(ids)),
)
def test_select_copies_rows(rows, ids, share):
    """As if only these rows had been compressed, so overflow rows get new indices."""
    codec = Codec.fit(rows)
    compressed = codec.compress(rows, slot_bytes=int(share * codec.row_bytes))
    picked = torch.tensor(ids, dtype=torch.int64, device=rows.device)
    before = compressed.slots.clone()
    selected = compressed.select(picked)
    wanted = codec.compress(rows[picked], slot_bytes=compressed.slot_bytes)
    for name in ("slots", "bitmask", "overflow"):
        assert_bitwise_equal(getattr(selected, name), getattr(wanted, name))
    assert_bitwise_equal(codec.decompress(selected), rows[picked])
    assert_bitwise_equal(compressed.slots, before)
    selected.slots.zero_()
    assert_bitwise_equal(compressed.slots, before)


@pytest.mark.parametrize(("dtype", "width"), [(torch.uint8, 1), (torch.int16, 1), (torch.uint8, 3)])
def test_select_from_slots_shorter_than_an_index(backend, dtype, width):
    rows = special_rows(dtype, width, "outliers").to(backend)
    codec = Codec.fit(rows)
    compressed = codec.compress(rows)
    assert compressed.slot_bytes == codec.row_bytes < 4
    ids = torch.tensor([5, 6, 39, 5], device=backend)
    assert_bitwise_equal(codec.decompress(compressed.select(ids)), rows[ids])


def test_select_renumbers_in_groups(rows, monkeypatch):
    codec = Codec.fit(rows)
    compressed = codec.compress(rows, slot_bytes=100)
    monkeypatch.setattr("ibp_gnn.codec.compressed_rows._COPY_BYTES", 1)
    ids = torch.arange(74, -1, -1, device=rows.device)
    selected, wanted = compressed.select(ids), codec.compress(rows[ids], slot_bytes=100)
    assert selected.num_overflow > 2
    for name in ("slots", "bitmask", "overflow"):
        assert_bitwise_equal(getattr(selected, name), getattr(wanted, name))


def test_select_numbers_overflow_rows_from_where_it_is_told(rows):
    codec = Codec.fit(rows)
    compressed = codec.compress(rows, slot_bytes=100)
    ids = torch.arange(75, device=rows.device)
    before, selected = compressed.select(ids), compressed.select(ids, first_overflow=1000)
    raw = torch.nonzero(before.overflows()).flatten()
    index = selected.slot_matrix()[raw, :4].cpu().contiguous().view(torch.int32).flatten()
    assert_bitwise_equal(index, torch.arange(1000, 1000 + len(raw), dtype=torch.int32))
    assert_bitwise_equal(selected.overflow, before.overflow)


@pytest.mark.parametrize("row_bytes", [40, 4000, 400_000])
def test_temporaries_of_select_are_bounded_by_bytes(row_bytes, monkeypatch):
    """Whatever the rows' length; 32 rows are the least."""
    num_rows = max(100, 4_000_000 // row_bytes)
    compressed = CompressedRows.empty(num_rows, row_bytes, 20, num_rows)
    for part in (compressed.slots, compressed.bitmask, compressed.overflow):
        part.zero_()
    monkeypatch.setattr("ibp_gnn.codec.compressed_rows._COPY_BYTES", 1 << 20)
    most, whole = 0, torch.Tensor.index_select

    def index_select(self, *arguments):
        nonlocal most
        got = whole(self, *arguments)
        most = max(most, got.nbytes)
        return got

    monkeypatch.setattr(torch.Tensor, "index_select", index_select)
    selected = compressed.select(torch.arange(num_rows))
    assert selected.num_overflow == num_rows
    assert 0 < most <= max(1 << 20, 32 * row_bytes)


@pytest.mark.parametrize("n", [0, 1, 7, 8, 31, 32, 33, 75])
def test_count_overflows(n):
    rows = special_rows(torch.float32, 50, "outliers", n=75)
    compressed = Codec.fit(rows).compress(rows, slot_bytes=100).view(0, n)
    compressed.bitmask[n // 8 :] |= torch.tensor(255 << n % 8 & 255, dtype=torch.uint8)  # bits of no row
    assert compressed.count_overflows() == int(compressed.overflows().sum())
    assert Codec.fit(rows).compress(rows, slot_bytes=200).count_overflows() == 0


def test_view_shares_memory(rows):
    codec = Codec.fit(rows)
    compressed = codec.compress(rows)
    part = compressed.view(32, 40)
    assert part.slots.data_ptr() == compressed.slots[32 * compressed.slot_bytes :].data_ptr()
    assert_bitwise_equal(codec.decompress(part), rows[32:72])


def test_to_moves_every_buffer(rows, backend):
    codec = Codec.fit(rows)
    compressed = codec.compress(rows)
    moved = compressed.to("cpu")
    assert moved.device == torch.device("cpu")
    assert_bitwise_equal(codec.decompress(moved), rows)
    assert_bitwise_equal(codec.decompress(moved.to(backend)), rows)


def test_bad_buffers_are_refused(rows):
    """Before a kernel gets their addresses."""
    compressed = Codec.fit(rows).compress(rows)
    lengths = {"slots": 75 * compressed.slot_bytes + SLACK, "bitmask": 12, "overflow": SLACK}
    for name, least in lengths.items():
        whole = getattr(compressed, name)
        for length in (0, least - 1):
            with pytest.raises(FormatError, match=f"{name}: want at least {least} bytes, got {length}"):
                dataclasses.replace(compressed, **{name: whole[:length]})
        for bad in (whole.to(torch.int32), whole[None], whole.repeat(2)[::2]):
            with pytest.raises(ValueError, match=rf"{name}: want contiguous bytes \[n\] torch.uint8, got \["):
                dataclasses.replace(compressed, **{name: bad})
    for name in ("bitmask", "overflow"):
        with pytest.raises(ValueError, match=f"{name}: want a tensor on .* like slots, got meta"):
            dataclasses.replace(compressed, **{name: getattr(compressed, name).to("meta")})


def test_short_slots_are_refused():
    for slot_bytes in (3, 0, -8):
        with pytest.raises(ValueError, match=f"slot_bytes: want 20 .* or at least 4 .*, got {slot_bytes}"):
            CompressedRows.empty(5, 20, slot_bytes, 0)
    assert _native.cpu.OVERFLOW_INDEX_BYTES == 4

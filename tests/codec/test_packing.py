"""What is chosen for packed rows, against all choices; and rows that lie where the directory says."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from ibp_gnn import Codec, CompressedRows, FormatError, _native
from ibp_gnn.codec import dispatch
from ibp_gnn.codec import packing as packing_module
from ibp_gnn.codec.packing import Packing, as_lengths, best_packing, lay_out, packed_store_bytes
from ibp_gnn.codec.slot_length import payload_histogram
from ibp_gnn.testing import assert_bitwise_equal, oracle_packed, special_rows


def length_of(payload: int, row_bytes: int, slot_bytes: int, packing: Packing) -> int:
    """What a row takes, as csrc/core/packed_rows.h has it."""
    unit, least = packing
    taken = least + -(-max(payload - least, 0) // unit) * unit
    return taken if taken < row_bytes and taken <= slot_bytes else -(-row_bytes // unit) * unit


def total(lengths: list[int], row_bytes: int, slot_bytes: int, packing: Packing) -> int:
    return sum(length_of(length, row_bytes, slot_bytes, packing) for length in lengths)


@pytest.mark.parametrize("spread", [1, 20, 300, 3000])
@pytest.mark.parametrize("row_bytes", [7, 64, 4000])
@pytest.mark.parametrize("least_unit", [1, 4])
def test_no_other_unit_takes_fewer_bytes(
    row_bytes: int, spread: int, least_unit: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packing_module, "LEAST_UNIT_BYTES", least_unit)
    generator = torch.Generator().manual_seed(row_bytes + spread)
    middle = torch.randint(0, row_bytes, (1,), generator=generator)
    lengths = (middle + torch.randint(0, spread, (500,), generator=generator)).to(torch.int32)
    packing, slot_bytes, data_bytes = best_packing(payload_histogram(lengths, row_bytes), row_bytes)
    given = [min(int(length), row_bytes) for length in lengths]
    assert data_bytes == total(given, row_bytes, slot_bytes, packing)
    fewest = sum(given)
    for unit in (1, 2, 4, 8, 16, 32, 64):
        if unit < least_unit:
            continue
        for least in range(0, min(max(min(given), 1), row_bytes - 1) + 1, unit):
            longest = min(least + 255 * unit, row_bytes - 1)
            assert data_bytes <= 1.001 * total(given, row_bytes, longest, Packing(unit, least)) + unit
    assert data_bytes >= fewest


def test_a_few_long_payloads_are_raw_rows() -> None:
    """Decoders keep room for the longest payload of all."""
    lengths = torch.tensor([100] * 5000 + [390], dtype=torch.int32)
    packing, slot_bytes, data_bytes = best_packing(payload_histogram(lengths, 400), 400)
    assert (packing, slot_bytes, data_bytes) == (Packing(4, 100), 100, 5000 * 100 + 400)


def test_packed_store_bytes_are_those_of_the_rows() -> None:
    rows = special_rows(torch.float32, 50, "outliers", 1000)
    codec = Codec.fit(rows)
    packed = pack(codec, rows)
    histogram = payload_histogram(codec.measure(rows), codec.row_bytes)
    assert packed_store_bytes(histogram, codec.row_bytes) == packed.data_bytes + len(packed.bitmask)


def pack(codec: Codec, rows: torch.Tensor) -> CompressedRows:
    lengths = codec.measure(rows)
    packing, slot_bytes, _ = best_packing(payload_histogram(lengths, codec.row_bytes), codec.row_bytes)
    out = CompressedRows.packed(lengths, codec.row_bytes, slot_bytes, packing)
    as_bytes = rows.contiguous().view(torch.uint8).view(len(rows), -1)
    dispatch.encode(codec.form, as_bytes, torch.full((len(rows),), -1), out)
    return out


@pytest.mark.parametrize("n", [0, 1, 23, 24, 25, 1000])
@pytest.mark.parametrize("unit", [1, 4, 64])
def test_the_directory_is_that_of_the_oracle(n: int, unit: int) -> None:
    generator = torch.Generator().manual_seed(n)
    lengths = torch.randint(40, 300, (n,), generator=generator, dtype=torch.int32)
    packing, row_bytes, slot_bytes = Packing(unit, 64), 250, 200
    directory, end = lay_out(lengths, row_bytes, slot_bytes, packing, first_start=77 * unit)
    places = oracle_packed.places(directory.numpy(), n, row_bytes, unit, 64)
    at = 77 * unit
    for length, (start, taken, is_payload) in zip(lengths.tolist(), places, strict=True):
        wanted = length_of(length, row_bytes, slot_bytes, packing)
        assert (start, taken) == (at, wanted)
        assert is_payload == (wanted <= slot_bytes)
        at += taken
    assert end == at
    assert len(directory) == _native.cpu.directory_bytes(n) == -(-n // 24) * 32


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"packing": Packing(3, 0)}, "want a unit that is a power of two"),
        ({"packing": Packing(4, 6)}, "and a multiple of it, got 4 and 6"),
        ({"packing": Packing(1, 60)}, "slot_bytes: want 60 to 200, got 50"),
        ({"slot_bytes": 201}, "slot_bytes: want 0 to 200, got 201"),
        ({"first_start": 1 << 40}, "packed rows: want less than 1099511627776 bytes"),
        ({"first_start": -1}, "first_start: want at least 0, got -1"),
    ],
)
def test_what_no_directory_holds_is_refused(options: dict, message: str) -> None:
    given = {"row_bytes": 200, "slot_bytes": 50, "packing": Packing(1, 0), **options}
    with pytest.raises(ValueError, match=message):
        lay_out(torch.tensor([5, 6], dtype=torch.int32), **given)


def test_lengths_of_any_integers() -> None:
    for given in (np.array([3, 70000], np.int32), np.array([3, 60000], np.uint16), torch.tensor([3, 4])):
        lengths = as_lengths(given)
        assert lengths.dtype == torch.int32 and lengths.tolist() == [int(one) for one in given]


@pytest.mark.parametrize("codec", ["dict", "ibp"])
def test_selected_rows_are_those_rows(codec: str) -> None:
    rows = special_rows(torch.float32, 33, "outliers", 500)
    rows[::7] = special_rows(torch.float32, 33, "random_bits", len(rows[::7]))
    fitted = Codec.fit(rows, codec=codec)
    packed = pack(fitted, rows)
    assert_bitwise_equal(fitted.decompress(packed), rows)
    assert 0 < int(packed.is_compressed().sum()) < 500
    assert_bitwise_equal(packed.is_compressed(), fitted.measure(rows) <= packed.slot_bytes)
    assert not bool(packed.overflows().any()) and packed.count_overflows() == packed.num_overflow == 0
    ids = torch.tensor([499, 0, 0, 7, *range(100, 160)])
    some = packed.select(ids)
    assert_bitwise_equal(fitted.decompress(some), rows[ids])
    assert int(packed.bytes_of_each(ids).sum()) == some.data_bytes
    assert_bitwise_equal(some.slots, pack(fitted, rows).select(ids).slots)
    with pytest.raises(ValueError, match="want rows in slots, got packed rows"):
        packed.slot_matrix()


def test_damaged_directories_are_refused() -> None:
    rows = special_rows(torch.float32, 33, "outliers", 100)
    codec = Codec.fit(rows)
    packed = pack(codec, rows)
    packed.bitmask.view(torch.int64)[4] += 1 << 20  # where row 24 and those after it start
    assert_bitwise_equal(codec.decompress(packed, torch.arange(24)), rows[:24])
    for call in (codec.decompress, packed.select):
        arguments = (packed, torch.tensor([24])) if call == codec.decompress else (torch.tensor([24]),)
        with pytest.raises(FormatError, match=f"want a place of at most {packed.slot_bytes} bytes"):
            call(*arguments)
    with pytest.raises(FormatError, match="bitmask: want at least 160 bytes, got 159"):
        CompressedRows(
            100, 132, packed.slot_bytes, packed.slots, packed.bitmask[:-1], packed.overflow, packing=packed.packing
        )


def test_rows_that_change_after_they_were_measured_are_named() -> None:
    rows = special_rows(torch.float32, 33, "outliers", 100)
    codec = Codec.fit(rows)
    lengths = codec.measure(rows)
    changed = rows.clone()
    changed[40] = special_rows(torch.float32, 33, "random_bits", 1)[0]
    out = CompressedRows.packed(lengths, codec.row_bytes, codec.row_bytes - 1, Packing(1, 0))
    with pytest.raises(ValueError, match="row 40: its payload has another length than when it was measured"):
        dispatch.encode(codec.form, changed.view(torch.uint8).view(100, -1), torch.full((100,), -1), out)

"""Rows sorted through a file: dealt to partitions, read in the order of slots, and refused where they were lost."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from features_to_build import NUM_ROWS, WIDTH, an_order, some_rows

from ibp_gnn.store.file import sorted_reader as sorted_reader_module
from ibp_gnn.store.file.journal import LostWorkError
from ibp_gnn.store.file.sorted_reader import SortedReader
from ibp_gnn.testing import assert_bitwise_equal

ROW_BYTES = 4 * WIDTH


@pytest.fixture
def sorted_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SortedReader:
    """`some_rows` in the order of `an_order`, dealt to partitions of 96 rows."""
    monkeypatch.setattr(sorted_reader_module, "_PARTITION_BYTES", 100 * ROW_BYTES)
    order = an_order().to(torch.int32)
    sorted_rows = SortedReader(tmp_path / "sorted", order, ROW_BYTES, 32)
    rows = some_rows().view(torch.uint8)
    chunks = [(first, rows[first : first + 100]) for first in range(0, NUM_ROWS, 100)]
    slot_of = torch.empty_like(order)
    slot_of[order.long()] = torch.arange(NUM_ROWS, dtype=torch.int32)
    for (first, dealt), (at, chunk) in zip(sorted_rows.deal(iter(chunks), slot_of), chunks, strict=True):
        assert first == at and dealt is chunk
    return sorted_rows


def test_rows_come_sorted_from_wherever_a_chunk_starts(sorted_rows: SortedReader) -> None:
    wanted = some_rows().view(torch.uint8)[an_order()]
    again = SortedReader(sorted_rows.path, an_order().to(torch.int32), ROW_BYTES, 32, sorted_rows.checksums)
    assert len(sorted_rows.checksums) == 11 and sorted_rows.path.stat().st_size == NUM_ROWS * ROW_BYTES
    for first in (0, 32, 96, 320, 992):
        chunks = list(again.chunks(first))
        assert [at for at, _ in chunks] == list(range(first, NUM_ROWS, 32))
        assert_bitwise_equal(torch.cat([chunk for _, chunk in chunks]), wanted[first:])


def test_sorted_rows_that_were_lost(sorted_rows: SortedReader) -> None:
    whole = sorted_rows.path.read_bytes()
    damaged = bytearray(whole)
    damaged[-1] ^= 1
    sorted_rows.path.write_bytes(damaged)
    chunks = sorted_rows.chunks()
    for _ in range(960 // 32):  # the partitions before are whole
        next(chunks)
    with pytest.raises(LostWorkError, match="want sorted rows of checksum 0x[0-9a-f]{8}, got 0x"):
        next(chunks)
    sorted_rows.path.write_bytes(whole[:-1])
    with pytest.raises(LostWorkError, match=f"want {NUM_ROWS * ROW_BYTES} bytes, got fewer"):
        list(sorted_rows.chunks())
    sorted_rows.path.unlink()
    with pytest.raises(LostWorkError, match="want the sorted rows, got no such file"):
        list(sorted_rows.chunks())

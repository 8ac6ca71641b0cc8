"""Chunks of rows in the order of slots: copies, from arrays of every kind, and sorted through a file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from features_to_build import NUM_ROWS, WIDTH, an_order, mapped, some_rows

from ibp_gnn import Codec
from ibp_gnn.store.file import row_readers
from ibp_gnn.store.file.journal import LostWorkError
from ibp_gnn.store.file.row_readers import ArrayRows, SortedRows, chunk_length
from ibp_gnn.testing import assert_bitwise_equal

ROW_BYTES = 4 * WIDTH


@pytest.mark.parametrize("ordered", [False, True], ids=["by_id", "ordered"])
@pytest.mark.parametrize("kind", ["mapped", "array", "read_only", "tensor", "columns", "bfloat16"])
def test_chunks_do_not_change_with_the_features(kind: str, ordered: bool, tmp_path: Path) -> None:
    rows = some_rows()
    written: Any = {"mapped": lambda: mapped(rows, tmp_path), "array": rows.numpy().copy, "tensor": rows.clone}.get(
        kind, rows.clone
    )()
    features = written
    if kind == "read_only":
        written = rows.numpy().copy()
        features = written[:]
        features.flags.writeable = False
    elif kind == "columns":
        features, rows = written[:, :7], rows[:, :7]
    elif kind == "bfloat16":
        written, rows = written.bfloat16(), rows.bfloat16()
        features = written
    order = an_order().to(torch.int32) if ordered else None
    codec = Codec.fit(rows, codec="ibp")
    for at, chunk in ArrayRows(features, codec, 64, order).chunks():
        ids = torch.arange(at, at + len(chunk)) if order is None else order[at : at + len(chunk)].long()
        kept = written[ids] if isinstance(written, torch.Tensor) else torch.from_numpy(written[ids.numpy()])
        written[ids.numpy() if isinstance(written, np.ndarray) else ids] = 0
        assert_bitwise_equal(chunk.view(rows.dtype), rows[ids].reshape(len(ids), -1))
        written[ids.numpy() if isinstance(written, np.ndarray) else ids] = kept  # the next chunk may be read already


def test_chunks_are_whole_words_of_the_bitmask() -> None:
    assert [chunk_length(rows, 100) for rows in (1, 32, 33, 1000)] == [32, 32, 64, 1024]
    assert chunk_length(None, 1) == 24 << 20 and chunk_length(None, 1 << 30) == 32
    for bad in (0, -1, 2.0):
        with pytest.raises(ValueError, match=f"chunk_rows: want at least 1, got {bad}"):
            chunk_length(bad, 100)  # type: ignore[arg-type]


@pytest.fixture
def sorted_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SortedRows:
    """`some_rows` in the order of `an_order`, dealt to partitions of 96 rows."""
    monkeypatch.setattr(row_readers, "_PARTITION_BYTES", 100 * ROW_BYTES)
    order = an_order().to(torch.int32)
    sorted_rows = SortedRows(tmp_path / "sorted", order, ROW_BYTES, 32)
    rows = some_rows().view(torch.uint8)
    chunks = [(first, rows[first : first + 100]) for first in range(0, NUM_ROWS, 100)]
    slot_of = torch.empty_like(order)
    slot_of[order.long()] = torch.arange(NUM_ROWS, dtype=torch.int32)
    for (first, dealt), (at, chunk) in zip(sorted_rows.deal(iter(chunks), slot_of), chunks, strict=True):
        assert first == at and dealt is chunk
    return sorted_rows


def test_rows_come_sorted_from_wherever_a_chunk_starts(sorted_rows: SortedRows) -> None:
    wanted = some_rows().view(torch.uint8)[an_order()]
    again = SortedRows(sorted_rows.path, an_order().to(torch.int32), ROW_BYTES, 32, sorted_rows.checksums)
    assert len(sorted_rows.checksums) == 11 and sorted_rows.path.stat().st_size == NUM_ROWS * ROW_BYTES
    for first in (0, 32, 96, 320, 992):
        chunks = list(again.chunks(first))
        assert [at for at, _ in chunks] == list(range(first, NUM_ROWS, 32))
        assert_bitwise_equal(torch.cat([chunk for _, chunk in chunks]), wanted[first:])


def test_sorted_rows_that_were_lost(sorted_rows: SortedRows) -> None:
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

"""How long slots are: what is counted over all payload lengths."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from ibp_cases import fit

from ibp_gnn.codec import slot_length
from ibp_gnn.testing import special_rows


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


def test_overflow_rows_are_numbered_on_from_the_first() -> None:
    lengths = [5, 9, 8, 30, 20, 9]
    for given in (torch.tensor(lengths, dtype=torch.int32), np.array(lengths, np.uint16)):
        index, after = slot_length.assign_overflow(given, 8, 20, first=3)
        assert index.dtype == torch.int64 and index.tolist() == [-1, 3, -1, 4, 5, 6] and after == 7
        index, after = slot_length.assign_overflow(given, 20, 20, first=3)  # slots as long as rows hold any row
        assert index.tolist() == [-1] * 6 and after == 3
    assert slot_length.assign_overflow(torch.empty(0, dtype=torch.int32), 8, 20, first=3)[1] == 3


def test_counts_of_overflow() -> None:
    histogram = slot_length.payload_histogram(torch.tensor([5, 9, 8, 30, 20, 9], dtype=torch.int32), 20)
    assert [slot_length.count_overflow(histogram, slot_bytes) for slot_bytes in (4, 8, 12, 20)] == [6, 4, 2, 0]
    assert slot_length.compact_bytes(histogram, 8, 20) == 6 * 8 + 4 * 20
    assert slot_length.compact_bytes(histogram, 20, 20) == 6 * 20

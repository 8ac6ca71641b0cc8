"""How long slots are: what is counted over all payload lengths."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from ibp_cases import fit

from ibp_gnn import _native
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


def best_slot_bytes_by_numpy(counts: np.ndarray, row_bytes: int) -> int:
    """What csrc/cpu/slot_choice.h says, over all lengths at once."""
    num_rows, fitting = int(counts.sum()), np.cumsum(counts)

    def best(align: int) -> tuple[int, int]:
        lengths = np.append(np.arange(align, row_bytes, align), row_bytes)
        overflow = np.where(lengths < row_bytes, num_rows - fitting[lengths], 0)
        total = num_rows * lengths + overflow * row_bytes
        return int(lengths[np.argmin(total)]), int(total.min())

    (shortest, fewest), (aligned, total) = best(4), best(32)
    fetched = shortest + 32 - math.gcd(shortest, 32)
    return aligned if total * aligned <= fewest * fetched and 100 * total <= 103 * fewest else shortest


def best_lead_bytes_by_numpy(counts: np.ndarray, slot_bytes: int, fetches_once: bool) -> int:
    if not counts.any():
        return slot_bytes
    if fetches_once:
        return int(np.flatnonzero(counts)[-1])
    leads = np.unique(np.append(np.arange(16, slot_bytes, 16), slot_bytes))
    rows_up_to, bytes_up_to = np.cumsum(counts), np.cumsum(counts * np.arange(slot_bytes + 1))
    longer = rows_up_to[-1] - rows_up_to[leads]
    return int(leads[np.argmin(leads * rows_up_to[leads] + bytes_up_to[-1] - bytes_up_to[leads] + 64 * longer)])


@pytest.mark.parametrize("row_bytes", [1, 2, 3, 4, 5, 31, 32, 33, 64, 100, 512, 1000, 3072])
def test_choices_are_those_of_numpy(row_bytes: int) -> None:
    random = np.random.default_rng(row_bytes)
    chosen = set()
    for kind in range(400):
        counts = np.zeros(row_bytes + 1, np.int64)
        size = int(random.integers(1, 6)) if kind % 2 else 40
        near = random.normal(random.uniform(0, row_bytes), 1 + row_bytes / 20, size)
        np.add.at(counts, np.clip(near.astype(np.int64), 0, row_bytes), random.integers(0, 10**6, size))
        if kind % 3 == 0:
            counts[-1] = random.integers(0, 10 ** int(random.integers(1, 12)))
        got = _native.cpu.best_slot_bytes(counts, row_bytes)
        assert got == best_slot_bytes_by_numpy(counts, row_bytes)
        chosen.add(got)
        for slot_bytes in {got, row_bytes, max(1, row_bytes // 2)}:
            for once in (False, True):
                fitting = counts[: slot_bytes + 1].copy()
                lead = _native.cpu.best_lead_bytes(fitting, slot_bytes, once)
                assert lead == best_lead_bytes_by_numpy(fitting, slot_bytes, once)
    assert len(chosen) > min(5, row_bytes // 8)


def test_choices_refuse_counts_of_another_length() -> None:
    for length in (0, 8, 10):
        with pytest.raises(ValueError, match=f"rows_of_length: want 9, got {length}"):
            _native.cpu.best_slot_bytes(np.zeros(length, np.int64), 8)
        with pytest.raises(ValueError, match=f"rows_of_length: want 9, got {length}"):
            _native.cpu.best_lead_bytes(np.zeros(length, np.int64), 8, False)
    for row_bytes in (0, -1, 1 << 40):
        with pytest.raises(ValueError, match="row_bytes: want 1 to .*, got"):
            _native.cpu.best_slot_bytes(np.zeros(1, np.int64), row_bytes)

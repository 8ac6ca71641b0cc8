"""Orders of rows: permutations of every kind, and what is none."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from store_files import build, mixed_rows

from ibp_gnn.store.order import hottest_first, slots_of
from ibp_gnn.testing import assert_bitwise_equal


def test_orders_of_every_kind() -> None:
    rows = mixed_rows(torch.float32, 8, 40)
    backwards = np.arange(39, -1, -1)
    for order in (
        backwards,
        backwards.astype(np.int32),
        torch.from_numpy(backwards),
        torch.from_numpy(backwards).int(),
    ):
        assert_bitwise_equal(build(rows, order=order).gather(torch.arange(40)), rows)
    assert build(rows, order=np.arange(40)).slot_of is None
    for order, error, message in (
        (np.arange(39), ValueError, r"order: want \[40\], got shape \[39\]"),
        (np.arange(1, 41), ValueError, "order: want 0 <= id < 40, got 40 at position 39"),
        (np.arange(40) - 1, ValueError, "order: want 0 <= id < 40, got -1 at position 0"),
        (np.arange(40) // 2, ValueError, "order: want every id once, got no 20"),
        (np.arange(40.0), TypeError, "order: want an int32 or int64 tensor, got numpy float64"),
    ):
        with pytest.raises(error, match=message):
            build(rows, order=order)


def test_hottest_first() -> None:
    scores = [3, 9, 3, 0, 9]
    for given in (scores, np.array(scores), np.array(scores, np.float32), torch.tensor(scores).double()):
        assert hottest_first(given, 5).tolist() == [1, 4, 0, 2, 3], "ties by id"
    assert hottest_first(torch.tensor([1.0, float("inf"), -float("inf")]), 3).tolist() == [1, 0, 2]
    for given, message in (
        (scores[:4], r"hotness: want shape \[5\], got \[4\]"),
        ([scores], r"hotness: want shape \[5\], got \[1, 5\]"),
        ([0.0, 1.0, float("nan"), 2.0, 3.0], "hotness: want numbers, got NaN"),
    ):
        with pytest.raises(ValueError, match=message):
            hottest_first(given, 5)


def test_slots_are_the_inverse_of_the_order() -> None:
    order = torch.randperm(1000, generator=torch.Generator().manual_seed(0))
    slots = slots_of(order, 1000)
    assert slots is not None and slots.dtype == torch.int32
    assert_bitwise_equal(slots[order], torch.arange(1000, dtype=torch.int32))
    assert slots_of(torch.arange(1000), 1000) is None and slots_of(torch.arange(0), 0) is None


def test_more_rows_than_a_table_can_number() -> None:
    with pytest.raises(ValueError, match=r"order: want at most 2147483647 rows, got shape \[3\]"):
        slots_of(torch.arange(3), 1 << 31)

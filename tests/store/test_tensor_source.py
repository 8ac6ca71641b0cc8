"""A RowSource over a tensor."""

from __future__ import annotations

import pytest
import torch

from ibp_gnn.store.tensor_source import TensorSource
from ibp_gnn.testing import assert_bitwise_equal

ROWS = torch.arange(12.0).reshape(4, 3)


def test_rows_of_a_tensor() -> None:
    rows = TensorSource(ROWS)
    assert (rows.shape, rows.dtype, repr(rows)) == ((4, 3), torch.float32, "TensorSource([4, 3] torch.float32)")
    ids = torch.tensor([3, 0, 3], dtype=torch.int32)
    out = torch.zeros(3, 3)
    assert rows.gather(ids, out=out) is out
    for got in (out, rows.gather(ids), rows.gather(ids, device="cpu")):
        assert_bitwise_equal(got, ROWS[[3, 0, 3]])
    for bad in (4, -1):
        with pytest.raises(IndexError, match=f"want 0 <= id < 4, got {bad}"):
            rows.gather(torch.tensor([0, bad]))
        with pytest.raises(IndexError, match="want 0 <= id < 0"):
            TensorSource(ROWS[:0]).gather(torch.tensor([bad]))


def test_an_update_is_a_copy() -> None:
    rows = TensorSource(ROWS.clone())
    updated = rows.updated(torch.tensor([3, 1]), -ROWS[:2])
    assert_bitwise_equal(updated.tensor, torch.stack([ROWS[0], -ROWS[1], ROWS[2], -ROWS[0]]))
    assert_bitwise_equal(rows.tensor, ROWS)
    for ids, new, error, message in (
        ([1], ROWS[:2], ValueError, r"rows: want \[1, 3\] torch.float32, got \[2, 3\] torch.float32"),
        ([1], ROWS[:1].double(), ValueError, r"rows: want \[1, 3\] torch.float32, got \[1, 3\] torch.float64"),
        ([1, 1], ROWS[:2], ValueError, "ids: want distinct ids, got 1 repeats"),
        ([4], ROWS[:1], IndexError, "want 0 <= id < 4, got 4"),
    ):
        with pytest.raises(error, match=message):
            rows.updated(torch.tensor(ids), new)
    with pytest.raises(TypeError, match="ids: want int32 or int64"):
        rows.updated(torch.tensor([1.0]), torch.zeros(1, 3))

"""What is a RowSource for the adapters, and rows that stay a tensor."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from cpu_cache import CpuCache
from exact_sources import TensorSource

from ibp_gnn import CompressedFeatureStore
from ibp_gnn.integrations.sources import TensorRows, is_array, is_source, store_of
from ibp_gnn.testing import assert_bitwise_equal

ROWS = torch.arange(12.0).reshape(4, 3)


def test_what_is_a_source() -> None:
    store = CompressedFeatureStore.build(ROWS, progress=False)
    for source in (store, CpuCache(store), TensorSource(ROWS), TensorRows(ROWS)):
        assert is_source(source) and not is_array(source)
    for other in (ROWS, ROWS.numpy(), CompressedFeatureStore, TensorSource, [1.0], None, object()):
        assert not is_source(other)
    scalar = TensorRows(torch.tensor(1.0))  # has no rows
    assert not is_source(scalar)
    assert is_array(ROWS) and is_array(ROWS.numpy()) and not is_array([1.0])


def test_the_store_behind_a_source() -> None:
    store = CompressedFeatureStore.build(ROWS, progress=False)
    assert store_of(store) is store and store_of(CpuCache(store)) is store
    assert store_of(TensorRows(ROWS)) is None


def test_rows_of_a_tensor() -> None:
    rows = TensorRows(ROWS)
    assert (rows.shape, rows.dtype, repr(rows)) == ((4, 3), torch.float32, "TensorRows([4, 3] torch.float32)")
    ids = torch.tensor([3, 0, 3], dtype=torch.int32)
    out = torch.zeros(3, 3)
    assert rows.gather(ids, out=out) is out
    for got in (out, rows.gather(ids), rows.gather(ids, device="cpu")):
        assert_bitwise_equal(got, ROWS[[3, 0, 3]])
    for bad in (4, -1):
        with pytest.raises(IndexError, match=f"want 0 <= id < 4, got {bad}"):
            rows.gather(torch.tensor([0, bad]))
        with pytest.raises(IndexError, match="want 0 <= id < 0"):
            TensorRows(ROWS[:0]).gather(torch.tensor([bad]))


def test_an_update_is_a_copy() -> None:
    rows = TensorRows(ROWS.clone())
    for new in (-ROWS[:2], -ROWS[:2].numpy()):
        updated = rows.updated(torch.tensor([3, 1]), new)
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
        rows.updated(torch.tensor([1.0]), np.zeros((1, 3), np.float32))

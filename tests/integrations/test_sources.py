"""What the adapters ask of features and sources."""

from __future__ import annotations

import pytest
import torch
from cpu_cache import CpuCache

from ibp_gnn import CompressedFeatureStore
from ibp_gnn.integrations.sources import can_compress, hold, is_array, is_empty, store_of
from ibp_gnn.store.tensor_source import TensorSource

ROWS = torch.arange(12.0).reshape(4, 3)


def test_what_holds_rows() -> None:
    assert is_array(ROWS) and is_array(ROWS.numpy())
    for other in ([1.0], None, TensorSource(ROWS)):
        assert not is_array(other)


def test_the_store_behind_a_source() -> None:
    store = CompressedFeatureStore.build(ROWS, progress=False)
    assert store_of(store) is store and store_of(CpuCache(store)) is store
    assert store_of(TensorSource(ROWS)) is None


def test_what_can_be_compressed() -> None:
    for rows in (ROWS, ROWS.numpy(), ROWS[:, 0], ROWS.bool()):
        assert can_compress(rows) and isinstance(hold(rows, "x", progress=False), CompressedFeatureStore)
    for rows in (ROWS[:0], ROWS[:, :0], ROWS.to(torch.complex64)):
        assert not can_compress(rows) and isinstance(hold(rows, "x"), TensorSource)
    assert is_empty(ROWS[:0]) and is_empty(ROWS[:, :0].numpy()) and not is_empty(ROWS)
    assert not can_compress(torch.tensor(1.0)) and not can_compress(ROWS.to_sparse())
    with pytest.raises(ValueError, match="^paper.x: codec: want one of .*got 'zip'"):
        hold(ROWS, "paper.x", codec="zip", progress=False)

from __future__ import annotations

import torch

from ibp_gnn.testing import oracle_pool


def test_by_hand():
    rows = torch.tensor([[1.0, -2.0], [3.0, 4.0], [5.0, 6.0]])
    ids, bounds = torch.tensor([0, 1, 1, 2]), torch.tensor([0, 3, 3, 4])
    assert oracle_pool.pool(rows, ids, bounds, mode="sum").tolist() == [[7, 6], [0, 0], [5, 6]]
    assert oracle_pool.pool(rows, ids, bounds, mode="max").tolist() == [[3, 4], [0, 0], [5, 6]]
    assert oracle_pool.pool(rows, ids, bounds, mode="mean", padding_id=0).tolist() == [[3, 4], [0, 0], [5, 6]]
    weighted = oracle_pool.pool(rows, ids, bounds, mode="sum", weights=torch.tensor([2.0, 1.0, 0.0, -1.0]))
    assert weighted.tolist() == [[5, 0], [0, 0], [-5, -6]]


def test_pieces_are_added_apart():
    """1 is lost beside 2^24, 128 of them are not."""
    rows = torch.tensor([[2.0**24], [1.0]])
    ids = torch.tensor([0] + [1] * 255)
    assert oracle_pool.pool(rows, ids, torch.tensor([0, 256]), mode="sum").item() == 2**24 + 128
    assert oracle_pool.pool(rows, ids[:255], torch.tensor([0, 255]), mode="sum").item() == 2**24


def test_nan_without_payload():
    nan = torch.tensor([[-1]], dtype=torch.int32).view(torch.float32)
    for mode in ("sum", "max"):
        pooled = oracle_pool.pool(nan, torch.tensor([0]), torch.tensor([0, 1]), mode=mode)
        assert pooled.view(torch.int32).item() == 0x7FC00000

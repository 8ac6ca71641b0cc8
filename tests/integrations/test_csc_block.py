"""A sampled block as tensors."""

from __future__ import annotations

import torch

from ibp_gnn.integrations.csc_block import CscBlock


def test_edges_for_pyg() -> None:
    block = CscBlock(torch.tensor([0, 2, 2, 3], dtype=torch.int32), torch.tensor([4, 1, 3], dtype=torch.int32))
    assert block.num_dst == 3
    assert torch.equal(block.edge_index(), torch.tensor([[4, 1, 3], [0, 0, 2]]))


def test_no_edges() -> None:
    block = CscBlock(torch.tensor([0, 0]), torch.tensor([], dtype=torch.int64))
    assert block.num_dst == 1 and block.edge_index().shape == (2, 0)

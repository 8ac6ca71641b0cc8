"""Seeded sampling gives the same batches in every run."""

from __future__ import annotations

import pytest
import torch

from ibp_gnn.integrations.dgl_compat import import_dgl
from ibp_gnn.training.sampling import make_loader
from ibp_gnn.training.seeding import seed_everything


def sample_epoch(seed: int, workers: int) -> list[torch.Tensor]:
    """Everything that an epoch's batches hold, from a graph large enough for DGL to use all its threads."""
    dgl = import_dgl()
    generator = torch.Generator().manual_seed(0)
    src, dst = torch.randint(0, 20000, (2, 400000), generator=generator)
    graph = dgl.graph((src, dst), num_nodes=20000)
    seed_everything(seed, 1)
    loader = make_loader(graph, torch.randperm(8000), [5, 5], batch_size=2000, workers=workers)
    tensors = []
    for input_nodes, output_nodes, blocks in loader:
        tensors += [input_nodes, output_nodes]
        for block in blocks:
            tensors += block.adj_tensors("csc")[:2]
    return tensors


@pytest.mark.parametrize("workers", [0, 2])
def test_same_seed_same_batches(workers: int) -> None:
    first = sample_epoch(7, workers)
    for _ in range(2):
        assert all(torch.equal(a, b) for a, b in zip(first, sample_epoch(7, workers), strict=True))
    other_seed = sample_epoch(8, workers)
    assert not all(torch.equal(a, b) for a, b in zip(first, other_seed, strict=True))


def test_the_thread_count_is_put_back() -> None:
    dgl = import_dgl()
    threads = dgl.utils.get_num_threads()
    sample_epoch(7, 0)
    assert dgl.utils.get_num_threads() == threads

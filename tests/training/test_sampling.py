"""Seeded sampling gives the same batches in every run."""

from __future__ import annotations

import pytest
import torch

from ibp_gnn.integrations.dgl_compat import import_dgl
from ibp_gnn.training.sampling import FullBatches, SeedBatches, make_loader
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


def test_a_batch_shares_no_memory_with_the_next() -> None:
    # A worker's other thread moves the storage of what it sends, while the worker samples the next batch.
    ids = torch.arange(8, device="cpu")
    graph = import_dgl().graph(([0, 1, 2], [4, 5, 6]), num_nodes=8)
    by_type = SeedBatches(ids, 4, "paper")
    for batches in [
        [SeedBatches(ids, 4, None)[i] for i in range(2)],
        [by_type[i]["paper"] for i in range(2)],
        [FullBatches(graph, ids, 4)[i][1] for i in range(2)],
    ]:
        for batch in batches:
            assert batch.untyped_storage().nbytes() == batch.nbytes
        assert torch.equal(torch.cat(batches), ids)

"""Neighbour sampling without a graph library: what is drawn, how often, and that DGL draws alike."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from ibp_gnn.command.plan.epoch_sampler import EpochSampler, _draw


def test_draws_are_distinct_and_equally_likely():
    drawn = _draw(np.full(60_000, 6), 3, np.random.default_rng(0))
    assert drawn.min() == 0 and drawn.max() == 5
    assert (np.diff(np.sort(drawn, axis=1), axis=1) > 0).all()
    subsets, counts = np.unique(np.sort(drawn, axis=1), axis=0, return_counts=True)
    assert len(subsets) == 20 and counts.min() > 2700 and counts.max() < 3300


def read_of(sampler, seeds, fanouts, **options):
    options = {"batch_size": 1024, "rng": np.random.default_rng(0)} | options
    return [batch.tolist() for batch in sampler.batches(torch.tensor(seeds), fanouts, **options)]


def test_in_edges_are_followed_layer_by_layer():
    # 3 reads 1 and 2; 1 reads 0; nothing reads 4.
    sampler = EpochSampler(torch.tensor([1, 2, 0, 3]), torch.tensor([3, 3, 1, 4]), 5)
    assert read_of(sampler, [3], [-1]) == [[1, 2, 3]]
    assert read_of(sampler, [3], [5, 5]) == [[0, 1, 2, 3]]
    assert read_of(sampler, [0], [5, 5]) == [[0]]
    assert {tuple(read_of(sampler, [3], [1], rng=np.random.default_rng(seed))[0]) for seed in range(9)} == {
        (1, 3),
        (2, 3),
    }
    # The first number is that of the input layer: of 1, which 3 reads, all are taken, and of 3 one.
    assert len(read_of(sampler, [3], [-1, 1])[0]) in (2, 3)


def test_an_epoch_has_each_seed_once():
    sampler = EpochSampler(torch.zeros(0, dtype=torch.int64), torch.zeros(0, dtype=torch.int64), 50)
    batches = read_of(sampler, list(range(50)), [3], batch_size=8)
    assert [len(batch) for batch in batches] == [8] * 6 + [2] and sorted(sum(batches, [])) == list(range(50))
    assert sum(batches, []) != list(range(50))
    assert len(read_of(sampler, list(range(50)), [3], batch_size=8, most=2)) == 2


def test_dgl_reads_as_many_rows():
    dgl = pytest.importorskip("ibp_gnn.integrations.dgl_compat").import_dgl()
    generator = torch.Generator().manual_seed(0)
    src, dst = (torch.randint(3000, (40_000,), generator=generator) for _ in range(2))
    src = src * src // 3000  # some are read more often
    graph, seeds = dgl.graph((src, dst), num_nodes=3000), torch.arange(0, 3000, 3)
    sampler = dgl.dataloading.NeighborSampler([4, 3])
    wanted = [len(nodes) for nodes, _, _ in dgl.dataloading.DataLoader(graph, seeds, sampler, batch_size=50)]
    got = [len(batch) for batch in read_of(EpochSampler(src, dst, 3000), seeds.tolist(), [4, 3], batch_size=50)]
    assert len(got) == len(wanted) and np.mean(got) == pytest.approx(np.mean(wanted), rel=0.02)

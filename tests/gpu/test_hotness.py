"""Policies of ibp_gnn/gpu/hotness.py, against slow definitions of them."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from ibp_gnn.gpu import hotness

NODES = 40


@pytest.fixture(scope="module")
def edges() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    src = torch.randint(NODES - 5, (300,), generator=generator)  # the last nodes are never sampled
    return src, torch.randint(NODES, (300,), generator=generator)


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_degree_counts_out_edges(edges, dtype) -> None:
    scores = hotness.degree(edges[0].to(dtype), NODES)
    assert scores.dtype == torch.int64
    assert scores.tolist() == [int((edges[0] == node).sum()) for node in range(NODES)]
    assert hotness.degree(edges[0].numpy(), NODES).tolist() == scores.tolist()
    assert hotness.degree(edges[0][:0], 3).tolist() == [0, 0, 0]


def test_presample_counts_accesses() -> None:
    batches = [torch.tensor([0, 3, 1]), torch.tensor([3], dtype=torch.int32), (torch.tensor([3, 2]), "blocks")]
    assert hotness.presample(batches, 5).tolist() == [1, 1, 1, 3, 0]
    assert hotness.presample(iter(batches), 5).tolist() == [1, 1, 1, 3, 0]
    assert hotness.presample(batches, 5, epochs=3).tolist() == [3, 3, 3, 9, 0]


def test_presample_samples_anew_in_every_epoch() -> None:
    class Loader:
        epoch = 0

        def __iter__(self):
            self.epoch += 1
            return iter([torch.tensor([self.epoch])])

    assert hotness.presample(Loader(), 4, epochs=3).tolist() == [0, 1, 1, 1]


def test_reverse_pagerank_is_the_stationary_distribution_of_restarting_walks(edges) -> None:
    src, dst = edges
    train, damping = [1, 7, 30], 0.85
    start = np.zeros(NODES)
    start[train] = 1 / len(train)
    step = np.zeros((NODES, NODES))  # step[u, v]: from v to its in-neighbour u
    for u, v in zip(src.tolist(), dst.tolist(), strict=True):
        step[u, v] += 1 / int((dst == v).sum())
    wanted = np.linalg.solve(np.eye(NODES) - damping * step, (1 - damping) * start)
    ids = torch.tensor([*train, 7])  # repeats count once
    scores = hotness.reverse_pagerank(src, dst, NODES, ids, damping=damping, iterations=200)
    assert scores.dtype == torch.float64
    np.testing.assert_allclose(scores.numpy(), wanted, rtol=1e-10, atol=1e-15)
    assert not scores[NODES - 5 :][~torch.isin(torch.arange(NODES - 5, NODES), ids)].any()
    truncated = hotness.reverse_pagerank(src, dst, NODES, ids, damping=damping)
    assert float((truncated - scores).abs().sum()) < 2 * damping**10


def test_reverse_pagerank_in_parts_and_without_training_nodes(edges, monkeypatch) -> None:
    whole = hotness.reverse_pagerank(*edges, NODES)
    monkeypatch.setattr(hotness, "_EDGES_PER_PART", 7)
    np.testing.assert_allclose(hotness.reverse_pagerank(*edges, NODES).numpy(), whole.numpy(), rtol=1e-12)
    assert bool((whole > 0).all())


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: hotness.degree(torch.tensor([0, 9]), 9), IndexError, "src: want 0 <= id < 9, got 9 at position 1"),
        (lambda: hotness.degree(torch.tensor([-1]), 9), IndexError, "src: want 0 <= id < 9, got -1"),
        (lambda: hotness.degree(torch.tensor([0.5]), 9), TypeError, "src: want int32 or int64"),
        (lambda: hotness.presample([], 9), ValueError, "batches: want at least 1, got none"),
        (lambda: hotness.presample([torch.tensor([9])], 9), IndexError, "batches: want 0 <= id < 9, got 9"),
        (lambda: hotness.presample(iter([]), 9, epochs=2), ValueError, "to go through 2 times, got an iterator"),
        (lambda: hotness.presample([], 9, epochs=0), ValueError, "epochs: want at least 1, got 0"),
        (
            lambda: hotness.reverse_pagerank(torch.tensor([0]), torch.tensor([0, 1]), 9),
            ValueError,
            r"dst: want \[1\] as src, got \[2\]",
        ),
        (
            lambda: hotness.reverse_pagerank(
                torch.tensor([0]), torch.tensor([1]), 9, torch.tensor([], dtype=torch.int64)
            ),
            ValueError,
            "train_ids: want at least 1 id, got none",
        ),
        (
            lambda: hotness.reverse_pagerank(torch.tensor([0]), torch.tensor([1]), 9, damping=1.0),
            ValueError,
            "damping: want 0 <= damping < 1, got 1.0",
        ),
        (
            lambda: hotness.reverse_pagerank(torch.tensor([0]), torch.tensor([1]), 9, iterations=0),
            ValueError,
            "iterations: want at least 1, got 0",
        ),
    ],
)
def test_bad_arguments(call, error, message) -> None:
    with pytest.raises(error, match=message):
        call()

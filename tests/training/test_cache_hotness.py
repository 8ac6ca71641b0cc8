"""`cache.hotness` of a training run: each policy gives the scores that ibp_gnn/gpu/hotness.py says."""

from __future__ import annotations

import importlib.util

import pytest
import torch

from ibp_gnn.config import ConfigError, load
from ibp_gnn.datasets import load_dataset
from ibp_gnn.gpu import hotness
from ibp_gnn.training import loop
from ibp_gnn.training.config import TrainingConfig

SMALL = ["device=cpu", "features=raw", "model.hidden=8", "train.fanouts=[3, 3]", "train.batch_size=8192"]


def scores_of(policy: str, *overrides: str) -> torch.Tensor | None:
    """What a run would give its cache on a GPU."""
    job = loop.Run(load(TrainingConfig, None, [*SMALL, f"cache.hotness={policy}", *overrides]))
    return job._hotness(load_dataset("wordnet", "glove"), loop._import_loop(*loop._LOOPS[job.config.loop]))


@pytest.mark.parametrize("library", ["dgl", "pyg"])
def test_presample_counts_one_epoch_of_the_library_of_the_loop(library: str) -> None:
    if importlib.util.find_spec({"dgl": "dgl", "pyg": "torch_geometric"}[library]) is None:
        pytest.skip(f"loop {library} needs a library that is not installed")
    data = load_dataset("wordnet", "glove")
    counts = scores_of("presample", f"loop={library}")
    assert counts is not None and counts.shape == (data.num_nodes,)
    steps = -(-len(data.train_ids) // 8192)
    assert int(counts.max()) <= steps and bool((counts[data.train_ids] >= 1).all())
    assert torch.equal(counts, scores_of("presample", f"loop={library}")), "the same seed, the same scores"
    # The most connected nodes are in every batch; those without edges are read as seeds alone.
    degrees = hotness.degree(data.src, data.num_nodes)
    assert float(counts[degrees.topk(50).indices].double().mean()) > 0.9 * steps
    is_train = torch.zeros(data.num_nodes, dtype=torch.bool)
    is_train[data.train_ids] = True
    assert torch.equal(counts[degrees == 0], is_train[degrees == 0].long())


def test_policies_that_need_the_graph_alone() -> None:
    data = load_dataset("wordnet", "glove")
    if importlib.util.find_spec("dgl") is None:
        pytest.skip("the default loop needs DGL")
    degrees, pagerank = scores_of("degree"), scores_of("reverse_pagerank")
    assert degrees is not None and torch.equal(degrees, hotness.degree(data.src, data.num_nodes))
    wanted = hotness.reverse_pagerank(data.src, data.dst, data.num_nodes, data.train_ids)
    assert pagerank is not None and torch.equal(pagerank, wanted)
    assert scores_of("null") is None


def test_unknown_policy() -> None:
    with pytest.raises(ConfigError, match=r"cache.hotness: want .*'reverse_pagerank'.*, got 'lru'"):
        load(TrainingConfig, None, ["cache.hotness=lru"])

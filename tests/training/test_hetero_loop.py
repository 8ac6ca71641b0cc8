"""Batches of a heterograph."""

from __future__ import annotations

import importlib.util

import pytest
import torch

if importlib.util.find_spec("dgl") is None:
    pytest.skip("DGL is not installed", allow_module_level=True)

from hetero_cases import CITES, CPU, SMALL, WRITES, dataset

from ibp_gnn.config import load
from ibp_gnn.training.config import TrainingConfig
from ibp_gnn.training.features import FeaturesByType, RawFeatures
from ibp_gnn.training.hetero_loop import HeteroDGLLoop


def test_batches_are_the_graphs(monkeypatch: pytest.MonkeyPatch) -> None:
    """All neighbours: every row, label and edge of a batch is what the data set has."""
    data = dataset()
    config = load(TrainingConfig, None, [*SMALL, "train.fanouts=[-1, -1]", "train.batch_size=40"]).train
    features = FeaturesByType({"paper": RawFeatures(data.features["paper"])})
    steps = list(HeteroDGLLoop(data, features, config, CPU, "csc").steps(data.val_ids, mark=lambda p: None))
    assert [len(step.labels) for step in steps] == [40, 10]
    step = steps[0]
    torch.testing.assert_close(step.labels, data.labels[100:140])
    paper_rows, authors = step.x["paper"], step.x["author"]
    assert authors.dtype == torch.int64
    last = step.blocks[-1]
    assert last.num_dst == {"author": 0, "paper": 40}
    for edge_type in (WRITES, CITES):
        src, dst = data.edges[edge_type]
        for position in range(40):
            mine = src[dst == 100 + position]
            assert int(last.relations[edge_type].indptr.diff()[position]) == len(mine)
    # Papers of the last block are the first ones of the first block: rows are those of the data set.
    assert torch.equal(paper_rows[:40], data.features["paper"][100:140])

"""The tensors of a data set fit together."""

from __future__ import annotations

import pytest
import torch

from ibp_gnn.datasets import NodeDataset


def test_node_dataset_refuses_wrong_tensors():
    ids = torch.arange(3)
    good = dict(
        name="x", num_classes=3, src=ids, dst=ids, features=torch.zeros(3, 2), labels=ids,
        train_ids=ids[:1], val_ids=ids[1:2], test_ids=ids[2:],
    )  # fmt: skip
    assert NodeDataset(**good).num_nodes == 3
    with pytest.raises(ValueError, match=r"labels: want 1-d torch.int64, got \[3\] torch.int32"):
        NodeDataset(**{**good, "labels": ids.int()})
    with pytest.raises(ValueError, match=r"dst: want \[3\] as src, got \[2\]"):
        NodeDataset(**{**good, "dst": ids[:2]})
    with pytest.raises(ValueError, match=r"features: want \[3, d\], got \[2, 2\]"):
        NodeDataset(**{**good, "features": torch.zeros(2, 2)})

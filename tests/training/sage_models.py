"""A model of GraphSAGE, and its sizes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from ibp_gnn.training import checkpoint
from ibp_gnn.training.sage import GraphSAGE

NODES, FEATURES, CLASSES = 1500, 20, 7
SETTINGS: dict[str, Any] = dict(
    in_feats=FEATURES, num_classes=CLASSES, hidden=32, layers=3, dropout=0.5, input_norm=True
)


@pytest.fixture
def model(tmp_path: Path) -> GraphSAGE:
    """A model, also in model.pt."""
    torch.manual_seed(3)
    made = GraphSAGE(**SETTINGS, aggregation="dgl")
    made.norm.running_mean.uniform_()
    checkpoint.save(tmp_path / "model.pt", made)
    return made.eval()

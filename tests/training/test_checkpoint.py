"""Models saved and loaded."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import sage_models
import torch
from sage_models import SETTINGS

from ibp_gnn.config import ConfigError
from ibp_gnn.testing import assert_bitwise_equal
from ibp_gnn.training import checkpoint
from ibp_gnn.training.sage import GraphSAGE

model = sage_models.model


def test_checkpoint(tmp_path: Path, model: GraphSAGE) -> None:
    for aggregation in ("dgl", "csc"):
        loaded = checkpoint.load(str(tmp_path / "model.pt"), aggregation)
        assert not loaded.training and loaded.settings == SETTINGS
        for name, tensor in model.state_dict().items():
            assert_bitwise_equal(loaded.state_dict()[name], tensor)
    assert os.listdir(tmp_path) == ["model.pt"]


def test_models_that_cannot_be_saved(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="log.checkpoint: want a data set with one node type"):
        checkpoint.prepare(str(tmp_path / "model.pt"), torch.nn.Linear(1, 1))
    with pytest.raises(ConfigError, match="log.checkpoint: want a file, got the folder"):
        checkpoint.prepare(str(tmp_path), GraphSAGE(**SETTINGS, aggregation="csc"))

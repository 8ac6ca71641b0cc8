"""The settings of a training: defaults, and what is refused."""

from __future__ import annotations

import pytest

from ibp_gnn.config import ConfigError, load
from ibp_gnn.training.config import TrainingConfig


def test_training_config_defaults_are_valid() -> None:
    assert load(TrainingConfig) == TrainingConfig()


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["train.fanouts=[10]"], r"train\.fanouts: want 2 numbers, one a layer \(model\.layers\), got \[10\]"),
        (["train.fanouts=[10, 0]"], r"train\.fanouts: want numbers >= 1, or -1 for all, got \[10, 0\]"),
        (["features=zipped"], r"features: want one of 'compressed', 'raw', got 'zipped'"),
        (["cache.capacity=0"], r"cache\.capacity: want a value > 0, got 0"),
        (["device=gpu"], r"device: want one of 'auto', 'cpu', 'cuda', got 'gpu'"),
        (["train.epoch=3"], r"unknown setting 'train\.epoch'; did you mean 'train\.epochs'\?"),
    ],
)
def test_training_config_refused(overrides: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load(TrainingConfig, None, overrides)

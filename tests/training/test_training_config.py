"""The settings of a training: defaults, and what is refused."""

from __future__ import annotations

import pytest

from ibp_gnn.config import ConfigError, load
from ibp_gnn.training.config import StoreConfig, TrainingConfig


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
        (["cache.capacity=4XB", "device=cpu"], r"cache\.capacity: want bytes .*, got '4XB'"),
        (["cache.capacity=1.5"], r"cache\.capacity: want bytes .*, got 1\.5"),
        (["store.codec=zip"], r"store\.codec: want one of \['auto', 'dict', 'ibp'\], got 'zip'"),
        (["store.precision=fp4"], r"store\.precision: want one of 'bf16', .* or null, got 'fp4'"),
        (["dataset.name=cora"], r"dataset\.name: want one of \['wordnet'.*, got 'cora'"),
        (
            ["dataset.name=arrays", "dataset.root=x", "dataset.features=glove"],
            r"dataset\.features: want a file in root",
        ),
        (["dataset.name=arrays"], r"dataset\.root: want the folder that holds arrays, got none"),
        (["dataset.root=x"], r"dataset\.root: want none for wordnet, .* set it to null \(dataset\.name=wordnet\)"),
        (["train.epoch=3"], r"unknown setting 'train\.epoch'; did you mean 'train\.epochs'\?"),
    ],
)
def test_training_config_refused(overrides: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load(TrainingConfig, None, overrides)


def test_a_store_file_that_is_not_there(tmp_path) -> None:
    for config in (StoreConfig(), StoreConfig(path=__file__)):
        config.check_path()
    with pytest.raises(ConfigError, match="store.path: want a store file, got .*none.ibp, where no file is"):
        StoreConfig(path=str(tmp_path / "none.ibp")).check_path()

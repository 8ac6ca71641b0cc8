"""The settings of a layer-wise inference: what `scripts/infer_sage.py --config FILE` reads."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from ..config import ConfigError, setting
from .config import DatasetConfig, StoreConfig


@dataclass(frozen=True)
class OutputConfig:
    """Files for what comes out, as .npy arrays with one row a node; null: not written."""

    predictions: str | None = None
    """int64 [num_nodes]: the class with the largest logit."""
    logits: str | None = None
    """float32 [num_nodes, num_classes]."""


@dataclass(frozen=True)
class InferenceLogConfig:
    """Where the run's record goes and whether progress bars are drawn."""

    json: str | None = None
    progress: bool = True


@dataclass(frozen=True)
class InferenceConfig:
    """Everything that defines an inference."""

    checkpoint: str
    """What train_sage.py wrote to its `log.checkpoint`."""
    dataset: DatasetConfig = field(default_factory=DatasetConfig)
    features: Literal["compressed", "raw"] = "compressed"
    embeddings: Literal["compressed", "raw"] = "compressed"
    """How the outputs of all layers but the last are kept."""
    store: StoreConfig = field(default_factory=StoreConfig)
    """Of the input features."""
    embedding_store: StoreConfig = field(default_factory=lambda: StoreConfig(codec="auto"))
    """Of the outputs of the layers: after a ReLU, about half of their values are zero."""
    batch_size: int = setting(4096, ge=1)
    """Nodes whose layer is computed at once; all their neighbours' rows are read for that."""
    sample_nodes: int = setting(16384, ge=1)
    """Nodes, drawn at random, whose rows are computed first, to fit the codec to."""
    workers: int = setting(0, ge=0)
    """Sampling processes; 0 samples in this one."""
    seed: int = setting(0, ge=0, lt=2**31)
    device: Literal["auto", "cpu", "cuda"] = "auto"
    output: OutputConfig = field(default_factory=OutputConfig)
    log: InferenceLogConfig = field(default_factory=InferenceLogConfig)

    def __post_init__(self) -> None:
        self.store.check_codec("store")
        self.embedding_store.check_codec("embedding_store")
        if self.embedding_store.precision is not None:
            got = self.embedding_store.precision
            raise ConfigError(f"embedding_store.precision: want null: outputs of layers are kept losslessly, got {got}")

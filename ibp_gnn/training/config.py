"""The settings of a GraphSAGE training run: what `scripts/train_sage.py --config FILE` reads."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Literal

import torch

from ..codec.registry import FORMS
from ..config import ConfigError, setting
from ..datasets import DatasetError, check_settings
from ..gpu.capacity import parse_capacity
from ..gpu.hotness import Policy
from ..store.precision import PrecisionName

_MANY = 2**62  # rows, bytes


@dataclass(frozen=True)
class DatasetConfig:
    """Which data set: the arguments of `ibp_gnn.datasets.load_dataset`. null: the data set's own choice."""

    name: str = "wordnet"
    root: str | None = None
    """The folder that holds it; relative to where the run starts."""
    features: str | None = None
    """Of wordnet "glove" or "bow"; of arrays a file name; of synthetic ones the real matrix that they follow."""
    reverse_edges: bool = False
    """Add every edge once more, turned round: for citation graphs, not for those with both directions already."""
    allow_large_download: bool | None = None
    """Lets ogb download more than 1 GB, which it would ask about."""
    scale: float | None = setting(None, gt=0, le=1)
    """Of synthetic data sets, like the next two."""
    dtype: Literal["float32", "float16", "bfloat16"] | None = None
    seed: int | None = setting(None, ge=0)

    def __post_init__(self) -> None:
        given = {field.name: getattr(self, field.name) for field in fields(self) if field.name != "reverse_edges"}
        try:
            check_settings(**given)
        except DatasetError as error:
            raise ConfigError(f"dataset.{error} (dataset.name={self.name})") from error


@dataclass(frozen=True)
class StoreConfig:
    """How `features: compressed` stores the rows; see `CompressedFeatureStore.build`."""

    path: str | None = None
    """A store file of these features, from `ibp-gnn build`, to read instead; codec and layout are the file's then."""
    codec: str = "auto"
    layout: Literal["compact", "inplace", "packed", "auto"] = "compact"
    pin: bool | Literal["auto"] = "auto"
    precision: PrecisionName | None = None
    """LOSSY: what values are rounded to before they are compressed; of a store file, what they were rounded to. null:
    they stay as they are."""

    def check_codec(self, section: str) -> None:
        """section: of the config, for the message. Raises ConfigError for a codec that there is not."""
        if self.codec not in ("auto", *FORMS):
            raise ConfigError(f"{section}.codec: want one of {['auto', *FORMS]}, got {self.codec!r}")

    def check_path(self) -> None:
        """Before the data is loaded. Raises ConfigError for a path where no file is."""
        if self.path is not None and not Path(self.path).is_file():
            raise ConfigError(f"store.path: want a store file, got {self.path}, where no file is")


@dataclass(frozen=True)
class CacheConfig:
    """The GPU cache in front of the store; used on CUDA with `features: compressed` only."""

    capacity: int | float | str | None = setting(None, gt=0)
    """null: no cache; else bytes, "4GB", a fraction of the store below 1.0, or "auto". With several node types one for
    the features of all of them, shared out by `hotness` (ibp_gnn/gpu/budget.py); a fraction is of all stores."""
    hotness: Policy | None = "degree"
    """Which rows sit in the cache (gpu/hotness.py): of the nodes with the most out-edges; presample: of those read
    most often in one epoch sampled for this alone; reverse_pagerank; null: of the lowest ids. With several node types
    only degree and null, which is then the same share of each."""

    def __post_init__(self) -> None:
        if self.capacity in (None, "auto"):
            return
        try:  # of any store: is it a capacity at all?
            parse_capacity(self.capacity, num_rows=_MANY, store_bytes=_MANY, device=torch.device("cpu"))
        except (ValueError, TypeError) as error:
            raise ConfigError(f"cache.{error}") from error


@dataclass(frozen=True)
class ModelConfig:
    """GraphSAGE with the mean aggregator."""

    hidden: int = setting(256, ge=1)
    layers: int = setting(2, ge=1)
    dropout: float = setting(0.5, ge=0, lt=1)
    input_norm: bool = True
    """Batch normalisation of the input features."""


@dataclass(frozen=True)
class TrainConfig:
    """The mini-batch loop."""

    epochs: int = setting(10, ge=1)
    batch_size: int = setting(1024, ge=1)
    """Seeds of a step; under torchrun of all processes together, each of which takes an equal part."""
    fanouts: tuple[int, ...] = setting((10, 10), ge=-1)
    """Neighbours sampled per node, one number a layer, input layer first; -1 takes all of them."""
    lr: float = setting(3e-3, gt=0)
    workers: int = setting(0, ge=0)
    """Sampling processes; 0 samples in the training process, on one thread (see OneThreadSampler)."""
    prefetch: bool = False
    """Fetch the features of the next batch while this one trains (ibp_gnn.Prefetcher). Of `loop: dgl`, with one node
    type. On a GPU the first steps measure whether that pays; if not, it switches itself off, and the log says so. The
    record's fetch time is then what training does not hide: on a GPU how long its stream waits for features, and copies
    labels and blocks; on the CPU, where nothing overlaps, all of it."""
    graph_memory: Literal["cuda", "cpu"] = "cuda"
    """Of `loop: wholegraph`: where the graph lies: shared out over the GPUs of a machine, or in its page-locked
    memory."""
    seed: int = setting(0, ge=0, lt=2**31)
    deterministic: bool = False
    """Only deterministic kernels: CUDA runs then repeat bit for bit, as CPU runs always do."""
    rank_timeout: float = setting(600, gt=0)
    """Under torchrun: seconds that a process waits for the others before it ends with an error."""

    def __post_init__(self) -> None:
        if 0 in self.fanouts:
            raise ConfigError(f"train.fanouts: want numbers >= 1, or -1 for all, got {list(self.fanouts)}")


@dataclass(frozen=True)
class LogConfig:
    """Where the run's record and model go, whether progress bars are drawn, and what is counted for the log."""

    json: str | None = None
    progress: bool = True
    checkpoint: str | None = None
    """A file to save the trained model in, for scripts/infer_sage.py; null: none."""
    unique_rows: bool = False
    """Count how many different rows an epoch reads, too: a bit of GPU memory a row, and some time. On CUDA with
    `features: compressed`."""


@dataclass(frozen=True)
class TrainingConfig:
    """Everything that defines a run."""

    dataset: DatasetConfig = field(default_factory=DatasetConfig)
    features: Literal["compressed", "raw"] = "compressed"
    loop: Literal["dgl", "graphbolt", "pyg", "wholegraph"] = "dgl"
    """What makes the mini-batches: DGL's DataLoader, GraphBolt's pipes, PyG's NodeLoader, or WholeGraph's sampler on
    the GPU (ibp_gnn.wholegraph)."""
    store: StoreConfig = field(default_factory=StoreConfig)
    cache: CacheConfig = field(default_factory=CacheConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    train: TrainConfig = field(default_factory=TrainConfig)
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """auto is CUDA where torch can use it. CUDA_VISIBLE_DEVICES picks the GPU."""
    log: LogConfig = field(default_factory=LogConfig)

    def __post_init__(self) -> None:
        self.store.check_codec("store")
        if len(self.train.fanouts) != self.model.layers:
            raise ConfigError(
                f"train.fanouts: want {self.model.layers} numbers, one a layer (model.layers), "
                f"got {list(self.train.fanouts)}"
            )
        if self.train.prefetch and self.loop != "dgl":
            raise ConfigError(f"train.prefetch: want loop dgl, got {self.loop}")
        if self.train.workers and self.loop == "wholegraph":
            raise ConfigError(
                f"train.workers: want 0 for loop wholegraph, which samples on the GPU, got {self.train.workers}"
            )

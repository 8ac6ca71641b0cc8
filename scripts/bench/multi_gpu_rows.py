"""What bench_multi_gpu.py measures: its config, and the rows that each process has."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

import torch

from ibp_gnn import CompressedFeatureStore
from ibp_gnn.codec.values import dtype_from_name
from ibp_gnn.config import ConfigError, setting
from ibp_gnn.training.config import TrainingConfig
from ibp_gnn.training.distributed import Ranks

_ROWS_AT_ONCE = 1 << 18
_SHARED_OUT = 840  # a multiple of 1 to 8: all GPUs get equally many rows


@dataclasses.dataclass(frozen=True)
class Case:
    """Rows of N(0, 0.1), the same statistics as dense learned features. rows_gb: of all of them, uncompressed, in units
    of 1e9 bytes."""

    dim: int = setting(128, ge=1)
    dtype: Literal["float32", "float16", "bfloat16"] = "float32"
    rows_gb: float = setting(4.0, gt=0)

    @property
    def name(self) -> str:
        return f"{self.dim} x {self.dtype}, {self.rows_gb:g} GB"

    @property
    def num_rows(self) -> int:
        row_bytes = self.dim * dtype_from_name(self.dtype).itemsize
        return max(1, int(self.rows_gb * 1e9) // row_bytes // _SHARED_OUT) * _SHARED_OUT


@dataclasses.dataclass(frozen=True)
class Training:
    """Epochs with DDP. strong_batch: seeds of a step of all GPUs together, whatever their number. weak_batch: those of
    each GPU. null: not measured. run: as of scripts/train_sage.py; the features of a synthetic data set follow
    rows of N(0, 0.1) if dataset.features is null."""

    strong_batch: int | None = setting(None, ge=1)
    weak_batch: int | None = setting(None, ge=1)
    run: TrainingConfig = TrainingConfig(loop="wholegraph")

    def batch_sizes(self, gpus: int) -> dict[str, int]:
        """By scaling, of all GPUs together."""
        sizes = {"strong": self.strong_batch, "weak": gpus * self.weak_batch if self.weak_batch else None}
        return {scaling: size for scaling, size in sizes.items() if size is not None}

    def __post_init__(self) -> None:
        if self.run.loop != "wholegraph":
            raise ConfigError(f"training.run.loop: want wholegraph, got {self.run.loop}")


@dataclasses.dataclass(frozen=True)
class Config:
    """gpus: how many, one run for each number; those that are not here are left out. ids: of a gather of one GPU.
    calls: gathers that are timed together, each of new ids. repeats: of these. cache_share: memory of each GPU for the
    caches that are compared, of the store's bytes. skew: row i is read there in proportion to (i + 1) ** -skew."""

    gpus: tuple[int, ...] = setting((1, 2, 4, 8), ge=1)
    cases: tuple[Case, ...] = (Case(),)
    codec: str = "auto"
    ids: int = setting(400_000, ge=1)
    calls: int = setting(8, ge=1)
    repeats: int = setting(7, ge=1)
    cache_share: float = setting(0.1, gt=0, lt=1)
    skew: float = setting(0.5, ge=0)
    training: Training = Training()
    timeout: float = setting(300, gt=0)
    """Seconds that a process waits for the others."""
    seed: int = setting(0, ge=0)

    def __post_init__(self) -> None:
        for size in self.gpus:
            if _SHARED_OUT % size:
                raise ConfigError(f"gpus: want numbers that divide {_SHARED_OUT}, got {size}")
            got = self.training.strong_batch
            if got is not None and got % size:
                raise ConfigError(f"training.strong_batch: want a multiple of {size}, which is in gpus, got {got}")


@dataclasses.dataclass(frozen=True)
class Rows:
    """raw: [n, d] on this process's GPU, the same in all processes. store: of these rows, one of all processes."""

    raw: torch.Tensor
    store: CompressedFeatureStore
    ranks: Ranks

    @property
    def row_bytes(self) -> int:
        return self.raw.shape[1] * self.raw.element_size()


@contextmanager
def open_rows(case: Case, config: Config, ranks: Ranks) -> Iterator[Rows]:
    """A collective call."""
    device = torch.device("cuda", torch.cuda.current_device())
    draw = torch.Generator(device).manual_seed(config.seed)
    raw = torch.empty(case.num_rows, case.dim, dtype=dtype_from_name(case.dtype), device=device)
    for part in raw.split(_ROWS_AT_ONCE):
        part.copy_(torch.randn(part.shape, device=device, generator=draw) * 0.1)
    store = ranks.one_per_machine(lambda: CompressedFeatureStore.build(raw.cpu(), config.codec, progress=False))
    torch.manual_seed(config.seed + 1 + ranks.rank)  # from here on each process draws its own ids
    with store:
        yield Rows(raw, store, ranks)

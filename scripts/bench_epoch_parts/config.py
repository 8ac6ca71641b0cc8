"""What bench_epoch.py measures."""

from __future__ import annotations

import dataclasses
from typing import Literal

from ibp_gnn.config import ConfigError, setting


@dataclasses.dataclass(frozen=True)
class FeatureSet:
    """A graph with features.

    graph: "wordnet" with its own bag of words, or one generated in the shape of that OGB data set
    (ibp_gnn/datasets/synthetic.py: the power law of its degrees, its direction, its classes) with so many nodes and
    edges, and features [nodes, width] of N(0, 0.1), the same statistics as dense learned ones."""

    graph: Literal["wordnet", "products", "papers"] = setting()
    nodes: int | None = setting(None, ge=2)
    edges: int | None = setting(None, ge=1)
    """Of an undirected graph each is there both ways."""
    width: int | None = setting(None, ge=1)
    dtype: Literal["float32", "float16", "bfloat16"] = "float32"

    def __post_init__(self) -> None:
        given = {"nodes": self.nodes, "edges": self.edges, "width": self.width}
        for name, value in given.items():
            if (value is None) != (self.graph == "wordnet"):
                wanted = "none (it is what it is)" if self.graph == "wordnet" else "a number"
                raise ConfigError(f"sets: {name} of {self.graph}: want {wanted}, got {value}")

    @property
    def name(self) -> str:
        if self.graph == "wordnet":
            return f"wordnet bow, {self.dtype}"
        return f"synthetic {self.graph}, {self.width} x {self.dtype}"


@dataclasses.dataclass(frozen=True)
class Config:
    """cache_share: bytes on the GPU, of the raw features' bytes, for either cache. batches: mini-batches that are
    sampled once and make up an epoch. verify_batches: of these, compared before anything is timed. epochs: timed ones,
    after one to warm up. live_batches: for the time with sampling. lookahead: for the method that has one."""

    sets: tuple[FeatureSet, ...] = ()
    codec: str = "auto"
    cache_share: float = setting(0.2, gt=0, le=1)
    batches: int = setting(16, ge=1)
    batch_size: int = setting(1024, ge=1)
    fanouts: tuple[int, ...] = setting((5, 10, 15), ge=1)
    hidden: int = setting(128, ge=1)
    epochs: int = setting(3, ge=1)
    verify_batches: int = setting(3, ge=1)
    live_batches: int = setting(8, ge=1)
    lookahead: int = setting(4, ge=2)
    seed: int = setting(0, ge=0)
    device: Literal["auto", "cpu", "cuda"] = "auto"

    def __post_init__(self) -> None:
        if self.verify_batches > self.batches:
            raise ConfigError(f"verify_batches: want at most batches = {self.batches}, got {self.verify_batches}")

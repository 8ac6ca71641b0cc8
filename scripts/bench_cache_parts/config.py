"""What bench_cache_hit.py measures."""

from __future__ import annotations

import dataclasses
from typing import Literal

from ibp_gnn.config import ConfigError, setting

Rows = Literal["wordnet_glove", "wordnet_bow", "glove_100", "minilm_128"]


@dataclasses.dataclass(frozen=True)
class Features:
    """rows: real rows, repeated over the nodes of the graph; see row_bytes.py."""

    rows: Rows = setting()
    dtype: Literal["float32", "bfloat16", "float16"] = "float32"


@dataclasses.dataclass(frozen=True)
class Graph:
    """name: "wordnet", or the OGB data set whose shape a generated graph has (ibp_gnn/datasets/synthetic.py). scale:
    nodes and edges of a generated graph, as a share of that data set's."""

    name: Literal["wordnet", "products", "papers"] = setting()
    features: tuple[Features, ...] = setting()
    scale: float = setting(1.0, gt=0, le=1)

    def __post_init__(self) -> None:
        if self.name == "wordnet" and self.scale != 1:
            raise ConfigError(f"graphs: want scale 1 for wordnet, got {self.scale}")


@dataclasses.dataclass(frozen=True)
class Config:
    """fanouts: every item is one trace per graph; numbers with dashes between them, one a layer, input layer first.
    measured_epochs: the epochs in which hits are counted. presample_epochs: for each number n a policy "presample_<n>",
    which counts accesses in the n epochs before them. warm_epochs: one of these numbers; dynamic policies start as so
    many epochs have left them, and are compared with the presample that has seen the same. shares: cache sizes; a size
    is the bytes of the id table, which every cache of the graph needs, and this share of all raw rows' bytes.
    dynamic_shares: cache sizes for the dynamic policies, as shares of all rows."""

    graphs: tuple[Graph, ...] = ()
    fanouts: tuple[str, ...] = ("15-10-5", "10-10-10")
    batch_size: int = setting(1024, ge=1)
    policies: tuple[Literal["degree", "reverse_pagerank"], ...] = ("degree", "reverse_pagerank")
    presample_epochs: tuple[int, ...] = setting((1, 3, 5), ge=1)
    warm_epochs: int = setting(3, ge=1)
    measured_epochs: int = setting(2, ge=1)
    shares: tuple[float, ...] = setting((0.01, 0.02, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8), gt=0, le=1)
    dynamic: tuple[Literal["lru", "clock", "sieve", "lfu"], ...] = ("lru", "clock", "sieve", "lfu")
    dynamic_shares: tuple[float, ...] = setting((0.1, 0.4), gt=0, le=1)
    seed: int = setting(0, ge=0)

    def __post_init__(self) -> None:
        for text in self.fanouts:
            parse_fanouts(text)
        if list(self.shares) != sorted(set(self.shares)):
            raise ConfigError(f"shares: want rising numbers, got {list(self.shares)}")
        if self.warm_epochs not in self.presample_epochs:
            raise ConfigError(
                f"warm_epochs: want one of presample_epochs {list(self.presample_epochs)}, got {self.warm_epochs}"
            )


def parse_fanouts(text: str) -> list[int]:
    """ "15-10-5" as [15, 10, 5]. Raises ConfigError for what is no such list."""
    parts = text.split("-")
    if not all(part.isdigit() and int(part) > 0 for part in parts):
        raise ConfigError(f"fanouts: want positive numbers with dashes between them, like '15-10-5', got {text!r}")
    return [int(part) for part in parts]

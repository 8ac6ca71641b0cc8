"""What bench_codec.py measures, and on which data: one dataclass per section; a section without data is left out."""

from __future__ import annotations

import dataclasses
import re
from typing import Literal

from ibp_gnn.config import ConfigError, setting

REAL_DATA = (
    "wordnet_glove",
    "wordnet_bow",
    "wordnet_relu_1",
    "wordnet_relu_2",
    "glove",
    "minilm_embeddings",
    "minilm_weights",
)
_WITH_WIDTH = re.compile(r"(normal|relu)_[1-9][0-9]*")

CodecName = Literal["auto", "dict", "ibp"]


@dataclasses.dataclass(frozen=True)
class Data:
    """Names of data by the dtype that it is cast to: those of REAL_DATA; normal_<width>, N(0, 0.1); relu_<width>, the
    positive part of N(0, 1), else 0; or the path of a .npy file with rows."""

    float32: tuple[str, ...] = ()
    bfloat16: tuple[str, ...] = ()
    float16: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name, _ in self.cases():
            if name not in REAL_DATA and not name.endswith(".npy") and not _WITH_WIDTH.fullmatch(name):
                wanted = [*REAL_DATA, "normal_<width>", "relu_<width>", "<path>.npy"]
                raise ConfigError(f"data: want one of {wanted}, got {name!r}")

    def cases(self) -> list[tuple[str, str]]:
        """(name, dtype) pairs, those of one data set together."""
        dtypes = [field.name for field in dataclasses.fields(self)]
        names = dict.fromkeys(name for dtype in dtypes for name in getattr(self, dtype))
        return [(name, dtype) for name in names for dtype in dtypes if name in getattr(self, dtype)]


@dataclasses.dataclass(frozen=True)
class Sizes:
    """fit_rows: rows that `ibp` and `dict` are fitted on ("auto" looks at as many as a user's does). Sizes are of all
    rows."""

    data: Data = dataclasses.field(default_factory=Data)
    fit_rows: int = setting(65536, ge=1)


@dataclasses.dataclass(frozen=True)
class Cpu:
    """raw_mb: raw rows, repeated up to this size (1e6 bytes). fit_mb: of them, those that fits look at. batch_mb: raw
    bytes that one gather returns. threads: of torch and of the codecs, one after the other; fits and compression take
    the most."""

    data: Data = dataclasses.field(default_factory=Data)
    codecs: tuple[CodecName, ...] = ("auto", "ibp")
    threads: tuple[int, ...] = setting((1, 2), ge=1)
    raw_mb: float = setting(1500.0, gt=0)
    fit_mb: float = setting(512.0, gt=0)
    batch_mb: float = setting(64.0, gt=0)
    id_sets: int = setting(4, ge=1)
    repeats: int = setting(5, ge=1)


@dataclasses.dataclass(frozen=True)
class Gpu:
    """hbm_mb: raw rows in GPU memory, repeated up to this size (1e6 bytes). batch_mb: raw bytes that one gather of them
    returns. compress_mb: raw bytes that are compressed at once. pinned_mb: raw rows in page-locked CPU memory, of which
    one gather fetches pinned_ids; blocks: grid sizes to try there, the fastest counts. 0 MB: left out."""

    data: Data = dataclasses.field(default_factory=Data)
    codecs: tuple[CodecName, ...] = ("auto", "ibp")
    hbm_mb: float = setting(2000.0, gt=0)
    batch_mb: float = setting(400.0, gt=0)
    compress_mb: float = setting(1000.0, gt=0)
    pinned_mb: float = setting(4000.0, ge=0)
    pinned_ids: int = setting(200_000, ge=1)
    blocks: tuple[int, ...] = setting((16, 32, 64), ge=1)
    id_sets: int = setting(3, ge=1)
    repeats: int = setting(5, ge=2)


@dataclasses.dataclass(frozen=True)
class Peers:
    """General compressors. cpu_mb, gpu_mb: raw bytes that they compress. chunk_kb: of the larger chunks; the smaller
    ones are one row each. cpu_ids, gpu_ids: rows that are decoded by random ids."""

    data: Data = dataclasses.field(default_factory=Data)
    cpu_mb: float = setting(16.0, gt=0)
    gpu_mb: float = setting(256.0, gt=0)
    chunk_kb: int = setting(64, ge=1)
    cpu_ids: int = setting(4096, ge=1)
    gpu_ids: int = setting(50_000, ge=1)
    repeats: int = setting(3, ge=1)


@dataclasses.dataclass(frozen=True)
class Config:
    """optional: data to leave out, with a message, if the package that has it is missing. glove_rows: of the matrix of
    word vectors, the most frequent words. synthetic_rows: of normal_* and relu_*. relu_epochs: what the network behind
    wordnet_relu_* is trained for; relu_cache: folder that keeps its activations."""

    sizes: Sizes = dataclasses.field(default_factory=Sizes)
    cpu: Cpu = dataclasses.field(default_factory=Cpu)
    gpu: Gpu = dataclasses.field(default_factory=Gpu)
    peers: Peers = dataclasses.field(default_factory=Peers)
    optional: tuple[str, ...] = ()
    glove_rows: int = setting(200_000, ge=1)
    synthetic_rows: int = setting(100_000, ge=1)
    relu_epochs: int = setting(4, ge=1)
    relu_cache: str = "runs"
    seed: int = 0

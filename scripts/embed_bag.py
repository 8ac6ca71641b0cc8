#!/usr/bin/env python3
"""Finds WordNet glosses of like meaning with a real table of token embeddings, compressed.

python scripts/embed_bag.py --config configs/wordllama_bag.yaml

Each gloss is the mean of its tokens' rows in the table of the package wordllama, pooled by CompressedEmbeddingBag. The
neighbours of some glosses are printed beside those that torch.nn.EmbeddingBag gives with the raw table, as float32 and
rounded at the end, which is how ours sums; with a float16 table torch rounds more often. The last line of standard
output is one JSON object with the results.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import sys
import time
from pathlib import Path
from typing import Any, Literal

import torch
from tqdm import tqdm

from ibp_gnn import CompressedEmbeddingBag
from ibp_gnn.codec.values import resolve_device
from ibp_gnn.config import ConfigError, setting
from ibp_gnn.datasets.array_files import load_rows
from ibp_gnn.datasets.wordnet import glosses
from ibp_gnn.training import record as record_module
from ibp_gnn.training.script import run_script

PACKAGES = "pip install wordllama==0.4.0.post1"
NUM_TOKENS, WIDTH = 32_000, 256


@dataclasses.dataclass(frozen=True)
class Log:
    """json: a file for the record; null: none. progress: show bars."""

    json: str | None = None
    progress: bool = True


@dataclasses.dataclass(frozen=True)
class Config:
    """texts: what neighbours are looked for, beside glosses by their node. neighbours: of each. batch: glosses that are
    pooled at once. capacity: of a cache on the GPU, as for CompressedEmbeddingBag; null: none. check_queries: glosses,
    evenly spread, whose neighbours are compared with those of the raw table."""

    texts: tuple[str, ...] = ("a small domestic animal that chases mice",)
    nodes: tuple[int, ...] = setting((1000,), ge=0)
    neighbours: int = setting(4, ge=1)
    check_queries: int = setting(500, ge=0)
    batch: int = setting(8192, ge=1)
    codec: Literal["auto", "dict", "ibp"] = "auto"
    capacity: int | float | str | None = None
    device: Literal["auto", "cpu", "cuda"] = "auto"
    log: Log = dataclasses.field(default_factory=Log)


def main() -> int:
    return run_script(
        __file__,
        "Nearest WordNet glosses by a compressed table of token embeddings.",
        "neighbours=3 device=cpu",
        Config,
        run,
        lambda config, result: {key: result[key] for key in result if key not in ("neighbours", "config")},
    )


def run(config: Config, commit: str | None = None) -> dict[str, Any]:
    """Returns the record. Raises ImportError where the package is missing, ConfigError for settings that do not fit."""
    best = "cuda" if torch.cuda.is_available() else "cpu"
    device = resolve_device(best if config.device == "auto" else config.device, torch.device("cpu"))
    path = None if config.log.json is None else record_module.prepare(Path(config.log.json), "log.json")
    folder = find_package()
    table = load_table(folder)
    texts = glosses()
    for node in config.nodes:
        if node >= len(texts):
            raise ConfigError(f"nodes: want less than {len(texts)}, got {node}")
    ids, offsets = tokenize(folder, [*texts, *config.texts], config.log.progress)
    bag = CompressedEmbeddingBag.from_pretrained(
        table, mode="mean", codec=config.codec, capacity=config.capacity, device=device, progress=config.log.progress
    )
    raw = torch.nn.EmbeddingBag.from_pretrained(table.to(device, torch.float32), mode="mean")
    begin = time.perf_counter()
    ours = pool_all(bag, ids, offsets, config, device)
    seconds = time.perf_counter() - begin
    torchs = pool_all(raw, ids, offsets, config, device).to(table.dtype)
    queries = [*config.nodes, *range(len(texts), len(offsets) - 1)]
    shown = [neighbours(pooled, len(texts), queries, config.neighbours) for pooled in (ours, torchs)]
    for query, own, others in zip(queries, *shown, strict=True):
        show(query, own, others, [*texts, *config.texts])
    checked = torch.linspace(0, len(texts) - 1, config.check_queries).long().tolist()
    own, others = (neighbours(pooled, len(texts), checked, config.neighbours) for pooled in (ours, torchs))
    same = sum(one == other for one, other in zip([*shown[0], *own], [*shown[1], *others], strict=True))
    store = bag.table.store
    result = {
        "table": f"wordllama l2_supercat, [{NUM_TOKENS}, {WIDTH}] float16",
        "device": str(device),
        "savings": store.savings,
        "table_bytes": table.nbytes,
        "store_bytes": store.nbytes,
        "glosses": len(texts),
        "tokens": len(ids),
        "pool_seconds": seconds,
        "max_difference": float((ours.float() - torchs.float()).abs().max()),
        "queries": len(queries) + len(checked),
        "queries_with_same_neighbours": same,
        "commit": commit,
        "neighbours": shown[0],
        "config": dataclasses.asdict(config),
    }
    if path is not None:
        path.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    return result


def find_package() -> Path:
    """The folder of wordllama, without importing it. Raises ImportError with the pip command."""
    spec = importlib.util.find_spec("wordllama")
    missing = [name for name in ("safetensors", "tokenizers") if importlib.util.find_spec(name) is None]
    if spec is None or not spec.submodule_search_locations or missing:
        raise ImportError(f"want the packages wordllama, safetensors and tokenizers; install them with: {PACKAGES}")
    return Path(spec.submodule_search_locations[0])


def load_table(folder: Path) -> torch.Tensor:
    """float16 [32000, 256]. Raises ConfigError if it is another."""
    path = folder / "weights" / "l2_supercat_256.safetensors"
    table = torch.as_tensor(load_rows(path, "embedding.weight"))
    if tuple(table.shape) != (NUM_TOKENS, WIDTH) or table.dtype != torch.float16:
        raise ConfigError(f"{path}: want [{NUM_TOKENS}, {WIDTH}] float16, got {list(table.shape)} {table.dtype}")
    return table


def tokenize(folder: Path, texts: list[str], progress: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """int64 [n]: the tokens of all texts; int64 [texts + 1]: where those of each start and end."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(folder / "tokenizers" / "l2_supercat_tokenizer_config.json"))
    tokenizer.no_padding()
    tokenizer.no_truncation()
    ids: list[int] = []
    starts, step = [0], 4096
    for first in tqdm(range(0, len(texts), step), desc="tokens", disable=not progress, leave=False):
        for encoding in tokenizer.encode_batch(texts[first : first + step], add_special_tokens=False):
            ids += encoding.ids
            starts.append(len(ids))
    return torch.tensor(ids), torch.tensor(starts)


def pool_all(
    bag: torch.nn.Module, ids: torch.Tensor, offsets: torch.Tensor, config: Config, device: torch.device
) -> torch.Tensor:
    """[texts, width] on the device."""
    parts = []
    firsts = range(0, len(offsets) - 1, config.batch)
    for first in tqdm(firsts, desc=type(bag).__name__, disable=not config.log.progress, leave=False):
        bounds = offsets[first : first + config.batch + 1]
        own = ids[bounds[0] : bounds[-1]].to(device)
        parts.append(bag(own, (bounds[:-1] - bounds[0]).to(device)))
    return torch.cat(parts)


def neighbours(pooled: torch.Tensor, num_glosses: int, queries: list[int], count: int) -> list[list[int]]:
    """The nearest glosses of each text by cosine, itself left out."""
    units = torch.nn.functional.normalize(pooled.to(torch.float64), dim=1)
    found = []
    for part in torch.tensor(queries, device=pooled.device).split(64):
        cosines = units[part] @ units[:num_glosses].T
        itself = part < num_glosses
        cosines[torch.nonzero(itself).flatten(), part[itself]] = -2
        found += cosines.topk(count, dim=1).indices.tolist()
    return found


def show(query: int, ours: list[int], torchs: list[int], texts: list[str]) -> None:
    print(f"\n{texts[query]}")
    print(f"  {'compressed':<58}{'raw':<58}")
    for own, other in zip(ours, torchs, strict=True):
        print(f"  {texts[own][:55]:<58}{texts[other][:55]:<58}{'' if own == other else ' differs'}")


if __name__ == "__main__":
    sys.exit(main())

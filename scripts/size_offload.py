#!/usr/bin/env python3
"""How many tokens/s to expect of an offloaded model: from its shape, the GPU's memory and the speed of the link.

python scripts/size_offload.py
python scripts/size_offload.py --set links_gb_s=[12] ratio=0.7 --json out.json

A decode step at batch 1 takes the time in which the bytes that stay in CPU memory cross the link, once a token; or the
time in which the GPU reads and decodes all weights, if that is longer. Both overlap. Weights are bfloat16. `ratio` is
what they compress to: measured 0.70. `reserve_gb` is what the GPU keeps for activations and the KV cache.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from pathlib import Path
from typing import Any

from bench.llm_models import Shape
from bench.table import markdown

from ibp_gnn import config as config_module
from ibp_gnn.config import setting
from ibp_gnn.offload.placement import Size, choose_places

_LLAMA_8B = Shape("8 B (Llama 3)", 4096, 14336, 32, 32, 8, 128256)
_LLAMA_70B = Shape("70 B (Llama 3)", 8192, 28672, 80, 64, 8, 128256)


@dataclasses.dataclass(frozen=True)
class Case:
    """A model on a GPU with so much memory."""

    shape: Shape
    gpu_gb: float = setting(gt=0)
    reserve_gb: float = setting(2.0, ge=0)


@dataclasses.dataclass(frozen=True)
class Config:
    """links_gb_s: of the link, from page-locked memory. decode_gb_s: of raw bytes that the GPU decodes in a second."""

    cases: tuple[Case, ...] = (
        Case(_LLAMA_8B, 12),
        Case(_LLAMA_8B, 8),
        Case(_LLAMA_70B, 80, 6),
        Case(_LLAMA_70B, 24),
    )
    links_gb_s: tuple[float, ...] = setting((25.0, 55.0), gt=0)
    ratio: float = setting(0.7, gt=0, le=1)
    decode_gb_s: float = setting(1000.0, gt=0)
    prefetch: int = setting(2, ge=1)


def estimate(case: Case, config: Config, *, ratio: float) -> dict[str, Any]:
    """ratio: 1 for raw weights with the same overlap, of which none is decoded. Raises ValueError where the GPU is too
    small for the buffers."""
    shape = case.shape
    kv = shape.hidden * shape.kv_heads // shape.heads
    layer = [shape.hidden * out for out in (shape.hidden, kv, kv, shape.hidden, *[shape.intermediate] * 3)]
    head = shape.hidden * shape.vocab
    sizes = [Size(2 * values, round(2 * ratio * values), True) for values in [*layer * shape.layers, head]]
    sizes.insert(0, Size(2 * head, round(2 * ratio * head), False))  # the embedding: few of its rows are read
    compressed = ratio < 1
    budget = round((case.gpu_gb - case.reserve_gb) * 1e9)
    places = choose_places(sizes, budget, config.prefetch, decodes=compressed)
    crossing = sum(
        size.compressed for size, place in zip(sizes, places, strict=True) if place == "streamed" and size.whole
    )
    decoded = sum(size.raw for size, place in zip(sizes, places, strict=True) if place != "raw" and size.whole)
    decode_s = decoded / 1e9 / config.decode_gb_s if compressed else 0.0
    return {
        "raw_gb": sum(size.raw for size in sizes) / 1e9,
        "compressed_gb": sum(size.compressed for size in sizes) / 1e9,
        "crossing_gb": crossing / 1e9,
        "tokens_s": [1 / max(crossing / 1e9 / link, decode_s, 1e-9) for link in config.links_gb_s],
    }


def table(config: Config) -> tuple[str, list[dict[str, Any]]]:
    """As Markdown, and as records."""
    records, rows = [], []
    for case in config.cases:
        ours, raw = estimate(case, config, ratio=config.ratio), estimate(case, config, ratio=1.0)
        records.append({"model": case.shape.name, "gpu_gb": case.gpu_gb, "ours": ours, "raw": raw})
        speeds = [f"{a:.1f} ({b:.1f})" for a, b in zip(ours["tokens_s"], raw["tokens_s"], strict=True)]
        rows.append(
            (
                case.shape.name,
                f"{case.gpu_gb:g} GB",
                f"{ours['raw_gb']:.0f}",
                f"{ours['compressed_gb']:.0f}",
                f"{ours['crossing_gb']:.1f} ({raw['crossing_gb']:.1f})",
                *speeds,
            )
        )
    names = ("model", "GPU", "raw GB", "compressed GB", "GB a token over the link")
    return markdown((*names, *(f"tokens/s at {link:g} GB/s" for link in config.links_gb_s)), rows), records


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", type=Path, help="YAML settings; without it: the defaults")
    parser.add_argument("--set", dest="overrides", nargs="*", default=[], metavar="KEY=VALUE", help="override settings")
    parser.add_argument("--json", type=Path, help="where to write the figures")
    parsed = parser.parse_args()
    try:
        config = config_module.load(Config, parsed.config, parsed.overrides)
        text, records = table(config)
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    if parsed.json:
        parsed.json.write_text(json.dumps(records, indent=1) + "\n", encoding="utf-8")
    print(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())

#!/usr/bin/env python
"""Packed floats of 16 and 8 bits, and LOSSY stores of them.

sizes: what a value takes in stores of each precision, beside a lossless one, and the errors.
accuracy: GraphSAGE on WordNet from stores of each precision, over seeds.
products: a square matrix with one vector and with few: packed weights, and torch's float32, 16 bits and float8, each
with weights that are not in the L2 cache, launched by CUDA graphs. Results are compared with float64 first.
gathers: from stores of each precision in page-locked memory, beside ordered raw float32 rows.

Parts that are null in the config are left out. products and gathers need a GPU.

python scripts/bench_packing.py --config configs/bench_packing.yaml --json out.json --plot out.png
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import torch
from bench import frame, packing_report
from bench.packing_accuracy import AccuracyConfig, measure_accuracy
from bench.packing_products import ProductsConfig, measure_products
from bench.packing_stores import GatherConfig, SizesConfig, measure_gathers, measure_sizes

from ibp_gnn import _native


@dataclasses.dataclass(frozen=True)
class Config:
    """null leaves a part out."""

    sizes: SizesConfig | None = dataclasses.field(default_factory=SizesConfig)
    accuracy: AccuracyConfig | None = dataclasses.field(default_factory=AccuracyConfig)
    products: ProductsConfig | None = dataclasses.field(default_factory=ProductsConfig)
    gathers: GatherConfig | None = dataclasses.field(default_factory=GatherConfig)
    seed: int = 0


def main(arguments: list[str] | None = None) -> None:
    frame.main(frame.Benchmark("packing", __doc__ or "", Config, prepare, measure, packing_report), arguments)


def prepare(config: Config) -> torch.device:
    if config.products is None and config.gathers is None:
        return torch.device("cpu")
    if not torch.cuda.is_available():
        raise frame.CannotRun("products and gathers need a CUDA device; --set products=null gathers=null does without")
    _native.cuda()  # says now, not later, if it is missing
    return torch.device("cuda", torch.cuda.current_device())


def measure(config: Config, record: frame.Record, save: Callable[[], None]) -> None:
    record |= {"sizes": None, "accuracy": None, "products": None, "gathers": None}
    torch.manual_seed(config.seed)

    def keep(part: str) -> Callable[[list[dict[str, Any]]], None]:
        def write(results: list[dict[str, Any]]) -> None:
            record[part] = results
            save()

        return write

    if config.products:
        record["products"] = measure_products(config.products, torch.device("cuda", torch.cuda.current_device()))
        save()
    if config.gathers:
        measure_gathers(config.gathers, torch.device("cuda", torch.cuda.current_device()), keep("gathers"))
    if config.sizes:
        record["sizes"] = measure_sizes(config.sizes)
        save()
    if config.accuracy:
        measure_accuracy(config.accuracy, keep("accuracy"))


if __name__ == "__main__":
    frame.run_as_script(main)

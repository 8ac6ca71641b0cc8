#!/usr/bin/env python
"""Epoch time of GraphSAGE by how its features are fetched: compressed, uncompressed, cached, ahead of time or not.

Every method trains on the same mini-batches, sampled beforehand, whose blocks and labels are on the device already, as
GPU sampling would leave them; ids are in CPU memory. First the losses of all methods are compared, step by step and bit
by bit, then epochs are timed with CUDA events. Sampling is timed apart, and once more live: epochs whose batches are
sampled when they are asked for. Both caches take the same bytes and hold the nodes of the highest degrees.

python scripts/bench_epoch.py --config configs/bench_epoch.yaml --json out.json --plot out.png
"""

from __future__ import annotations

import argparse
import os
import time
from pathlib import Path
from typing import Any

# Before torch is loaded: see train_sage.py.
os.environ["OMP_WAIT_POLICY"] = os.environ.get("OMP_WAIT_POLICY", "passive")

import torch
from bench_epoch_parts.config import Config, FeatureSet
from bench_epoch_parts.data import Batch, keep, load
from bench_epoch_parts.measure import measure, verify
from bench_epoch_parts.methods import NEEDS_GPU, Method, open_methods
from bench_epoch_parts.plot import plot
from bench_epoch_parts.tables import ratios, summary_lines, table
from bench_parts.uncompressed import RawCache

from ibp_gnn import CompressedFeatureStore
from ibp_gnn import config as config_module
from ibp_gnn.command.plots import require_matplotlib
from ibp_gnn.config import to_dict
from ibp_gnn.training import record as record_module
from ibp_gnn.training.loop import pick_device
from ibp_gnn.training.seeding import use_deterministic_algorithms


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", type=Path, help="YAML file; its settings: bench_epoch_parts/config.py")
    parser.add_argument("--set", dest="overrides", nargs="*", default=[], metavar="KEY=VALUE", help="override settings")
    parser.add_argument("--json", type=Path, help="where to write the results, after every feature set")
    parser.add_argument("--plot", type=Path, help="where to draw them")
    parsed = parser.parse_args(arguments)
    config = config_module.load(Config, parsed.config, parsed.overrides)
    if parsed.plot:
        require_matplotlib()  # before the work, not after it
    path = record_module.prepare(parsed.json, "--json") if parsed.json else None
    use_deterministic_algorithms()  # what cuBLAS reads once, before the first use of CUDA
    torch.use_deterministic_algorithms(False)
    device = pick_device(config.device)
    record: dict[str, Any] = {
        "benchmark": "epoch",
        "config": to_dict(config),
        "hardware": record_module.hardware(device),
        "versions": record_module.versions(),
        "commit": record_module.git_commit(Path(__file__).parent),
        "sets": [],
    }
    for part in config.sets:
        record["sets"].append(run(part, config, device))
        if path is not None:
            record_module.write(path, record)
    if parsed.plot:
        plot(record, parsed.plot)
    print(table(record), "\n".join(summary_lines(record)), sep="\n\n")


def run(part: FeatureSet, config: Config, device: torch.device) -> dict[str, Any]:
    begin = time.perf_counter()
    data = load(part, config)
    store = CompressedFeatureStore.build(data.rows, config.codec, progress=False)
    batches, sampling_seconds = keep(data, config, device)
    with store, open_methods(data.rows, store, config, device, batches) as methods:
        losses = verify(methods, batches, data, config, device)
        prepared = time.perf_counter()
        measured = measure(methods, batches, data, config, device, sampling_seconds)
        result = {
            "name": part.name,
            "nodes": len(data.rows),
            "edges": data.graph.num_edges(),
            "raw_bytes": store.raw_nbytes,
            "store_bytes": store.nbytes,
            "codec": store.codec.kind,
            "ids_per_batch": sum(len(batch.ids) for batch in batches) / len(batches),
            "sampling_ms": 1e3 * sampling_seconds,
            "losses_equal": losses,
            "caches": describe_caches(methods, batches),
            "methods": measured,
            "ratios": ratios(measured),
            "skipped": {} if device.type == "cuda" else {key: "needs a CUDA device" for key in NEEDS_GPU},
            "prepare_seconds": prepared - begin,
            "measure_seconds": time.perf_counter() - prepared,
        }
    print(f"{part.name}: {result['prepare_seconds']:.1f} s to prepare, {result['measure_seconds']:.1f} s measured")
    return result


def describe_caches(methods: list[Method], batches: list[Batch]) -> dict[str, dict[str, Any]]:
    """What they hold, which is rows from the first on, and the share of an epoch's ids that hit it."""
    ids = torch.cat([batch.ids for batch in batches])
    caches = {}
    for method in methods:
        if method.lookahead == 0 and hasattr(method.source, "num_cached"):
            cached, nbytes = method.source.num_cached, method.source.nbytes
            caches[method.key] = {"rows": cached, "bytes": nbytes, "hit_rate": float((ids < cached).double().mean())}
            if isinstance(method.source, RawCache):
                caches[method.key]["blocks"] = method.source.blocks
    return caches


if __name__ == "__main__":
    main()

#!/usr/bin/env python
"""Epoch time of GraphSAGE by how its features are fetched: compressed, uncompressed, cached, ahead of time or not.

Every method trains on the same mini-batches, sampled beforehand, whose blocks and labels are on the device already, as
GPU sampling would leave them; ids are in CPU memory. First the losses of all methods are compared, step by step and bit
by bit, then epochs are timed with CUDA events. Sampling is timed apart, and once more live: epochs whose batches are
sampled when they are asked for, by DGL on the CPU, and by WholeGraph on the GPU where it is installed. Caches take the
same bytes and hold the nodes of the highest degrees. All of the config takes about two minutes on a GPU.

python scripts/bench_epoch.py --config configs/bench_epoch.yaml --json out.json --plot out.png
python scripts/bench_epoch.py --from-json scripts/results/epoch.json --plot out.png
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any

# Before torch is loaded: see train_sage.py.
os.environ["OMP_WAIT_POLICY"] = os.environ.get("OMP_WAIT_POLICY", "passive")

import torch
from bench import epoch_report, frame
from bench.epoch_data import Batch, Config, Data, FeatureSet, gpu_graph, keep, load
from bench.epoch_methods import Method, measure, measure_sampled, open_methods, verify, verify_sampled
from bench.uncompressed import RawCache

from ibp_gnn import CompressedFeatureStore
from ibp_gnn.training.loop import pick_device
from ibp_gnn.training.seeding import use_deterministic_algorithms


def main(arguments: list[str] | None = None) -> None:
    frame.main(frame.Benchmark("epoch", __doc__ or "", Config, prepare, measure_sets, epoch_report), arguments)


def prepare(config: Config) -> torch.device:
    use_deterministic_algorithms()  # what cuBLAS reads once, before the first use of CUDA
    torch.use_deterministic_algorithms(False)
    return pick_device(config.device)


def measure_sets(config: Config, record: frame.Record, save: Callable[[], None]) -> None:
    device = pick_device(config.device)
    record["sets"] = []
    for part in config.sets:
        record["sets"].append(run(part, config, device))
        save()


def run(part: FeatureSet, config: Config, device: torch.device) -> dict[str, Any]:
    begin = time.perf_counter()
    data = load(part, config)
    store = CompressedFeatureStore.build(data.rows, config.codec, progress=False)
    batches, sampling_seconds = keep(data, config, device)
    skipped: dict[str, str] = {}
    with store, open_methods(data.rows, store, config, device, batches, skipped) as methods:
        losses = verify(methods, batches, data, config, device)
        prepared = time.perf_counter()
        measured = measure(methods, batches, data, config, device, sampling_seconds)
        gpu_sampling = sample_on_gpu(methods, data, config, device, measured)
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
            "ratios": epoch_report.ratios(measured),
            "skipped": skipped,
            "gpu_sampling": gpu_sampling,
            "prepare_seconds": prepared - begin,
            "measure_seconds": time.perf_counter() - prepared,
        }
    print(f"{part.name}: {result['prepare_seconds']:.1f} s to prepare, {result['measure_seconds']:.1f} s measured")
    return result


def sample_on_gpu(
    methods: list[Method], data: Data, config: Config, device: torch.device, measured: list[dict[str, Any]]
) -> dict[str, Any]:
    """Adds the times with sampling on the GPU to what was measured. Returns the losses, which are equal for all
    methods, or why nothing was measured."""
    if device.type == "cpu":
        return {"skipped": "needs a CUDA device"}
    try:
        graph = gpu_graph(data)
    except ImportError as error:
        return {"skipped": str(error)}
    with graph:
        fed = [method for method in methods if method.takes_ids_on_gpu]
        losses = verify_sampled(fed, graph, data, config, device)
        measure_sampled(fed, graph, data, config, device, measured)
    return {"losses_equal": losses}


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
    frame.run_as_script(main)

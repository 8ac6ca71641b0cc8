#!/usr/bin/env python
"""Several GPUs of one host: sharded caches, misses from one host copy, NCCL, and DDP epochs, at 1, 2, 4 and 8 GPUs.

Each GPU has a process of its own, which this starts. All processes gather at once; rows are random, ids new in every
call, and each process checks bits before anything is timed. GB/s counts uncompressed bytes that arrive at the slowest
GPU. Beside ours, in the same run, is WholeGraph's gather of the uncompressed rows. Numbers of GPUs that are not here
are left out, and the tables say so; one GPU is enough to run it. The config takes about two minutes for each number.

python scripts/bench_multi_gpu.py --config configs/bench_multi_gpu.yaml --json out.json --plot out.png
python scripts/bench_multi_gpu.py --from-json scripts/results/multi_gpu.json --plot out.png
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch
from bench import frame, multi_gpu_report
from bench.multi_gpu_methods import measure_case, train
from bench.multi_gpu_ranks import run_ranks
from bench.multi_gpu_rows import Config
from bench.wholegraph import version

from ibp_gnn import _native
from ibp_gnn.integrations import wholegraph


def main(arguments: list[str] | None = None) -> None:
    frame.main(frame.Benchmark("multi_gpu", __doc__ or "", Config, prepare, measure, multi_gpu_report), arguments)


def prepare(config: Config) -> torch.device:
    """Raises ImportError with the pip command without WholeGraph."""
    if not torch.cuda.is_available():
        raise frame.CannotRun("this benchmark needs a CUDA device")
    _native.cuda()
    wholegraph.library()
    return torch.device("cuda")


def measure(config: Config, record: frame.Record, save: Callable[[], None]) -> None:
    here = torch.cuda.device_count()
    record["versions"]["pylibwholegraph"] = version()
    record["runs"] = []
    record["left_out"] = {str(size): f"want {size} GPUs, got {here}" for size in config.gpus if size > here}
    for size in config.gpus:
        if size <= here:
            record["runs"].append({"gpus": size, "cases": [], "training": []})
            measure_size(size, config, record["runs"][-1], save)


def measure_size(size: int, config: Config, result: dict[str, Any], save: Callable[[], None]) -> None:
    """Adds to the result, part by part."""
    for case in config.cases:
        begin = time.perf_counter()
        result["cases"].append(run_ranks(size, measure_case, case, config))
        print(f"{multi_gpu_report.gpus(size)}, {case.name}: {time.perf_counter() - begin:.1f} s", flush=True)
        save()
    batch_sizes = config.training.batch_sizes(size)
    for batch_size in dict.fromkeys(batch_sizes.values()):  # the same size twice is one run
        begin = time.perf_counter()
        trained = run_ranks(size, train, config.training, batch_size, config.timeout, config.seed)
        scaling = [kind for kind, of_kind in batch_sizes.items() if of_kind == batch_size]
        result["training"].append({"scaling": scaling, **trained})
        seconds = time.perf_counter() - begin
        print(f"{multi_gpu_report.gpus(size)}, {batch_size} seeds a step: {seconds:.1f} s", flush=True)
        save()


if __name__ == "__main__":
    frame.run_as_script(main)

#!/usr/bin/env python
"""Pooled lookups in embedding tables: 26 of them in the shape of Criteo's, with power-law ids.

Compressed and in one launch; and what one has without it: nn.EmbeddingBag on the CPU, raw rows from page-locked CPU
memory, ordered or not, a raw cache of the same bytes, WholeGraph, all rows on the GPU. Bits are compared before
anything is timed. Methods take turns, with other batches each time.

python scripts/bench_dlrm.py --config configs/bench_dlrm.yaml --json out.json --plot out.png
python scripts/bench_dlrm.py --from-json scripts/results/dlrm.json --plot out.png
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import torch
from bench import dlrm_report, frame
from bench.dlrm_data import Case, Config, Tables, describe, open_tables
from bench.dlrm_methods import measure
from bench.wholegraph import Gather, Unavailable, WholeGraph, version

from ibp_gnn import _native

_RESERVE_BYTES = 12e9  # of GPU memory, for what lookups need meanwhile
_LEFT_OUT = "left out by the config"


def main(arguments: list[str] | None = None) -> None:
    frame.main(frame.Benchmark("dlrm", __doc__ or "", Config, prepare, measure_cases, dlrm_report), arguments)


def prepare(config: Config) -> torch.device:
    if not torch.cuda.is_available():
        raise frame.CannotRun("this benchmark needs a CUDA device")
    _native.cuda()  # says now, not later, if it is missing
    return torch.device("cuda", torch.cuda.current_device())


def measure_cases(config: Config, record: frame.Record, save: Callable[[], None]) -> None:
    record["versions"]["pylibwholegraph"] = version()
    record["cases"] = []
    wholegraph = WholeGraph()
    for case in config.cases:
        record["cases"].append(run(case, config, wholegraph))
        print(f"{case.name}: {record['cases'][-1]['seconds']:.1f} s", flush=True)
        save()


def run(case: Case, config: Config, wholegraph: WholeGraph) -> dict[str, Any]:
    """The record of the case. Raises AssertionError if a method returns something else."""
    begin = time.perf_counter()
    device = torch.device("cuda", torch.cuda.current_device())
    skipped: dict[str, str] = {}
    with open_tables(case, config, device) as tables, ExitStack() as stack:
        opened = time.perf_counter()
        record = describe(tables)
        table = _wholegraph(case, tables, wholegraph, stack, skipped)
        raw = _raw_on_gpu(case, tables, skipped)
        record["methods"] = []
        for num_bags in case.batch_sizes:
            record["methods"] += measure(tables, num_bags, config, raw, table)
            torch.cuda.empty_cache()
        if not case.cpu:
            skipped["cpu"] = _LEFT_OUT
        del raw
    torch.cuda.empty_cache()
    record |= {"skipped": skipped, "open_seconds": opened - begin, "seconds": time.perf_counter() - begin}
    record["ratios"] = dlrm_report.ratios(record)
    return record


def _wholegraph(
    case: Case, tables: Tables, wholegraph: WholeGraph, stack: ExitStack, skipped: dict[str, str]
) -> Gather | None:
    if not case.wholegraph:
        skipped["wholegraph"] = _LEFT_OUT
        return None
    try:
        return stack.enter_context(wholegraph.table(tables.raw, "cpu"))
    except Unavailable as error:
        skipped["wholegraph"] = str(error)
        return None


def _raw_on_gpu(case: Case, tables: Tables, skipped: dict[str, str]) -> torch.Tensor | None:
    free, _ = torch.cuda.mem_get_info(tables.device)
    if not case.on_gpu or tables.raw.nbytes + _RESERVE_BYTES > free:
        skipped["on_gpu"] = _LEFT_OUT if not case.on_gpu else "the raw rows do not fit"
        return None
    return tables.raw.to(tables.device)


if __name__ == "__main__":
    main()

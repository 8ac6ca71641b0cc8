#!/usr/bin/env python
"""Gathers rows by id to the GPU: compressed and uncompressed, from page-locked CPU memory and from GPU memory.

Methods fetch random ids of the same rows, in the same process, in turns, new ids each time, so that no method finds in
a cache what another has just read; the bits of the result are checked before anything is timed. Times are medians of
CUDA events, launches being queued beforehand; GB/s counts uncompressed bytes that arrive. Also: how long a call keeps
the host, beside a launch of a kernel that does nothing. All of the config takes about three minutes on a GPU.

python scripts/bench_gather.py --config configs/bench_gather.yaml --json out.json --plot out.png
python scripts/bench_gather.py --from-json scripts/results/gather.json --plot out.png
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any, Literal

import torch
from bench import frame, gather_report
from bench.gather_methods import from_cpu_memory, measure, on_gpu, partly_cached
from bench.gather_rows import Batch, Case, Config, Rows, make_batch, open_rows
from bench.timing import host_us
from bench.uncompressed import RawCache, RowsOnGpu
from bench.wholegraph import Gather, Unavailable, WholeGraph, version

from ibp_gnn import CompressedGPUCache, _native
from ibp_gnn.codec.values import to_bytes

_RESERVE_BYTES = 4e9  # of GPU memory, for what gathers need meanwhile
_HOST_CACHED_ROWS = 100_000  # of the cache whose calls are timed on the host
_LEFT_OUT = "left out by the config"


def main(arguments: list[str] | None = None) -> None:
    frame.main(frame.Benchmark("gather", __doc__ or "", Config, prepare, measure_cases, gather_report), arguments)


def prepare(config: Config) -> torch.device:
    if not torch.cuda.is_available():
        raise frame.CannotRun("this benchmark needs a CUDA device")
    _native.cuda()  # says now, not later, if it is missing
    return torch.device("cuda")


def measure_cases(config: Config, record: frame.Record, save: Callable[[], None]) -> None:
    record["versions"]["pylibwholegraph"] = version()
    record["cases"] = []
    wholegraph = WholeGraph()
    for case in config.cases:
        record["cases"].append(run(case, config, wholegraph))
        print(f"{case.name}: {record['cases'][-1]['seconds']:.1f} s")
        save()


def run(case: Case, config: Config, wholegraph: WholeGraph) -> dict[str, Any]:
    """The record of the case. Raises AssertionError if a method returns other bits than the raw rows have."""
    torch.manual_seed(config.seed)
    begin = time.perf_counter()
    with open_rows(case, config) as rows:
        opened = time.perf_counter()
        runner = _Runner(case, config, rows, wholegraph)
        runner.measure_all()
        host, store = measure_host(rows, config), rows.store
        record = {
            "name": case.name,
            "dim": case.dim,
            "dtype": case.dtype,
            "rows": len(store),
            "codec": store.codec.kind,
            "raw_bytes_per_row": rows.row_bytes,
            "slot_bytes": store.slot_bytes,
            "raw_bytes": rows.raw_bytes,
            "store_bytes": store.nbytes,
            "savings": store.savings,
            "methods": runner.results,
            "host_us": host,
            "host_overhead_us": {name: host[name] - host["launch"] for name in host if name != "launch"},
            "skipped": runner.skipped,
        }
    torch.cuda.empty_cache()
    record["ratios"] = gather_report.ratios(record)
    return record | {"open_seconds": opened - begin, "seconds": time.perf_counter() - begin}


def measure_host(rows: Rows, config: Config) -> dict[str, float]:
    """Microseconds that a call keeps the host. launch: of a kernel that does nothing, through the same binding; plan:
    GpuGather.gather, which launches the kernel; store, cache: their gather(ids, out=out). Ids are on the GPU."""
    cache = CompressedGPUCache(rows.store, f"{min(len(rows.raw), _HOST_CACHED_ROWS)} rows", device=rows.device)
    ids = torch.randint(cache.num_cached, (config.host_ids,), device=rows.device)
    out = torch.empty(len(ids), rows.raw.shape[1], dtype=rows.raw.dtype, device=rows.device)
    stream = torch.cuda.current_stream(rows.device).cuda_stream
    calls = {
        "launch": functools.partial(_native.cuda().launch_nothing, stream),
        "plan": functools.partial(rows.store.gather_on(rows.device).gather, ids, to_bytes(out)),
        "store": functools.partial(rows.store.gather, ids, out=out),
        "cache": functools.partial(cache.gather, ids, out=out),
    }
    return host_us(calls, config.host_calls)


class _Runner:
    """Measures groups of methods that are compared with each other; what a group holds in memory goes with it.

    results: of every method and batch size. skipped: why not, by method."""

    def __init__(self, case: Case, config: Config, rows: Rows, wholegraph: WholeGraph) -> None:
        self._case, self._config, self._rows, self._wholegraph = case, config, rows, wholegraph
        self._batches: list[Batch] = [make_batch(rows, size, config) for size in case.batch_sizes]
        self.results: list[dict[str, Any]] = []
        self.skipped: dict[str, str] = {}

    def measure_all(self) -> None:
        self._measure_from_cpu_memory()
        if self._case.on_gpu:
            self._measure_on_gpu()
        else:
            self.skipped |= dict.fromkeys(("raw_on_gpu", "wholegraph_device", "all_hit"), _LEFT_OUT)
        for share in self._case.hit_shares:
            self._measure_partly_cached(share)

    def _measure_from_cpu_memory(self) -> None:
        with ExitStack() as stack:
            table = self._table(stack, "wholegraph_host", "cpu")
            for batch in self._batches:
                methods = from_cpu_memory(self._rows, batch, self._config, table)
                self.results += measure(methods, batch, self._rows, self._config)

    def _measure_on_gpu(self) -> None:
        rows, raw, cache, table = self._rows, None, None, None
        with ExitStack() as stack:
            if self._fits("all_hit", rows.store.nbytes):
                cache = CompressedGPUCache(rows.store, f"{len(rows.store)} rows", device=rows.device)
            if self._fits("raw_on_gpu", rows.raw_bytes):
                raw = RowsOnGpu(rows.raw, rows.device)
            if self._fits("wholegraph_device", rows.raw_bytes):
                table = self._table(stack, "wholegraph_device", "cuda")
            for batch in self._batches:
                self.results += measure(on_gpu(rows, raw, cache, table), batch, rows, self._config)

    def _measure_partly_cached(self, share: float) -> None:
        rows = self._rows
        if not self._fits("cache", round(2 * share * rows.store.nbytes)):
            return
        cache = CompressedGPUCache(rows.store, f"{max(1, round(share * len(rows.store)))} rows", device=rows.device)
        raw_cache = RawCache(rows.raw, cache.nbytes, rows.device, rows.raw_address)
        for batch in self._batches:
            raw_cache.choose_blocks(functools.partial(batch.draw, "random"))
            self.results += measure(partly_cached(share, cache, raw_cache), batch, rows, self._config)

    def _table(self, stack: ExitStack, key: str, where: Literal["cpu", "cuda"]) -> Gather | None:
        if not self._case.wholegraph:
            self.skipped[key] = _LEFT_OUT
            return None
        try:
            return stack.enter_context(self._wholegraph.table(self._rows.raw, where))
        except Unavailable as error:
            self.skipped[key] = str(error)
            return None

    def _fits(self, key: str, nbytes: int) -> bool:
        torch.cuda.empty_cache()
        free, _ = torch.cuda.mem_get_info(self._rows.device)
        if nbytes + _RESERVE_BYTES <= free:
            return True
        self.skipped[key] = f"{nbytes / 1e9:.1f} GB do not fit in the {free / 1e9:.1f} GB of GPU memory that are free"
        return False


if __name__ == "__main__":
    frame.run_as_script(main)

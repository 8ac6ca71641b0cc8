"""One case from its rows to its results: every way to fetch them, on batches of every size."""

from __future__ import annotations

import functools
import time
from contextlib import ExitStack
from typing import Any, Literal

import torch
from bench_parts.uncompressed import RawCache, RowsOnGpu

from ibp_gnn import CompressedGPUCache

from .config import Case, Config
from .data import Batch, Rows, make_batch, open_rows
from .host import host_us
from .measure import measure
from .methods import from_cpu_memory, on_gpu, partly_cached
from .tables import ratios
from .wholegraph import Gather, Unavailable, WholeGraph

_RESERVE_BYTES = 4e9  # of GPU memory, for what gathers need meanwhile
_LEFT_OUT = "left out by the config"


def run(case: Case, config: Config, wholegraph: WholeGraph) -> dict[str, Any]:
    """The record of the case. Raises AssertionError if a method returns other bits than the raw rows have."""
    torch.manual_seed(config.seed)
    begin = time.perf_counter()
    with open_rows(case, config) as rows:
        opened = time.perf_counter()
        runner = _Runner(case, config, rows, wholegraph)
        runner.measure_all()
        host, store = host_us(rows, config), rows.store
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
            "host_overhead_us": {name: host[name] - host["launch"] for name in ("store", "cache")},
            "skipped": runner.skipped,
        }
    torch.cuda.empty_cache()
    record["ratios"] = ratios(record)
    return record | {"open_seconds": opened - begin, "seconds": time.perf_counter() - begin}


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

"""Checks the bits of every method, then times them in turns."""

from __future__ import annotations

import functools
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from bench_parts.timing import queued_ms
from tqdm import tqdm

from ibp_gnn.codec.values import to_bytes
from ibp_gnn.testing import assert_bitwise_equal

from .config import Config
from .data import Batch, Rows
from .methods import Method

_WARM_UP = 3  # calls of each method that are not counted


def measure(methods: list[Method], batch: Batch, rows: Rows, config: Config) -> list[dict[str, Any]]:
    """ms: of one batch, also where several are fetched at once; median over calls. rows_read, hits and pcie_bytes: of
    one gather, which with lookahead is of several batches."""
    traffic = [_check(method, batch, rows) for method in methods]
    results = []
    for method, moved, milliseconds in zip(methods, traffic, _interleaved_ms(methods, batch, config), strict=True):
        batches = config.lookahead if method.order == "joined" else 1
        results.append(
            {
                "ids": batch.size,
                "method": method.key,
                "share": method.share,
                "ms": milliseconds / batches,
                "output_gb_per_s": batches * batch.size * rows.row_bytes / milliseconds / 1e6,
                **moved,
                **method.details,
            }
        )
    return results


def _check(method: Method, batch: Batch, rows: Rows) -> dict[str, Any]:
    """Raises AssertionError naming the method unless it returns the raw rows. What it read."""
    ids, expected = batch.to_check(method.order)
    out = batch.out[: len(ids)]
    to_bytes(out).fill_(0xA5)
    if method.source is not None:
        method.source.reset_stats()
    try:
        assert_bitwise_equal(method.gather(ids, out), expected)
    except AssertionError as error:
        raise AssertionError(f"{method.key}, {batch.size} ids: {error}") from error
    if method.source is not None:
        stats = method.source.stats()
        hits, misses, pcie_bytes = stats.hits, stats.misses, stats.pcie_bytes
    else:
        hits = int((ids < method.cached_rows).sum())
        misses = len(ids) - hits
        pcie_bytes = misses * rows.row_bytes
    moved: dict[str, Any] = {"rows_read": hits + misses, "hits": hits, "pcie_bytes": pcie_bytes}
    return moved | {"pcie_bytes_per_row": pcie_bytes / misses if misses else None}


def _interleaved_ms(methods: list[Method], batch: Batch, config: Config) -> list[float]:
    """Median milliseconds of each method's gathers, each of new ids; methods take turns."""
    times: list[list[float]] = [[] for _ in methods]
    for repeat in tqdm(range(_WARM_UP + config.repeats), desc=f"{batch.size} ids", leave=False):
        for method, of_method in zip(methods, times, strict=True):
            ids = batch.draw(method.order)
            call = functools.partial(method.gather, ids, batch.out[: len(ids)])
            milliseconds = queued_ms(call) if method.queued else _clock_ms(call)
            if repeat >= _WARM_UP:
                of_method.append(milliseconds)
    return [statistics.median(of_method) for of_method in times]


def _clock_ms(call: Callable[[], Any]) -> float:
    torch.cuda.synchronize()
    begin = time.perf_counter()
    call()
    torch.cuda.synchronize()
    return 1e3 * (time.perf_counter() - begin)

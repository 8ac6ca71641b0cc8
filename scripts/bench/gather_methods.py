"""The ways to fetch rows by id to the GPU, all of the same bits, and how they are measured."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import torch
from tqdm import tqdm

from ibp_gnn import CompressedFeatureStore, CompressedGPUCache, RowSource
from ibp_gnn.codec.values import to_bytes

from .gather_rows import Batch, Config, Order, Rows
from .timing import check_rows, in_turns, medians, queued_ms, timed
from .uncompressed import RawCache, RowsOnGpu, copy_rows, fastest_blocks
from .wholegraph import Gather

_WARM_UP = 3  # calls of each method that are not counted


@dataclasses.dataclass(frozen=True)
class Method:
    """gather: takes int64 ids [k] on the GPU and a buffer [k, d] there; returns the rows, there or in its own memory.

    order: of the ids that it takes. source: has counters that say what was read; None: the first `cached_rows` of the
    raw rows are read from GPU memory, the others from CPU memory. share: of the rows in the compressed cache that this
    is compared with or is. queued: it only enqueues work, so that the GPU can be kept waiting meanwhile. details: for
    the record."""

    key: str
    """One of gather_report.LABELS."""
    gather: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
    order: Order = "random"
    source: CompressedFeatureStore | CompressedGPUCache | None = None
    cached_rows: int = 0
    share: float | None = None
    queued: bool = True
    details: dict[str, Any] = dataclasses.field(default_factory=dict)


def from_cpu_memory(rows: Rows, batch: Batch, config: Config, wholegraph: Gather | None) -> list[Method]:
    """Methods whose rows are all in CPU memory. wholegraph: of a table there."""
    address, store = rows.raw_address, rows.store

    def ordered(ids: torch.Tensor, out: torch.Tensor, blocks: int) -> torch.Tensor:
        places, positions = torch.sort(ids)
        return copy_rows(address, places, out, positions, blocks)

    def fastest(order: Order) -> int:
        return fastest_blocks(
            lambda ids, count: ordered(ids, batch.out[: len(ids)], count), lambda: batch.draw(order), config.raw_blocks
        )

    blocks, joined_blocks = fastest("random"), fastest("joined")

    def presorted(ids: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
        store.gather_on(rows.device).gather(ids, to_bytes(out), ordered=False)
        return out

    found = [
        Method("cpu", _index_select(rows, batch), queued=False),
        Method("raw_unordered", functools.partial(copy_rows, address)),
        Method("raw_ordered", functools.partial(ordered, blocks=blocks), details={"blocks": blocks}),
        Method(
            "raw_presorted", functools.partial(copy_rows, address, blocks=blocks), "ordered", details={"blocks": blocks}
        ),
        Method(
            "raw_lookahead",
            functools.partial(ordered, blocks=joined_blocks),
            "joined",
            details={"blocks": joined_blocks},
        ),
        Method("ours", _gather_from(store), source=store),
        Method("ours_presorted", presorted, "ordered", source=store),
        Method("ours_lookahead", _gather_from(store), "joined", source=store),
    ]
    return found + _wholegraph("wholegraph_host", wholegraph, 0)


def on_gpu(
    rows: Rows, raw: RowsOnGpu | None, cache: CompressedGPUCache | None, wholegraph: Gather | None
) -> list[Method]:
    """Methods whose rows are all in GPU memory, as far as they are there. wholegraph: of a table there."""
    found = []
    if raw is not None:
        found.append(Method("raw_on_gpu", _gather_from(raw), cached_rows=len(rows.raw)))
    if cache is not None:
        found.append(Method("all_hit", _gather_from(cache), source=cache, details={"cache_bytes": cache.nbytes}))
    return found + _wholegraph("wholegraph_device", wholegraph, len(rows.raw))


def partly_cached(share: float, cache: CompressedGPUCache, raw_cache: RawCache) -> list[Method]:
    """Methods whose first rows are in GPU memory."""
    return [
        Method(
            "raw_cache",
            _gather_from(raw_cache),
            cached_rows=raw_cache.num_cached,
            share=share,
            details={"cache_bytes": raw_cache.nbytes, "cached_rows": raw_cache.num_cached, "blocks": raw_cache.blocks},
        ),
        Method(
            "cache",
            _gather_from(cache),
            source=cache,
            share=share,
            details={"cache_bytes": cache.nbytes, "cached_rows": cache.num_cached},
        ),
    ]


def measure(methods: list[Method], batch: Batch, rows: Rows, config: Config) -> list[dict[str, Any]]:
    """ms: of one batch, also where several are fetched at once; median over calls, each of new ids. rows_read, hits and
    pcie_bytes: of one gather, which with lookahead is of several batches."""
    traffic = [check(method, batch, rows) for method in methods]
    rounds = tqdm(range(_WARM_UP + config.repeats), desc=f"{batch.size} ids", leave=False)
    measures = {method.key: functools.partial(_gather_ms, method, batch) for method in methods}
    times = medians(in_turns(measures, rounds, _WARM_UP))
    results = []
    for method, moved in zip(methods, traffic, strict=True):
        batches = config.lookahead if method.order == "joined" else 1
        results.append(
            {
                "ids": batch.size,
                "method": method.key,
                "share": method.share,
                "ms": times[method.key] / batches,
                "output_gb_per_s": batches * batch.size * rows.row_bytes / times[method.key] / 1e6,
                **moved,
                **method.details,
            }
        )
    return results


def check(method: Method, batch: Batch, rows: Rows) -> dict[str, Any]:
    """Raises AssertionError naming the method unless it returns the raw rows. What it read."""
    ids, expected = batch.to_check(method.order)
    if method.source is not None:
        method.source.reset_stats()
    gather = functools.partial(method.gather, ids)
    check_rows(f"{method.key}, {batch.size} ids", gather, batch.out[: len(ids)], expected)
    if method.source is not None:
        stats = method.source.stats()
        hits, misses, pcie_bytes = stats.hits, stats.misses, stats.pcie_bytes
    else:
        hits = int((ids < method.cached_rows).sum())
        misses = len(ids) - hits
        pcie_bytes = misses * rows.row_bytes
    moved: dict[str, Any] = {"rows_read": hits + misses, "hits": hits, "pcie_bytes": pcie_bytes}
    return moved | {"pcie_bytes_per_row": pcie_bytes / misses if misses else None}


def _gather_ms(method: Method, batch: Batch) -> float:
    ids = batch.draw(method.order)
    call = functools.partial(method.gather, ids, batch.out[: len(ids)])
    return queued_ms(call) if method.queued else 1e3 * timed(call, ids.device)[0]


def _index_select(rows: Rows, batch: Batch) -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor]:
    staging = torch.empty(batch.size, rows.raw.shape[1], dtype=rows.raw.dtype, pin_memory=True)

    def gather(ids: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
        torch.index_select(rows.raw, 0, ids.cpu(), out=staging)
        return out.copy_(staging, non_blocking=True)

    return gather


def _gather_from(source: RowSource) -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor]:
    return lambda ids, out: source.gather(ids, out=out)


def _wholegraph(key: str, gather: Gather | None, cached_rows: int) -> list[Method]:
    return [] if gather is None else [Method(key, lambda ids, out: gather(ids), cached_rows=cached_rows)]

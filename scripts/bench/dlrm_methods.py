"""The ways to look bags up and pool them on the GPU, and how they are measured.

Methods of raw rows pool by the same kernel as `unfused`, or by torch's where that is faster; of all the result is
compared first: with the rows pooled on the CPU in the stated order, bit for bit, where the order is ours.
"""

from __future__ import annotations

import dataclasses
import functools
import statistics
from collections.abc import Callable
from typing import Any

import torch
from tqdm import tqdm

from ibp_gnn import CompressedEmbeddingBag
from ibp_gnn.codec.pool import Bags
from ibp_gnn.codec.pool_gpu import pool_rows
from ibp_gnn.testing import assert_bitwise_equal

from .dlrm_data import BAG_IDS, Config, Jagged, Tables
from .timing import in_turns, queued_ms, timed
from .uncompressed import RawCache, copy_rows, fastest_blocks
from .wholegraph import Gather

_WARM_UP = 3

Lookup = Callable[[Jagged], torch.Tensor]
"""Takes a batch on the GPU, returns [bags, tables * dim] there."""


@dataclasses.dataclass(frozen=True)
class Method:
    """key: of dlrm_report.LABELS. queued: it only enqueues work. in_order: pooled in our order, so that bits are equal.
    one_table: looks the largest bags up alone."""

    key: str
    lookup: Lookup
    queued: bool = True
    in_order: bool = True
    details: dict[str, Any] = dataclasses.field(default_factory=dict)


def methods(
    tables: Tables, batches: list[Jagged], config: Config, raw_on_gpu: torch.Tensor | None, wholegraph: Gather | None
) -> list[Method]:
    compressed, dim, dtype, device = tables.compressed, tables.case.dim, tables.raw.dtype, tables.device
    num_tables, first = len(BAG_IDS), batches[0]
    rows = torch.empty(len(first.ids), dim, dtype=dtype, device=device)

    def pooled(of_ids: torch.Tensor, batch: Jagged) -> torch.Tensor:
        """of_ids: the row of each id. Bags of all tables are pooled by one launch."""
        out = torch.empty(num_tables * batch.num_bags, dim, dtype=dtype, device=device)
        pool_rows(of_ids, Bags(batch.ids, batch.starts, 0, len(out)), out, mode="sum")
        return out.view(num_tables, batch.num_bags, dim).transpose(0, 1).reshape(batch.num_bags, -1)

    def ours(batch: Jagged) -> torch.Tensor:
        parts = compressed(batch)
        return next(iter(parts.values())).as_strided((batch.num_bags, num_tables * dim), (num_tables * dim, 1))

    def unfused(batch: Jagged) -> torch.Tensor:
        for table, name in enumerate(compressed.tables):
            begin, end = batch.ids_of(table)
            compressed.tables[name].source.gather(batch.ids[begin:end], device=device, out=rows[begin:end])
        return pooled(rows, batch)

    alone = [
        CompressedEmbeddingBag(compressed.tables[name], device, mode="sum", padding_idx=None, include_last_offset=False)
        for name in compressed.tables
    ]

    def one_by_one(batch: Jagged) -> torch.Tensor:
        parts = []
        for table, bag in enumerate(alone):
            begin, end = batch.ids_of(table)
            parts.append(bag(batch.ids[begin:end].view(batch.num_bags, BAG_IDS[table])))
        return torch.cat(parts, dim=1)

    def ordered(numbers: torch.Tensor, blocks: int) -> torch.Tensor:
        places, positions = torch.sort(numbers)
        return copy_rows(tables.raw_address, places, rows[: len(numbers)], positions, blocks)

    draw = functools.partial(next, iter_forever([batch.raw for batch in batches]))
    blocks = fastest_blocks(ordered, draw, config.raw_blocks)
    cache_bytes = sum(source.nbytes for source in sources(tables) if hasattr(source, "num_cached"))
    cache = RawCache(tables.raw, cache_bytes, device, tables.raw_address)
    cache.choose_blocks(draw)
    found = [
        Method("ours", ours),
        Method("unfused", unfused),
        Method("one_by_one", one_by_one),
        Method("raw_unordered", lambda batch: pooled(copy_rows(tables.raw_address, batch.raw, rows), batch)),
        Method("raw_ordered", lambda batch: pooled(ordered(batch.raw, blocks), batch), details={"blocks": blocks}),
        Method(
            "raw_cache",
            lambda batch: pooled(cache.gather(batch.raw, out=rows), batch),
            details={"blocks": cache.blocks, "cached_rows": cache.num_cached, "cache_bytes": cache.nbytes},
        ),
    ]
    if wholegraph is not None:
        found.append(Method("wholegraph", lambda batch: pooled(wholegraph(batch.raw), batch)))
    if raw_on_gpu is not None:
        found.append(Method("on_gpu", lambda batch: pooled(copy_rows(raw_on_gpu.data_ptr(), batch.raw, rows), batch)))
        found.append(Method("torch_on_gpu", functools.partial(torchs, raw_on_gpu), in_order=False))
    if tables.case.cpu:
        found.append(Method("cpu", functools.partial(torchs_on_cpu, tables), queued=False, in_order=False))
    return found


def sources(tables: Tables) -> list[Any]:
    return [tables.compressed.tables[name].source for name in tables.compressed.tables]


def torchs(raw: torch.Tensor, batch: Jagged) -> torch.Tensor:
    """torch's embedding_bag of all tables at once: `raw` and the batch are on one device."""
    bags = torch.nn.functional.embedding_bag(batch.raw, raw, batch.starts[:-1], mode="sum")
    return bags.view(len(BAG_IDS), batch.num_bags, -1).transpose(0, 1).reshape(batch.num_bags, -1)


def torchs_on_cpu(tables: Tables, batch: Jagged) -> torch.Tensor:
    """The ids are on the CPU already: of `on_cpu`, not timed."""
    return torchs(tables.raw, on_cpu[id(batch)]).to(tables.device)


on_cpu: dict[int, Jagged] = {}
"""By batch on the GPU, the same on the CPU."""


def iter_forever(parts: list[torch.Tensor]) -> Any:
    while True:
        yield from parts


def check(method: Method, tables: Tables, batch: Jagged, expected: torch.Tensor) -> dict[str, Any]:
    """Raises AssertionError naming the method unless it returns `expected`, [bags, tables * dim] on the CPU, in our
    order bit for bit. What it moved over PCIe, and the largest difference."""
    tables.compressed.reset_stats()
    got = method.lookup(batch)
    if method.in_order:
        try:
            assert_bitwise_equal(got, expected)
        except AssertionError as error:
            raise AssertionError(f"{method.key}: {error}") from error
    difference = float((got.cpu().double() - expected.double()).abs().max())
    stats = sum(tables.compressed.stats().values(), type(next(iter(tables.compressed.stats().values())))())
    moved: dict[str, Any] = {"max_difference": difference}
    if method.key in ("ours", "unfused", "one_by_one"):
        return moved | {"hits": stats.hits, "misses": stats.misses, "pcie_bytes": stats.pcie_bytes}
    cached = method.details.get("cached_rows", 0)
    misses = int((batch.raw >= cached).sum()) if method.key.startswith(("raw", "wholegraph")) else 0
    pcie_bytes = misses * tables.row_bytes
    if method.key == "cpu":
        pcie_bytes = expected.nbytes
    return moved | {"hits": len(batch.raw) - misses, "misses": misses, "pcie_bytes": pcie_bytes}


def measure(
    tables: Tables,
    num_bags: int,
    config: Config,
    raw_on_gpu: torch.Tensor | None,
    wholegraph: Gather | None,
) -> list[dict[str, Any]]:
    """Of one batch size. ms: of a call whose launches are queued, median; p50_ms, p99_ms: by the clock, from the call
    until the GPU is done."""
    generator = torch.Generator().manual_seed(config.seed + num_bags)
    batches = []
    for _ in range(config.batches):
        cpu = tables.draw(num_bags, config.alpha, generator)
        batches.append(cpu.to(tables.device))
        on_cpu[id(batches[-1])] = cpu
    expected = in_our_order(tables, on_cpu[id(batches[0])])
    found = methods(tables, batches, config, raw_on_gpu, wholegraph)
    moved = {method.key: check(method, tables, batches[0], expected) for method in found}
    rounds = range(_WARM_UP + config.repeats)
    turn = {method.key: iter_forever(batches) for method in found}

    def gpu_ms(method: Method) -> float:
        call = functools.partial(method.lookup, next(turn[method.key]))
        return queued_ms(call) if method.queued else 1e3 * timed(call, tables.device)[0]

    def clock_ms(method: Method) -> float:
        return 1e3 * timed(functools.partial(method.lookup, next(turn[method.key])), tables.device)[0]

    gpu = in_turns(
        {method.key: functools.partial(gpu_ms, method) for method in found},
        tqdm(rounds, desc=f"{num_bags} bags", leave=False),
        _WARM_UP,
    )
    clock = in_turns(
        {method.key: functools.partial(clock_ms, method) for method in found},
        tqdm(rounds, desc=f"{num_bags} bags, by the clock", leave=False),
        _WARM_UP,
    )
    on_cpu.clear()
    ids = len(batches[0].ids)
    different = len(torch.unique(batches[0].raw))
    return [
        {
            "batch": num_bags,
            "ids": ids,
            "different_ids": different,
            "method": method.key,
            "ms": statistics.median(gpu[method.key]),
            "p50_ms": statistics.median(clock[method.key]),
            "p99_ms": sorted(clock[method.key])[int(0.99 * (len(clock[method.key]) - 1))],
            "lookup_gb_per_s": ids * tables.row_bytes / statistics.median(gpu[method.key]) / 1e6,
            **moved[method.key],
            **method.details,
        }
        for method in found
    ]


def in_our_order(tables: Tables, batch: Jagged) -> torch.Tensor:
    """[bags, tables * dim] on the CPU: by the CPU path of the same stores."""
    compressed = tables.compressed
    target, compressed.device = compressed.device, torch.device("cpu")
    try:
        return torch.cat(list(compressed(batch).values()), dim=1)
    finally:
        compressed.device = target

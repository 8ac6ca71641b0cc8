"""The ways to fetch features, all of the same bits."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
from collections.abc import Iterable, Iterator

import torch
from bench_parts.uncompressed import RawCache, RowsOnGpu, registered

from ibp_gnn import CompressedFeatureStore, CompressedGPUCache, Prefetcher, RowSource
from ibp_gnn.training.features import HostRows
from ibp_gnn.training.sage import copy_async

from .config import Config
from .data import Batch

LABELS = {
    "raw": "raw: CPU index_select + copy",
    "raw_cache": "raw cache + ordered UVA",
    "raw_cache_prefetch": "raw cache + ordered UVA, prefetch",
    "ours": "ours",
    "ours_prefetch": "ours, prefetch",
    "ours_lookahead": "ours, prefetch, lookahead",
    "on_gpu": "all raw rows on the GPU (bound)",
}
"""By key, in the order of the tables."""
NEEDS_GPU = ("raw_cache", "raw_cache_prefetch", "on_gpu")


@dataclasses.dataclass(frozen=True)
class Method:
    """lookahead: 0 = each batch is fetched when it is its turn; else of a Prefetcher."""

    key: str
    source: RowSource
    lookahead: int = 0

    def steps(self, batches: Iterable[Batch], device: torch.device) -> Iterable[tuple[Batch, torch.Tensor]]:
        if self.lookahead:
            return Prefetcher(batches, self.source, device=device, lookahead=self.lookahead)
        return ((batch, self._fetch(batch.ids, device)) for batch in batches)

    def _fetch(self, ids: torch.Tensor, device: torch.device) -> torch.Tensor:
        if not isinstance(self.source, HostRows):
            ids = copy_async(ids, device)
        return self.source.gather(ids, device=device)


@contextlib.contextmanager
def open_methods(
    rows: torch.Tensor, store: CompressedFeatureStore, config: Config, device: torch.device, batches: list[Batch]
) -> Iterator[list[Method]]:
    """rows: [n, d] on the CPU, hottest first; store: of these. batches: of an epoch. Both caches take at
    most config.cache_share of the bytes of `rows`, everything counted."""
    raw = Method("raw", HostRows(rows))
    if device.type == "cpu":
        yield [raw, *_ours(store, config)]
        return
    cache_bytes = round(config.cache_share * rows.numel() * rows.element_size())
    capacity: int | float = cache_bytes if cache_bytes < store.nbytes else 1.0  # more than all rows take
    cache = CompressedGPUCache(store, capacity, device=device)
    with registered(rows) as address:
        raw_cache = RawCache(rows, cache_bytes, device, address)
        raw_cache.choose_blocks(functools.partial(next, itertools.cycle(batch.ids for batch in batches)))
        yield [
            raw,
            Method("raw_cache", raw_cache),
            Method("raw_cache_prefetch", raw_cache, lookahead=1),
            *_ours(cache, config),
            Method("on_gpu", RowsOnGpu(rows, device)),
        ]


def _ours(source: RowSource, config: Config) -> list[Method]:
    return [
        Method("ours", source),
        Method("ours_prefetch", source, lookahead=1),
        Method("ours_lookahead", source, lookahead=config.lookahead),
    ]

"""Speed on the CPU: fit, compress, and decode by random ids against torch.index_select of the same raw rows.

Methods that are compared take the same ids, with the same number of threads. Times are medians, and the ratio of the
fastest calls is given as well. How busy the machine was is in the results.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import os
import statistics
from collections.abc import Callable
from typing import Any

import torch

from ibp_gnn import Codec, CompressedFeatureStore
from ibp_gnn.config import setting

from .rows import CodecName, Data, tile
from .timing import check_rows, in_turns, medians, timed

_COMPRESS_PARTS = 8  # a part of the raw rows is enough to time compression


@dataclasses.dataclass(frozen=True)
class Cpu:
    """raw_mb: raw rows, repeated up to this size (1e6 bytes). fit_mb: of them, those that fits look at. batch_mb: raw
    bytes that one gather returns. threads: of torch and of the codecs, one after the other; fits and compression take
    the most."""

    data: Data = dataclasses.field(default_factory=Data)
    codecs: tuple[CodecName, ...] = ("auto", "ibp")
    threads: tuple[int, ...] = setting((1, 2), ge=1)
    raw_mb: float = setting(1500.0, gt=0)
    fit_mb: float = setting(512.0, gt=0)
    batch_mb: float = setting(64.0, gt=0)
    id_sets: int = setting(4, ge=1)
    repeats: int = setting(5, ge=1)


def measure_cpu(name: str, rows: torch.Tensor, config: Cpu, seed: int) -> list[dict[str, Any]]:
    """rows: [n, d] on the CPU. One result per codec and number of threads."""
    torch.set_num_threads(max(config.threads))
    raw = tile(rows, config.raw_mb)
    row_bytes = raw.shape[1] * raw.element_size()
    batch = max(1, min(len(raw), round(config.batch_mb * 1e6 / row_bytes)))
    generator = torch.Generator().manual_seed(seed)
    id_sets = [torch.randint(len(raw), (batch,), generator=generator) for _ in range(config.id_sets)]
    fit_rows = raw[: max(1, round(config.fit_mb * 1e6 / row_bytes))]
    parts = raw.split(-(-len(raw) // _COMPRESS_PARTS))  # one after the other: none is in the caches yet
    stores: dict[str, CompressedFeatureStore] = {}
    of_codecs: dict[str, dict[str, Any]] = {}
    for kind in config.codecs:
        codec = Codec.fit(raw, codec=kind)
        fit_s = _median_seconds(functools.partial(Codec.fit, codec=kind), [fit_rows] * config.repeats)
        compress_s = _median_seconds(codec.compress, [parts[i % len(parts)] for i in range(config.repeats)])
        stores[kind] = CompressedFeatureStore.build(raw, codec, pin=False, progress=False)
        of_codecs[kind] = {
            "data": name,
            "dtype": str(raw.dtype).removeprefix("torch."),
            "width": raw.shape[1],
            "codec": kind,
            "parameters": repr(codec),
            "raw_mb": raw.numel() * raw.element_size() / 1e6,
            "compact_store_share": stores[kind].nbytes / stores[kind].raw_nbytes,
            "fit_rows": len(fit_rows),
            "fit_s": fit_s,
            "compress_gb_per_s": len(parts[0]) * row_bytes / compress_s / 1e9,
            "ids": batch,
        }
    results = []
    for threads in config.threads:
        torch.set_num_threads(threads)
        times = _gather_seconds(raw, stores, id_sets, config.repeats)
        median = medians(times)
        for kind, of_codec in of_codecs.items():
            results.append(
                {
                    **of_codec,
                    "threads": threads,
                    "index_select_gb_per_s": batch * row_bytes / median["index_select"] / 1e9,
                    "decode_gb_per_s": batch * row_bytes / median[kind] / 1e9,
                    "decode_to_index_select": median["index_select"] / median[kind],
                    "decode_to_index_select_fastest": min(times["index_select"]) / min(times[kind]),
                    "load_average": os.getloadavg()[0],
                }
            )
    for store in stores.values():
        store.close()
    return results


def _gather_seconds(
    raw: torch.Tensor,
    stores: dict[str, CompressedFeatureStore],
    id_sets: list[torch.Tensor],
    repeats: int,
) -> dict[str, list[float]]:
    """Seconds of each call of index_select and of each store's gather. Each writes to a buffer of its own, which the
    caches hold or do not hold as they would if it were alone."""
    buffers = {name: torch.empty(len(id_sets[0]), raw.shape[1], dtype=raw.dtype) for name in (*stores, "index_select")}
    for kind, store in stores.items():
        for ids in id_sets:
            check_rows(kind, functools.partial(_gather, store, ids), buffers[kind], raw[ids])
    methods: dict[str, Callable[[torch.Tensor], Any]] = {
        kind: functools.partial(store.gather, out=buffers[kind]) for kind, store in stores.items()
    }
    methods["index_select"] = functools.partial(torch.index_select, raw, 0, out=buffers["index_select"])
    return in_turns(
        {name: _seconds(method, id_sets) for name, method in methods.items()}, range(len(id_sets) * repeats)
    )


def _gather(store: CompressedFeatureStore, ids: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
    return store.gather(ids, out=out)


def _seconds(method: Callable[[torch.Tensor], Any], inputs: list[torch.Tensor]) -> Callable[[], float]:
    """A call that times the method on the next of the inputs, over and over."""
    following = itertools.cycle(inputs)
    return lambda: timed(functools.partial(method, next(following)))[0]


def _median_seconds(method: Callable[[torch.Tensor], Any], inputs: list[torch.Tensor]) -> float:
    measure = _seconds(method, inputs)
    return statistics.median(measure() for _ in inputs)

"""Layouts of a store beside each other: what rows take in slots and end to end, and how fast a GPU reads both.

Hits: random ids of a cache that holds all rows, beside a copy of the raw rows. Misses: ordered ids of page-locked rows.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import torch

from ibp_gnn import CompressedFeatureStore, CompressedGPUCache
from ibp_gnn.config import setting

from .codec_gpu import Method, check_bits, decode, gather_from, interleaved_ms
from .rows import Data, tile
from .uncompressed import copy_rows, registered

_LAYOUTS = ("compact", "packed")


@dataclasses.dataclass(frozen=True)
class Layouts:
    """raw_mb: raw rows, repeated up to this size (1e6 bytes), in page-locked CPU memory and in GPU memory. hit_ids,
    miss_ids: of a gather. cached_share: of the rows, those of the smaller cache. blocks: grid sizes to try for misses,
    the fastest counts."""

    data: Data = dataclasses.field(default_factory=Data)
    raw_mb: float = setting(1500.0, gt=0)
    hit_ids: int = setting(400_000, ge=1)
    miss_ids: int = setting(200_000, ge=1)
    cached_share: float = setting(0.2, gt=0, le=1)
    blocks: tuple[int, ...] = setting((16, 32, 64), ge=1)
    id_sets: int = setting(3, ge=1)
    repeats: int = setting(7, ge=1)


def measure_layouts(name: str, rows: torch.Tensor, config: Layouts, seed: int) -> list[dict[str, Any]]:
    """rows: [n, d] on the CPU. One result per layout; sizes alone without a GPU."""
    torch.manual_seed(seed)
    on_gpu = torch.cuda.is_available()
    raw = tile(rows, config.raw_mb) if on_gpu else rows
    shown = {"data": name, "dtype": str(rows.dtype).removeprefix("torch."), "width": rows.shape[1]}
    stores = {
        layout: CompressedFeatureStore.build(raw, layout=layout, pin="auto", progress=False)  # type: ignore[arg-type]
        for layout in _LAYOUTS
    }
    results = {layout: {**shown, "layout": layout, **_sizes(store, raw)} for layout, store in stores.items()}
    if on_gpu:
        for layout, measured in _speed(stores, raw, config).items():
            results[layout] |= measured
    for store in stores.values():
        store.close()
    return list(results.values())


def _sizes(store: CompressedFeatureStore, raw: torch.Tensor) -> dict[str, Any]:
    """Bytes of a row, in the mean; effective_rows: of a cache that holds all rows, how many raw rows its bytes would
    hold, for each that it has."""
    num_rows, row_bytes = len(raw), raw.shape[1] * raw.element_size()
    payloads = store.codec.measure(raw).clamp(max=row_bytes).double().mean().item()
    rows = store.rows
    return {
        "codec": store.codec.kind,
        "rows": num_rows,
        "raw_bytes_per_row": row_bytes,
        "payload_bytes_per_row": payloads,
        "data_bytes_per_row": (rows.data_bytes + rows.num_overflow * row_bytes) / num_rows,
        "store_bytes_per_row": store.nbytes / num_rows,
        "above_payloads": store.nbytes / num_rows / payloads - 1,
        "slot_bytes": store.slot_bytes,
        "unit_bytes": rows.packing.unit_bytes if rows.packing else None,
        "effective_rows": row_bytes * num_rows / rows.nbytes,
        "auto_takes_packed": packing_is_taken(store, raw),
    }


def packing_is_taken(store: CompressedFeatureStore, raw: torch.Tensor) -> bool:
    """Whether layout="auto" takes "packed" for these rows."""
    few = raw[:20_000]
    with CompressedFeatureStore.build(few, store.codec.kind, layout="auto", pin=False, progress=False) as chosen:
        return chosen.layout == "packed"


def _speed(stores: dict[str, CompressedFeatureStore], raw: torch.Tensor, config: Layouts) -> dict[str, dict[str, Any]]:
    device = torch.device("cuda", torch.cuda.current_device())
    row_bytes = raw.shape[1] * raw.element_size()
    hits = [torch.randint(len(raw), (config.hit_ids,), device=device) for _ in range(config.id_sets)]
    misses = [torch.randint(len(raw), (config.miss_ids,), device=device).sort().values for _ in range(config.id_sets)]
    out = torch.empty(max(config.hit_ids, config.miss_ids), raw.shape[1], dtype=raw.dtype, device=device)

    # All from GPU memory.
    on_gpu = raw.to(device)
    caches = {layout: CompressedGPUCache(store, f"{len(store)} rows") for layout, store in stores.items()}
    of_hits: dict[str, Method] = {"copy": functools.partial(copy_rows, on_gpu.data_ptr())}
    of_hits |= {layout: functools.partial(gather_from, cache) for layout, cache in caches.items()}
    check_bits(of_hits, hits, raw, out[: config.hit_ids])
    hit_ms = interleaved_ms(of_hits, hits, out[: config.hit_ids], config.repeats)
    del on_gpu, of_hits

    # All from CPU memory.
    out = out[: config.miss_ids]
    with registered(raw) as address:
        of_misses: dict[str, Method] = {}
        for blocks in config.blocks:
            of_misses[f"copy {blocks}"] = functools.partial(copy_rows, address, blocks=blocks)
            for layout, store in stores.items():
                of_misses[f"{layout} {blocks}"] = functools.partial(decode, store.gather_on(device), blocks)
        check_bits(of_misses, misses, raw, out)
        times = interleaved_ms(of_misses, misses, out, config.repeats)
    miss_ms = {name: min(times[f"{name} {blocks}"] for blocks in config.blocks) for name in ("copy", *stores)}
    results = {}
    for layout, store in stores.items():
        store.reset_stats()
        decode(store.gather_on(device), config.blocks[0], misses[0], out)
        cache = CompressedGPUCache(store, f"{max(1, int(config.cached_share * len(store)))} rows")
        results[layout] = {
            "hit_ms": hit_ms[layout],
            "hits_to_copy": hit_ms["copy"] / hit_ms[layout],
            "hits_to_compact": hit_ms["compact"] / hit_ms[layout],
            "miss_ms": miss_ms[layout],
            "misses_to_copy": miss_ms["copy"] / miss_ms[layout],
            "misses_to_compact": miss_ms["compact"] / miss_ms[layout],
            "pcie_bytes_per_miss": store.stats().pcie_bytes / config.miss_ids,
            "cache_bytes_per_row": caches[layout].nbytes / len(store),
            "effective_rows_of_part": row_bytes * cache.num_cached / cache.nbytes,
        }
    return results

"""Speed on a GPU: decoding against copying the same raw rows, from GPU memory and from page-locked CPU memory.

Methods that are compared take the same ids. Times are medians of CUDA events, the launches being queued beforehand.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import statistics
from collections.abc import Callable
from typing import Any

import torch

from ibp_gnn import Codec, CompressedFeatureStore, CompressedGPUCache
from ibp_gnn.codec.gather import GpuGather, MappedRows
from ibp_gnn.codec.values import to_bytes
from ibp_gnn.config import setting
from ibp_gnn.testing import assert_bitwise_equal

from .rows import CodecName, Data, tile
from .timing import check_rows, in_turns, medians, queued_ms, timed
from .uncompressed import copy_rows, registered

Method = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]  # takes ids and a buffer, in which it returns the rows


@dataclasses.dataclass(frozen=True)
class Gpu:
    """hbm_mb: raw rows in GPU memory, repeated up to this size (1e6 bytes). batch_mb: raw bytes that one gather of them
    returns. compress_mb: raw bytes that are compressed at once. pinned_mb: raw rows in page-locked CPU memory, of which
    one gather fetches pinned_ids; blocks: grid sizes to try there, the fastest counts. 0 MB: left out."""

    data: Data = dataclasses.field(default_factory=Data)
    codecs: tuple[CodecName, ...] = ("auto", "ibp")
    hbm_mb: float = setting(2000.0, gt=0)
    batch_mb: float = setting(400.0, gt=0)
    compress_mb: float = setting(1000.0, gt=0)
    pinned_mb: float = setting(4000.0, ge=0)
    pinned_ids: int = setting(200_000, ge=1)
    blocks: tuple[int, ...] = setting((16, 32, 64), ge=1)
    id_sets: int = setting(3, ge=1)
    repeats: int = setting(5, ge=2)


def measure_gpu(name: str, rows: torch.Tensor, config: Gpu, seed: int) -> list[dict[str, Any]]:
    """rows: [n, d] on the CPU. One result per codec."""
    torch.manual_seed(seed)
    hbm = _measure_hbm(rows, config)
    pinned = _measure_pinned(rows, config) if config.pinned_mb else [{}] * len(config.codecs)
    shown = {"data": name, "dtype": str(rows.dtype).removeprefix("torch."), "width": rows.shape[1]}
    return [
        {**shown, "codec": codec, **of_hbm, **of_pinned}
        for codec, of_hbm, of_pinned in zip(config.codecs, hbm, pinned, strict=True)
    ]


def _measure_hbm(rows: torch.Tensor, config: Gpu) -> list[dict[str, Any]]:
    """Rows in GPU memory, random ids; and how fast they are compressed there."""
    device = torch.device("cuda", torch.cuda.current_device())
    raw = tile(rows, config.hbm_mb, device)
    row_bytes = raw.shape[1] * raw.element_size()
    batch = max(1, min(len(raw), round(config.batch_mb * 1e6 / row_bytes)))
    id_sets = [torch.randint(len(raw), (batch,), device=device) for _ in range(config.id_sets)]
    out = torch.empty(batch, raw.shape[1], dtype=raw.dtype, device=device)
    methods: dict[str, Method] = {"copy": functools.partial(copy_rows, raw.data_ptr())}
    results, kept_alive = [], []
    for kind in config.codecs:
        fit_s, codec = _seconds(functools.partial(Codec.fit, raw, codec=kind), config.repeats)
        part = raw[: max(1, round(config.compress_mb * 1e6 / row_bytes))]
        compress_s, compressed_part = _seconds(functools.partial(codec.compress, part), config.repeats)
        assert_bitwise_equal(codec.decompress(compressed_part), part)
        compressed = codec.compress(raw)
        gather = GpuGather(codec.form, device, MappedRows.on_device(compressed), lead_bytes=compressed.slot_bytes)
        kept_alive.append(compressed)
        methods[kind] = functools.partial(decode, gather, 0)
        results.append(
            {
                "parameters": repr(codec),
                "slot_bytes": compressed.slot_bytes,
                "raw_bytes_per_row": row_bytes,
                "hbm_ids": batch,
                "fit_s": fit_s,
                "compress_s_per_gb": compress_s * 1e9 / (len(part) * row_bytes),
                "compress_gb_per_s": len(part) * row_bytes / compress_s / 1e9,
            }
        )
        del compressed_part
    check_bits(methods, id_sets, raw, out)
    times = interleaved_ms(methods, id_sets, out, config.repeats)
    for kind, result in zip(config.codecs, results, strict=True):
        result["hbm_copy_gb_per_s"] = batch * row_bytes / times["copy"] / 1e6
        result["hbm_decode_gb_per_s"] = batch * row_bytes / times[kind] / 1e6
        result["hbm_decode_to_copy"] = times["copy"] / times[kind]
    return results


def _measure_pinned(rows: torch.Tensor, config: Gpu) -> list[dict[str, Any]]:
    """Rows in page-locked CPU memory, ordered ids, for every number of blocks; and all rows in a cache on the GPU."""
    device = torch.device("cuda", torch.cuda.current_device())
    raw = tile(rows, config.pinned_mb)
    row_bytes = raw.shape[1] * raw.element_size()
    batch = min(config.pinned_ids, len(raw))
    id_sets = [torch.randint(len(raw), (batch,), device=device) for _ in range(config.id_sets)]
    ordered = [torch.sort(ids).values for ids in id_sets]
    out = torch.empty(batch, raw.shape[1], dtype=raw.dtype, device=device)
    stores = {kind: CompressedFeatureStore.build(raw, kind, pin=True, progress=False) for kind in config.codecs}
    results = []
    with registered(raw) as address:
        methods: dict[str, Method] = {}
        for blocks in config.blocks:
            methods[f"copy {blocks}"] = functools.partial(copy_rows, address, blocks=blocks)
            for kind, store in stores.items():
                methods[f"{kind} {blocks}"] = functools.partial(decode, store.gather_on(device), blocks)
        check_bits(methods, ordered, raw, out)
        times = interleaved_ms(methods, ordered, out, config.repeats)
        copies = {blocks: times[f"copy {blocks}"] for blocks in config.blocks}
        calls: dict[str, Method] = {kind: functools.partial(gather_from, store) for kind, store in stores.items()}
        check_bits(calls, id_sets, raw, out)
        call_times = interleaved_ms(calls, id_sets, out, config.repeats)
        cached = _measure_cached(stores, id_sets, raw, out, config)
        for kind, store in stores.items():
            store.reset_stats()
            decode(store.gather_on(device), config.blocks[0], ordered[0], out)
            moved = store.stats().pcie_bytes / batch
            decodes = {blocks: times[f"{kind} {blocks}"] for blocks in config.blocks}
            to_copy = min(copies.values()) / min(decodes.values())
            results.append(
                {
                    "pinned_ids": batch,
                    "pinned_copy_ms": copies,
                    "pinned_decode_ms": decodes,
                    "pinned_decode_to_copy": to_copy,
                    "pinned_pcie_bytes_per_row": moved,
                    # What the ratio would be if time followed bytes: of a row's transfer, and of the whole store.
                    "pinned_raw_to_pcie_bytes": row_bytes / moved,
                    "pinned_raw_to_store_bytes": store.raw_nbytes / store.nbytes,
                    "pinned_share_of_ideal": to_copy * moved / row_bytes,
                    "pinned_share_of_store_ideal": to_copy * store.nbytes / store.raw_nbytes,
                    "pinned_gather_ordering_included_ms": call_times[kind],
                    "cache_decode_to_copy": cached["copy"] / cached[kind],
                }
            )
        for store in stores.values():
            store.close()
    return results


def _measure_cached(
    stores: dict[Any, CompressedFeatureStore],
    id_sets: list[torch.Tensor],
    raw: torch.Tensor,
    out: torch.Tensor,
    config: Gpu,
) -> dict[str, float]:
    """Milliseconds of a cache that holds all rows, its table included, and of copying raw rows in GPU memory."""
    on_gpu = raw.to(out.device)
    methods: dict[str, Method] = {"copy": functools.partial(copy_rows, on_gpu.data_ptr())}
    for kind, store in stores.items():
        methods[kind] = functools.partial(gather_from, CompressedGPUCache(store, f"{len(store)} rows"))
    check_bits(methods, id_sets, raw, out)
    return interleaved_ms(methods, id_sets, out, config.repeats)


def check_bits(methods: dict[str, Method], id_sets: list[torch.Tensor], raw: torch.Tensor, out: torch.Tensor) -> None:
    """Raises AssertionError naming the method that does not return the raw rows of these ids."""
    for name, method in methods.items():
        for ids in id_sets:
            check_rows(name, functools.partial(method, ids), out, raw[ids.to(raw.device)].to(out.device))


def interleaved_ms(
    methods: dict[str, Method], id_sets: list[torch.Tensor], out: torch.Tensor, repeats: int
) -> dict[str, float]:
    """Median milliseconds of each method over all ids, the first round left out."""

    def measure(method: Method) -> Callable[[], float]:
        ids = itertools.cycle(id_sets)
        return lambda: queued_ms(functools.partial(method, next(ids), out))

    measures = {name: measure(method) for name, method in methods.items()}
    return medians(in_turns(measures, range(len(id_sets) * repeats), warm_up=len(id_sets)))


def _seconds(call: Callable[[], Any], repeats: int) -> tuple[float, Any]:
    """Median seconds of a call until the GPU is done, the first one left out, and what the last returned."""
    seconds, result = [], None
    for _ in range(repeats):
        del result  # there may be no room for two
        taken, result = timed(call, "cuda")
        seconds.append(taken)
    return statistics.median(seconds[1:]), result


def decode(gather: GpuGather, blocks: int, ids: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
    """A Method: rows in the order of the ids. blocks: of the kernel, 0 for all that the GPU holds."""
    gather.gather(ids, to_bytes(out), ordered=False, max_blocks=blocks)
    return out


def gather_from(
    source: CompressedFeatureStore | CompressedGPUCache, ids: torch.Tensor, out: torch.Tensor
) -> torch.Tensor:
    return source.gather(ids, out=out)

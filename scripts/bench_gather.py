#!/usr/bin/env python
"""Gathers rows by id to the GPU: compressed and uncompressed, from page-locked CPU memory and from GPU memory.

Every method fetches the same ids of the same rows, in the same process; the bits of the result are checked before
anything is timed. Times are medians of CUDA events over several sets of ids; GB/s counts uncompressed bytes that
arrive.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import json
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import torch
from tqdm import tqdm

from ibp_gnn import Codec, CompressedFeatureStore, CompressedGPUCache, _native
from ibp_gnn.config import load, setting, to_dict
from ibp_gnn.rows import dtype_from_name, to_bytes
from ibp_gnn.testing import assert_bitwise_equal
from ibp_gnn.training.record import git_commit, hardware

Method = Callable[[torch.Tensor], Any]  # takes the ids


@dataclasses.dataclass(frozen=True)
class Config:
    """footprint_gb: bytes of compressed slots, in units of 1e9. data: normal = N(0, 0.1), the same statistics as dense
    learned features. hit_shares: shares of rows that lie in the GPU cache."""

    codec: str = "auto"
    dim: int = setting(128, ge=1)
    dtype: Literal["float32", "float16", "bfloat16"] = "float32"
    footprint_gb: float = setting(8.0, gt=0)
    batch_sizes: tuple[int, ...] = (200_000,)
    hit_shares: tuple[float, ...] = ()
    miss_blocks: tuple[int, ...] = (64,)
    id_sets: int = setting(5, ge=1)
    repeats: int = setting(5, ge=1)
    seed: int = 0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", type=Path, help="YAML file; its settings are the fields of Config in this file")
    parser.add_argument("--set", dest="overrides", nargs="*", default=[], metavar="KEY=VALUE", help="override settings")
    parser.add_argument("--json", type=Path, help="where to write the results")
    arguments = parser.parse_args()
    config = load(Config, arguments.config, arguments.overrides)
    if not torch.cuda.is_available():
        parser.error("this benchmark needs a CUDA device")
    results = run(config)
    record = {
        "benchmark": "gather",
        "config": to_dict(config),
        "hardware": hardware(torch.device("cuda")),
        "commit": git_commit(Path(__file__).parent),
        **results,
    }
    if arguments.json:
        arguments.json.write_text(json.dumps(record, indent=1) + "\n")
    print(table(results["rows"]))


def run(config: Config) -> dict[str, Any]:
    torch.manual_seed(config.seed)
    store, raw = make_rows(config)
    raw_bytes = to_bytes(raw)
    raw_address = _native.cuda().register_host_memory(raw_bytes.data_ptr(), raw_bytes.numel())
    rows: list[dict[str, Any]] = []
    try:
        for batch_size in config.batch_sizes:
            rows += measure_batch(config, batch_size, store, raw, raw_address)
    finally:
        torch.cuda.synchronize()
        _native.cuda().unregister_host_memory(raw_bytes.data_ptr())
    sizes = {
        "codec": store.codec.kind,
        "slot_bytes": store.slot_bytes,
        "store_bytes": store.nbytes,
        "raw_bytes": store.raw_nbytes,
        "savings": store.savings,
    }
    store.close()
    return {"store": sizes, "rows": rows}


def measure_batch(
    config: Config, batch_size: int, store: CompressedFeatureStore, raw: torch.Tensor, raw_address: int
) -> list[dict[str, Any]]:
    """Every method on batches of one size."""
    cuda, device = _native.cuda(), torch.device("cuda", torch.cuda.current_device())
    stream = torch.cuda.current_stream().cuda_stream
    ids = [torch.randint(len(raw), (batch_size,), device=device) for _ in range(config.id_sets)]
    ordered = [torch.sort(one).values for one in ids]
    out = torch.empty(batch_size, config.dim, dtype=raw.dtype, device=device)
    out_bytes = to_bytes(out)

    def index_select(one: torch.Tensor) -> None:
        out.copy_(raw[one.cpu()].pin_memory(), non_blocking=True)

    def copy_raw(one: torch.Tensor, blocks: int = 0, positions: torch.Tensor | None = None) -> None:
        cuda.copy_rows(raw_address, one, positions, out_bytes, blocks, stream)

    def order_and_copy_raw(one: torch.Tensor) -> None:
        values, positions = torch.sort(one)
        copy_raw(values, 32, positions)

    def gather(one: torch.Tensor, blocks: int = 0) -> None:
        store.gather_on(device).gather(one, out_bytes, ordered=False, max_blocks=blocks)

    def measured(name: str, method: Method, id_sets: list[torch.Tensor], stats: Any = None) -> dict[str, Any]:
        return measure(name, method, id_sets, raw, out, config, stats)

    results = [
        measured("CPU index_select + H2D", index_select, ids),
        measured("raw zero-copy, unordered", copy_raw, ids),
        measured("raw zero-copy, ordering included", order_and_copy_raw, ids),
        measured("compressed zero-copy, unordered", gather, ids, store.stats),
        measured("store.gather, ordering included", lambda one: store.gather(one, out=out), ids, store.stats),
    ]
    for blocks in config.miss_blocks:
        copy, decode = functools.partial(copy_raw, blocks=blocks), functools.partial(gather, blocks=blocks)
        results.append(measured(f"raw zero-copy, ordered ids, {blocks} blocks", copy, ordered))
        results.append(measured(f"compressed zero-copy, ordered ids, {blocks} blocks", decode, ordered, store.stats))
    on_gpu = to_bytes(raw).to(device)
    address = on_gpu.data_ptr()
    copy_on_gpu = lambda one: cuda.copy_rows(address, one, None, out_bytes, 0, stream)  # noqa: E731
    results.append(measured("raw rows in GPU memory", copy_on_gpu, ids))
    del on_gpu
    for share in (*config.hit_shares, 1.0):
        cache = CompressedGPUCache(store, f"{max(1, round(share * len(raw)))} rows")
        fetch = functools.partial(cache.gather, out=out)
        results.append(measured(f"compressed cache, {share:.0%} of rows", fetch, ids, cache.stats))
    return results


def make_rows(config: Config) -> tuple[CompressedFeatureStore, torch.Tensor]:
    """A store whose slots take config.footprint_gb, and the rows it holds."""
    dtype = dtype_from_name(config.dtype)
    sample = (torch.randn(16384, config.dim) * 0.1).to(dtype)
    codec = Codec.fit(sample, codec=config.codec)
    slot_bytes = codec.compress(sample).slot_bytes
    num_rows = int(config.footprint_gb * 1e9 / slot_bytes)
    raw = torch.empty(num_rows, config.dim, dtype=dtype)
    for part in raw.split(1 << 20):
        part.copy_((torch.randn(part.shape, device="cuda") * 0.1).to(dtype))
    return CompressedFeatureStore.build(raw, codec), raw


def measure(
    name: str,
    method: Method,
    id_sets: list[torch.Tensor],
    raw: torch.Tensor,
    out: torch.Tensor,
    config: Config,
    stats: Callable[[], Any] | None,
) -> dict[str, Any]:
    """Checks the bits of one gather, then times many."""
    out.fill_(float("nan"))
    before = stats() if stats else None
    method(id_sets[0])
    after = stats() if stats else None
    assert_bitwise_equal(out.cpu(), raw[id_sets[0].cpu()])
    times = []
    for repeat in tqdm(range(config.repeats), desc=name, leave=False):
        for one in id_sets:
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            if "CPU" not in name:
                torch.cuda._sleep(1_000_000)  # the GPU waits until its work is queued: launches are not timed
            start.record()
            method(one)
            end.record()
            end.synchronize()
            if repeat or config.repeats == 1:  # the first round warms up
                times.append(start.elapsed_time(end))
    median = statistics.median(times)
    row_bytes = raw[:1].numel() * raw.element_size()
    moved = len(id_sets[0]) * row_bytes
    result = {"method": name, "ids": len(id_sets[0]), "ms": median, "output_gb_per_s": moved / median / 1e6}
    if before is not None and after is not None and after.misses > before.misses:
        result["pcie_bytes_per_row"] = (after.pcie_bytes - before.pcie_bytes) / (after.misses - before.misses)
        result["miss_rate"] = (after.misses - before.misses) / len(id_sets[0])
    elif "zero-copy" in name:
        result["pcie_bytes_per_row"] = row_bytes
    return result


def table(rows: list[dict[str, Any]]) -> str:
    lines = [f"{'ids':>9} {'ms':>9} {'GB/s':>8} {'PCIe B/row':>11}  method"]
    for row in rows:
        pcie = f"{row['pcie_bytes_per_row']:.1f}" if "pcie_bytes_per_row" in row else "-"
        lines.append(f"{row['ids']:>9} {row['ms']:>9.3f} {row['output_gb_per_s']:>8.1f} {pcie:>11}  {row['method']}")
    return "\n".join(lines)


if __name__ == "__main__":
    main()

"""LOSSY stores: what they take beside lossless ones, what they change, and how fast a GPU gathers from them."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import torch
from tqdm import tqdm

from ibp_gnn import CompressedFeatureStore
from ibp_gnn.codec.values import num_values, to_bytes
from ibp_gnn.command.analysis import precision_reports
from ibp_gnn.config import setting
from ibp_gnn.store.precision import PRECISIONS, PrecisionName
from ibp_gnn.testing import assert_bitwise_equal

from .rows import RowsConfig, make_rows
from .timing import in_turns, medians, queued_ms
from .uncompressed import copy_rows, fastest_blocks, registered

_WARM_UP = 3
_ROWS_AT_ONCE = 1 << 18


@dataclasses.dataclass(frozen=True)
class SizesConfig:
    """data: names of rows.py, all float32."""

    data: tuple[str, ...] = ("wordnet_glove", "normal_128", "relu_256")
    rows: RowsConfig = dataclasses.field(default_factory=RowsConfig)


@dataclasses.dataclass(frozen=True)
class GatherConfig:
    """dims: values of a row. raw_gb: of all rows as float32, in page-locked CPU memory. raw_mb: of the rows of a
    gather. raw_blocks: of the kernel that copies ordered raw rows; the fastest one counts. store_blocks: of the store's
    kernel, each measured beside its own choice; 0: as many as the GPU holds."""

    dims: tuple[int, ...] = setting((128, 768), ge=1)
    precisions: tuple[PrecisionName, ...] = ("fp8_e4m3", "fp8_e5m2", "bf16", "fp16")
    raw_gb: float = setting(8.0, gt=0)
    raw_mb: tuple[int, ...] = setting((100, 400), ge=1)
    raw_blocks: tuple[int, ...] = setting((16, 32, 64), ge=1)
    store_blocks: tuple[int, ...] = setting((16, 32, 64, 128, 0), ge=0)
    repeats: int = setting(12, ge=1)


def measure_sizes(config: SizesConfig) -> list[dict[str, Any]]:
    """For each data set: bits of a value in stores of each precision, and the errors."""
    results = []
    for name in config.data:
        rows = make_rows(name, config.rows)
        values = rows.numel()
        one: dict[str, Any] = {"data": name, "rows": list(rows.shape), "precisions": []}
        reports = {report.precision: report for report in precision_reports(rows)}
        for precision in (None, *PRECISIONS):
            with CompressedFeatureStore.build(rows, precision=precision, progress=False, pin=False) as store:
                of_one = {"precision": precision, "bits_per_value": 8 * store.nbytes / values}
            if precision is not None:
                of_one |= {
                    key: value for key, value in dataclasses.asdict(reports[precision]).items() if "error" in key
                }
            one["precisions"].append(of_one)
        results.append(one)
    return results


def measure_gathers(config: GatherConfig, device: torch.device, keep: Callable[[list[dict[str, Any]]], None]) -> None:
    """Random rows of N(0, 0.1). ms of a gather: of raw rows, ordered, ordering included; and from stores of each
    precision, and a lossless one; all to float32. Bits are compared first. keep: is given the results so far.
    """
    results: list[dict[str, Any]] = []
    for dim in config.dims:
        num_rows = int(config.raw_gb * 1e9 / 4 / dim)
        raw = torch.empty(num_rows, dim)
        with registered(raw) as address:
            for part in raw.split(_ROWS_AT_ONCE):
                part.copy_(torch.randn(part.shape, device=device) * 0.1)
            for precision in (*config.precisions, None):
                with CompressedFeatureStore.build(raw, precision=precision, pin=True, progress=False) as store:
                    _check(store, raw, device)
                    for raw_mb in config.raw_mb:
                        count = max(1, int(raw_mb * 1e6 / 4 / dim))
                        one = _measure(store, address, count, config, device)
                        results.append({"dim": dim, "raw_gb": config.raw_gb, "precision": precision} | one)
                        keep(results)


def _check(store: CompressedFeatureStore, raw: torch.Tensor, device: torch.device) -> None:
    ids = torch.randint(len(raw), (5000,), device=device)
    rows = raw[ids.cpu()]
    wanted = rows if store.precision is None else store.precision.round(rows)
    assert_bitwise_equal(store.gather(ids), wanted.to(device))


def _measure(
    store: CompressedFeatureStore, address: int, count: int, config: GatherConfig, device: torch.device
) -> dict[str, Any]:
    dim = num_values(store.codec.row_shape)
    out = torch.empty(count, dim, device=device)

    def draw() -> torch.Tensor:
        return torch.randint(len(store), (count,), device=device)

    def ordered(ids: torch.Tensor, blocks: int) -> torch.Tensor:
        places, positions = torch.sort(ids)
        return copy_rows(address, places, out, positions, blocks)

    blocks = fastest_blocks(ordered, draw, config.raw_blocks)

    def time_raw() -> float:
        return queued_ms(functools.partial(ordered, draw(), blocks))

    def time_store(blocks: int | None) -> float:
        ids = draw()
        return queued_ms(lambda: store.gather_on(device).gather(ids, to_bytes(out), max_blocks=blocks))

    methods: dict[str, Callable[[], float]] = {"raw_ordered": time_raw, "store": functools.partial(time_store, None)}
    methods |= {f"store_{blocks}_blocks": functools.partial(time_store, blocks) for blocks in config.store_blocks}
    rounds = tqdm(range(_WARM_UP + config.repeats), desc=f"{count} rows", leave=False)
    ms = medians(in_turns(methods, rounds, _WARM_UP))
    return {
        "ids": count,
        "slot_bytes": store.slot_bytes,
        "raw_blocks": blocks,
        "ms": ms,
        "vs_raw_ordered": ms["raw_ordered"] / ms["store"],
        "output_gb_per_s": {name: count * dim * 4 / of / 1e6 for name, of in ms.items()},
    }

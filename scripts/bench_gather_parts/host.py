"""How long a gather of few rows keeps the host: the call itself, without waiting for the GPU."""

from __future__ import annotations

import functools
import statistics
import time
from typing import Any

import torch

from ibp_gnn import CompressedGPUCache, _native
from ibp_gnn.codec.values import to_bytes

from .config import Config
from .data import Rows

_CACHED_ROWS = 100_000
_CALLS_AT_ONCE = 50  # few enough that the GPU's queue never fills up, where a launch would wait


def host_us(rows: Rows, config: Config) -> dict[str, float]:
    """Microseconds of a call, median over groups of calls that take turns: launch, of the kernel that copies raw rows,
    with nothing around it; store and cache, of their gather(ids, out=out)."""
    cache = CompressedGPUCache(rows.store, f"{min(len(rows.raw), _CACHED_ROWS)} rows", device=rows.device)
    ids = torch.randint(cache.num_cached, (config.host_ids,), device=rows.device)
    out = torch.empty(len(ids), rows.raw.shape[1], dtype=rows.raw.dtype, device=rows.device)
    stream = torch.cuda.current_stream(rows.device).cuda_stream
    calls = {
        "launch": functools.partial(_native.cuda().copy_rows, rows.raw_address, ids, None, to_bytes(out), 0, stream),
        "store": functools.partial(rows.store.gather, ids, out=out),
        "cache": functools.partial(cache.gather, ids, out=out),
    }
    times: dict[str, list[float]] = {name: [] for name in calls}
    for group in range(1 + -(-config.host_calls // _CALLS_AT_ONCE)):
        for name, call in calls.items():
            microseconds = _call_us(call)
            if group:  # the first one warms up
                times[name].append(microseconds)
    return {name: statistics.median(of_name) for name, of_name in times.items()}


def _call_us(call: Any) -> float:
    torch.cuda.synchronize()
    begin = time.perf_counter()
    for _ in range(_CALLS_AT_ONCE):
        call()
    seconds = time.perf_counter() - begin
    torch.cuda.synchronize()
    return 1e6 * seconds / _CALLS_AT_ONCE

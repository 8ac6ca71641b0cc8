"""How a benchmark measures: the bits first, then the times of methods that take turns.

Turns make a busy machine slow all methods. Needs torch and nothing of ibp_gnn but `testing`, so that bench_versions.py
can measure older versions with it.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

import torch

from ibp_gnn.testing import assert_bitwise_equal

T = TypeVar("T")
_QUEUE_CYCLES = 1_000_000  # the GPU waits about half a millisecond, until its work is queued
_CALLS_AT_ONCE = 50  # few enough that the GPU's queue never fills up, where a launch would wait


def check_rows(
    name: str, gather: Callable[[torch.Tensor], torch.Tensor], out: torch.Tensor, rows: torch.Tensor
) -> None:
    """gather: takes a buffer like `out`, [n, d], and returns the rows, there or in its own memory. Raises
    AssertionError with the name unless they are `rows`, bit for bit."""
    out.view(torch.uint8).fill_(0xA5)
    try:
        assert_bitwise_equal(gather(out), rows)
    except AssertionError as error:
        raise AssertionError(f"{name}: {error}") from error


def in_turns(
    measures: Mapping[str, Callable[[], float]], rounds: Iterable[int], warm_up: int = 0
) -> dict[str, list[float]]:
    """Calls each of `measures`, which return a time, once a round. Returns the times by name, those of the first
    warm_up rounds left out."""
    times: dict[str, list[float]] = {name: [] for name in measures}
    for number in rounds:
        for name, measure in measures.items():
            time_taken = measure()
            if number >= warm_up:
                times[name].append(time_taken)
    return times


def medians(times: Mapping[str, list[float]]) -> dict[str, float]:
    return {name: statistics.median(of_name) for name, of_name in times.items()}


def queued_ms(call: Callable[[], Any]) -> float:
    """Milliseconds between CUDA events around the call, whose launches are queued before the GPU comes to them. Waits
    for the GPU."""
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda._sleep(_QUEUE_CYCLES)
    start.record()
    call()
    end.record()
    end.synchronize()
    return start.elapsed_time(end)


def timed(call: Callable[[], T], device: torch.device | str = "cpu") -> tuple[float, T]:
    """Seconds by the clock, until the device is done, and what the call returned."""
    on_gpu = torch.device(device).type == "cuda"
    if on_gpu:
        torch.cuda.synchronize()
    begin = time.perf_counter()
    result = call()
    if on_gpu:
        torch.cuda.synchronize()
    return time.perf_counter() - begin, result


def host_us(calls: Mapping[str, Callable[[], Any]], count: int) -> dict[str, float]:
    """Microseconds that a call keeps the host, without waiting for the GPU: medians over groups of calls that take
    turns, about `count` calls in all."""

    def group(call: Callable[[], Any]) -> float:
        torch.cuda.synchronize()
        begin = time.perf_counter()
        for _ in range(_CALLS_AT_ONCE):
            call()
        seconds = time.perf_counter() - begin
        torch.cuda.synchronize()
        return 1e6 * seconds / _CALLS_AT_ONCE

    measures = {name: (lambda call=call: group(call)) for name, call in calls.items()}
    return medians(in_turns(measures, range(1 + -(-count // _CALLS_AT_ONCE)), warm_up=1))

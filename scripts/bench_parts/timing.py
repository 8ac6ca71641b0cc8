"""How long a GPU takes for what a call enqueues."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

_QUEUE_CYCLES = 1_000_000  # the GPU waits about half a millisecond, until its work is queued


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

"""Where an epoch's time goes, without slowing it."""

from __future__ import annotations

import time

import torch


class PhaseTimer:
    """Adds up the time between marks, by phase.

    On the CPU the marks are host times. On CUDA the host runs ahead of the GPU: host times would charge one
    phase with the work of another, and a synchronisation at each mark would stop the overlap that is being
    measured. So a mark is a CUDA event on the current stream, read once, in `seconds`. A phase then is the
    time that the GPU's timeline spent in it, waiting included: sampling that hides behind the previous
    step's kernels counts as zero, sampling that keeps the GPU idle counts in full, and the phases add up to
    the epoch.
    """

    def __init__(self, device: torch.device) -> None:
        self._cuda = device.type == "cuda"
        self._names: list[str] = []
        self._marks: list[float | torch.cuda.Event] = [self._now()]

    def mark(self, phase: str) -> None:
        """The time since the last mark (at first: since the timer was made) was `phase`. No host sync."""
        self._names.append(phase)
        self._marks.append(self._now())

    def seconds(self) -> dict[str, float]:
        """Seconds by phase. On CUDA this waits for the GPU."""
        if self._cuda:
            torch.cuda.synchronize()
        totals = dict.fromkeys(self._names, 0.0)
        for name, begin, end in zip(self._names, self._marks, self._marks[1:], strict=False):
            if isinstance(begin, float):
                totals[name] += end - begin  # type: ignore[operator]
            else:
                totals[name] += begin.elapsed_time(end) / 1e3  # type: ignore[arg-type]
        return totals

    def _now(self) -> float | torch.cuda.Event:
        if not self._cuda:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

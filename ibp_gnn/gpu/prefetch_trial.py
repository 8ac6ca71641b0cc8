"""Whether fetching ahead pays in a loop: measured in its first steps."""

from __future__ import annotations

import logging
import statistics
import time
from collections.abc import Callable

_logger = logging.getLogger(__name__)

_SETTLE_STEPS = 3  # after each change: batches that were fetched in the other way, and the GPU's queue
_MEASURED_STEPS = 5
_ROUNDS = 2
_WORTH = 0.98  # fetching in turn is taken where it needs less than this share of the time


class PrefetchTrial:
    """The first steps of a loop fetch ahead and in turn, by turns; then the loop goes on in the way that took less
    time, and the log says so (logger ibp_gnn.gpu.prefetch_trial). Give it to the Prefetchers of one loop.

    What a step takes is the time by the clock between two batches: where the host is what the GPU waits for, fetching
    ahead has nothing to hide behind, and its own work comes on top. A Prefetcher keeps the host within a few steps of
    the GPU, so this is the time of both.

    Example:
        >>> trial = ibp_gnn.PrefetchTrial()
        >>> loader = [torch.tensor([1, 2])]
        >>> for ids, x in ibp_gnn.Prefetcher(loader, store, device="cpu", trial=trial): print(list(x.shape))
        [2, 16]
        >>> trial.fetches_ahead, trial.is_over  # on the CPU there is nothing to find out
        (True, False)
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        """Measures nothing yet.

        Args:
            clock: returns seconds.
        """
        self._clock = clock
        self._seconds: dict[bool, list[float]] = {True: [], False: []}  # of steps, by whether they fetch ahead
        self._last: float | None = None
        self._settling = _SETTLE_STEPS
        self._in_block = 0
        self._ahead, self._is_over = True, False

    @property
    def fetches_ahead(self) -> bool:
        """How the loop goes on by now."""
        return self._ahead

    @property
    def is_over(self) -> bool:
        """Whether that is settled."""
        return self._is_over

    def begin(self) -> None:
        """An iteration begins: what was between it and the last one is no step."""
        self._last, self._settling = None, _SETTLE_STEPS

    def step(self) -> bool:
        """Called before each batch.

        Returns:
            Whether to fetch ahead now.
        """
        if self._is_over:
            return self._ahead
        now = self._clock()
        last, self._last = self._last, now
        if last is None:
            return self._ahead
        if self._settling:
            self._settling -= 1
            return self._ahead
        self._seconds[self._ahead].append(now - last)
        self._in_block += 1
        if self._in_block == _MEASURED_STEPS:
            self._in_block, self._settling = 0, _SETTLE_STEPS
            self._ahead = not self._ahead
            if self._ahead and len(self._seconds[False]) == _ROUNDS * _MEASURED_STEPS:
                self._decide()
        return self._ahead

    def _decide(self) -> None:
        ahead, in_turn = (statistics.median(self._seconds[way]) for way in (True, False))
        self._is_over, self._ahead = True, in_turn >= _WORTH * ahead
        _logger.info(
            "fetching ahead takes %.2f ms a step, fetching in turn %.2f: %s from now on",
            1e3 * ahead,
            1e3 * in_turn,
            "ahead" if self._ahead else "in turn (prefetch has switched itself off)",
        )

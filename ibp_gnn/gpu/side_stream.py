"""A stream beside that of the training step, for what is made ahead of it."""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Iterable
from typing import Literal

import torch

# How many steps the host may enqueue before the GPU has done the first of them. More would not make the GPU busier, and
# what was made for each is memory that is not free until the GPU has passed it.
_STEPS_AHEAD = 2


class SideStream:
    """The stream of one GPU for samples and fetches, in step with the stream that is current when its methods are
    called."""

    def __init__(self, device: torch.device, purpose: Literal["fetch", "sample"] = "fetch") -> None:
        self._device = device
        self.stream = _stream_for(device, purpose)
        self._steps: deque[torch.cuda.Event] = deque()
        self.follow()  # what the source keeps on the GPU may be in the making there

    def follow(self) -> torch.cuda.Stream:
        """What is enqueued here from now on runs behind what was enqueued on the current stream so far: memory that was
        allocated there may be written here. Returns that stream."""
        current = torch.cuda.current_stream(self._device)
        self.stream.wait_stream(current)
        return current

    def pace(self) -> None:
        """Called once a step: waits until the GPU is at most _STEPS_AHEAD steps behind the host."""
        step = torch.cuda.Event()
        step.record(torch.cuda.current_stream(self._device))
        self._steps.append(step)
        if len(self._steps) > _STEPS_AHEAD:
            self._steps.popleft().synchronize()

    def take(self, ids: list[torch.Tensor]) -> None:
        """Ids that are on the GPU may be in the making there, and must outlive their use here."""
        on_gpu = [one for one in ids if one.device == self._device]
        if on_gpu:
            self.stream.wait_stream(torch.cuda.current_stream(self._device))
        for one in on_gpu:
            one.record_stream(self.stream)

    def hand_over(self, tensors: Iterable[torch.Tensor]) -> None:
        """The current stream waits for what this one has been given to do so far; the allocator keeps the tensors until
        it has passed their last use."""
        current = torch.cuda.current_stream(self._device)
        current.wait_stream(self.stream)
        for tensor in tensors:
            tensor.record_stream(current)


@functools.cache
def _stream_for(device: torch.device, purpose: str) -> torch.cuda.Stream:
    """One for all who have this purpose: torch keeps the memory freed on each stream for that stream.

    Samples go first: many short kernels, and a host that waits for them.
    """
    return torch.cuda.Stream(device, priority=-1 if purpose == "sample" else 0)

"""The baseline for offloaded weights: the same overlap, landing buffers and budget, and raw bytes.

It stands in for GpuDecoder: weights are page-locked as they are, come by DMA on a stream of their own into landing
buffers, and are read there.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

import torch
from torch import nn

from ibp_gnn.offload.decoder import Decoder
from ibp_gnn.offload.host_memory import HostArena
from ibp_gnn.offload.modules import FoundWeight, find_weights
from ibp_gnn.offload.offloaded_weight import OffloadedWeight
from ibp_gnn.offload.placement import Size, choose_places
from ibp_gnn.offload.weight import CompressedWeight


class RawDecoder(Decoder):
    """Rows of embeddings are read from the GPU, outside of the budget: in the baseline's favour."""

    def __init__(self, found: Sequence[FoundWeight], device: torch.device, budget: int, prefetch: int) -> None:
        self.device, self._prefetch = device, prefetch
        sizes = [Size(one.parameter.nbytes, one.parameter.nbytes, one.whole) for one in found if one.whole]
        places = iter(choose_places(sizes, budget, prefetch, decodes=False))
        self._arena = HostArena(pin=True)
        self._resident: dict[int, torch.Tensor] = {}
        self._streamed: dict[int, torch.Tensor] = {}
        for number, one in enumerate(found):
            if not one.whole or next(places) != "streamed":
                self._resident[number] = one.parameter.detach().to(device)
                continue
            part = self._arena.take(one.parameter.nbytes)
            part.copy_(one.parameter.detach().reshape(-1).view(torch.uint8))
            self._streamed[number] = part.view(one.parameter.dtype).view(one.parameter.shape)
        self._arena.lock(device)
        longest = max((part.nbytes for part in self._streamed.values()), default=0)
        count = prefetch + 1 if longest else 0
        self._landings = [torch.empty(longest, dtype=torch.uint8, device=device) for _ in range(count)]
        self._filled = [torch.cuda.Event() for _ in range(count)]
        self._free = [torch.cuda.Event() for _ in range(count)]
        self._holds: list[int | None] = [None] * count
        self._copies = torch.cuda.Stream(device)
        order = list(self._streamed)
        self._next = dict(zip(order, order[1:] + order[:1], strict=True))
        self.streamed_bytes = 0

    @contextlib.contextmanager
    def lend(self, number: int) -> Iterator[torch.Tensor]:
        if number in self._resident:
            yield self._resident[number]
            return
        if number not in self._holds:
            self._start(number, self._holds.index(None))
        slot = self._holds.index(number)
        stream = torch.cuda.current_stream(self.device)
        following = number
        for _ in range(self._prefetch):
            following = self._next[following]
            if following not in self._holds and None in self._holds:
                self._start(following, self._holds.index(None))
        stream.wait_event(self._filled[slot])
        raw = self._streamed[number]
        yield self._landings[slot][: raw.nbytes].view(raw.dtype).view(raw.shape)
        self._free[slot].record(stream)
        self._holds[slot] = None

    def _start(self, number: int, slot: int) -> None:
        raw = self._streamed[number]
        with torch.cuda.stream(self._copies):
            self._copies.wait_event(self._free[slot])
            self._landings[slot][: raw.nbytes].copy_(raw.reshape(-1).view(torch.uint8), non_blocking=True)
            self._filled[slot].record(self._copies)
        self._holds[slot] = number
        self.streamed_bytes += raw.nbytes

    def read_rows(self, number: int, ids: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.embedding(ids, self._resident[number])

    def copy(self, number: int, device: torch.device | None = None) -> torch.Tensor:
        held = self._resident.get(number, self._streamed.get(number))
        assert held is not None  # each weight is in one of the two
        return held.to(self.device if device is None else device)

    def compressed(self, number: int) -> CompressedWeight:
        raise NotImplementedError("raw weights are not compressed")

    @property
    def device_nbytes(self) -> int:
        return sum(tensor.nbytes for tensor in (*self._resident.values(), *self._landings))

    @property
    def num_resident(self) -> int:
        return len(self._resident)

    def close(self) -> None:
        torch.cuda.synchronize(self.device)
        self._arena.close()


def offload_raw(model: nn.Module, device: torch.device, budget: int, prefetch: int) -> RawDecoder:
    """As `offload` does it, for good."""
    found = find_weights(model)
    decoder = RawDecoder(found, device, budget, prefetch)
    for number, one in enumerate(found):
        weight: OffloadedWeight = OffloadedWeight(
            decoder=decoder,
            number=number,
            name=one.name,
            shape=one.parameter.shape,
            dtype=one.parameter.dtype,
            by_row=one.by_row,
        )
        for module, key in one.owners:
            module._parameters[key] = weight
    for module in model.modules():
        for tensors in (module._parameters, module._buffers):
            for key, tensor in tensors.items():
                if tensor is not None and not isinstance(tensor, OffloadedWeight):
                    moved = tensor.detach().to(device)
                    tensors[key] = nn.Parameter(moved, requires_grad=False) if tensors is module._parameters else moved
    return decoder

"""Pages on their way to the GPU: slots come by DMA into buffers of its memory, and are decoded from there."""

from __future__ import annotations

import torch

from .. import _native
from ..codec.gather import GpuGather, ids_on_gpu
from .page_arena import PageArena, runs_of

_SLACK = _native.cpu.SLACK_BYTES
_GROWTH = 1.25  # a new buffer makes new plans, which wait for the GPU


class _Section:
    """Pages of one arena in a landing. gather: reads them; None: to be made."""

    def __init__(self) -> None:
        self.slots: torch.Tensor | None = None
        self.bitmask: torch.Tensor | None = None
        self.arena: PageArena | None = None
        self.gathers: dict[int, GpuGather] = {}  # by the arena's id; arenas are kept alive by them

    def reserve(self, arena: PageArena, pages: int, device: torch.device, copies: torch.cuda.Stream) -> None:
        slots_bytes = pages * arena.page_bytes + _SLACK
        bitmask_bytes = pages * arena.page_tokens // 8
        if self.slots is None or self.slots.numel() < slots_bytes or _length(self.bitmask) < bitmask_bytes:
            grown = int(pages * _GROWTH) + 1
            with torch.inference_mode(False):
                slots_bytes = max(grown * arena.page_bytes + _SLACK, _length(self.slots))
                bitmask_bytes = max(grown * arena.page_tokens // 8, _length(self.bitmask))
                self.slots = torch.empty(slots_bytes, dtype=torch.uint8, device=device)
                self.bitmask = torch.zeros(bitmask_bytes, dtype=torch.uint8, device=device)
            self.slots.record_stream(copies)  # which may be writing to them when they are let go of
            self.bitmask.record_stream(copies)
            copies.wait_stream(torch.cuda.current_stream(device))  # the memory may have been another's
            self.gathers.clear()
        self.arena = arena

    def gather(self) -> GpuGather:
        assert self.arena is not None and self.slots is not None and self.bitmask is not None  # it was reserved
        key = id(self.arena)
        if key not in self.gathers:
            arena = self.arena
            pages = min(
                (self.slots.numel() - _SLACK) // arena.page_bytes, 8 * self.bitmask.numel() // arena.page_tokens
            )
            mapped = arena.mapped(self.slots[: pages * arena.page_bytes + _SLACK], self.bitmask)
            self.gathers[key] = GpuGather(arena.codec.form, arena.device, mapped, lead_bytes=arena.slot_bytes)
        return self.gathers[key]


class PageLanding:
    """Buffers for the pages of one fetch, used again by the next one. Of one device."""

    def __init__(self, device: torch.device, copies: torch.cuda.Stream) -> None:
        self._device, self._copies = device, copies
        self._sections: list[_Section] = []
        self._free = torch.cuda.Event()
        self._filled = torch.cuda.Event()
        self._at: dict[tuple[int, int], tuple[int, int]] = {}  # (arena, place): (section, position)
        self.owner: object = None  # whose pages are in it
        self.moved_bytes = 0

    def start(self, owner: object, pages: list[tuple[PageArena, int]]) -> None:
        """Starts the copies of these pages, each once. What was here before has to be decoded."""
        self.owner, self._at = None, {}
        arenas = list({id(arena): arena for arena, _ in pages}.values())
        while len(self._sections) < len(arenas):
            self._sections.append(_Section())
        self._copies.wait_event(self._free)
        for number, arena in enumerate(arenas):
            places = sorted({place for of, place in pages if of is arena})
            arena.settle(places)
            section = self._sections[number]
            section.reserve(arena, len(places), self._device, self._copies)
            self._copy(section, arena, places)
            self._at |= {(id(arena), place): (number, at) for at, place in enumerate(places)}
        self._filled.record(self._copies)
        self.owner = owner

    def _copy(self, section: _Section, arena: PageArena, places: list[int]) -> None:
        assert section.slots is not None and section.bitmask is not None  # they were reserved
        with torch.cuda.stream(self._copies), torch.inference_mode(False):
            for first, count, at in runs_of(places):
                part = section.slots[at * arena.page_bytes : (at + count) * arena.page_bytes]
                arena.slots.read(first * arena.page_bytes, part)
                self.moved_bytes += part.numel()
            words = section.bitmask[: len(places) * arena.page_tokens // 8].view(torch.int32).view(len(places), -1)
            words.copy_(arena.page_bitmask()[_to_gpu(places, self._device)])

    def has(self, owner: object, pages: list[tuple[PageArena, int]]) -> bool:
        """Whether these pages are here, for this owner, or on their way."""
        return self.owner is owner and all((id(arena), place) in self._at for arena, place in pages)

    def decode(self, pages: list[tuple[PageArena, int]], out: torch.Tensor) -> None:
        """out: [n * page_tokens, values], contiguous, on the device: the tokens of these pages, repeats allowed.
        Enqueued on the current stream."""
        stream = torch.cuda.current_stream(self._device)
        stream.wait_event(self._filled)
        wheres = [self._at[id(arena), place] for arena, place in pages]
        page_tokens = pages[0][0].page_tokens
        first = 0
        while first < len(wheres):
            section = wheres[first][0]
            end = first
            while end < len(wheres) and wheres[end][0] == section:
                end += 1
            positions = [at for _, at in wheres[first:end]]
            ids = token_ids(positions, page_tokens, self._device)
            rows = out[first * page_tokens : end * page_tokens]
            self._sections[section].gather().gather(ids, rows, ordered=False, max_blocks=0)
            first = end
        self._free.record(stream)

    @property
    def nbytes(self) -> int:
        """On the GPU."""
        return sum(_length(section.slots) + _length(section.bitmask) for section in self._sections)


def token_ids(pages: list[int], page_tokens: int, device: torch.device) -> torch.Tensor:
    """int64 [n * page_tokens] on the device: the rows of the tokens of these pages. The host does not wait."""
    runs = runs_of(pages)
    if len(runs) == 1:
        first, count, _ = runs[0]
        return torch.arange(first * page_tokens, (first + count) * page_tokens, device=device)
    starts = _to_gpu(pages, device) * page_tokens
    return (starts[:, None] + torch.arange(page_tokens, device=device)).view(-1)


def _to_gpu(numbers: list[int], device: torch.device) -> torch.Tensor:
    ids = torch.tensor(numbers, dtype=torch.int64)
    return ids_on_gpu(ids, device) if device.type == "cuda" else ids


def _length(buffer: torch.Tensor | None) -> int:
    return 0 if buffer is None else buffer.numel()

"""Pages on their way to the GPU: slots come by DMA into buffers of its memory, and are decoded from there."""

from __future__ import annotations

from typing import NamedTuple

import torch

from .. import _native
from ..codec.gather import GpuGather, ids_on_gpu
from .page_arena import PageArena, runs_of

_SLACK = _native.cpu.SLACK_BYTES
_GROWTH = 1.25  # a new buffer makes new plans, which wait for the GPU


class _Part(NamedTuple):
    """The pages of a selection that lie in one arena. places: each once, in order. on_device: the same, int64."""

    arena: PageArena
    places: list[int]
    runs: list[tuple[int, int, int]]
    on_device: torch.Tensor


class _Run(NamedTuple):
    """Pages of one part that follow one another in the output, from page `first` on. ids: int64, where their tokens are
    in the landing."""

    part: int
    first: int
    end: int
    ids: torch.Tensor


class PageSelection:
    """Pages in the order in which they are asked for, repeats allowed, and what fetching them takes. A step of decoding
    fetches the same pages as the one before, so this is made seldom. ready: its tensors, on whatever stream."""

    def __init__(self, pages: list[tuple[PageArena, int]], device: torch.device) -> None:
        self.page_tokens = pages[0][0].page_tokens
        arenas = list({id(arena): arena for arena, _ in pages}.values())
        number_of = {id(arena): number for number, arena in enumerate(arenas)}
        self.parts: list[_Part] = []
        position: dict[tuple[int, int], int] = {}
        for number, arena in enumerate(arenas):
            places = sorted({place for of, place in pages if of is arena})
            self.parts.append(_Part(arena, places, runs_of(places), _to_device(places, device)))
            position |= {(number, place): at for at, place in enumerate(places)}
        self.runs: list[_Run] = []
        numbers = [number_of[id(arena)] for arena, _ in pages]
        first = 0
        while first < len(pages):
            end = first
            while end < len(pages) and numbers[end] == numbers[first]:
                end += 1
            positions = [position[numbers[at], pages[at][1]] for at in range(first, end)]
            self.runs.append(_Run(numbers[first], first, end, token_ids(positions, self.page_tokens, device)))
            first = end
        self.ready = torch.cuda.Event()
        self.ready.record(torch.cuda.current_stream(device))


class _Section:
    """Buffers for the pages of one arena. gathers: of arenas whose pages were here, by their ids; they keep them."""

    def __init__(self) -> None:
        self.slots: torch.Tensor | None = None
        self.bitmask: torch.Tensor | None = None
        self.gathers: dict[int, GpuGather] = {}

    def reserve(
        self, arena: PageArena, pages: int, device: torch.device, copies: torch.cuda.Stream
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The buffers, with room for so many pages."""
        slots, bitmask = self.slots, self.bitmask
        slots_bytes, bitmask_bytes = pages * arena.page_bytes + _SLACK, pages * arena.page_tokens // 8
        if slots is None or bitmask is None or slots.numel() < slots_bytes or bitmask.numel() < bitmask_bytes:
            grown = int(pages * _GROWTH) + 1
            slots_bytes = max(grown * arena.page_bytes + _SLACK, 0 if slots is None else slots.numel())
            bitmask_bytes = max(grown * arena.page_tokens // 8, 0 if bitmask is None else bitmask.numel())
            self.gathers.clear()  # waits for those that read the old ones
            with torch.inference_mode(False):
                slots = self.slots = torch.empty(slots_bytes, dtype=torch.uint8, device=device)
                bitmask = self.bitmask = torch.zeros(bitmask_bytes, dtype=torch.uint8, device=device)
            slots.record_stream(copies)  # which may be writing to them when they are let go of
            bitmask.record_stream(copies)
            copies.wait_stream(torch.cuda.current_stream(device))  # the memory may have been another's
        return slots, bitmask

    def gather(self, arena: PageArena) -> GpuGather:
        """Reads pages of this arena, which are here."""
        if id(arena) not in self.gathers:
            assert self.slots is not None and self.bitmask is not None  # they were reserved
            room = (self.slots.numel() - _SLACK) // arena.page_bytes
            pages = min(room, 8 * self.bitmask.numel() // arena.page_tokens)
            mapped = arena.mapped(self.slots[: pages * arena.page_bytes + _SLACK], self.bitmask)
            self.gathers[id(arena)] = GpuGather(arena.codec.form, arena.device, mapped, lead_bytes=arena.slot_bytes)
        return self.gathers[id(arena)]


class PageLanding:
    """Buffers for the pages of one fetch, used again by the next one. Of one device. holds: the selection whose pages
    are here or on their way; None: nobody's."""

    def __init__(self, device: torch.device, copies: torch.cuda.Stream) -> None:
        self._device, self._copies = device, copies
        self._sections: list[_Section] = []
        self._free, self._filled = torch.cuda.Event(), torch.cuda.Event()
        self.holds: PageSelection | None = None
        self.moved_bytes = 0

    def start(self, selection: PageSelection) -> None:
        """Starts the copies of these pages, after the decoding of what was here before."""
        self.holds = None  # whatever happens next
        while len(self._sections) < len(selection.parts):
            self._sections.append(_Section())
        self._copies.wait_event(self._free)
        self._copies.wait_event(selection.ready)
        for section, part in zip(self._sections, selection.parts, strict=False):
            part.arena.settle(part.places)
            slots, bitmask = section.reserve(part.arena, len(part.places), self._device, self._copies)
            with torch.cuda.stream(self._copies), torch.inference_mode(False):
                words = bitmask[: len(part.places) * part.arena.page_tokens // 8].view(torch.int32)
                words.view(len(part.places), -1).copy_(part.arena.page_bitmask()[part.on_device])
                part.on_device.record_stream(self._copies)
                for first, count, at in part.runs:
                    landed = slots[at * part.arena.page_bytes : (at + count) * part.arena.page_bytes]
                    part.arena.slots.read(first * part.arena.page_bytes, landed)
                    self.moved_bytes += landed.numel()
        self._filled.record(self._copies)
        self.holds = selection

    def decode(self, out: torch.Tensor) -> None:
        """out: [n * page_tokens, values], contiguous, on the device: the tokens of the selection that is here, which
        then may make room for others. Enqueued on the current stream."""
        selection = self.holds
        assert selection is not None  # it was started
        stream = torch.cuda.current_stream(self._device)
        stream.wait_event(selection.ready)
        stream.wait_event(self._filled)
        for run in selection.runs:
            rows = out[run.first * selection.page_tokens : run.end * selection.page_tokens]
            gather = self._sections[run.part].gather(selection.parts[run.part].arena)
            gather.gather(run.ids, rows, ordered=False, max_blocks=0)
        self.holds = None
        self._free.record(stream)

    @property
    def nbytes(self) -> int:
        """On the GPU."""
        buffers = [buffer for section in self._sections for buffer in (section.slots, section.bitmask)]
        return sum(buffer.numel() for buffer in buffers if buffer is not None)


def token_ids(pages: list[int], page_tokens: int, device: torch.device) -> torch.Tensor:
    """int64 [n * page_tokens] on the device: the rows of the tokens of these pages. The host does not wait."""
    runs = runs_of(pages)
    if len(runs) == 1:
        first, count, _ = runs[0]
        return torch.arange(first * page_tokens, (first + count) * page_tokens, device=device)
    starts = _to_device(pages, device) * page_tokens
    return (starts[:, None] + torch.arange(page_tokens, device=device)).view(-1)


def _to_device(numbers: list[int], device: torch.device) -> torch.Tensor:
    ids = torch.tensor(numbers, dtype=torch.int64, device="cpu")
    return ids_on_gpu(ids, device) if device.type == "cuda" else ids

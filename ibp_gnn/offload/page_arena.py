"""Pages of one codec: fixed-length slots for their tokens, one page after the other, and a common overflow area.

On a GPU a put waits for nothing: a kernel encodes the tokens into GPU memory, and a copy takes them to page-locked
memory. How many tokens did not fit their slots is known only then. So a put is `settled` later, by the next call that
finds it done: its overflow rows are copied down, and the indices in their slots are set to where they went.
"""

from __future__ import annotations

import dataclasses
import sys

import numpy as np
import torch

from .. import _native
from ..codec import dispatch
from ..codec.codec import Codec
from ..codec.compressed_rows import CompressedRows
from ..codec.gather import MappedRows
from ..codec.slot_length import best_slot_bytes, payload_histogram
from ..codec.values import to_bytes
from .locked_region import Budget, LockedRegion

_FIT_TOKENS = 4096
_SLACK = _native.cpu.SLACK_BYTES


@dataclasses.dataclass
class _Pending:
    """A put that is under way. places: of its pages. encoded: its tokens on the GPU, with overflow indices from 0.
    count, bitmask: in page-locked memory, when `done`."""

    places: list[int]
    encoded: CompressedRows
    count: torch.Tensor
    bitmask: torch.Tensor
    done: torch.cuda.Event


class PageArena:
    """Pages by their places, 0 <= place < capacity.

    codec: of tokens. slot_bytes: a multiple of 4. bitmask: uint8, a bit a token; on the GPU for one.
    """

    def __init__(
        self,
        tokens: torch.Tensor,
        page_tokens: int,
        budget: Budget,
        copies: torch.cuda.Stream | None,
    ) -> None:
        """tokens: [n, values], on the device of all pages to come; the codec is fitted to them. Waits for them.
        copies: the stream of copies, both ways; None for a CPU."""
        self._copies = copies
        self.device, self.page_tokens = tokens.device, page_tokens
        self.codec = Codec.fit(tokens, codec="dict", max_rows=_FIT_TOKENS)
        row_bytes = self.codec.row_bytes
        lengths = self.codec.measure(tokens[:_FIT_TOKENS])
        best = best_slot_bytes(payload_histogram(lengths, row_bytes), row_bytes)
        self.slot_bytes = min(-(-best // 4) * 4, row_bytes)
        self.capacity = max(1, budget.limit // (page_tokens * self.slot_bytes))  # addresses cost nothing
        self.num_rows = self.capacity * page_tokens
        with torch.inference_mode(False):
            self.bitmask = torch.zeros(_native.cpu.bitmask_bytes(self.num_rows), dtype=torch.uint8, device=self.device)
        pin, context = copies is not None, self.device if self.device.type == "cuda" else None
        self.slots = LockedRegion(self.num_rows * self.slot_bytes + _SLACK, budget, pin=pin, device=context)
        self.overflow = LockedRegion(self.num_rows * row_bytes + _SLACK, budget, pin=pin, device=context)
        self.overflow.grow(_SLACK)
        self._free_pages: list[int] = []
        self._used_pages = 0  # some of them are free
        self._free_overflow: list[int] = []
        self._used_overflow = 0
        self._overflow_of: dict[int, list[int]] = {}  # by place
        self._pending: list[_Pending] = []
        self._landed: torch.cuda.Event | None = None  # of overflow rows
        once = self.device.type == "cuda" and self.slot_bytes < row_bytes
        self._encodes_once = once and self._can_encode_once()

    def _can_encode_once(self) -> bool:
        form = self.codec.form.on_device(self.device, encoder=True)
        return bool(_native.cuda().can_encode_once(form.native, self.slot_bytes))

    @property
    def page_bytes(self) -> int:
        """Of a page's slots."""
        return self.page_tokens * self.slot_bytes

    @property
    def num_pages(self) -> int:
        """That are in use."""
        return self._used_pages - len(self._free_pages)

    def put(self, tokens: torch.Tensor) -> list[int]:
        """tokens: [n * page_tokens, values], contiguous, on the device. Returns the places of the n pages. On a GPU
        enqueued on the current stream. Raises MemoryError, PinError; then nothing has changed."""
        count = len(tokens) // self.page_tokens
        places = self._take_pages(count)
        try:
            if self._copies is None:
                self._store_on_cpu(tokens, places)
            else:
                self._start(tokens, places)
        except BaseException:
            self.free(places)
            raise
        return places

    def free(self, places: list[int]) -> None:
        """Lets other pages have their places. Work on the current stream and copies that read them come first."""
        if self._copies is not None:
            self._copies.wait_stream(torch.cuda.current_stream(self.device))
            self.settle(places)
        for place in places:
            self._free_overflow += self._overflow_of.pop(place, [])
        self._free_pages += places

    def settle(self, places: list[int] | None = None) -> None:
        """Ends puts that are done, in order. places: those of pages that are to be read: they are waited for. None:
        nothing is."""
        wanted = set(places or ()) if self._pending else set()
        last = max((at for at, put in enumerate(self._pending) if wanted & set(put.places)), default=-1)
        while self._pending and (last >= 0 or self._pending[0].done.query()):
            put = self._pending[0]
            put.done.synchronize()
            self._settle_one(put)
            self._pending.pop(0)
            last -= 1
        if self._landed is not None and places:
            torch.cuda.current_stream(self.device).wait_event(self._landed)

    def settle_all(self) -> None:
        """Waits for all puts, and ends them."""
        if self._pending:
            self.settle(self._pending[-1].places)
        if self._landed is not None:
            torch.cuda.current_stream(self.device).wait_event(self._landed)

    def rows(self) -> CompressedRows:
        """All tokens of an arena of the CPU, sharing memory."""
        where = self.slots.bytes, self.bitmask, self.overflow.bytes
        return CompressedRows(self.num_rows, self.codec.row_bytes, self.slot_bytes, *where)

    def mapped(self, landed: torch.Tensor | None = None, bitmask: torch.Tensor | None = None) -> MappedRows:
        """Tokens as the GPU reads them: all of them in place, or those whose slots have landed in its memory, with the
        bitmask of these. Overflow rows are read in place."""
        slots = self.slots.bytes if landed is None else landed
        bitmask = self.bitmask if bitmask is None else bitmask
        num_rows = (slots.numel() - _SLACK) // self.slot_bytes // self.page_tokens * self.page_tokens
        # Only the lengths of these are looked at.
        lengths = slots.numel(), bitmask.numel(), self.overflow.bytes.numel()
        sizes = (torch.empty(length, dtype=torch.uint8, device="meta") for length in lengths)
        rows = CompressedRows(num_rows, self.codec.row_bytes, self.slot_bytes, *sizes)
        held = self, slots, bitmask
        return MappedRows(rows, slots.data_ptr(), self.overflow.bytes.data_ptr(), bitmask, held_by=held)

    def page_bitmask(self) -> torch.Tensor:
        """int32 [capacity, page_tokens / 32] on the device."""
        return self.bitmask[: self.num_rows // 8].view(torch.int32).view(self.capacity, -1)

    def overflow_bytes(self) -> int:
        """Of tokens that did not fit their slots."""
        return (self._used_overflow - len(self._free_overflow)) * self.codec.row_bytes

    def overflow_share(self, places: list[int]) -> float:
        """Of the tokens of these pages, as far as they are settled."""
        tokens = sum(len(self._overflow_of.get(place, ())) for place in places)
        return tokens / max(1, len(places) * self.page_tokens)

    def close(self) -> None:
        """Idempotent. Waits for all that was enqueued."""
        if self._copies is not None and self.slots.nbytes:
            torch.cuda.synchronize(self.device)
        self._pending = []
        self.slots.close()
        self.overflow.close()

    def __del__(self) -> None:
        if self._copies is not None and not sys.is_finalizing():
            self._copies.synchronize()  # copies read and write page-locked memory, which goes now

    # --- puts ---------------------------------------------------------------------------------------------------------

    def _take_pages(self, count: int) -> list[int]:
        self.settle()
        reused = min(count, len(self._free_pages))
        new = count - reused
        if self._used_pages + new > self.capacity:
            raise MemoryError(f"pages: want {self._used_pages + new}, got room for {self.capacity} within the budget")
        self.slots.grow((self._used_pages + new) * self.page_bytes + _SLACK)
        places = self._free_pages[len(self._free_pages) - reused :]
        del self._free_pages[len(self._free_pages) - reused :]
        places = sorted(places) + list(range(self._used_pages, self._used_pages + new))
        self._used_pages += new
        return places

    def _take_overflow(self, count: int) -> list[int]:
        """Of a GPU also where the budget is used up: the tokens have nowhere else to go. The next put is refused."""
        reused = min(count, len(self._free_overflow))
        new = count - reused
        length = (self._used_overflow + new) * self.codec.row_bytes + _SLACK
        self.overflow.grow(length, beyond_budget=self._copies is not None)
        taken = [self._free_overflow.pop() for _ in range(reused)]
        taken += range(self._used_overflow, self._used_overflow + new)
        self._used_overflow += new
        return taken

    def _store_on_cpu(self, tokens: torch.Tensor, places: list[int]) -> None:
        encoded = self.codec.compress(tokens, slot_bytes=self.slot_bytes)
        self._copy_down(encoded, places)
        self._place_overflow(encoded, encoded.num_overflow, encoded.bitmask, places)

    def _start(self, tokens: torch.Tensor, places: list[int]) -> None:
        stream = torch.cuda.current_stream(self.device)
        with torch.inference_mode(False):
            encoded, count = self._encode(tokens)
            count_host = torch.empty(1, dtype=torch.int64, device="cpu", pin_memory=True)
            bitmask_host = torch.empty(encoded.bitmask.numel(), dtype=torch.uint8, device="cpu", pin_memory=True)
        assert self._copies is not None  # of a GPU
        self._copies.wait_stream(stream)
        with torch.cuda.stream(self._copies):
            self._copy_down(encoded, places)
            count_host.copy_(count, non_blocking=True)
            bitmask_host.copy_(encoded.bitmask, non_blocking=True)
            done = torch.cuda.Event()
            done.record(self._copies)
        for tensor in (encoded.slots, encoded.bitmask, encoded.overflow, count):
            tensor.record_stream(self._copies)
        # Whoever reads these pages on this stream waits for their bitmask, too.
        self._pending.append(_Pending(places, encoded, count_host, bitmask_host, done))

    def _encode(self, tokens: torch.Tensor) -> tuple[CompressedRows, torch.Tensor]:
        """The tokens in slots on the GPU, with room for all in the overflow area; and int64 [1], how many are there."""
        row_bytes = self.codec.row_bytes
        if not self._encodes_once:  # waits for the GPU
            encoded = self.codec.compress(tokens, slot_bytes=self.slot_bytes)
            return encoded, torch.full((1,), encoded.num_overflow, dtype=torch.int64, device=self.device)
        encoded = CompressedRows.empty(len(tokens), row_bytes, self.slot_bytes, len(tokens), self.device)
        count = torch.empty(1, dtype=torch.int64, device=self.device)
        dispatch.encode_once(self.codec.form, to_bytes(tokens), encoded, count)
        return encoded, count

    def _copy_down(self, encoded: CompressedRows, places: list[int]) -> None:
        """Slots and bitmask, to where the pages are."""
        slots = encoded.slots[: encoded.num_rows * self.slot_bytes].view(len(places), -1)
        bits = encoded.bitmask.view(torch.int32)[: encoded.num_rows // 32].view(len(places), -1)
        for first, count, at in runs_of(places):
            self.slots.write(first * self.page_bytes, slots[at : at + count].view(-1))
            self.page_bitmask()[first : first + count].copy_(bits[at : at + count], non_blocking=True)

    def _settle_one(self, put: _Pending) -> None:
        count = int(put.count)
        if count:
            assert self._copies is not None  # of a GPU
            with torch.cuda.stream(self._copies):
                self._place_overflow(put.encoded, count, put.bitmask, put.places)
                put.encoded.overflow.record_stream(self._copies)
                self._landed = torch.cuda.Event()
                self._landed.record(self._copies)

    def _place_overflow(self, encoded: CompressedRows, count: int, bitmask: torch.Tensor, places: list[int]) -> None:
        """Copies `count` overflow rows to the common area, and tells their slots, which are in CPU memory, where."""
        if count == 0 or self.slot_bytes == self.codec.row_bytes:
            return
        row_bytes, taken = self.codec.row_bytes, np.array(self._take_overflow(count))
        for first, length, at in runs_of(taken.tolist()):
            rows = encoded.overflow[at * row_bytes : (at + length) * row_bytes]
            self.overflow.write(first * row_bytes, rows)
        spilled = np.flatnonzero(np.unpackbits(bitmask.numpy(), count=encoded.num_rows, bitorder="little") == 0)
        slots = self.slots.bytes.numpy()
        for row in spilled.tolist():
            place, token = places[row // self.page_tokens], row % self.page_tokens
            at = place * self.page_bytes + token * self.slot_bytes
            index = slots[at : at + _native.cpu.OVERFLOW_INDEX_BYTES].view("<u4")
            moved = int(taken[int(index[0])])
            index[0] = moved
            self._overflow_of.setdefault(place, []).append(moved)


def runs_of(numbers: list[int]) -> list[tuple[int, int, int]]:
    """Where numbers follow one another: (first number, how many, position of the first) of each run."""
    runs: list[tuple[int, int, int]] = []
    for at, number in enumerate(numbers):
        if runs and number == runs[-1][0] + runs[-1][1]:
            runs[-1] = runs[-1][0], runs[-1][1] + 1, runs[-1][2]
        else:
            runs.append((number, 1, at))
    return runs

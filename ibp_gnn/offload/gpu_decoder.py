"""Weights that come to the GPU compressed, while earlier ones are read, and are decoded there just before they are.

A weight is in one of three places:

    raw         on the GPU as it is
    compressed  on the GPU; decoded before each use
    streamed    in page-locked CPU memory. Its bytes come by DMA on a stream of their own into one of a few landing
                buffers, and are decoded from there

Decoding writes to one buffer, on the stream of the operation that reads it: nothing is waited for between the two. Two
events guard a landing buffer: `filled`, which the decoder waits for, and `free`, which the next copy waits for. Buffers
are made once and never move.
"""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Iterator, Sequence

import torch

from .. import _native
from ..codec.gather import GpuGather, MappedRows
from .decoder import Decoder, block_ids
from .host_memory import HostArena
from .placement import Placed
from .weight import CompressedWeight, compress_weight


class _Landing:
    """One landing buffer. holds: the number of the weight whose bytes are in it or on their way; None: nobody's."""

    def __init__(self, length: int, device: torch.device) -> None:
        self.buffer = torch.empty(length, dtype=torch.uint8, device=device)
        self.filled, self.free = torch.cuda.Event(), torch.cuda.Event()
        self.free.record(torch.cuda.current_stream(device))
        self.holds: int | None = None


class GpuDecoder(Decoder):
    """See above."""

    def __init__(self, placed: Sequence[Placed], device: torch.device, prefetch: int) -> None:
        """Until `fill` is called weights can be copied, not lent. prefetch: how many are on their way at most while one
        is read."""
        self.device, self._placed, self._prefetch = device, list(placed), prefetch
        self._turn = threading.RLock()
        self._arena = HostArena(pin=True)
        self._copies = torch.cuda.Stream(device)
        self._raw_weights: dict[int, torch.Tensor] = {}
        self._gathers: dict[tuple[int, int | None], GpuGather] = {}
        self._landings: list[_Landing] = []
        self._raw = torch.empty(0, dtype=torch.uint8, device=device)
        self._raw_free = torch.cuda.Event()
        # What was read after a weight the last time; at first, the order of the model's modules.
        streamed = [number for number, one in enumerate(placed) if one.lands]
        self._next = dict(zip(streamed, streamed[1:] + streamed[:1], strict=True))
        self._last: int | None = None
        self._captured = False  # a CUDA graph has the first landing buffer
        self.streamed_bytes = 0  # since it was made

    def fill(self) -> None:
        """Brings weights to where they are to be, one by one, and makes the buffers. Raises PinError, and torch's error
        where the GPU's memory does not do; then weights can still be copied."""
        device, decoded = self.device, [one.weight for one in self._placed if one.is_decoded]
        landing_bytes = max((one.weight.layout.nbytes for one in self._placed if one.lands), default=0)
        most_bytes = max((weight.padded_nbytes for weight in decoded), default=0)
        del decoded  # as the only one who holds them, the list of weights lets go of each
        with torch.inference_mode(False), torch.cuda.device(device):
            self._raw = torch.empty(most_bytes, dtype=torch.uint8, device=device)
            self._raw_free.record()
            if landing_bytes:
                self._landings = [_Landing(landing_bytes, device) for _ in range(self._prefetch + 1)]
            for number, one in enumerate(self._placed):
                self._placed[number] = one._replace(weight=self._moved(number, one))
            self._arena.lock(device)
            for number, one in enumerate(self._placed):
                self._make_gathers(number, one)
            torch.cuda.current_stream(device).synchronize()

    def _moved(self, number: int, one: Placed) -> CompressedWeight:
        if one.place == "raw":
            self._raw_weights[number] = one.weight.decompress(self.device)
            return one.weight.without_buffer()
        if one.place == "compressed":
            return one.weight.to(self.device)
        return one.weight.moved_to(self._arena.take(one.weight.layout.nbytes))

    def _make_gathers(self, number: int, one: Placed) -> None:
        if one.place == "compressed":
            self._gathers[number, None] = self._gather_from(one.weight, one.weight.buffer)
        elif one.place == "streamed" and one.by_row:
            rows = one.weight.rows
            slots, overflow = self._arena.address_of(rows.slots), self._arena.address_of(rows.overflow)
            mapped = MappedRows(rows, slots, overflow, rows.bitmask.to(self.device), held_by=self._arena)
            form = one.weight.codec.form
            self._gathers[number, None] = GpuGather(form, self.device, mapped, lead_bytes=rows.slot_bytes)
        if one.lands:
            for slot, landing in enumerate(self._landings):
                self._gathers[number, slot] = self._gather_from(one.weight, landing.buffer)

    def _gather_from(self, weight: CompressedWeight, buffer: torch.Tensor) -> GpuGather:
        rows = MappedRows.on_device(weight.layout.rows_in(buffer))
        return GpuGather(weight.codec.form, self.device, rows, lead_bytes=weight.layout.slot_bytes)

    @contextlib.contextmanager
    def lend(self, number: int) -> Iterator[torch.Tensor]:
        one = self._placed[number]
        if one.place == "raw":
            yield self._raw_weights[number]
            return
        if not one.whole:  # nobody was expected to read all of it
            yield self.copy(number)
            return
        with self._turn, torch.cuda.device(self.device):
            stream = torch.cuda.current_stream(self.device)
            if torch.cuda.is_current_stream_capturing():
                self._decode_captured(number)
                yield one.weight.shaped(self._raw)
                return
            stream.wait_event(self._raw_free)
            self._decode(number, stream)
            try:
                yield one.weight.shaped(self._raw)
            finally:
                self._raw_free.record(stream)

    def copy(self, number: int, device: torch.device | None = None) -> torch.Tensor:
        device = self.device if device is None else device
        with torch.inference_mode(False):
            if number in self._raw_weights:
                return self._raw_weights[number].to(device, copy=True)
            return self._placed[number].weight.decompress(device)

    def compressed(self, number: int) -> CompressedWeight:
        one = self._placed[number]
        if number in self._raw_weights:
            return compress_weight(self._raw_weights[number], by_row=one.by_row, device=self.device)
        return one.weight

    def read_rows(self, number: int, ids: torch.Tensor) -> torch.Tensor:
        one = self._placed[number]
        if one.place == "raw":
            return self._raw_weights[number][ids]
        weight = one.weight
        out = torch.empty(*ids.shape, *weight.shape[1:], dtype=weight.dtype, device=self.device)
        blocks = block_ids(weight, ids.to(self.device).reshape(-1)).contiguous()
        if len(blocks):
            self._gathers[number, None].gather(blocks, out)
        return out

    def _decode(self, number: int, stream: torch.cuda.Stream) -> None:
        """The weight's values to the buffer, on this stream; starts copies of the next weights."""
        if self._placed[number].place == "compressed":
            self._gather(number, None)
            return
        slot = self._landed(number)
        landing = self._landings[slot]
        stream.wait_event(landing.filled)
        self._gather(number, slot)
        landing.free.record(stream)
        landing.holds = None
        if self._last is not None:
            self._next[self._last] = number
        self._last = number
        self._start_next(number)

    def _decode_captured(self, number: int) -> None:
        """As a part of a CUDA graph, on its stream. The first landing buffer is its own from now on."""
        if self._placed[number].place == "compressed":
            self._gather(number, None)
            return
        self._captured = True
        landing, buffer = self._landings[0], self._placed[number].weight.buffer
        landing.holds = None
        # torch captures copies of no other page-locked memory than its own.
        stream = torch.cuda.current_stream(self.device).cuda_stream
        _native.cuda().copy_to_gpu(landing.buffer.data_ptr(), buffer.data_ptr(), buffer.numel(), stream)
        self._gather(number, 0)

    def _gather(self, number: int, slot: int | None) -> None:
        weight = self._placed[number].weight
        rows, out = range(weight.layout.num_rows), self._raw[: weight.padded_nbytes]
        # All blocks of the GPU: the rows are in its memory.
        self._gathers[number, slot].gather(rows, out, ordered=False, max_blocks=0)

    def _landed(self, number: int) -> int:
        """The landing buffer that the weight's bytes are in, or on their way to."""
        for slot in self._slots():
            if self._landings[slot].holds == number:
                return slot
        free = self._free_slot()
        # Where all are held, it is by weights that were expected and did not come.
        slot = self._slots()[0] if free is None else free
        self._start_copy(number, slot)
        return slot

    def _start_next(self, number: int) -> None:
        for _ in range(self._prefetch):
            number = self._next[number]
            if any(landing.holds == number for landing in self._landings):
                continue
            slot = self._free_slot()
            if slot is None:
                return
            self._start_copy(number, slot)

    def _start_copy(self, number: int, slot: int) -> None:
        landing, buffer = self._landings[slot], self._placed[number].weight.buffer
        landing.holds = None  # whatever happens next
        with torch.cuda.stream(self._copies):
            self._copies.wait_event(landing.free)
            landing.buffer[: buffer.numel()].copy_(buffer, non_blocking=True)
            landing.filled.record(self._copies)
        landing.holds = number
        self.streamed_bytes += buffer.numel()

    def _slots(self) -> range:
        """Of landing buffers that no CUDA graph has."""
        return range(1 if self._captured else 0, len(self._landings))

    def _free_slot(self) -> int | None:
        return next((slot for slot in self._slots() if self._landings[slot].holds is None), None)

    def close(self) -> None:
        torch.cuda.synchronize(self.device)
        self._gathers.clear()
        self._raw_weights.clear()
        self._landings.clear()
        self._placed.clear()
        self._arena.close()

    def __del__(self) -> None:
        if not sys.is_finalizing() and hasattr(self, "_copies"):
            self._copies.synchronize()  # copies read page-locked memory, which goes now

    @property
    def device_nbytes(self) -> int:
        weights = sum(one.weight.nbytes for one in self._placed if one.place == "compressed")
        raw = sum(tensor.nbytes for tensor in (self._raw, *self._raw_weights.values()))
        return raw + weights + sum(landing.buffer.numel() for landing in self._landings)

    @property
    def host_nbytes(self) -> int:
        """Bytes of page-locked CPU memory."""
        return self._arena.nbytes

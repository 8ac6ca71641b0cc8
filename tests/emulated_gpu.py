"""The bookkeeping of code for GPUs, run without one. GPU memory is CPU memory, and a gather decodes from the addresses
that a kernel would get. Work on the current stream runs at once. Copies on other streams run as late as they may: when
something waits for them. So a wait that is missing gives wrong bytes. What CUDA refuses is not seen here; the tests
marked `cuda` see it."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from page_locking import Registers

from ibp_gnn import CompressedRows, _native
from ibp_gnn.codec import dispatch
from ibp_gnn.codec.forms import Form
from ibp_gnn.codec.gather import MappedRows
from ibp_gnn.codec.values import to_bytes
from ibp_gnn.offload.page_arena import PageArena


class Stream:
    """done: how many of its copies have run; the others are in `late`."""

    cuda_stream = 0

    def __init__(self, device: object = None) -> None:
        self.late: list[Callable[[], object]] = []
        self.done = 0
        _streams.add(self)

    @property
    def enqueued(self) -> int:
        return self.done + len(self.late)

    def run(self, count: int) -> None:
        """The first `count` of all copies ever."""
        while self.done < count and self.late:
            self.late.pop(0)()
            self.done += 1

    def wait_event(self, event: Event) -> None:
        event.synchronize()

    def wait_stream(self, stream: Stream) -> None:
        stream.synchronize()

    def synchronize(self) -> None:
        self.run(self.enqueued)


class Event:
    def __init__(self) -> None:
        self._recorded: tuple[Stream, int] | None = None

    def record(self, stream: Stream | None = None) -> None:
        stream = stream or _current[-1]
        self._recorded = stream, stream.enqueued

    def query(self) -> bool:
        return self._recorded is None or self._recorded[0].done >= self._recorded[1]

    def synchronize(self) -> None:
        if self._recorded is not None:
            self._recorded[0].run(self._recorded[1])


_streams: weakref.WeakSet[Stream] = weakref.WeakSet()
_current = [Stream()]


@contextlib.contextmanager
def on_stream(stream: Stream) -> Iterator[None]:
    _current.append(stream)
    try:
        yield
    finally:
        _current.pop()


def synchronize(device: object = None) -> None:
    for stream in list(_streams):
        stream.synchronize()


class Gather:
    """Stands in for GpuGather: one segment, no places."""

    def __init__(self, form: Form, device: torch.device, rows: MappedRows, *, lead_bytes: int) -> None:
        assert 1 <= lead_bytes <= rows.rows.slot_bytes
        self._form, self._rows = form, rows

    def gather(
        self, ids: torch.Tensor | range, out: torch.Tensor, *, ordered: Any = None, max_blocks: Any = None
    ) -> None:
        sizes, mapped = self._rows.rows, self._rows
        if isinstance(ids, range):
            ids = torch.arange(ids.start, ids.stop, ids.step)
        assert ids.is_contiguous() and out.is_contiguous() and out.nbytes == len(ids) * sizes.row_bytes
        rows = CompressedRows(
            sizes.num_rows,
            sizes.row_bytes,
            sizes.slot_bytes,
            _at(mapped.slots_address, sizes.slots.numel()),
            mapped.bitmask,
            _at(mapped.overflow_address, sizes.overflow.numel()),
        )
        flat = out.view(torch.uint8).view(len(ids), sizes.row_bytes) if out.ndim == 1 else to_bytes(out)
        flat = flat.view(len(ids), sizes.row_bytes)
        dispatch.decode_on_cpu(self._form, rows, ids, flat)


def _at(address: int, length: int) -> torch.Tensor:
    return torch.from_numpy(np.ctypeslib.as_array((ctypes.c_uint8 * length).from_address(address)))


@pytest.fixture
def emulated_gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[Registers]:
    """What is page-locked meanwhile. Devices of tensors are those of the CPU."""
    registers, empty = Registers(), torch.empty
    for name in ("gpu_decoder", "page_landing", "pages", "weight"):
        monkeypatch.setattr(f"ibp_gnn.offload.{name}.GpuGather", Gather)
    monkeypatch.setattr(_native, "cuda", lambda: registers)
    monkeypatch.setattr(torch, "empty", lambda *size, pin_memory=False, **options: empty(*size, **options))
    monkeypatch.setattr(torch.Tensor, "record_stream", lambda tensor, stream: None)

    def synchronize(device: object = None) -> None:
        for stream in list(_streams):
            stream.synchronize()

    monkeypatch.setattr(torch.cuda, "Stream", Stream)
    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device=None: _current[-1])
    monkeypatch.setattr(torch.cuda, "stream", on_stream)
    monkeypatch.setattr(torch.cuda, "device", lambda device: contextlib.nullcontext())
    monkeypatch.setattr(torch.cuda, "synchronize", synchronize)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    copy, page_bitmask = torch.Tensor.copy_, PageArena.page_bitmask

    def copy_late(to: torch.Tensor, of: torch.Tensor, non_blocking: bool = False) -> torch.Tensor:
        if len(_current) == 1:
            return copy(to, of)
        _current[-1].late.append(lambda: copy(to, of))
        return to

    def read_in_order(arena: PageArena) -> torch.Tensor:
        if len(_current) > 1:  # it is read at once, after the copies before
            _current[-1].synchronize()
        return page_bitmask(arena)

    monkeypatch.setattr(torch.Tensor, "copy_", copy_late)
    monkeypatch.setattr(PageArena, "page_bitmask", read_in_order)
    yield registers
    gc.collect()  # unlocks what is left, while it is emulated

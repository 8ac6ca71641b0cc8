"""The bookkeeping of code for GPUs, run without one: streams do at once what they are asked for, GPU memory is CPU
memory, and a gather decodes from the addresses that a kernel would get. What runs in another order on a GPU, and what
CUDA refuses, is not seen here: the tests marked `cuda` see it."""

from __future__ import annotations

import contextlib
import ctypes
import gc
from collections.abc import Iterator
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


class Stream:
    cuda_stream = 0

    def __init__(self, device: object = None) -> None:
        pass

    def wait_event(self, event: Event) -> None:
        assert isinstance(event, Event)

    def wait_stream(self, stream: Stream) -> None:
        assert isinstance(stream, Stream)

    def synchronize(self) -> None:
        pass


class Event:
    def record(self, stream: Stream | None = None) -> None:
        assert stream is None or isinstance(stream, Stream)

    def query(self) -> bool:
        return True

    def synchronize(self) -> None:
        pass


class Gather:
    """Stands in for GpuGather: one segment, no places."""

    def __init__(self, form: Form, device: torch.device, rows: MappedRows, *, lead_bytes: int) -> None:
        assert 1 <= lead_bytes <= rows.rows.slot_bytes
        self._form, self._rows = form, rows

    def gather(self, ids: torch.Tensor, out: torch.Tensor, *, ordered: Any = None, max_blocks: Any = None) -> None:
        sizes, mapped = self._rows.rows, self._rows
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
    monkeypatch.setattr(torch.cuda, "Stream", Stream)
    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device=None: Stream())
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: contextlib.nullcontext())
    monkeypatch.setattr(torch.cuda, "device", lambda device: contextlib.nullcontext())
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device=None: None)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    yield registers
    gc.collect()  # unlocks what is left, while it is emulated

"""What compressed features are compared with on a GPU: raw rows in page-locked CPU memory and on the GPU."""

from __future__ import annotations

import functools
import statistics
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from ibp_gnn import _native
from ibp_gnn.codec.values import to_bytes

from .timing import queued_ms

_BLOCKS = (32, 64, 128, 0)  # to choose from; 0: as many as the GPU holds


@contextmanager
def registered(rows: torch.Tensor) -> Iterator[int]:
    """Page-locks these rows in CPU memory. The address at which GPUs read them."""
    rows_bytes = to_bytes(rows)
    address = _native.cuda().register_host_memory(rows_bytes.data_ptr(), rows_bytes.numel())
    try:
        yield address
    finally:
        torch.cuda.synchronize()
        _native.cuda().unregister_host_memory(rows_bytes.data_ptr())


def copy_rows(
    address: int, ids: torch.Tensor, out: torch.Tensor, positions: torch.Tensor | None = None, blocks: int = 0
) -> torch.Tensor:
    """Copies the raw rows at `address` to `out`, the i-th one to positions[i] (None: i). ids: int64 on the GPU, not
    checked. blocks: of the kernel; 0: as many as the GPU holds. Enqueued on the current stream."""
    stream = torch.cuda.current_stream(out.device).cuda_stream
    _native.cuda().copy_rows(address, ids, positions, to_bytes(out), blocks, stream)
    return out


def fastest_blocks(
    copy: Callable[[torch.Tensor, int], Any], draw: Callable[[], torch.Tensor], choices: tuple[int, ...]
) -> int:
    """Which number of blocks `copy` is fastest with. draw: gives the ids of a batch, on the GPU, others each time."""
    best = {
        blocks: statistics.median(queued_ms(functools.partial(copy, draw(), blocks)) for _ in range(5))
        for blocks in choices
    }
    return min(best, key=lambda blocks: best[blocks])


class RawCache:
    """A RowSource: the first rows in GPU memory, the others read in place from page-locked CPU memory, all by one
    kernel, in order of where they lie. See `choose_blocks`."""

    blocks = 0

    def __init__(self, rows: torch.Tensor, cache_bytes: int, device: torch.device, host_address: int) -> None:
        """rows: [n, d] on the CPU, hottest first, page-locked as long as this is used. host_address: where GPUs read
        these rows (`registered`)."""
        self.shape, self.dtype, self.device = tuple(rows.shape), rows.dtype, device
        rows_bytes = to_bytes(rows)
        self.row_bytes = rows_bytes.shape[1]
        self.num_cached = min(len(rows), cache_bytes // self.row_bytes)
        self._host = host_address
        # One kernel takes one address and numbers of rows from there. The cache begins a whole number of rows from the
        # rows in CPU memory, so that the same numbers reach it, too.
        self._buffer = torch.empty((self.num_cached + 1) * self.row_bytes, dtype=torch.uint8, device=device)
        shift = (self._host - self._buffer.data_ptr()) % self.row_bytes
        cached = self._buffer[shift : shift + self.num_cached * self.row_bytes]
        cached.view(self.num_cached, self.row_bytes).copy_(rows_bytes[: self.num_cached])
        self._distance = (self._buffer.data_ptr() + shift - self._host) // self.row_bytes

    @property
    def nbytes(self) -> int:
        """Bytes of GPU memory for the cached rows; there is nothing else to hold."""
        return self.num_cached * self.row_bytes

    def gather(self, ids: torch.Tensor, *, device: Any = None, out: torch.Tensor | None = None) -> torch.Tensor:
        """ids: int32/int64 [n] on the GPU or in pinned memory, not checked. Enqueued on the current stream."""
        return self._gather(ids, self.blocks, out)

    def choose_blocks(self, draw: Callable[[], torch.Tensor]) -> None:
        """From now on, the number of blocks that is the fastest. draw: gives int64 ids of a batch, others each time."""
        self.blocks = fastest_blocks(self._gather, lambda: draw().to(self.device), _BLOCKS)

    def _gather(self, ids: torch.Tensor, blocks: int, out: torch.Tensor | None = None) -> torch.Tensor:
        ids = ids.to(self.device, torch.int64, non_blocking=True)
        places, positions = torch.sort(torch.where(ids < self.num_cached, ids + self._distance, ids))
        if out is None:
            out = torch.empty(len(ids), self.shape[1], dtype=self.dtype, device=self.device)
        return copy_rows(self._host, places, out, positions, blocks)


class RowsOnGpu:
    """A RowSource over all rows in GPU memory."""

    def __init__(self, rows: torch.Tensor, device: torch.device) -> None:
        """rows: [n, d] on the CPU."""
        self.shape, self.dtype, self._rows = tuple(rows.shape), rows.dtype, rows.to(device)

    def gather(self, ids: torch.Tensor, *, device: Any = None, out: torch.Tensor | None = None) -> torch.Tensor:
        """ids: int32/int64 [n] on the GPU or in pinned memory, not checked. Enqueued on the current stream."""
        ids = ids.to(self._rows.device, torch.int64, non_blocking=True)
        if out is None:
            out = torch.empty(len(ids), self.shape[1], dtype=self.dtype, device=ids.device)
        return copy_rows(self._rows.data_ptr(), ids, out)

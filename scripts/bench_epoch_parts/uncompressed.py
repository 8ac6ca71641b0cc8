"""What compressed features are compared with on a GPU: raw rows in page-locked CPU memory and on the GPU."""

from __future__ import annotations

from typing import Any

import torch

from ibp_gnn import _native
from ibp_gnn.rows import to_bytes

_BLOCKS = (32, 64, 128, 0)  # to choose from; 0: as many as the GPU holds


class RawCache:
    """A RowSource: the first rows in GPU memory, the others read in place from page-locked CPU memory, all by one
    kernel, in order of where they lie. Its number of blocks is the fastest for the ids given."""

    def __init__(self, rows: torch.Tensor, cache_bytes: int, device: torch.device, sample_ids: torch.Tensor) -> None:
        """rows: [n, d] on the CPU, hottest first; referenced. sample_ids: int64 [k], of one batch."""
        self.shape, self.dtype, self.device = tuple(rows.shape), rows.dtype, device
        self._rows = to_bytes(rows)
        self.row_bytes = self._rows.shape[1]
        self.num_cached = min(len(rows), cache_bytes // self.row_bytes)
        self._host = _native.cuda().register_host_memory(self._rows.data_ptr(), self._rows.numel())
        # One kernel takes one address and numbers of rows from there. The cache begins a whole number of rows from the
        # rows in CPU memory, so that the same numbers reach it, too.
        self._buffer = torch.empty((self.num_cached + 1) * self.row_bytes, dtype=torch.uint8, device=device)
        shift = (self._host - self._buffer.data_ptr()) % self.row_bytes
        cached = self._buffer[shift : shift + self.num_cached * self.row_bytes]
        cached.view(self.num_cached, self.row_bytes).copy_(self._rows[: self.num_cached])
        self._distance = (self._buffer.data_ptr() + shift - self._host) // self.row_bytes
        self.blocks = self._fastest_blocks(sample_ids)

    @property
    def nbytes(self) -> int:
        """Bytes of GPU memory for the cached rows; there is nothing else to hold."""
        return self.num_cached * self.row_bytes

    def gather(self, ids: torch.Tensor, *, device: Any = None, out: Any = None) -> torch.Tensor:
        """ids: int64 [n] on the GPU or in pinned memory, not checked. Enqueued on the current stream."""
        return self._gather(ids, self.blocks)

    def _gather(self, ids: torch.Tensor, blocks: int) -> torch.Tensor:
        ids = ids.to(self.device, non_blocking=True)
        places, positions = torch.sort(torch.where(ids < self.num_cached, ids + self._distance, ids))
        out = torch.empty(len(ids), self.shape[1], dtype=self.dtype, device=self.device)
        stream = torch.cuda.current_stream(self.device).cuda_stream
        _native.cuda().copy_rows(self._host, places, positions, to_bytes(out), blocks, stream)
        return out

    def _fastest_blocks(self, ids: torch.Tensor) -> int:
        ids, best = ids.to(self.device), {}
        for blocks in _BLOCKS:
            times = []
            for _ in range(4):
                start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
                start.record()
                self._gather(ids, blocks)
                end.record()
                end.synchronize()
                times.append(start.elapsed_time(end))
            best[blocks] = min(times)
        return min(best, key=lambda blocks: best[blocks])

    def close(self) -> None:
        torch.cuda.synchronize(self.device)
        _native.cuda().unregister_host_memory(self._rows.data_ptr())


class RowsOnGpu:
    """A RowSource over all rows in GPU memory."""

    def __init__(self, rows: torch.Tensor, device: torch.device) -> None:
        """rows: [n, d] on the CPU."""
        self.shape, self.dtype, self._rows = tuple(rows.shape), rows.dtype, rows.to(device)

    def gather(self, ids: torch.Tensor, *, device: Any = None, out: Any = None) -> torch.Tensor:
        """ids: int64 [n] on the GPU or in pinned memory, not checked. Enqueued on the current stream."""
        ids = ids.to(self._rows.device, non_blocking=True)
        picked = torch.empty(len(ids), self.shape[1], dtype=self.dtype, device=ids.device)
        stream = torch.cuda.current_stream(ids.device).cuda_stream
        _native.cuda().copy_rows(self._rows.data_ptr(), ids, None, to_bytes(picked), 0, stream)
        return picked

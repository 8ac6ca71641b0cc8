"""Where a builder's rows come from: arrays and memory-mapped files, in the order of the slots, in chunks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol

import numpy as np
import torch

from ..codec.codec import Codec
from ..codec.mapped_arrays import page_releaser
from ..codec.values import as_tensor, to_bytes
from .precision import Precision

# Buffers of up to 32 MiB are what glibc's allocator uses again; longer ones it gets from the system each time, page by
# page.
_CHUNK_BYTES = 24 << 20

Chunks = Iterator[tuple[int, torch.Tensor]]


class RowReader(Protocol):
    num_rows: int

    def chunks(self, first: int = 0) -> Chunks:
        """Rows [first, num_rows) in the order of the slots: (number of its first row, uint8 [n, row_bytes]), for chunk
        after chunk. first: where a chunk starts. All chunks but the last have one length, a multiple of 32."""


def chunk_length(chunk_rows: int | None, row_bytes: int, whole: int = 32) -> int:
    """Rows per chunk: a multiple of `whole`, those of a word of the bitmask. Raises ValueError."""
    if chunk_rows is not None and (not isinstance(chunk_rows, int) or chunk_rows < 1):
        raise ValueError(f"chunk_rows: want at least 1, got {chunk_rows}")
    return -(-(chunk_rows or max(1, _CHUNK_BYTES // row_bytes)) // whole) * whole


class ArrayReader:
    """Rows of an array as they are, or picked in an order. Pages of a memory-mapped file do not stay in memory. Chunks
    are copies."""

    def __init__(
        self,
        features: Any,
        codec: Codec,
        step: int,
        order: torch.Tensor | None = None,
        precision: Precision | None = None,
    ) -> None:
        """features: [n, *row_shape] tensor, NumPy array or memmap; order: int [n], the row of each slot;
        precision: what rows are rounded to."""
        self.num_rows, self._features, self._codec, self._step, self._order = (
            len(features),
            features,
            codec,
            step,
            order,
        )
        self._release, self._precision = page_releaser(features), precision

    def chunks(self, first: int = 0) -> Chunks:
        starts = range(first, self.num_rows, self._step)
        if isinstance(self._features, np.ndarray):  # may wait for a disk
            return _one_ahead(lambda at: (at, self._read(at)), starts)
        return ((at, self._read(at)) for at in starts)

    def _read(self, first: int) -> torch.Tensor:
        where: Any = slice(first, first + self._step)
        if self._order is not None:
            picked = self._order[where].to(torch.int64)
            where = picked.numpy() if isinstance(self._features, np.ndarray) else picked.to(self._features.device)
        rows = self._features[where]
        # A slice shows what others write to the features while it is worked on.
        if isinstance(where, slice) and isinstance(rows, np.ndarray):
            rows = np.array(rows, order="C")
        elif isinstance(where, slice) and not rows.is_cuda:
            rows = rows.clone()
        chunk = as_tensor(rows, "features").cpu()
        self._release(where if isinstance(where, slice) else None)
        if self._precision is not None:
            chunk = self._precision.round(chunk)
        self._codec.check_rows(chunk)
        return to_bytes(chunk)


def _one_ahead(read: Callable[[int], tuple[int, torch.Tensor]], starts: range) -> Chunks:
    """read(start) for each, the next one being read while one is worked on."""
    with ThreadPoolExecutor(1) as pool:
        futures = [pool.submit(read, start) for start in starts[:1]]
        for start in starts[1:]:
            futures.append(pool.submit(read, start))
            yield futures.pop(0).result()
        for future in futures:
            yield future.result()

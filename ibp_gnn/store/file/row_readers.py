"""Where a builder's rows come from: arrays and memory-mapped files, in the order of the slots, in chunks."""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch

from ...codec.codec import Codec
from ...codec.mapped_arrays import page_releaser
from ...codec.values import as_tensor, to_bytes
from .file_io import read_into, write_all
from .journal import LostWorkError

# Buffers of up to 32 MiB are what glibc's allocator uses again; longer ones it gets from the system each time, page by
# page.
_CHUNK_BYTES = 24 << 20
_PARTITION_BYTES = 256 << 20


class RowReader(Protocol):
    num_rows: int

    def chunks(self, first: int = 0) -> Iterator[tuple[int, torch.Tensor]]:
        """Rows [first, num_rows) in the order of the slots: (number of its first row, uint8 [n, row_bytes]), for chunk
        after chunk. first: where a chunk starts. All chunks but the last have one length, a multiple of 32."""


def chunk_length(chunk_rows: int | None, row_bytes: int) -> int:
    """Rows per chunk: whole words of the bitmask. Raises ValueError."""
    if chunk_rows is not None and (not isinstance(chunk_rows, int) or chunk_rows < 1):
        raise ValueError(f"chunk_rows: want at least 1, got {chunk_rows}")
    return -(-(chunk_rows or max(1, _CHUNK_BYTES // row_bytes)) // 32) * 32


class ArrayRows:
    """Rows of an array as they are, or picked in an order. Pages of a memory-mapped file do not stay in memory. Chunks
    are copies."""

    def __init__(self, features: Any, codec: Codec, step: int, order: torch.Tensor | None = None) -> None:
        """features: [n, *row_shape] tensor, NumPy array or memmap; order: int [n], the row of each slot."""
        self.num_rows, self._features, self._codec, self._step, self._order = (
            len(features),
            features,
            codec,
            step,
            order,
        )
        self._release = page_releaser(features)

    def chunks(self, first: int = 0) -> Iterator[tuple[int, torch.Tensor]]:
        places = range(first, self.num_rows, self._step)
        if isinstance(self._features, np.ndarray):  # may wait for a disk
            return _one_ahead(lambda at: (at, self._read(at)), places)
        return ((at, self._read(at)) for at in places)

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
        self._codec.check_rows(chunk)
        return to_bytes(chunk)


class SortedRows:
    """Rows picked in an order from more bytes than should be read at random: first they are dealt to partitions of a
    file of their own, each a range of slots that fits in memory (`deal`); then the partitions are read in turn."""

    def __init__(
        self, path: Path, order: torch.Tensor, row_bytes: int, step: int, checksums: list[int] | None = None
    ) -> None:
        """order: int32 [n], the row of each slot. checksums: those of a file that another object has dealt; None if
        `deal` is still to be called."""
        self.path, self._order, self._row_bytes, self._step = path, order, row_bytes, step
        self.num_rows = len(order)
        self._partition_rows = max(1, _PARTITION_BYTES // row_bytes // step) * step
        self.checksums = checksums or []  # CRC-32 of each partition

    def deal(
        self, chunks: Iterator[tuple[int, torch.Tensor]], slot_of: torch.Tensor
    ) -> Iterator[tuple[int, torch.Tensor]]:
        """chunks: of the rows as they are; slot_of: int32 [n], the inverse of the order. Yields the chunks on, dealt.
        At the end, the file is on the disk."""
        cursors = np.arange(0, self.num_rows, self._partition_rows, dtype=np.int64)
        self.checksums = [0] * len(cursors)
        with open(self.path, "wb", buffering=0) as file:
            for first, rows in chunks:
                partitions = slot_of[first : first + len(rows)].numpy() // self._partition_rows
                by_partition = rows.numpy()[np.argsort(partitions, kind="stable")]
                at = 0
                for partition, count in enumerate(np.bincount(partitions, minlength=len(cursors)).tolist()):
                    part = np.ascontiguousarray(by_partition[at : at + count]).reshape(-1)
                    write_all(file.fileno(), part, int(cursors[partition]) * self._row_bytes)
                    self.checksums[partition] = zlib.crc32(part.data, self.checksums[partition])
                    at += count
                    cursors[partition] += count
                yield first, rows
            os.fsync(file.fileno())

    def chunks(self, first: int = 0) -> Iterator[tuple[int, torch.Tensor]]:
        """Raises LostWorkError if the file is not what was dealt."""
        for start in range(first // self._partition_rows * self._partition_rows, self.num_rows, self._partition_rows):
            ids = self._order[start : start + self._partition_rows].numpy()
            place = np.empty(len(ids), np.int64)  # of each slot's row in the partition, which is in the order of ids
            place[np.argsort(ids, kind="stable")] = np.arange(len(ids))
            shape = (len(ids), self._row_bytes)
            rows = self._read(start, shape)
            for at in range(max(first, start), start + len(ids), self._step):
                yield at, torch.from_numpy(rows[place[at - start : at - start + self._step]])
            del rows  # before the next partition comes

    def _read(self, start: int, shape: tuple[int, int]) -> np.ndarray:
        """uint8 of that shape: the rows of the partition that starts with slot `start`."""
        rows = np.empty(shape, np.uint8)
        try:
            with open(self.path, "rb", buffering=0) as file:
                got = read_into(file.fileno(), rows.reshape(-1), start * self._row_bytes)
        except FileNotFoundError as error:
            raise LostWorkError(f"{self.path}: want the sorted rows, got no such file") from error
        if got != rows.size:
            raise LostWorkError(f"{self.path}: want {self.num_rows * self._row_bytes} bytes, got fewer")
        wanted, found = self.checksums[start // self._partition_rows], zlib.crc32(rows.data)
        if found != wanted:
            raise LostWorkError(f"{self.path}: want sorted rows of checksum {wanted:#010x}, got {found:#010x}")
        return rows


def _one_ahead(read: Callable[[int], tuple[int, torch.Tensor]], places: range) -> Iterator[tuple[int, torch.Tensor]]:
    """read(place) for each, the next one being read while one is worked on."""
    with ThreadPoolExecutor(1) as pool:
        futures = [pool.submit(read, place) for place in places[:1]]
        for place in places[1:]:
            futures.append(pool.submit(read, place))
            yield futures.pop(0).result()
        for future in futures:
            yield future.result()

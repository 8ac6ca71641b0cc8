"""Rows in the order of the slots, of memory-mapped files that are too long to be read at random."""

from __future__ import annotations

import os
import zlib
from pathlib import Path

import numpy as np
import torch

from ..row_readers import Chunks
from .file_io import read_into, write_all
from .journal import LostWorkError

_PARTITION_BYTES = 256 << 20


class SortedReader:
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

    def deal(self, chunks: Chunks, slot_of: torch.Tensor) -> Chunks:
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

    def chunks(self, first: int = 0) -> Chunks:
        """Raises LostWorkError if the file is not what was dealt."""
        for start in range(first // self._partition_rows * self._partition_rows, self.num_rows, self._partition_rows):
            ids = self._order[start : start + self._partition_rows].numpy()
            row_of = np.empty(len(ids), np.int64)  # of each slot, in the partition, which is in the order of ids
            row_of[np.argsort(ids, kind="stable")] = np.arange(len(ids))
            shape = (len(ids), self._row_bytes)
            rows = self._read(start, shape)
            for at in range(max(first, start), start + len(ids), self._step):
                yield at, torch.from_numpy(rows[row_of[at - start : at - start + self._step]])
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

"""Writes store files: section by section, front to back, then the header, which makes the file one."""

from __future__ import annotations

import dataclasses
import os
import shutil
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch

from ... import _native
from ...codec.codec import Codec
from ...codec.compressed_rows import CompressedRows
from ...concurrency.read_write_lock import ReadWriteLock
from ..precision import Precision
from .file_io import read_at, replacing, write_all
from .header import SECTION_NAMES, Section, StoreHeader, describe, pack, table_bytes
from .journal import LostWorkError

_PART_BYTES = 32 << 20  # how much of a store `save` copies at a time


class SavableStore(Protocol):
    """What `save` reads of a store: see CompressedFeatureStore."""

    codec: Codec
    lock: ReadWriteLock

    @property
    def rows(self) -> CompressedRows: ...

    @property
    def slot_of(self) -> torch.Tensor | None: ...

    @property
    def lead_bytes(self) -> int: ...

    @property
    def version(self) -> int: ...

    @property
    def precision(self) -> Precision | None: ...


@dataclasses.dataclass
class SectionWriter:
    """Appends to one section; keeps the checksums of its blocks."""

    fd: int
    section: Section
    position: int = 0
    crc: int = 0  # of the block that is not full
    checksums: list[int] = dataclasses.field(default_factory=list)
    _taken: int = 0  # checksums that `take_state` has returned

    def write(self, data: memoryview) -> None:
        """data: bytes that belong here next."""
        while len(data):
            left = self.section.block_bytes - self.position % self.section.block_bytes
            part = data[:left]
            write_all(self.fd, part, self.section.offset + self.position)
            self.crc = zlib.crc32(part, self.crc)
            self.position += len(part)
            if len(part) == left:
                self._end_block()
            data = data[left:]

    def finish(self) -> None:
        """Fills the section up with zeros."""
        total = self.section.end - self.section.offset
        while self.position < total:
            self.write(memoryview(bytes(min(total - self.position, self.section.block_bytes))))
        if len(self.checksums) < self.section.num_blocks:
            self._end_block()

    def take_state(self) -> list[Any]:
        """What `put_state` of another writer needs, after the same for the calls before: JSON values."""
        state = [self.position, self.crc, self.checksums[self._taken :]]
        self._taken = len(self.checksums)
        return state

    def put_state(self, state: list[Any]) -> None:
        self.position, self.crc, checksums = state
        self.checksums += checksums
        self._taken = len(self.checksums)

    def check_written(self) -> None:
        """Reads back what was written so far. Raises LostWorkError if the file has something else there."""
        wanted = [*self.checksums, self.crc]
        for start in range(0, self.position, self.section.block_bytes):
            length = min(self.section.block_bytes, self.position - start)
            block = read_at(self.fd, length, self.section.offset + start)
            if len(block) != length or zlib.crc32(block) != wanted[start // self.section.block_bytes]:
                got = "others" if len(block) == length else f"only {len(block)}"
                where = f"bytes {start} to {start + length} of section {self.section.name!r}"
                raise LostWorkError(f"want {where} as they were written, got {got}")

    def _end_block(self) -> None:
        self.checksums.append(self.crc)
        self.crc = 0


class StoreWriter:
    """A store file in the making, at a path of its own until it is complete."""

    def __init__(self, fd: int, header: StoreHeader) -> None:
        if sys.byteorder != "little":
            raise RuntimeError("store files are little-endian; this machine is not")
        self.fd, self.header = fd, header
        self.sections = {name: SectionWriter(fd, header.sections[name]) for name in SECTION_NAMES}

    def write(self, name: str, data: torch.Tensor | bytes) -> None:
        """data: bytes, or a contiguous tensor; appended to the section."""
        if isinstance(data, bytes):
            self.sections[name].write(memoryview(data))
        else:
            self.sections[name].write(data.view(-1).view(torch.uint8).numpy().data)

    def write_rows(self, part: CompressedRows) -> None:
        """part: the next rows; their number is a multiple of 32 (of packed rows: those of a record), but for the last
        ones."""
        self.write("bitmask", part.bitmask)
        self.write("slots", part.slots[: part.data_bytes])
        self.write("overflow", part.overflow[: part.num_overflow * part.row_bytes])

    def finish(self) -> None:
        """Writes what is left: zeros, checksums and header; the data is on the disk after."""
        for writer in self.sections.values():
            writer.finish()
        os.ftruncate(self.fd, self.header.file_bytes)  # it may have been another file's
        every = [crc for name in SECTION_NAMES for crc in self.sections[name].checksums]
        checksums = np.array(every, "<u4").tobytes()
        write_all(self.fd, memoryview(checksums), self.header.checksums_offset)
        os.fsync(self.fd)
        write_all(self.fd, memoryview(pack(self.header, checksums)), 0)
        os.fsync(self.fd)


def save(store: SavableStore, path: str | os.PathLike[str]) -> None:
    """Writes the store to a file, which is there as a whole or not at all; replaces one that is there. Nobody waits for
    the disk: the store's lock is held while a few rows are copied, and no longer. An update between two of these
    copies has the file started over; after a second one, all rows are copied at once."""
    path = Path(path)
    for _ in range(2):
        try:
            return _write_file(path, _Snapshot(store))
        except _ChangedError:
            pass
    _write_file(path, _Snapshot(store, copy=True))


class _ChangedError(Exception):
    """The store was updated since reading it began."""


class _Snapshot:
    """A store's rows for a file, in parts, all of one state of the store."""

    def __init__(self, store: SavableStore, copy: bool = False) -> None:
        """copy: read all rows now. Raises FormatError if the store's file is damaged, ValueError for a closed store."""
        with store.lock:
            rows = store.rows
            self._store, self._version = store, store.version
            self.codec, self.lead_bytes, self.slot_of = store.codec, store.lead_bytes, store.slot_of
            self.precision = store.precision
            self.num_rows, self.slot_bytes = rows.num_rows, rows.slot_bytes
            self.num_overflow = rows.count_overflows()
            self.packing, self.data_bytes = rows.packing, rows.data_bytes
            self._copied = rows.select(torch.arange(rows.num_rows, device="cpu")) if copy else None

    def parts(self) -> Iterator[CompressedRows]:
        """All rows in turn, as they come out of an encoder. Raises _ChangedError after an update of the store."""
        if self._copied is not None:
            yield self._copied
            return
        whole = 32 if self.packing is None else _native.cpu.ROWS_PER_RECORD
        step = max(whole, _PART_BYTES // (self.slot_bytes + self.codec.row_bytes) // whole * whole)
        num_overflow = data_bytes = 0
        for first in range(0, self.num_rows, step):
            ids = torch.arange(first, min(first + step, self.num_rows), device="cpu")
            with self._store.lock:
                if self._store.version != self._version:
                    raise _ChangedError
                part = self._store.rows.select(ids, first_overflow=num_overflow, first_start=data_bytes)
            num_overflow, data_bytes = num_overflow + part.num_overflow, data_bytes + part.data_bytes
            yield part


def _write_file(path: Path, rows: _Snapshot) -> None:
    header = describe(
        rows.codec,
        num_rows=rows.num_rows,
        num_overflow=rows.num_overflow,
        slot_bytes=rows.slot_bytes,
        lead_bytes=rows.lead_bytes,
        packing=rows.packing,
        data_bytes=rows.data_bytes,
        ordered=rows.slot_of is not None,
        precision=rows.precision,
    )
    check_space(path, header.file_bytes)
    with replacing(path) as file:
        writer = StoreWriter(file.fileno(), header)
        writer.write("tables", table_bytes(rows.codec))
        if rows.slot_of is not None:
            writer.write("slot_of", rows.slot_of)
        for part in rows.parts():
            writer.write_rows(part)
        writer.finish()


def check_space(path: Path, wanted_bytes: int) -> None:
    """Raises OSError if the disk has no room for so many bytes more."""
    free = free_bytes(path.parent)
    if free < wanted_bytes:
        raise OSError(f"{path.parent}: want {wanted_bytes} bytes of free disk space for {path.name}, got {free}")


def free_bytes(folder: Path) -> int:
    return shutil.disk_usage(folder).free

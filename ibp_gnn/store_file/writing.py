"""Writes store files: section by section, front to back, then the header, which makes the file one."""

from __future__ import annotations

import dataclasses
import os
import shutil
import sys
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from .header import SECTION_NAMES, Section, StoreHeader, describe, pack, table_bytes

if TYPE_CHECKING:
    from ..feature_store import CompressedFeatureStore


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

    def finish(self) -> None:
        """Writes what is left: zeros, checksums and header; the data is on the disk after."""
        for writer in self.sections.values():
            writer.finish()
        every = [crc for name in SECTION_NAMES for crc in self.sections[name].checksums]
        checksums = np.array(every, "<u4").tobytes()
        write_all(self.fd, memoryview(checksums), self.header.checksums_offset)
        os.fsync(self.fd)
        write_all(self.fd, memoryview(pack(self.header, checksums)), 0)
        os.fsync(self.fd)


def save(store: CompressedFeatureStore, path: str | os.PathLike[str]) -> None:
    """Writes the store to a file, which is there as a whole or not at all; replaces one that is there."""
    rows, slot_of, codec = store.rows, store.slot_of, store.codec
    header = describe(
        codec,
        num_rows=rows.num_rows,
        num_overflow=rows.num_overflow,
        slot_bytes=rows.slot_bytes,
        lead_bytes=store.lead_bytes,
        ordered=slot_of is not None,
    )
    path = Path(path)
    partial = path.with_name(f"{path.name}.{os.getpid()}.partial")
    check_space(partial, header.file_bytes)
    with removed_after(partial):
        with open(partial, "wb", buffering=0) as file:
            writer = StoreWriter(file.fileno(), header)
            writer.write("tables", table_bytes(codec))
            if slot_of is not None:
                writer.write("slot_of", slot_of)
            for name in ("bitmask", "slots", "overflow"):
                writer.write(name, getattr(rows, name)[: header.sections[name].nbytes])
            writer.finish()
        rename(partial, path)


def rename(partial: Path, path: Path) -> None:
    """Puts a complete file in its place; so it is after a power failure, too."""
    os.replace(partial, path)
    sync_folder(path)


def sync_folder(path: Path) -> None:
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def check_space(path: Path, wanted_bytes: int) -> None:
    """Raises OSError if the disk has no room for so many bytes more."""
    free = free_bytes(path.parent)
    if free < wanted_bytes:
        raise OSError(f"{path.parent}: want {wanted_bytes} bytes of free disk space for {path.name}, got {free}")


def free_bytes(folder: Path) -> int:
    return shutil.disk_usage(folder).free


@contextmanager
def removed_after(path: Path) -> Iterator[None]:
    try:
        yield
    finally:
        path.unlink(missing_ok=True)


def write_all(fd: int, data: Any, offset: int) -> None:
    while len(data):
        written = os.pwrite(fd, data, offset)
        data, offset = data[written:], offset + written

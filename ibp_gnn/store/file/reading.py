"""An open store file: its parts, in memory or mapped, never unchecked."""

from __future__ import annotations

import mmap
import os
import threading
import warnings
import weakref
import zlib
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import torch

from ... import _native
from ...codec.codec import Codec
from ...codec.compressed_rows import CompressedRows
from ..progress import progress_bar
from .file_io import read_at, read_into
from .header import PREAMBLE_BYTES, FormatError, Section, StoreHeader, parse, parse_preamble

_BLOCKS_PER_TASK = 16
_ROW_SECTIONS = ("bitmask", "slots", "overflow")


class StoreFile:
    """A store file, open for reading. Blocks are checked once. The file must not be changed while it is open; replacing
    it (rename) is all right. Safe to use from several threads."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """Checks the header and the list of checksums. Raises FormatError naming the file, and OSError."""
        self.path = Path(path)
        self._fd = os.open(self.path, os.O_RDONLY | getattr(os, "O_CLOEXEC", 0))
        self._close = weakref.finalize(self, os.close, self._fd)
        self._scratch = threading.local()
        try:
            self.header, self._checksums = self._read_header()
        except FormatError as error:
            self._close()
            raise FormatError(f"{self.path}: {error}") from error
        except BaseException:
            self._close()
            raise
        self._checked = np.zeros(len(self._checksums), bool)
        self._all_checked = False

    def close(self) -> None:
        """No more reading; what was read or mapped stays. Idempotent."""
        self._close()

    def __enter__(self) -> StoreFile:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def identity(self) -> tuple[int, ...]:
        """Differs from that of a file with other contents, short of foul play."""
        stat = os.fstat(self._fd)
        crc = zlib.crc32(self._checksums.tobytes())
        return stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime_ns, crc

    def codec(self) -> Codec:
        """Raises FormatError."""
        try:
            return self.header.codec(self.read("tables").numpy().tobytes())
        except FormatError as error:
            raise FormatError(f"{self.path}: {error}") from error

    def slot_of(self) -> torch.Tensor | None:
        """int32 [num_rows], a permutation, or None. Raises FormatError."""
        if not self.header.ordered:
            return None
        slots = self.read("slot_of").view(torch.int32)
        seen = torch.zeros(len(slots), dtype=torch.bool, device="cpu")
        inside = (slots >= 0) & (slots < len(slots))
        seen[slots[inside].to(torch.int64)] = True
        if not bool(seen.all()):
            raise FormatError(
                f"{self.path}: slot_of: want each slot of 0 to {len(slots) - 1} once, got no {_first(~seen)}"
            )
        return slots

    def read_rows(self) -> CompressedRows:
        """All rows in memory, read and checked in parallel. Raises FormatError."""
        with torch.inference_mode(False):  # tensors of inference mode could not be updated outside of it
            buffers = {
                name: torch.empty(self.section(name).nbytes, dtype=torch.uint8, device="cpu") for name in _ROW_SECTIONS
            }
        self.read_into(buffers)
        return self.rows_from(buffers)

    def map_rows(self) -> CompressedRows:
        """All rows where they lie in the file, mapped to memory, read-only; not checked: see `check` and
        `check_slots`."""
        mapping = mmap.mmap(self._fd, 0, flags=mmap.MAP_SHARED, prot=mmap.PROT_READ)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="The given buffer is not writable")
            buffers = {
                name: bytes_of(mapping, self.section(name).offset, self.section(name).nbytes) for name in _ROW_SECTIONS
            }
        return self.rows_from(buffers)

    def rows_from(self, buffers: dict[str, torch.Tensor]) -> CompressedRows:
        """buffers: uint8 [nbytes of the section] for each of "bitmask", "slots" and "overflow"."""
        header = self.header
        return CompressedRows(header.num_rows, header.row_bytes, header.slot_bytes, **buffers, packing=header.packing)

    def section(self, name: str) -> Section:
        return self.header.sections[name]

    def read(self, name: str) -> torch.Tensor:
        """uint8 [nbytes], a section's bytes, checked."""
        buffer = torch.empty(self.section(name).nbytes, dtype=torch.uint8, device="cpu")
        self.read_into({name: buffer})
        return buffer

    def read_into(self, buffers: dict[str, torch.Tensor]) -> None:
        """buffers: uint8 [nbytes of the section], by section. Reads and checks in parallel. Raises FormatError."""

        def read_block(section: Section, index: int) -> None:
            start = index * section.block_bytes
            with_zeros = memoryview(self._read_block(section, index))
            kept = with_zeros[: max(0, section.nbytes - start)]
            views[section.name][start : start + len(kept)] = kept

        views = {name: buffer.numpy().data for name, buffer in buffers.items()}
        sections = [self.section(name) for name in buffers]
        _in_parallel(read_block, ((section, index) for section in sections for index in range(section.num_blocks)))

    def check(self, progress: bool | None = None) -> None:
        """Checks every block that has not been. progress: of `progress_bar`. Raises FormatError saying which is
        damaged."""
        if self._all_checked:
            return
        blocks = [
            (section, index)
            for section in self.header.sections.values()
            for index in np.flatnonzero(
                ~self._checked[section.first_block : section.first_block + section.num_blocks]
            ).tolist()
        ]
        with progress_bar("verifying", sum(map(_length, blocks)), progress) as bar:

            def check_block(section: Section, index: int) -> None:
                self._read_block(section, index)
                bar.update(_length((section, index)))

            _in_parallel(check_block, blocks)
        self._all_checked = True

    def check_slots(self, rows: CompressedRows, slots: torch.Tensor) -> None:
        """Checks all that decoding the rows in these slots reads. rows: from `map_rows`; slots: int32/int64 [n] in
        range, on the CPU. Raises FormatError."""
        if self._all_checked:
            return
        self._check_range("bitmask", range(self.section("bitmask").num_blocks))
        slots = slots.to(torch.int64)
        slot_bytes, row_bytes = self.header.slot_bytes, self.header.row_bytes
        if rows.packing is not None:
            starts, _ = rows.packed_places(slots)
            return self._check_touched("slots", starts, row_bytes + rows.packing.unit_bytes)  # at most
        self._check_touched("slots", slots * slot_bytes, slot_bytes)
        raw = slots[rows.overflows(slots)]
        self._check_touched("overflow", rows.overflow_indices(raw) * row_bytes, row_bytes)

    def _check_touched(self, name: str, starts: torch.Tensor, length: int) -> None:
        """starts: int64 [n], where in the section `length` bytes are read."""
        section = self.section(name)
        first, last = starts // section.block_bytes, (starts + (length - 1)) // section.block_bytes
        last.clamp_(max=section.num_blocks - 1)
        most_further = (length - 1) // section.block_bytes + 1
        blocks = [torch.minimum(first + step, last) for step in range(most_further + 1)]
        self._check_range(name, torch.unique(torch.cat(blocks)).tolist())

    def _check_range(self, name: str, blocks: Iterable[int]) -> None:
        section = self.section(name)
        wanted = [(section, index) for index in blocks if not self._checked[section.first_block + index]]
        _in_parallel(self._read_block, wanted)

    def _read_block(self, section: Section, index: int) -> bytearray:
        """The block, checked; in this thread's buffer, until its next call."""
        start, end = section.block(index)
        if not hasattr(self._scratch, "buffer") or len(self._scratch.buffer) != end - start:
            self._scratch.buffer = bytearray(end - start)
        block = self._scratch.buffer
        got = read_into(self._fd, block, start)
        number = section.first_block + index
        found, wanted = zlib.crc32(block), int(self._checksums[number])
        if got != end - start or found != wanted:
            where = f"block {index} of section {section.name!r}, bytes {start} to {end} of the file"
            if got != end - start:
                raise FormatError(f"{self.path}: {where}: want {end - start} bytes, got {got}: the file was cut off")
            raise FormatError(f"{self.path}: {where}: want checksum {wanted:#010x}, got {found:#010x}")
        self._checked[number] = True
        return block

    def _read_header(self) -> tuple[StoreHeader, np.ndarray]:
        file_bytes = os.fstat(self._fd).st_size
        preamble = parse_preamble(read_at(self._fd, PREAMBLE_BYTES, 0), file_bytes)
        header = parse(preamble, self._read(preamble.data_offset, 0, "header"))
        checksums = self._read(4 * header.num_blocks, header.checksums_offset, "list of checksums")
        if zlib.crc32(checksums) != preamble.checksums_crc32:
            got = zlib.crc32(checksums)
            raise FormatError(f"list of checksums: want checksum {preamble.checksums_crc32:#010x}, got {got:#010x}")
        return header, np.frombuffer(checksums, "<u4")

    def _read(self, length: int, offset: int, what: str) -> bytes:
        data = read_at(self._fd, length, offset)
        if len(data) != length:
            raise FormatError(f"{what}: want {length} bytes, got {len(data)}: the file was cut off")
        return data


def bytes_of(mapping: mmap.mmap, start: int, length: int) -> torch.Tensor:
    """uint8 [length], sharing memory with the mapping; length may be 0."""
    whole = torch.frombuffer(mapping, dtype=torch.uint8)
    return whole[start : start + length]


def _in_parallel(work: Callable[[Section, int], object], blocks: Iterable[tuple[Section, int]]) -> None:
    """Calls work(section, index) for all blocks, on as many threads as torch uses. Raises the first error met."""
    blocks = list(blocks)

    def run(first: int) -> None:
        for section, index in blocks[first : first + _BLOCKS_PER_TASK]:
            work(section, index)

    tasks = range(0, len(blocks), _BLOCKS_PER_TASK)
    if len(tasks) <= 1 or _native.threads() == 1:
        for first in tasks:
            run(first)
        return
    with ThreadPoolExecutor(_native.threads()) as pool:
        futures = [pool.submit(run, first) for first in tasks]
        try:
            for future in futures:
                future.result()
        finally:
            for future in futures:
                future.cancel()


def _first(flags: torch.Tensor) -> int:
    return int(torch.nonzero(flags)[0])


def _length(block: tuple[Section, int]) -> int:
    section, index = block
    start, end = section.block(index)
    return end - start

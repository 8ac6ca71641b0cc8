"""Builds store files in bounded memory, in steps that a build that was interrupted does not do again."""

from __future__ import annotations

import dataclasses
import os
import zlib
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ...codec.compressed_rows import CompressedRows
from ...codec.packing import as_lengths
from .. import build
from ..build import Job, Plan
from ..row_readers import ArrayReader, RowReader
from .file_io import rename
from .header import StoreHeader, describe, table_bytes
from .journal import Journal, LostWorkError
from .sorted_reader import SortedReader
from .writing import StoreWriter, check_space

if TYPE_CHECKING:
    from tqdm import tqdm

# Ordered rows of a memory-mapped file that is longer are sorted on the disk first, instead of being read at random.
_SORT_BYTES = 256 << 20
_GROWING = ("bitmask", "slots", "overflow")  # the sections that every chunk adds to


def build_file(job: Job, path: str | os.PathLike[str], source: dict[str, Any]) -> str:
    """Builds a store file in bounded memory: a few chunks and, per row, 2 or 4 bytes for its size and 8 for an order.

    source: what the features are, as JSON, for instance their file, its size and time. If the build is interrupted,
    even by a kill, another with the same source and options goes on where it was; one with others starts over, and so
    does one that does not find what the earlier one has written. Meanwhile `path`.partial, .journal and, for an order,
    .sorted (a copy of the features) are there; none of them at the end. Returns what became of an earlier build, to
    show to the user; "" if there was none.

    Raises FileExistsError if there is a file at `path`, BlockingIOError if another process is building it, OSError if
    the disk is too small, and ValueError naming a row of the features that changed meanwhile.
    """
    path = Path(path)
    _check_is_free(path)  # before a journal is made
    with Journal(_beside(path, "journal"), {**source, **_identity(job)}) as journal:
        try:
            _check_is_free(path)  # another process may have built it before this one had the journal
        except FileExistsError:
            if not journal.resumed:
                journal.delete()
            raise
        said = "went on with an earlier build" if journal.resumed else ""
        try:
            _build(job, path, journal)
        except LostWorkError as error:
            if not journal.resumed:
                raise
            said = f"started over, for an earlier build's work is lost: {error}"
            journal.start_over()
            _build(job, path, journal)
        return said


def _check_is_free(path: Path) -> None:
    if path.exists():
        raise FileExistsError(f"{path}: want a path where nothing is, got an existing file")


def _build(job: Job, path: Path, journal: Journal) -> None:
    """Raises LostWorkError if the journal is of work that is not there."""
    partial = _beside(path, "partial")
    reader: RowReader = job.reader()
    plan, lengths = None if journal.plan is None else Plan(**journal.plan), None
    if job.order is not None and _wants_sorting(job):
        checksums = None if plan is None else plan.sorted_checksums
        reader = SortedReader(_beside(path, "sorted"), job.order, job.codec.row_bytes, job.step, checksums)
    rows_done = journal.chunks[-1]["rows"] if plan is not None and journal.chunks else 0
    with job.bar(is_sized=plan is not None, rows_done=rows_done) as bar:
        if plan is None:
            partial.unlink(missing_ok=True)
            if isinstance(reader, SortedReader):
                plan, lengths = _size_sorting(job, reader, bar)
            else:
                plan, lengths = build.size(job, reader.chunks(), bar)
            journal.write_plan(dataclasses.asdict(plan))
        _compress_to(partial, job, plan, reader, lengths, bar, journal)
    rename(partial, path)
    _beside(path, "sorted").unlink(missing_ok=True)
    journal.delete()


def _size_sorting(job: Job, reader: SortedReader, bar: tqdm) -> tuple[Plan, np.ndarray]:
    """Sizes the rows, and deals them to the reader's file on the way."""
    if job.slot_of is None:
        raise ValueError("want a job with an order")
    check_space(reader.path, job.num_rows * job.codec.row_bytes)
    as_they_are = ArrayReader(job.features, job.codec, job.step, precision=job.precision)
    plan, lengths = build.size(job, reader.deal(as_they_are.chunks(), job.slot_of), bar, job.slot_of.numpy())
    return dataclasses.replace(plan, sorted_checksums=reader.checksums), lengths


def _compress_to(
    partial: Path,
    job: Job,
    plan: Plan,
    reader: RowReader,
    lengths: np.ndarray | None,
    bar: tqdm,
    journal: Journal,
) -> None:
    """Writes the whole file, from where the journal says on. One chunk is compressed while the last is written."""
    header = _header(job, plan)
    fd = os.open(partial, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        check_space(partial, header.file_bytes - 512 * os.fstat(fd).st_blocks)
        writer = StoreWriter(fd, header)
        rows_done, overflow_done = _go_on(writer, journal)
        writer.write("tables", table_bytes(job.codec))
        if job.slot_of is not None:
            writer.write("slot_of", job.slot_of)

        def write(end: int, part: CompressedRows, overflow_end: int) -> None:
            writer.write_rows(part)
            os.fsync(fd)
            sections = {name: writer.sections[name].take_state() for name in _GROWING}
            journal.write_chunk({"rows": end, "overflow": overflow_end, "sections": sections})

        with ThreadPoolExecutor(1) as pool:
            pending: Future[None] | None = None
            data_done = writer.sections["slots"].position
            for chunk in build.placed_chunks(job, plan, reader, lengths, bar, rows_done, overflow_done):
                part = _room_for(job, plan, chunk, overflow_done, data_done)
                build.encode(job, chunk, part, overflow_done, data_done)
                if pending is not None:
                    pending.result()
                pending = pool.submit(write, chunk.first + len(chunk.rows), part, chunk.overflow_end)
                overflow_done, data_done = chunk.overflow_end, data_done + part.data_bytes
            if pending is not None:
                pending.result()
        writer.finish()
    finally:
        os.close(fd)


def _room_for(job: Job, plan: Plan, chunk: build.PlacedChunk, overflow_done: int, data_done: int) -> CompressedRows:
    """For the rows of a chunk. overflow_done, data_done: overflow rows, and bytes of slots, of those before it."""
    row_bytes = job.codec.row_bytes
    if plan.packing is None:
        return CompressedRows.empty(len(chunk.rows), row_bytes, plan.slot_bytes, chunk.overflow_end - overflow_done)
    lengths = as_lengths(chunk.payload_bytes)
    part = CompressedRows.packed(lengths, row_bytes, plan.slot_bytes, plan.packing, first_start=data_done)
    end, is_last = data_done + part.data_bytes, chunk.first + len(chunk.rows) == job.num_rows
    if end > plan.data_bytes or (is_last and end < plan.data_bytes):
        raise LostWorkError("want the features as they were when their rows were measured, got others")
    return part


def _go_on(writer: StoreWriter, journal: Journal) -> tuple[int, int]:
    """Puts the writer where the journal's last chunk ended. Returns how many rows and overflow rows are written. Raises
    LostWorkError if the file does not have them."""
    for chunk in journal.chunks:
        for name in _GROWING:
            writer.sections[name].put_state(chunk["sections"][name])
    for name in _GROWING:
        writer.sections[name].check_written()
    last = journal.chunks[-1] if journal.chunks else {"rows": 0, "overflow": 0}
    return last["rows"], last["overflow"]


def _header(job: Job, plan: Plan) -> StoreHeader:
    return describe(
        job.codec,
        num_rows=job.num_rows,
        num_overflow=plan.num_overflow,
        slot_bytes=plan.slot_bytes,
        lead_bytes=plan.lead_bytes,
        packing=plan.packing,
        data_bytes=plan.data_bytes,
        ordered=job.slot_of is not None,
        precision=job.precision,
    )


def _identity(job: Job) -> dict[str, Any]:
    """What decides the file's bytes, besides the features."""
    return {
        "shape": list(job.features.shape),
        "step": job.step,
        "layout": job.layout,
        "codec": repr(job.codec),
        "precision": repr(job.precision),
        "tables": zlib.crc32(table_bytes(job.codec)),
        "slot_of": None if job.slot_of is None else zlib.crc32(job.slot_of.numpy()),  # type: ignore[arg-type]
        "sorts": _wants_sorting(job),
    }


def _wants_sorting(job: Job) -> bool:
    mapped = isinstance(job.features, np.memmap)
    return job.order is not None and mapped and job.num_rows * job.codec.row_bytes > _SORT_BYTES


def _beside(path: Path, what: str) -> Path:
    return path.with_name(f"{path.name}.{what}")

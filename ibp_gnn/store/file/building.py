"""The one builder of stores: sizes all rows, settles the slot length, compresses chunks, to memory or to a file."""

from __future__ import annotations

import dataclasses
import os
import zlib
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from tqdm import tqdm

from ...codec import dispatch
from ...codec.codec import Codec
from ...codec.compressed_rows import CompressedRows
from ...codec.slot_length import best_lead_bytes, best_slot_bytes, count_overflow, overflow_places, payload_histogram
from ...codec.values import as_tensor, check_row_shape, num_values
from ..order import slots_of
from .file_io import rename
from .header import StoreHeader, describe, table_bytes
from .journal import Journal, LostWorkError
from .row_readers import ArrayRows, RowReader, SortedRows, chunk_length
from .writing import StoreWriter, check_space

Layout = Literal["compact", "inplace"]
# Ordered rows of a memory-mapped file that is longer are sorted on the disk first, instead of being read at random.
_SORT_BYTES = 256 << 20
_GROWING = ("bitmask", "slots", "overflow")  # the sections that every chunk adds to

Chunks = Iterator[tuple[int, torch.Tensor]]


@dataclasses.dataclass(frozen=True)
class Plan:
    """What sizing all rows settles."""

    slot_bytes: int
    num_overflow: int
    lead_bytes: int
    sorted_checksums: list[int] = dataclasses.field(default_factory=list)  # of SortedRows


@dataclasses.dataclass(frozen=True)
class Job:
    """What to build, checked. order: int32 [n], the row of each slot, and slot_of, its inverse; or both None."""

    features: Any
    codec: Codec
    layout: Layout
    order: torch.Tensor | None
    slot_of: torch.Tensor | None
    step: int
    progress: bool

    @classmethod
    def check(
        cls,
        features: Any,
        codec: str | Codec,
        layout: Layout,
        order: Any,
        chunk_rows: int | None,
        progress: bool,
    ) -> Job:
        """The arguments are those of `CompressedFeatureStore.build`. Fits the codec if it is a name."""
        if layout not in ("compact", "inplace"):
            raise ValueError(f"layout: want 'compact' or 'inplace', got {layout!r}")
        if not isinstance(features, (np.ndarray, torch.Tensor)):
            as_tensor(features, "features")  # raises
        check_row_shape(tuple(features.shape), "features")
        if isinstance(codec, str):
            sample = features if len(features) else _row_of_zeros(as_tensor(features, "features"))
            codec = Codec.fit(sample, codec=codec, minimize="slots" if layout == "compact" else "payloads")
        elif not isinstance(codec, Codec):
            raise TypeError(f"codec: want a name or a Codec, got {type(codec).__name__}")
        step = chunk_length(chunk_rows, codec.row_bytes)
        slot_of = None if order is None else slots_of(order, len(features))
        inverse = None
        if slot_of is not None:
            inverse = torch.empty_like(slot_of)
            inverse[slot_of.to(torch.int64)] = torch.arange(len(slot_of), dtype=torch.int32, device="cpu")
        return cls(features, codec, layout, inverse, slot_of, step, progress)

    @property
    def num_rows(self) -> int:
        return len(self.features)

    def reader(self) -> ArrayRows:
        return ArrayRows(self.features, self.codec, self.step, self.order)


def _row_of_zeros(features: torch.Tensor) -> torch.Tensor:
    """[1, *row_shape] of their dtype on the CPU. Without rows any codec will do, so that of these."""
    # torch 2.2 cannot fill float8.
    row = torch.zeros(1, num_values(tuple(features.shape[1:])) * features.itemsize, dtype=torch.uint8, device="cpu")
    return row.view(features.dtype).view(1, *features.shape[1:])


def build_in_memory(job: Job) -> tuple[CompressedRows, int]:
    """Returns the rows and the lead_bytes of their store."""
    reader = job.reader()
    plan, lengths = _size(job, reader.chunks())
    rows = CompressedRows.empty(job.num_rows, job.codec.row_bytes, plan.slot_bytes, plan.num_overflow)
    for first, chunk, places, _ in _with_overflow(job, plan, reader, lengths):
        _encode(job, first, chunk, places, rows.view(first, len(chunk)))
    return rows, plan.lead_bytes


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
        reader = SortedRows(_beside(path, "sorted"), job.order, job.codec.row_bytes, job.step, checksums)
    if plan is None:
        partial.unlink(missing_ok=True)
        if isinstance(reader, SortedRows):
            plan, lengths = _size_sorting(job, reader)
        else:
            plan, lengths = _size(job, reader.chunks())
        journal.write_plan(dataclasses.asdict(plan))
    _compress_to(partial, job, plan, reader, lengths, journal)
    rename(partial, path)
    _beside(path, "sorted").unlink(missing_ok=True)
    journal.delete()


def _size(job: Job, chunks: Chunks, slot_of: np.ndarray | None = None) -> tuple[Plan, np.ndarray]:
    """chunks: all rows; in the order of the slots, or slot_of says where they go. Returns the plan, and each slot's
    payload length, clamped to that of a row."""
    row_bytes = job.codec.row_bytes
    lengths = np.empty(job.num_rows, np.uint16 if row_bytes < 1 << 16 else np.int32)
    histogram = torch.zeros(row_bytes + 1, dtype=torch.int64, device="cpu")
    for first, chunk in _with_progress(chunks, "sizing", job):
        measured = dispatch.measure(job.codec.form, chunk)
        histogram += payload_histogram(measured, row_bytes)
        where = slice(first, first + len(chunk))
        lengths[where if slot_of is None else slot_of[where]] = np.minimum(measured.numpy(), row_bytes)
    slot_bytes = best_slot_bytes(histogram, row_bytes) if job.layout == "compact" else row_bytes
    num_overflow = count_overflow(histogram, slot_bytes)
    return Plan(slot_bytes, num_overflow, best_lead_bytes(job.codec.form, histogram, slot_bytes)), lengths


def _size_sorting(job: Job, reader: SortedRows) -> tuple[Plan, np.ndarray]:
    """Sizes the rows, and deals them to the reader's file on the way."""
    if job.slot_of is None:
        raise ValueError("want a job with an order")
    check_space(reader.path, job.num_rows * job.codec.row_bytes)
    as_they_are = ArrayRows(job.features, job.codec, job.step)
    plan, lengths = _size(job, reader.deal(as_they_are.chunks(), job.slot_of), job.slot_of.numpy())
    return dataclasses.replace(plan, sorted_checksums=reader.checksums), lengths


def _with_overflow(
    job: Job, plan: Plan, reader: RowReader, lengths: np.ndarray | None, first: int = 0, first_overflow: int = 0
) -> Iterator[tuple[int, torch.Tensor, torch.Tensor, int]]:
    """lengths: from `_size`, or None to measure again; first_overflow: how many rows before row `first` overflow.
    Yields, for each chunk from row `first` on: its first row, its rows, their places in the overflow area (int64 [n];
    -1 for those that do not go there), and how many rows up to the chunk's end do so. Raises LostWorkError if other
    rows overflow than the plan says."""
    for at, chunk in _with_progress(reader.chunks(first), "compressing", job, first):
        if lengths is None:
            measured = dispatch.measure(job.codec.form, chunk).numpy()
        else:
            measured = lengths[at : at + len(chunk)]
        places, first_overflow = overflow_places(measured, plan.slot_bytes, job.codec.row_bytes, first_overflow)
        if first_overflow > plan.num_overflow:
            break
        yield at, chunk, places, first_overflow
    if first_overflow != plan.num_overflow:
        raise LostWorkError("want the features as they were when their rows were measured, got others")


def _encode(
    job: Job, first: int, chunk: torch.Tensor, places: torch.Tensor, out: CompressedRows, first_overflow: int = 0
) -> None:
    """The arguments are what `_with_overflow` yields. Raises ValueError naming the row that fitted its slot when it was
    measured and does not now, or the other way round."""
    try:
        dispatch.encode(job.codec.form, chunk, places, out, first_overflow=first_overflow, first_row=first)
    except ValueError as error:
        overflows = dispatch.measure(job.codec.form, chunk) > out.slot_bytes
        changed = torch.nonzero(overflows != (places >= 0)).flatten()
        if len(changed) == 0:
            raise
        slot = first + int(changed[0])
        row = slot if job.order is None else int(job.order[slot])
        raise ValueError(f"features: row {row} changed while the store was built") from error


def _compress_to(
    partial: Path, job: Job, plan: Plan, reader: RowReader, lengths: np.ndarray | None, journal: Journal
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
            for first, chunk, places, overflow_end in _with_overflow(
                job, plan, reader, lengths, rows_done, overflow_done
            ):
                part = CompressedRows.empty(
                    len(chunk), job.codec.row_bytes, plan.slot_bytes, overflow_end - overflow_done
                )
                _encode(job, first, chunk, places, part, overflow_done)
                if pending is not None:
                    pending.result()
                pending = pool.submit(write, first + len(chunk), part, overflow_end)
                overflow_done = overflow_end
            if pending is not None:
                pending.result()
        writer.finish()
    finally:
        os.close(fd)


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
        ordered=job.slot_of is not None,
    )


def _identity(job: Job) -> dict[str, Any]:
    """What decides the file's bytes, besides the features."""
    return {
        "shape": list(job.features.shape),
        "step": job.step,
        "layout": job.layout,
        "codec": repr(job.codec),
        "tables": zlib.crc32(table_bytes(job.codec)),
        "slot_of": None if job.slot_of is None else zlib.crc32(job.slot_of.numpy()),  # type: ignore[arg-type]
        "sorts": _wants_sorting(job),
    }


def _wants_sorting(job: Job) -> bool:
    mapped = isinstance(job.features, np.memmap)
    return job.order is not None and mapped and job.num_rows * job.codec.row_bytes > _SORT_BYTES


def _with_progress(chunks: Chunks, what: str, job: Job, first: int = 0) -> Chunks:
    options: dict[str, Any] = {"unit": "row", "unit_scale": True, "disable": not job.progress}
    with tqdm(total=job.num_rows, initial=first, desc=what, **options) as bar:
        for at, chunk in chunks:
            yield at, chunk
            bar.update(len(chunk))


def _beside(path: Path, what: str) -> Path:
    return path.with_name(f"{path.name}.{what}")

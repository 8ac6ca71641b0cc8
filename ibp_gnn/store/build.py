"""The one builder of stores: sizes all rows, settles the slot length, compresses chunks. file/building.py does so to
files."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch

from ..codec import dispatch
from ..codec.codec import Codec, sample_rows
from ..codec.compressed_rows import CompressedRows
from ..codec.slot_length import assign_overflow, best_lead_bytes, best_slot_bytes, count_overflow, payload_histogram
from ..codec.values import as_tensor, check_row_shape, num_values
from .file.journal import LostWorkError
from .order import slots_of
from .precision import Precision
from .progress import progress_bar
from .row_readers import ArrayReader, Chunks, RowReader, chunk_length

if TYPE_CHECKING:
    from tqdm import tqdm

Layout = Literal["compact", "inplace"]


@dataclasses.dataclass(frozen=True)
class Plan:
    """What sizing all rows settles."""

    slot_bytes: int
    num_overflow: int
    lead_bytes: int
    sorted_checksums: list[int] = dataclasses.field(default_factory=list)  # of SortedReader


@dataclasses.dataclass(frozen=True)
class Job:
    """What to build, checked. order: int32 [n], the row of each slot, and slot_of, its inverse; or both None.
    precision: what the rows are rounded to; None: they stay as they are."""

    features: Any
    codec: Codec
    layout: Layout
    order: torch.Tensor | None
    slot_of: torch.Tensor | None
    step: int
    progress: bool | None
    precision: Precision | None = None

    @classmethod
    def check(
        cls,
        features: Any,
        codec: str | Codec,
        layout: Layout,
        order: Any,
        chunk_rows: int | None,
        progress: bool | None = None,
        precision: str | None = None,
        out_dtype: torch.dtype | None = None,
    ) -> Job:
        """The arguments are those of `CompressedFeatureStore.build`. Fits the codec if it is a name."""
        if layout not in ("compact", "inplace"):
            raise ValueError(f"layout: want 'compact' or 'inplace', got {layout!r}")
        if not isinstance(features, (np.ndarray, torch.Tensor)):
            as_tensor(features, "features")  # raises, as below
        check_row_shape(tuple(features.shape), "features")
        as_tensor(features[:0] if isinstance(features, np.ndarray) else features, "features")  # raises
        rounding = None
        if precision is not None:
            rounding = Precision.fit(features, precision, out_dtype, _step_of(features, chunk_rows), progress)
        elif out_dtype is not None:
            raise ValueError(f"out_dtype: want None without a precision, got {out_dtype}")
        if isinstance(codec, str):
            sample = features if len(features) else _row_of_zeros(as_tensor(features, "features"))
            if rounding is not None:
                sample = rounding.round(sample_rows(sample))
            codec = fit_codec(sample, codec, layout)
        elif not isinstance(codec, Codec):
            raise TypeError(f"codec: want a name or a Codec, got {type(codec).__name__}")
        step = chunk_length(chunk_rows, codec.row_bytes)
        slot_of = None if order is None else slots_of(order, len(features))
        inverse = None
        if slot_of is not None:
            inverse = torch.empty_like(slot_of)
            inverse[slot_of.to(torch.int64)] = torch.arange(len(slot_of), dtype=torch.int32, device="cpu")
        return cls(features, codec, layout, inverse, slot_of, step, progress, rounding)

    @property
    def num_rows(self) -> int:
        return len(self.features)

    def bar(self, *, is_sized: bool = False, rows_done: int = 0) -> tqdm:
        """One for both passes over the rows. is_sized, rows_done: what an earlier build has done of them."""
        row_bytes = self.codec.row_bytes
        done = (self.num_rows * is_sized + rows_done) * row_bytes
        return progress_bar("compressing", 2 * self.num_rows * row_bytes, self.progress, done_bytes=done)

    def reader(self) -> ArrayReader:
        return ArrayReader(self.features, self.codec, self.step, self.order, self.precision)


def _step_of(features: Any, chunk_rows: int | None) -> int:
    return chunk_length(chunk_rows, num_values(tuple(features.shape[1:])) * features.dtype.itemsize)


def _row_of_zeros(features: torch.Tensor) -> torch.Tensor:
    """[1, *row_shape] of their dtype on the CPU. Without rows any codec will do, so that of these."""
    # torch 2.2 cannot fill float8.
    row = torch.zeros(1, num_values(tuple(features.shape[1:])) * features.itemsize, dtype=torch.uint8, device="cpu")
    return row.view(features.dtype).view(1, *features.shape[1:])


def build_in_memory(job: Job) -> tuple[CompressedRows, int]:
    """Returns the rows and the lead_bytes of their store."""
    reader = job.reader()
    with job.bar() as bar:
        plan, lengths = size(job, reader.chunks(), bar)
        rows = CompressedRows.empty(job.num_rows, job.codec.row_bytes, plan.slot_bytes, plan.num_overflow)
        for first, chunk, overflow_index, _ in with_overflow(job, plan, reader, lengths, bar):
            encode(job, first, chunk, overflow_index, rows.view(first, len(chunk)))
    return rows, plan.lead_bytes


def warn_if_larger(nbytes: int, raw_nbytes: int, *, stacklevel: int) -> None:
    """For whoever builds a store of these bytes. stacklevel: as for `warnings.warn` of the caller."""
    if nbytes > raw_nbytes > 0:
        warnings.warn(
            f"compressing does not pay here: the store takes {nbytes:,} bytes, the raw rows {raw_nbytes:,}. Few rows "
            "and incompressible ones are better left as they are (`ibp-gnn analyze` says what a codec saves)",
            stacklevel=stacklevel + 1,
        )


def fit_codec(sample: Any, codec: str, layout: Layout) -> Codec:
    """The codec of that name that makes what a store of this layout holds of the sample smallest."""
    return Codec.fit(sample, codec=codec, minimize="slots" if layout == "compact" else "payloads")


def choose_slot_bytes(histogram: torch.Tensor, layout: Layout) -> int:
    """histogram: from `payload_histogram`."""
    row_bytes = len(histogram) - 1
    return best_slot_bytes(histogram, row_bytes) if layout == "compact" else row_bytes


def size(job: Job, chunks: Chunks, bar: tqdm, slot_of: np.ndarray | None = None) -> tuple[Plan, np.ndarray]:
    """chunks: all rows; in the order of the slots, or slot_of says where they go. bar: from `Job.bar`. Returns the
    plan, and each slot's payload length, clamped to that of a row."""
    row_bytes = job.codec.row_bytes
    lengths = np.empty(job.num_rows, np.uint16 if row_bytes < 1 << 16 else np.int32)
    histogram = torch.zeros(row_bytes + 1, dtype=torch.int64, device="cpu")
    for first, chunk in _counted(chunks, bar):
        measured = dispatch.measure(job.codec.form, chunk)
        histogram += payload_histogram(measured, row_bytes)
        where = slice(first, first + len(chunk))
        lengths[where if slot_of is None else slot_of[where]] = np.minimum(measured.numpy(), row_bytes)
    slot_bytes = choose_slot_bytes(histogram, job.layout)
    num_overflow = count_overflow(histogram, slot_bytes)
    return Plan(slot_bytes, num_overflow, best_lead_bytes(job.codec.form, histogram, slot_bytes)), lengths


def with_overflow(
    job: Job,
    plan: Plan,
    reader: RowReader,
    lengths: np.ndarray | None,
    bar: tqdm,
    first: int = 0,
    first_overflow: int = 0,
) -> Iterator[tuple[int, torch.Tensor, torch.Tensor, int]]:
    """lengths: from `size`, or None to measure again; first_overflow: how many rows before row `first` overflow.
    Yields, for each chunk from row `first` on: its first row, its rows, their indices in the overflow area (int64 [n];
    -1 for those that do not go there), and how many rows up to the chunk's end do so. Raises LostWorkError if other
    rows overflow than the plan says."""
    for at, chunk in _counted(reader.chunks(first), bar):
        if lengths is None:
            measured = dispatch.measure(job.codec.form, chunk).numpy()
        else:
            measured = lengths[at : at + len(chunk)]
        overflow_index, first_overflow = assign_overflow(measured, plan.slot_bytes, job.codec.row_bytes, first_overflow)
        if first_overflow > plan.num_overflow:
            break
        yield at, chunk, overflow_index, first_overflow
    if first_overflow != plan.num_overflow:
        raise LostWorkError("want the features as they were when their rows were measured, got others")


def encode(
    job: Job,
    first: int,
    chunk: torch.Tensor,
    overflow_index: torch.Tensor,
    out: CompressedRows,
    first_overflow: int = 0,
) -> None:
    """The arguments are what `with_overflow` yields. Raises ValueError naming the row that fitted its slot when it was
    measured and does not now, or the other way round."""
    try:
        dispatch.encode(job.codec.form, chunk, overflow_index, out, first_overflow=first_overflow, first_row=first)
    except ValueError as error:
        overflows = dispatch.measure(job.codec.form, chunk) > out.slot_bytes
        changed = torch.nonzero(overflows != (overflow_index >= 0)).flatten()
        if len(changed) == 0:
            raise
        slot = first + int(changed[0])
        row = slot if job.order is None else int(job.order[slot])
        raise ValueError(f"features: row {row} changed while the store was built") from error


def _counted(chunks: Chunks, bar: tqdm) -> Chunks:
    for at, chunk in chunks:
        yield at, chunk
        bar.update(chunk.numel())

"""The fitted codec: which bits of a row are invariant, and rows to compressed rows and back, on CPU or CUDA."""

from __future__ import annotations

import dataclasses
from typing import Any, cast, get_args

import numpy as np
import torch

from .. import _native
from . import dispatch
from .compressed_rows import CompressedRows
from .forms import Form, Minimize, Sample
from .gather import GpuGather, MappedRows
from .mapped_arrays import page_releaser
from .registry import FORMS
from .slot_length import (
    assign_overflow,
    best_slot_bytes,
    compact_bytes,
    count_overflow,
    payload_histogram,
    size_to_minimize,
)
from .values import as_ids, as_tensor, check_row_shape, num_values, prepare_out, to_bytes


@dataclasses.dataclass(frozen=True)
class CodecReport:
    """What a codec makes of some rows; every byte of metadata is counted.

    savings, bits_per_value: payloads of their own length, as they are transferred.
    compact_bytes: what a CompressedFeatureStore of these rows holds with slots of compact_slot_bytes, overflow_share of
    its rows being in the overflow area.
    escape_share: the share of values whose symbol has no code; None for a codec without escapes.

    Example:
        >>> rows = torch.randn(1000, 16)
        >>> report = ibp_gnn.Codec.fit(rows).report(rows)
        >>> report.codec, report.raw_bytes, report.savings > 0.1
        ('dict', 64000, True)
    """

    codec: str
    num_rows: int
    raw_bytes: int
    payload_bytes: int
    metadata_bytes: int
    bits_per_value: float
    savings: float
    compressed_share: float
    payload_percentiles: dict[str, int]
    compact_slot_bytes: int
    compact_bytes: int
    compact_savings: float
    overflow_share: float
    escape_share: float | None


class Codec:
    """A fitted codec for rows of one dtype and shape. Made by `Codec.fit`; immutable; picklable.

    form: how payloads are written and with what parameters (ibp_gnn/codec/forms.py). An IbpForm's are also here:
    mask: [words] unsigned integers of word_bits bits; 1 = the bit is invariant in this column.
    bitval: [words], the invariant bits' values; 0 where mask is 0.
    threshold: the share of sampled rows that agree on every bit of mask.
    words_per_chunk: words that share one participation bit.

    Example:
        >>> rows = torch.randn(1000, 16)
        >>> codec = ibp_gnn.Codec.fit(rows)
        >>> bool((codec.decompress(codec.compress(rows)) == rows).all())
        True
    """

    def __init__(self, dtype: torch.dtype, row_shape: tuple[int, ...], form: Form) -> None:
        """Use `Codec.fit`.

        Args:
            dtype: of the rows.
            row_shape: shape of one row.
            form: how payloads are written.

        Raises:
            ValueError: the form is not one for such rows.
        """
        self.dtype = dtype
        self.row_shape = tuple(row_shape)
        self.form = form
        self.row_bytes = num_values(self.row_shape) * dtype.itemsize
        if form.row_bytes != self.row_bytes:
            raise ValueError(f"form: want one for rows of {self.row_bytes} bytes, got one for {form.row_bytes}")

    def __repr__(self) -> str:
        parameters = [f"{name}={value}" for name, value in self.form.parameters().items()]
        described = ", ".join([repr(self.kind), *parameters])
        return f"Codec({self.dtype}, row_shape={self.row_shape}, {described})"

    @classmethod
    def fit(
        cls,
        rows: torch.Tensor | np.ndarray,
        *,
        codec: str = "auto",
        minimize: Minimize = "slots",
        word_bits: int | None = None,
        words_per_chunk: int | None = None,
        threshold: float | None = None,
        max_rows: int | None = None,
        seed: int = 0,
    ) -> Codec:
        """Fits a codec to a sample of rows.

        Args:
            rows: [n, *row_shape] tensor (CPU or CUDA), NumPy array or memmap, n >= 1. The sample is looked at on its
                own device.
            codec: "auto", the one of these that is smaller on the sample; "dict", a dictionary of the exponents; "ibp",
                the paper's.
            minimize: of "dict" and "auto", what is to be small: "slots", which are of one length, with longer payloads
                in the overflow area, so that equal lengths matter, too; or "payloads", each of its own length.
            word_bits: of "ibp": 8, 16, 32 or 64. This and the next two: None means the value with the smallest
                compressed size of the sample.
            words_per_chunk: of "ibp": a power of two.
            threshold: of "ibp": 0.5 to 1.
            max_rows: how many rows to look at, at most. None: 16384, fewer if they are long.
            seed: decides which rows are drawn for the sample.

        Returns:
            The codec, for rows of this dtype and row_shape.

        Raises:
            TypeError: rows of a type or dtype that is not supported.
            ValueError: other bad arguments.
        """
        if codec not in ("auto", *FORMS):
            raise ValueError(f"codec: want one of {['auto', *FORMS]}, got {codec!r}")
        if minimize not in get_args(Minimize):
            raise ValueError(f"minimize: want one of {list(get_args(Minimize))}, got {minimize!r}")
        options = {"word_bits": word_bits, "words_per_chunk": words_per_chunk, "threshold": threshold}
        given = {name: value for name, value in options.items() if value is not None}
        forms = list(FORMS.values()) if codec == "auto" else [FORMS[codec]]
        if given and not any(given.keys() <= set(form.fit_options) for form in forms):
            names = "word_bits, words_per_chunk and threshold"
            raise ValueError(f"{names}: want None with codec {codec!r}, which has none")
        own = [{name: value for name, value in given.items() if name in form.fit_options} for form in forms]
        for form, of_form in zip(forms, own, strict=True):
            form.check_fit_options(of_form)
        if max_rows is not None and max_rows < 1:
            raise ValueError(f"max_rows: want at least 1, got {max_rows!r}")
        picked = sample_rows(rows, max_rows, seed)
        sample = Sample(picked, to_bytes(picked), len(rows), minimize)
        fitted = [form.fit(sample, of_form) for form, of_form in zip(forms, own, strict=True)]
        best = fitted[0]
        if len(fitted) > 1:
            sizes: tuple[Minimize, ...] = ("slots", "payloads") if minimize == "slots" else ("payloads",)
            best = min(fitted, key=lambda form: [size_to_minimize(form, sample.row_bytes, of) for of in sizes])
        return cls(picked.dtype, tuple(picked.shape[1:]), best)

    @property
    def kind(self) -> str:
        """Name of the codec: "dict", "ibp" or one that was added."""
        return self.form.kind

    @property
    def mask(self) -> np.ndarray:
        """Of "ibp": [words], the invariant bits of each column."""
        return cast(np.ndarray, self._shown("mask"))

    @property
    def bitval(self) -> np.ndarray:
        """Of "ibp": [words], the values of these bits."""
        return cast(np.ndarray, self._shown("bitval"))

    @property
    def threshold(self) -> float:
        """Of "ibp": the share of sampled rows that agree on these bits."""
        return cast(float, self._shown("threshold"))

    @property
    def word_bits(self) -> int:
        """Of "ibp": bits of a word."""
        return cast(int, self._shown("word_bits"))

    @property
    def words_per_chunk(self) -> int:
        """Of "ibp": words that share a participation bit."""
        return cast(int, self._shown("words_per_chunk"))

    def _shown(self, name: str) -> Any:
        """An attribute that the forms of some codecs have."""
        if name in self.form.shown:
            return getattr(self.form, name)
        kinds = " and ".join(repr(kind) for kind, form in FORMS.items() if name in form.shown)
        raise AttributeError(f"only codec {kinds} has this attribute; this is codec {self.kind!r}")

    @property
    def nbytes(self) -> int:
        """Bytes of metadata that decoding needs, whatever the number of rows."""
        return self.form.nbytes

    def check_rows(self, rows: torch.Tensor) -> None:
        """Checks that rows are of this codec's dtype and row_shape.

        Args:
            rows: the tensor to look at.

        Raises:
            ValueError: rows are not [n, *row_shape] of this codec's dtype.
        """
        if tuple(rows.shape[1:]) != self.row_shape or rows.ndim == 0 or rows.dtype != self.dtype:
            wanted = f"[n{''.join(f', {size}' for size in self.row_shape)}] {self.dtype}"
            raise ValueError(f"rows: want {wanted}, got {list(rows.shape)} {rows.dtype}")

    def measure(self, rows: torch.Tensor | np.ndarray) -> torch.Tensor:
        """How long payloads are.

        Args:
            rows: [n, *row_shape] on CPU or CUDA.

        Returns:
            int32 [n] on the same device: each payload's length in bytes, also where it is not shorter than the row.

        Raises:
            TypeError: rows of a type or dtype that is not supported.
            ValueError: rows are not as this codec's.
        """
        tensor = as_tensor(rows)
        self.check_rows(tensor)
        return dispatch.measure(self.form, to_bytes(tensor))

    def compress(self, rows: torch.Tensor | np.ndarray, *, slot_bytes: int | None = None) -> CompressedRows:
        """Compresses rows, on the device where they are.

        Args:
            rows: [n, *row_shape] tensor (CPU or CUDA, any strides) or NumPy array, n >= 0.
            slot_bytes: 4 or more, or at least row_bytes; None means the smallest total of slots and overflow.

        Returns:
            The compressed rows on the rows' device.

        Raises:
            TypeError: rows of a type or dtype that is not supported.
            ValueError: other bad arguments.
        """
        tensor = as_tensor(rows)
        self.check_rows(tensor)
        row_bytes = to_bytes(tensor)
        payload_bytes = dispatch.measure(self.form, row_bytes)
        if slot_bytes is None:
            slot_bytes = best_slot_bytes(payload_histogram(payload_bytes, self.row_bytes), self.row_bytes)
        elif not isinstance(slot_bytes, int):
            raise ValueError(f"slot_bytes: want an int or None, got {slot_bytes!r}")
        overflow_index, num_overflow = assign_overflow(payload_bytes, slot_bytes, self.row_bytes)
        out = CompressedRows.empty(len(row_bytes), self.row_bytes, slot_bytes, num_overflow, tensor.device)
        dispatch.encode(self.form, row_bytes, overflow_index, out)
        return out

    def decompress(
        self, compressed: CompressedRows, ids: torch.Tensor | np.ndarray | None = None, out: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Gives rows back, bit for bit, on the device of `compressed`, on its current stream.

        Args:
            compressed: rows that this codec has compressed, on CPU or CUDA.
            ids: [n] int32/int64, None means all rows in order.
            out: [n, *row_shape] on the device of `compressed`, to write to; None: a new tensor.

        Returns:
            [n, *row_shape] on the device of `compressed`. On CUDA this call waits for it, to be able to raise.

        Raises:
            IndexError: an id is out of range.
            FormatError: a row is damaged.
            ValueError: `compressed` or `out` does not fit.
        """
        if compressed.row_bytes != self.row_bytes:
            raise ValueError(f"compressed rows: want {self.row_bytes} bytes per row, got {compressed.row_bytes}")
        of_rows = range(compressed.num_rows) if ids is None else as_ids(ids).to(compressed.device)
        out = prepare_out(out, (len(of_rows), *self.row_shape), self.dtype, compressed.device)
        if compressed.device.type == "cpu":
            on_cpu = torch.arange(len(of_rows), device="cpu") if isinstance(of_rows, range) else of_rows
            dispatch.decode_on_cpu(self.form, compressed, on_cpu, to_bytes(out))
            return out
        gather = GpuGather(
            self.form, compressed.device, MappedRows.on_device(compressed), lead_bytes=compressed.slot_bytes
        )
        # These rows are on the GPU: they are no misses, and need no order.
        gather.gather(of_rows, out, ordered=False, max_blocks=0)
        gather.check()
        return out

    def report(self, rows: torch.Tensor | np.ndarray) -> CodecReport:
        """What rows cost with this codec: payloads of their own length, raw rows where a payload would not be shorter,
        one bitmask bit per row, mask and bitval.

        Args:
            rows: [n, *row_shape], n >= 1.

        Returns:
            The report.

        Raises:
            TypeError: rows of a type or dtype that is not supported.
            ValueError: rows are not as this codec's, or none.
        """
        tensor = as_tensor(rows)
        lengths = self.measure(tensor)
        if len(lengths) == 0:
            raise ValueError("rows: want at least 1 row to report on, got 0")
        stored = lengths.clamp(max=self.row_bytes).to(torch.int64)
        payload, raw = int(stored.sum()), len(stored) * self.row_bytes
        metadata = _native.cpu.bitmask_bytes(len(stored)) + self.nbytes
        cuts = (0, 0.05, 0.5, 0.95, 1)
        ordered = torch.sort(stored).values
        histogram = payload_histogram(lengths, self.row_bytes)
        slot_bytes = best_slot_bytes(histogram, self.row_bytes)
        num_overflow = count_overflow(histogram, slot_bytes)
        slots = compact_bytes(histogram, slot_bytes, self.row_bytes) + 2 * _native.cpu.SLACK_BYTES
        compact = slots + metadata
        percentiles = {f"p{round(100 * cut)}": int(ordered[round(cut * (len(ordered) - 1))]) for cut in cuts}
        return CodecReport(
            codec=self.kind,
            num_rows=len(stored),
            raw_bytes=raw,
            payload_bytes=payload,
            metadata_bytes=metadata,
            bits_per_value=8 * (payload + metadata) / (len(stored) * num_values(self.row_shape)),
            savings=1 - (payload + metadata) / raw,
            compressed_share=float((lengths < self.row_bytes).double().mean()),
            payload_percentiles=percentiles,
            compact_slot_bytes=slot_bytes,
            compact_bytes=compact,
            compact_savings=1 - compact / raw,
            overflow_share=num_overflow / len(stored),
            escape_share=self.form.escape_share(tensor),
        )


def sample_rows(rows: Any, max_rows: int | None = None, seed: int = 0) -> torch.Tensor:
    """The rows that `Codec.fit` looks at: at most max_rows, in their order, so that a memmap is read forwards."""
    if not isinstance(rows, (np.ndarray, torch.Tensor)):
        as_tensor(rows)  # raises
    check_row_shape(tuple(rows.shape))
    if len(rows) == 0:
        raise ValueError(f"rows: want at least 1 row to fit a codec, got shape {list(rows.shape)}")
    if max_rows is None:
        row_bytes = num_values(tuple(rows.shape[1:])) * rows.dtype.itemsize
        max_rows = min(16384, max(1024, (32 << 20) // row_bytes))
    if len(rows) <= max_rows:
        return as_tensor(rows)
    picked = np.sort(np.random.default_rng(seed).choice(len(rows), max_rows, replace=False))
    if isinstance(rows, torch.Tensor):
        return as_tensor(rows.detach()[torch.from_numpy(picked).to(rows.device)])
    # In parts: the pages around each row would add up to most of a memory-mapped file.
    parts, release = [], page_releaser(rows)
    for part in np.array_split(picked, 16):
        parts.append(rows[part])
        release(None)
    return as_tensor(np.concatenate(parts))

"""Codec "ibp", the paper's: a form of invariant bits, and how it is fitted: which bits to call invariant, and how many
words share a participation bit.

The paper counts, per column and bit, how many sampled rows have it set, calls a bit invariant if one value covers
a share T of the rows, and keeps the T that saves the most, participation bits paid. So do we, over a wider range of
T, and over the chunk length too.
"""

from __future__ import annotations

import dataclasses
import numbers
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
import torch

from . import dispatch
from .forms import Form, Sample, own, short

# 0.70 to 0.95 are the paper's; lower ones often win on dense floats, 1 on small integers.
THRESHOLDS = tuple(round(0.5 + 0.05 * step, 2) for step in range(10)) + (0.99, 1.0)
_MAX_FITTED_CHUNK_BITS = 4096
_MAX_CHUNK_BITS = 1 << 30


@dataclasses.dataclass(frozen=True, eq=False)
class IbpForm(Form):
    """Codec "ibp" (csrc/core/format.h). mask_bytes, bitval_bytes: uint8 [row_bytes]."""

    mask_bytes: np.ndarray
    bitval_bytes: np.ndarray
    word_bits: int
    words_per_chunk: int
    threshold: float

    kind: ClassVar[str] = "ibp"
    fit_options: ClassVar[tuple[str, ...]] = ("word_bits", "words_per_chunk", "threshold")
    shown: ClassVar[tuple[str, ...]] = ("mask", "bitval", "threshold", "word_bits", "words_per_chunk")
    most_table_bytes_per_row_byte: ClassVar[int] = 2
    miss_blocks: ClassVar[int] = 64  # where a chunk starts depends on those before it

    def __post_init__(self) -> None:
        for name in ("mask_bytes", "bitval_bytes"):
            object.__setattr__(self, name, own(getattr(self, name), np.uint8))
        check_chunk(self.word_bits, self.words_per_chunk)
        threshold = self.threshold
        if isinstance(threshold, bool) or not isinstance(threshold, numbers.Real) or not 0 <= threshold <= 1:
            raise ValueError(f"threshold: want a number from 0 to 1, got {short(threshold)}")
        object.__setattr__(self, "threshold", float(threshold))
        _ = self.native  # refuses a bitval that does not go with its mask

    @classmethod
    def check_fit_options(cls, options: Mapping[str, Any]) -> None:
        word_bits, words_per_chunk = options.get("word_bits"), options.get("words_per_chunk")
        threshold = options.get("threshold")
        if word_bits is not None:
            check_chunk(word_bits, 1)
        if words_per_chunk is not None:
            check_chunk(word_bits or 8, words_per_chunk)
        if threshold is not None and not 0.5 <= threshold <= 1:
            raise ValueError(f"threshold: want 0.5 to 1, got {threshold!r}")

    @classmethod
    def fit(cls, sample: Sample, options: Mapping[str, Any]) -> IbpForm:
        value_bits = 8 * sample.rows.dtype.itemsize
        return fit_invariant_bits(sample.row_bytes, value_bits, *(options.get(name) for name in cls.fit_options))

    @property
    def mask(self) -> np.ndarray:
        return self.as_words(self.mask_bytes)

    @property
    def bitval(self) -> np.ndarray:
        return self.as_words(self.bitval_bytes)

    @property
    def row_bytes(self) -> int:  # type: ignore[override]
        return len(self.mask_bytes)

    @property
    def chunk_bits(self) -> int:
        return self.word_bits * self.words_per_chunk

    def native_parameters(self) -> dict[str, Any]:
        return {"mask": self.mask_bytes, "bitval": self.bitval_bytes, "chunk_bits": int(self.chunk_bits)}

    @property
    def nbytes(self) -> int:
        return self.mask_bytes.nbytes + self.bitval_bytes.nbytes

    def as_words(self, row: np.ndarray) -> np.ndarray:
        """uint8 [row_bytes] as unsigned words of word_bits bits, the last one padded with 0."""
        word_bytes = self.word_bits // 8
        padded = np.zeros(-(-self.row_bytes // word_bytes) * word_bytes, np.uint8)
        padded[: self.row_bytes] = row
        return padded.view(f"<u{word_bytes}")


def invariant_bits(ones: np.ndarray, num_rows: int, threshold: float) -> tuple[np.ndarray, np.ndarray]:
    """ones: int64 [8 * row_bytes], rows that have the bit set. Returns mask and bitval, uint8 [row_bytes] each. A
    bit that is set in exactly half of the rows counts as 0."""
    set_in_most = 2 * ones > num_rows
    agreeing = np.where(set_in_most, ones, num_rows - ones)
    mask = agreeing >= threshold * num_rows
    return np.packbits(mask, bitorder="little"), np.packbits(mask & set_in_most, bitorder="little")


def fit_invariant_bits(
    rows: torch.Tensor,
    value_bits: int,
    word_bits: int | None,
    words_per_chunk: int | None,
    threshold: float | None,
) -> IbpForm:
    """rows: uint8 [n, row_bytes], n >= 1, on CPU or CUDA. value_bits: bits of one value. The other arguments as in
    Codec.fit. Counting and measuring run where the rows are; ties go to the first candidate, so that every backend
    chooses the same codec."""
    num_rows, row_bytes = rows.shape
    ones = dispatch.count_ones(rows).cpu().numpy()
    best: tuple[int, IbpForm] | None = None
    seen = set()
    for candidate_threshold in THRESHOLDS if threshold is None else (threshold,):
        mask, bitval = invariant_bits(ones, num_rows, candidate_threshold)
        if (key := mask.tobytes() + bitval.tobytes()) in seen:
            continue
        seen.add(key)
        for chunk in _chunk_candidates(8 * row_bytes, value_bits, word_bits, words_per_chunk):
            form = IbpForm(mask, bitval, *chunk, candidate_threshold)
            size = dispatch.stored_bytes(form, rows)
            if best is None or size < best[0]:
                best = size, form
    if best is None:  # there is at least one threshold and one chunk
        raise RuntimeError("fit: no candidate")
    return best[1]


def _chunk_candidates(
    row_bits: int, value_bits: int, word_bits: int | None, words_per_chunk: int | None
) -> list[tuple[int, int]]:
    """(word_bits, words_per_chunk) pairs. The payload depends on their product only, so with word_bits left open
    one pair per product is enough; it names the values' own words where it can."""
    if word_bits is not None and words_per_chunk is not None:
        return [(word_bits, words_per_chunk)]
    if words_per_chunk is not None:
        return [(bits, words_per_chunk) for bits in (8, 16, 32, 64)]
    pairs, chunk_bits = [], word_bits or 8
    while True:
        bits = word_bits or min(value_bits, chunk_bits)
        pairs.append((bits, chunk_bits // bits))
        if chunk_bits >= min(row_bits, _MAX_FITTED_CHUNK_BITS):
            return pairs
        chunk_bits *= 2


def check_chunk(word_bits: int, words_per_chunk: int) -> None:
    """Raises ValueError unless they describe a chunk."""
    if word_bits not in (8, 16, 32, 64):
        raise ValueError(f"word_bits: want one of [8, 16, 32, 64], got {short(word_bits)}")
    is_int = isinstance(words_per_chunk, int) and not isinstance(words_per_chunk, bool)
    if not is_int or words_per_chunk < 1 or words_per_chunk & (words_per_chunk - 1):
        raise ValueError(f"words_per_chunk: want a power of two, got {short(words_per_chunk)}")
    if word_bits * words_per_chunk > _MAX_CHUNK_BITS:
        raise ValueError(f"words_per_chunk: want at most {_MAX_CHUNK_BITS // word_bits}, got {short(words_per_chunk)}")

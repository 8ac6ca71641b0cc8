"""Fitting codec "ibp": which bits to call invariant, and how many words share a participation bit.

The paper counts, per column and bit, how many sampled rows have it set, calls a bit invariant if one value covers
a share T of the rows, and keeps the T that saves the most, participation bits paid. So do we, over a wider range of
T, and over the chunk length too.
"""

from __future__ import annotations

import numpy as np
import torch

from . import dispatch
from .forms import IbpForm

# 0.70 to 0.95 are the paper's; lower ones often win on dense floats, 1 on small integers.
THRESHOLDS = tuple(round(0.5 + 0.05 * step, 2) for step in range(10)) + (0.99, 1.0)
_MAX_CHUNK_BITS = 4096


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
        if chunk_bits >= min(row_bits, _MAX_CHUNK_BITS):
            return pairs
        chunk_bits *= 2

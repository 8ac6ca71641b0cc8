"""Pooled bags in NumPy, one value after the other, written from the statement of their order in csrc/core/pooling.h."""

from __future__ import annotations

import numpy as np
import torch

PIECE_IDS = 128
NANS = {torch.float32: 0x7FC00000, torch.float16: 0x7E00, torch.bfloat16: 0x7FC0}


def pool(
    rows: torch.Tensor,
    ids: torch.Tensor,
    offsets: torch.Tensor,
    *,
    mode: str,
    padding_id: int = -1,
    weights: torch.Tensor | None = None,
) -> torch.Tensor:
    """rows: [num_rows, width] float32, float16 or bfloat16; ids: [n]; offsets: [num_bags + 1]; weights: [n] of the
    rows' dtype or float32; all on the CPU. Returns [num_bags, width] of the rows' dtype."""
    values = rows.to(torch.float32).numpy()
    of_ids = None if weights is None else weights.to(torch.float32).numpy()
    pooled = np.zeros((len(offsets) - 1, rows.shape[1]), dtype=np.float32)
    with np.errstate(all="ignore"):
        for bag, (start, end) in enumerate(zip(offsets[:-1].tolist(), offsets[1:].tolist(), strict=True)):
            pieces = []
            for first, last in _pieces(start, end):
                kept = [position for position in range(first, last) if int(ids[position]) != padding_id]
                own = [values[int(ids[position])] for position in kept]
                if of_ids is not None:
                    own = [of_ids[position] * row for position, row in zip(kept, own, strict=True)]
                if own:
                    pieces.append((_pool(own, mode), len(own)))
            if pieces:
                pooled[bag] = _pool([piece for piece, _ in pieces], mode)
                if mode == "mean":
                    pooled[bag] = pooled[bag] / np.float32(sum(count for _, count in pieces))
    result = torch.from_numpy(pooled).to(rows.dtype)
    bits = result.view(torch.int32 if rows.dtype == torch.float32 else torch.int16)
    bits[torch.isnan(result)] = NANS[rows.dtype]
    return result


def _pieces(start: int, end: int) -> list[tuple[int, int]]:
    count = max(1, (end - start) // PIECE_IDS)
    return [(start + k * PIECE_IDS, end if k + 1 == count else start + (k + 1) * PIECE_IDS) for k in range(count)]


def _pool(rows: list[np.ndarray], mode: str) -> np.ndarray:
    if mode == "max":
        greatest = rows[0].copy()
        for row in rows[1:]:
            replaced = (row > greatest) | np.isnan(row) & ~np.isnan(greatest)
            greatest[replaced] = row[replaced]
        return greatest
    total = np.zeros_like(rows[0])
    for row in rows:
        total = total + row
    return total

"""The order that rows lie in: hottest first, so that the rows read most often are a prefix of the slots."""

from __future__ import annotations

from typing import Any

import torch

from ..codec.values import as_ids

MAX_ORDERED_ROWS = 2**31 - 1  # the table of slots is int32


def hottest_first(scores: Any, num_rows: int) -> torch.Tensor:
    """scores: [num_rows] numbers, tensor or NumPy array. Returns int64 [num_rows] on the CPU: the ids from the highest
    score to the lowest, ties by id. Raises ValueError for another shape and for NaN."""
    scores = torch.as_tensor(scores, device="cpu").detach()
    if tuple(scores.shape) != (num_rows,):
        raise ValueError(f"hotness: want shape [{num_rows}], got {list(scores.shape)}")
    if scores.is_floating_point() and bool(torch.isnan(scores).any()):
        raise ValueError("hotness: want numbers, got NaN")
    return torch.argsort(scores, descending=True, stable=True)


def slots_of(order: Any, num_rows: int) -> torch.Tensor | None:
    """order: int32/int64 [num_rows], a permutation: the row of node order[s] lies in slot s. Returns its inverse, int32
    [num_rows] on the CPU, the slot of each node; None where each node i is in slot i. Raises TypeError and ValueError
    for anything but a permutation."""
    ids = as_ids(order, "order").cpu()
    if len(ids) != num_rows or num_rows > MAX_ORDERED_ROWS:
        wanted = f"[{num_rows}]" if num_rows <= MAX_ORDERED_ROWS else f"at most {MAX_ORDERED_ROWS} rows"
        raise ValueError(f"order: want {wanted}, got shape [{len(ids)}]")
    outside = torch.nonzero((ids < 0) | (ids >= num_rows))
    if len(outside):
        position = int(outside[0])
        raise ValueError(f"order: want 0 <= id < {num_rows}, got {int(ids[position])} at position {position}")
    slots = torch.full((num_rows,), -1, dtype=torch.int32, device="cpu")
    numbers = torch.arange(num_rows, dtype=torch.int32, device="cpu")
    slots[ids.to(torch.int64)] = numbers
    missing = torch.nonzero(slots < 0)
    if len(missing):
        raise ValueError(f"order: want every id once, got no {int(missing[0])}, and others repeatedly")
    return None if torch.equal(slots, numbers) else slots

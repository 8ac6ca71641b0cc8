"""Which rows an index such as x[ids, 2] needs, so that no others are decoded."""

from __future__ import annotations

import operator
from typing import Any

import numpy as np
import torch


def split_index(key: Any, num_rows: int) -> tuple[torch.Tensor, tuple[Any, ...]] | None:
    """Split an index of a tensor x with num_rows rows into a choice of rows and an index of the rows chosen.

    key: what torch accepts in x[key]: integers, slices, lists, int32/int64 tensors, masks, NumPy arrays, tuples.
    Returns (ids, local) with ids int64 in [0, num_rows), such that x[key] equals x[ids][local]. Where x[ids] is the
    answer, local is () and ids may have any number of dimensions; else ids are [k].

    Returns None where all rows are needed, or where it takes torch to tell (a mask of several dimensions, x[None],
    x[...]).

    Raises IndexError for a row that is not there, a mask of another length and ids of another dtype, ValueError for a
    slice that runs backwards; torch refuses those, too.
    """
    in_tuple = isinstance(key, tuple)
    if in_tuple and not key:
        return None
    first, rest = (key[0], key[1:]) if in_tuple else (key, ())
    if isinstance(first, slice):
        return _split_slice(first, rest, num_rows)
    if _is_integer(first):
        row = operator.index(first)
        if not -num_rows <= row < num_rows:
            raise IndexError(f"index: want a row in [{-num_rows}, {num_rows}), got {row}")
        return torch.tensor([row % num_rows], device="cpu"), (0, *rest)
    ids = _as_ids(first, nested=in_tuple)
    return None if ids is None else _split_ids(ids, rest, num_rows)


def _split_slice(rows: slice, rest: tuple[Any, ...], num_rows: int) -> tuple[torch.Tensor, tuple[Any, ...]] | None:
    start, stop, step = rows.indices(num_rows)
    if step < 0:
        raise ValueError(f"slice: want a step above 0, got {step}")
    if (start, step) == (0, 1) and stop == num_rows:
        return None
    return torch.arange(start, max(start, stop), step, device="cpu"), (slice(None), *rest) if rest else ()


def _split_ids(ids: torch.Tensor, rest: tuple[Any, ...], num_rows: int) -> tuple[torch.Tensor, tuple[Any, ...]] | None:
    if ids.dtype in (torch.bool, torch.uint8):  # torch takes uint8 for a mask, too
        if ids.ndim != 1:
            return None
        if len(ids) != num_rows:
            raise IndexError(f"mask: want [{num_rows}], got {list(ids.shape)}")
        ids = ids.nonzero()[:, 0]
    elif ids.dtype not in (torch.int32, torch.int64):
        raise IndexError(f"index: want int32, int64 or a mask, got {ids.dtype}")
    ids = ids.long()
    if ids.numel():
        low, high = int(ids.min()), int(ids.max())
        if low < -num_rows or high >= num_rows:
            bad = low if low < -num_rows else high
            raise IndexError(f"index: want rows in [{-num_rows}, {num_rows}), got {bad}")
        if low < 0:
            ids = torch.where(ids < 0, ids + num_rows, ids)
    if not rest:
        return ids, ()
    # Row i of those chosen stands at the place of the i-th id, whatever the rest of the index makes of it.
    return ids.reshape(-1), (torch.arange(ids.numel(), device="cpu").view(ids.shape), *rest)


def _is_integer(value: Any) -> bool:
    if isinstance(value, (torch.Tensor, np.ndarray)):
        whole = not value.dtype.is_floating_point if isinstance(value, torch.Tensor) else value.dtype.kind in "iu"
        return value.ndim == 0 and whole and value.dtype != torch.bool
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool)


def _as_ids(value: Any, nested: bool) -> torch.Tensor | None:
    """An index of several rows as a tensor; None for what is no such thing.

    nested: whether lists of lists will do. By itself, one is a tuple to some versions of torch and ids to others."""
    if isinstance(value, torch.Tensor):
        return value
    if not isinstance(value, (list, tuple, range, np.ndarray)):
        return None
    if len(value) == 0:
        return torch.zeros(0, dtype=torch.int64, device="cpu")
    if not nested and not isinstance(value, np.ndarray) and any(isinstance(part, torch.Tensor) for part in value):
        return None
    try:
        array = np.asarray(value)
        if array.dtype.kind not in "biu" or (array.ndim > 1 and not nested):
            return None
    except ValueError:  # a ragged list
        return None
    # As torch takes them: uint8 is a mask, other integers are ids.
    return torch.tensor(array if array.dtype in (np.bool_, np.uint8) else array.astype(np.int64), device="cpu")

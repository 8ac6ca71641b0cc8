"""split_index finds the rows that an index needs: x[ids][local] is x[key], for every key that torch accepts."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from ibp_gnn.store.row_index import split_index
from ibp_gnn.testing import assert_bitwise_equal

N = 9
X = torch.arange(N * 4 * 5, dtype=torch.float32).reshape(N, 4, 5)
MASK = torch.arange(N) % 3 == 1

# Each index, and how many rows it takes.
KEYS: list[tuple[Any, int]] = [
    (3, 1),
    (-9, 1),
    (np.int32(4), 1),
    (np.array(4), 1),
    (torch.tensor(5), 1),
    (torch.tensor(-1, dtype=torch.int32), 1),
    (slice(2, 5), 3),
    (slice(None, -4, 2), 3),
    (slice(7, 3), 0),
    (slice(5, 99), 4),
    (slice(torch.tensor(1), torch.tensor(3)), 2),
    (slice(1, None), 8),
    ([1, 5, 1], 3),
    ([-1, 0], 2),
    ([], 0),
    ([True] + [False] * 8, 1),
    (range(2, 4), 2),
    (torch.tensor([8, 0, -2]), 3),
    (torch.tensor([8, 0], dtype=torch.int32), 2),
    (torch.tensor([[1, 2], [3, -4]]), 4),
    (torch.zeros(0, dtype=torch.int64), 0),
    (torch.zeros(2, 0, dtype=torch.int64), 0),
    (MASK, 3),
    (np.array([2, 7]), 2),
    (np.array([2, -7], dtype=np.int32), 2),
    (np.array([2, 7], dtype=np.int16), 2),
    (MASK.numpy(), 3),
    (MASK.byte(), 3),
    (MASK.byte().numpy(), 3),
    ((2, 1), 1),
    ((2, slice(1, 3), 0), 1),
    ((2, torch.tensor([0, 3])), 1),
    ((2, slice(None), torch.tensor([0, 3])), 1),
    ((2, ..., 0), 1),
    ((slice(2, 4), 1), 2),
    ((slice(2, 4), [0, 1], [2, 3]), 2),
    ((slice(2, 4), None, ..., 0), 2),
    (([1, 5], 2), 2),
    (([1, 5], slice(None), [0, 1]), 2),
    (([1, 5], [0, 3]), 2),
    (([[1], [5]], [0, 3]), 2),
    ((torch.tensor([1, 5, 1]), slice(1, 3)), 3),
    ((torch.tensor([1, 5, 1]), slice(None), 4), 3),
    ((MASK, 0), 3),
    ((MASK, [0, 1, 2]), 3),
    ((np.array([2, 7]), np.array([1, 0])), 2),
    ((torch.tensor([1]), None, 2), 1),
    (([1, 2],), 2),
    ((slice(3),), 3),
]


@pytest.mark.filterwarnings("ignore:indexing with dtype torch.uint8")
@pytest.mark.parametrize(("key", "num_rows"), KEYS, ids=lambda value: repr(value)[:40])
def test_rows_that_an_index_needs(key: Any, num_rows: int) -> None:
    split = split_index(key, N)
    assert split is not None
    ids, local = split
    assert ids.dtype == torch.int64 and ids.numel() == num_rows and (ids.ndim == 1 or not local)
    rows = X[ids]
    assert_bitwise_equal(rows[local] if local else rows, X[list(key) if isinstance(key, range) else key])


@pytest.mark.parametrize(
    "key", [3, slice(2, 5), [1, 2], [], np.array([True] * N), (slice(2), 1), ([1, 2], 0)], ids=repr
)
def test_torchs_default_device_does_not_matter(key: Any) -> None:
    with torch.device("meta"):
        split = split_index(key, N)
    assert split is not None
    for part in (split[0], *split[1]):
        assert not isinstance(part, torch.Tensor) or part.device.type == "cpu"


@pytest.mark.parametrize(
    "key",
    [slice(None), slice(0, 99), ..., None, True, (), (..., 0), (None, 1), X > 3, (slice(None), 1)]
    + [[[0, 1], [2, 3]], [slice(1), 2], [0.5], [torch.tensor(1), torch.tensor(2)], np.array([[0, 1], [2, 3]]), "a"],
    ids=lambda value: repr(value)[:40],
)
def test_an_index_that_needs_all_rows(key: Any) -> None:
    assert split_index(key, N) is None


@pytest.mark.parametrize(
    ("key", "error", "message"),
    [
        (9, IndexError, r"want a row in \[-9, 9\), got 9"),
        ((-10, 0), IndexError, "got -10"),
        ([0, 9], IndexError, r"want rows in \[-9, 9\), got 9"),
        (torch.tensor([0, -10]), IndexError, "got -10"),
        (torch.ones(8, dtype=torch.bool), IndexError, r"mask: want \[9\], got \[8\]"),
        (torch.tensor([0], dtype=torch.int16), IndexError, "got torch.int16"),
        (torch.tensor([0.0]), IndexError, "want int32, int64 or a mask, got torch.float32"),
        (slice(None, None, -1), ValueError, "want a step above 0, got -1"),
    ],
)
def test_what_torch_refuses_is_refused(key: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        split_index(key, N)
    with pytest.raises((IndexError, ValueError)):
        X[key]

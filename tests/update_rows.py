"""Rows for stores that are updated: such that fit their slots, and such that need overflow rows."""

from __future__ import annotations

import torch

from ibp_gnn.testing import special_rows

ROWS, WIDTH = 300, 33
ALL = torch.arange(ROWS)


def fitting(n: int = ROWS, width: int = WIDTH, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Rows that a codec fitted on them makes small, whatever n."""
    rows = special_rows(dtype, width, "outliers", 2000)
    return rows[torch.arange(2000) % 8 != 5][:n].clone()


def raw(n: int = ROWS, width: int = WIDTH, seed: int = 1, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Rows that no codec makes smaller: each update with them needs overflow rows."""
    return special_rows(dtype, width, "random_bits", n, seed)

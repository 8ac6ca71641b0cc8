"""Tables and bags for tests of pooling."""

from __future__ import annotations

from typing import NamedTuple

import torch

from ibp_gnn.testing.bits import KINDS, special_rows

DTYPES = (torch.float32, torch.float16, torch.bfloat16)
MODES = ("sum", "mean", "max")


class Case(NamedTuple):
    ids: torch.Tensor
    offsets: torch.Tensor
    weights: torch.Tensor | None

    def bounds(self) -> torch.Tensor:
        return torch.cat([self.offsets.to(torch.int64), torch.tensor([len(self.ids)])])


def table(dtype: torch.dtype, width: int, num_rows: int = 2000, seed: int = 0, hostile: bool = True) -> torch.Tensor:
    """[num_rows, width], like trained embeddings; hostile: a row in twenty is hard to compress, so that some overflow
    and some have escapes and plain symbols, and some are NaN or infinite."""
    generator = torch.Generator().manual_seed(seed)
    rows = (torch.randn(num_rows, width, generator=generator) * 0.1).to(dtype)
    if hostile:
        for number, kind in enumerate(KINDS):
            at = torch.arange(num_rows)[5 * number :: 20 * len(KINDS)]
            rows[at] = special_rows(dtype, width, kind, len(at), seed)
    return rows


def bags(
    num_rows: int,
    num_bags: int,
    seed: int = 0,
    *,
    longest: int = 12,
    long_bags: int = 0,
    dtype: torch.dtype = torch.int64,
    weights: torch.dtype | None = None,
) -> Case:
    """Bags of 0 to `longest` ids, the hottest ids over and over; `long_bags` of them have 250 to 1500."""
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(0, longest + 1, (num_bags,), generator=generator)
    at = torch.randperm(num_bags, generator=generator)[:long_bags]
    lengths[at] = torch.randint(250, 1500, (len(at),), generator=generator)
    n = int(lengths.sum())
    uniform = torch.rand(n, generator=generator)
    ids = (num_rows * uniform**3).long().clamp(max=num_rows - 1)
    ids = torch.randperm(num_rows, generator=generator)[ids].to(dtype)
    offsets = (torch.cumsum(lengths, 0) - lengths).to(dtype)
    of_ids = None if weights is None else torch.randn(n, generator=generator).to(weights)
    return Case(ids, offsets, of_ids)

"""Rows for the adapters to GraphBolt and PyG."""

from __future__ import annotations

import torch

DTYPES = [torch.bfloat16, torch.int8, torch.float16, torch.float32, torch.int64, torch.bool]
ROW_SHAPES = [(), (1,), (3, 4)]


def rows_of(dtype: torch.dtype, *shape: int, seed: int = 0) -> torch.Tensor:
    """Rows that compress, and some values that do not."""
    generator = torch.Generator().manual_seed(seed)
    if dtype == torch.bool:
        return torch.rand(shape, generator=generator) < 0.1
    rows = torch.rand(shape, generator=generator) * 16 + 16  # one exponent
    rows[torch.rand(shape[0], generator=generator) < 0.05] *= -0.01
    return rows.to(dtype)

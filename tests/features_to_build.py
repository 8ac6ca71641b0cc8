"""Features of which stores are built, and that somebody writes to meanwhile."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from ibp_gnn import Codec
from ibp_gnn.testing import special_rows

NUM_ROWS, WIDTH = 1000, 33


def some_rows() -> torch.Tensor:
    """Those whose number is a multiple of 9 overflow, and no others."""
    rows = torch.randn(NUM_ROWS, WIDTH, generator=torch.Generator().manual_seed(3)).bfloat16().float()
    rows[::9] = special_rows(torch.float32, WIDTH, "random_bits", len(rows[::9]), seed=4)
    return rows


def mapped(rows: torch.Tensor, folder: Path) -> np.memmap:
    """A file that is being written."""
    features = np.memmap(folder / "x.bin", np.float32, "w+", shape=tuple(rows.shape))
    features[:] = rows.numpy()
    return features


def an_order() -> torch.Tensor:
    return torch.randperm(NUM_ROWS, generator=torch.Generator().manual_seed(7))


def a_codec(rows: torch.Tensor) -> Codec:
    return Codec.fit(rows, codec="ibp")

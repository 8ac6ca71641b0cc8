"""Features, and files of them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch


def save_safetensors(path: Path, **tensors: torch.Tensor) -> Path:
    pytest.importorskip("safetensors.torch").save_file(tensors, path)
    return path


@pytest.fixture
def rows() -> torch.Tensor:
    return torch.randn(400, 24, generator=torch.Generator().manual_seed(0)) * 0.1


@pytest.fixture
def npy(rows: torch.Tensor, tmp_path: Path) -> Path:
    np.save(tmp_path / "feat.npy", rows.numpy())
    return tmp_path / "feat.npy"

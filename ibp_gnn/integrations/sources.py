"""What the adapters to GraphBolt and PyG share: features of any kind as RowSources."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from ibp_gnn.feature_store import CompressedFeatureStore
from ibp_gnn.row_source import RowSource
from ibp_gnn.rows import SUPPORTED_DTYPES


def is_source(value: Any) -> bool:
    """Whether `value` is a RowSource. A tensor, which has a method of that name, is none, nor is a class."""
    if isinstance(value, (torch.Tensor, type)) or not isinstance(value, RowSource):
        return False
    return isinstance(value.dtype, torch.dtype) and len(value.shape) > 0


def is_array(value: Any) -> bool:
    """Whether `value` holds rows that `compress` may take."""
    return isinstance(value, (torch.Tensor, np.ndarray))


class TensorRows:
    """A RowSource over a tensor, for what is not compressed."""

    def __init__(self, tensor: torch.Tensor) -> None:
        """tensor: [n, *row_shape]; referenced."""
        self.tensor = tensor

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.tensor.shape)

    @property
    def dtype(self) -> torch.dtype:
        return self.tensor.dtype

    def gather(
        self, ids: torch.Tensor, *, device: torch.device | str | None = None, out: torch.Tensor | None = None
    ) -> torch.Tensor:
        """As RowSource.gather."""
        rows = self.tensor.index_select(0, ids.to(self.tensor.device)).to(ids.device if device is None else device)
        return rows if out is None else out.copy_(rows)

    def __repr__(self) -> str:
        return f"TensorRows({list(self.shape)} {self.dtype})"


def can_compress(rows: torch.Tensor | np.ndarray) -> bool:
    """Whether a store can be built of `rows`: at least one row of at least one value, and a known dtype."""
    if isinstance(rows, torch.Tensor) and (rows.dtype not in SUPPORTED_DTYPES or rows.layout != torch.strided):
        return False
    return rows.ndim > 0 and 0 not in rows.shape


def compress(rows: torch.Tensor | np.ndarray, name: str, **build: Any) -> CompressedFeatureStore:
    """A store of `rows`: [n, *row_shape]. name: what to call them in errors. build: arguments of
    `CompressedFeatureStore.build`, whose TypeError and ValueError get the name in front."""
    try:
        return CompressedFeatureStore.build(rows, **build)
    except (TypeError, ValueError) as error:
        raise type(error)(f"{name}: {error}") from error

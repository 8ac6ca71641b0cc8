"""The one contract every consumer of features relies on: rows by id."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

import torch


@runtime_checkable
class RowSource(Protocol):
    """Anything that returns feature rows by id: a store, a GPU cache in front of it, or your own class."""

    @property
    def shape(self) -> tuple[int, ...]:
        """(num_rows, *row_shape)."""

    @property
    def dtype(self) -> torch.dtype:
        """dtype of the rows that `gather` returns."""

    def gather(
        self,
        ids: torch.Tensor,
        *,
        device: torch.device | str | None = None,
        out: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """ids: [n] int32/int64 on any device, repeats and n == 0 allowed.

        Returns [n, *row_shape] on `device` (default: the device of `ids`). Raises IndexError for an id outside
        [0, num_rows).
        """

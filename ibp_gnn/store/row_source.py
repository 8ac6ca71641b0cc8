"""The one contract every consumer of features relies on: rows by id."""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable

import torch


@runtime_checkable
class RowSource(Protocol):
    """Anything that returns feature rows by id: a store, a GPU cache in front of it, or your own class.

    Example:
        >>> isinstance(store, ibp_gnn.RowSource)
        True
        >>> store.gather(torch.tensor([7, 7])).shape
        torch.Size([2, 16])
    """

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
        """The rows of these ids.

        Args:
            ids: [n] int32/int64 on any device, repeats and n == 0 allowed.
            device: where to put the rows. Default: the device of `ids`.
            out: where to write them; None: a new tensor.

        Returns:
            [n, *row_shape] on `device`.

        Raises:
            IndexError: an id is outside [0, num_rows).
        """


def is_row_source(value: Any) -> bool:
    """Whether `value` is a RowSource of at least a dimension. A tensor is none, though it has a method named gather,
    nor is a class, which has the attributes of its objects."""
    if isinstance(value, (torch.Tensor, type)) or not isinstance(value, RowSource):
        return False
    return isinstance(value.dtype, torch.dtype) and len(value.shape) > 0

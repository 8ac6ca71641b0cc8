"""A RowSource over a tensor, for what is not compressed."""

from __future__ import annotations

import torch

from ..codec.values import as_ids, check_ids_on_cpu


class TensorSource:
    """Rows are picked where the tensor is, then copied."""

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
        picked = self._pick(ids.to(self.tensor.device))
        rows = self._copy(picked, ids.device if device is None else torch.device(device))
        return rows if out is None else out.copy_(rows)

    def _pick(self, ids: torch.Tensor) -> torch.Tensor:
        check_ids_on_cpu(ids, len(self.tensor))  # torch has another error where there are no rows
        return self.tensor.index_select(0, ids)

    def _copy(self, rows: torch.Tensor, device: torch.device) -> torch.Tensor:
        return rows.to(device)

    def updated(self, ids: torch.Tensor, rows: torch.Tensor) -> TensorSource:
        """A copy with other rows for these ids; the tensor here stays as it is. Takes and raises what
        `CompressedFeatureStore.update` does, but for arrays."""
        ids = as_ids(ids).to("cpu", torch.int64)
        want = (len(ids), *self.shape[1:])
        if tuple(rows.shape) != want or rows.dtype != self.dtype:
            raise ValueError(f"rows: want {list(want)} {self.dtype}, got {list(rows.shape)} {rows.dtype}")
        check_ids_on_cpu(ids, len(self.tensor))
        if len(torch.unique(ids)) != len(ids):
            raise ValueError(f"ids: want distinct ids, got {len(ids) - len(torch.unique(ids))} repeats")
        device = self.tensor.device
        return TensorSource(self.tensor.detach().clone().index_copy_(0, ids.to(device), rows.detach().to(device)))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({list(self.shape)} {self.dtype})"

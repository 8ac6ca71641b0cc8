"""Row sources for the tests of the integrations: exact, and counting what is read from them."""

from __future__ import annotations

import pickle
import threading

import torch

from ibp_gnn.store.row_source import RowSource


class TensorSource:
    """The simplest RowSource: the rows of a tensor."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.tensor.shape)

    @property
    def dtype(self) -> torch.dtype:
        return self.tensor.dtype

    def gather(
        self,
        ids: torch.Tensor,
        *,
        device: torch.device | str | None = None,
        out: torch.Tensor | None = None,
    ) -> torch.Tensor:
        rows = self.tensor.index_select(0, ids.to(self.tensor.device))  # IndexError on the CPU, as promised
        rows = rows.to(ids.device if device is None else device)
        return rows if out is None else out.copy_(rows)


class CountingSource:
    """Any RowSource; counts the fetches and the rows of this process, and refuses to be pickled on demand."""

    def __init__(self, inner: RowSource, *, picklable: bool = True) -> None:
        self.inner = inner
        self.picklable = picklable
        self.fetches: list[int] = []  # rows of each gather
        self.id_dtypes: set[torch.dtype] = set()
        self._lock = threading.Lock()

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.inner.shape)

    @property
    def dtype(self) -> torch.dtype:
        return self.inner.dtype

    @property
    def rows(self) -> int:
        return sum(self.fetches)

    def gather(
        self,
        ids: torch.Tensor,
        *,
        device: torch.device | str | None = None,
        out: torch.Tensor | None = None,
    ) -> torch.Tensor:
        with self._lock:
            self.fetches.append(len(ids))
            self.id_dtypes.add(ids.dtype)
        if device is not None and torch.device(device).type == "meta":
            return self.inner.gather(ids).to("meta")  # the tests' stand-in for a GPU, unknown to real stores
        return self.inner.gather(ids, device=device, out=out)

    def __getstate__(self) -> dict[str, object]:
        if not self.picklable:
            raise pickle.PicklingError("the rows of this source must not be pickled")
        return {name: value for name, value in vars(self).items() if name != "_lock"}

    def __setstate__(self, state: dict[str, object]) -> None:
        self.__init__(state["inner"])  # type: ignore[misc]

"""What a store or a cache of rows has in common with a tensor: sizes, indices, and what NumPy and torch make of it."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import torch

from .row_index import split_index

INDEX_ADVICE = "; an index, x[ids], takes lists, ranges, masks and numbers, too"


class TensorLike:
    """Rows by index, and the sizes of a tensor, for a RowSource. It is no tensor: torch's functions refuse it with the
    way to one, and NumPy's decode all rows."""

    _INTERNAL: ClassVar[frozenset[str]] = frozenset()  # names that `dir` leaves out

    device: torch.device
    """Where an index puts rows, unless its ids are on a GPU."""

    @property
    def shape(self) -> tuple[int, ...]:
        """(num_rows, *row_shape)."""
        raise NotImplementedError

    @property
    def dtype(self) -> torch.dtype:
        """Of the rows."""
        raise NotImplementedError

    def gather(
        self, ids: torch.Tensor, device: torch.device | str | None = None, *, out: torch.Tensor | None = None
    ) -> torch.Tensor:
        """As RowSource.gather."""
        raise NotImplementedError

    @property
    def ndim(self) -> int:
        """Number of dimensions, that of the rows' numbers included."""
        return len(self.shape)

    def dim(self) -> int:
        """As of a tensor.

        Returns:
            `ndim`.
        """
        return self.ndim

    def size(self, dim: int | None = None) -> Any:
        """As of a tensor.

        Args:
            dim: a dimension, from the end if negative. None: all.

        Returns:
            torch.Size, or the int of that dimension.

        Raises:
            IndexError: there is no such dimension.
        """
        if dim is None:
            return torch.Size(self.shape)
        if not -self.ndim <= dim < self.ndim:
            raise IndexError(f"dim: want one in [{-self.ndim}, {self.ndim}), got {dim}")
        return self.shape[dim]

    def numel(self) -> int:
        """As of a tensor.

        Returns:
            Number of values in all rows.
        """
        return torch.Size(self.shape).numel()

    def __getitem__(self, key: Any) -> torch.Tensor:
        """The rows that the same index takes of a tensor, bit for bit: x[ids], x[3], x[1:5], x[[2, 7]], x[range(9)],
        x[mask], x[ids, 0]. Only these are decoded. They are a new tensor, on the ids' device if that is a GPU, else on
        `device`. Negative numbers count from the end. Ids on a GPU are checked, so the host waits for them; `gather`
        does not wait. Raises IndexError and TypeError."""
        key = _as_tensor(key) if isinstance(key, (list, range)) else key
        split = split_index(key, self.shape[0])
        if split is None:
            self._check_index(key)
            return self._all_rows(self.device)[key]
        ids, local = split
        rows = self.gather(ids.reshape(-1), device=ids.device if ids.is_cuda else self.device)
        return rows[local] if local else rows.view(*ids.shape, *rows.shape[1:])

    def _check_index(self, key: Any) -> None:
        """Raises what torch does, before all rows are decoded in vain."""
        wanted = f"index: want numbers, slices, lists, ranges, masks, int32 or int64 ids, got {key!r:.100}"
        if isinstance(key, (str, bytes)):  # sequences, to torch
            raise TypeError(wanted)
        try:
            _ = torch.empty(1, dtype=torch.bool, device="cpu").expand(self.shape)[key]
        except (IndexError, TypeError) as error:
            raise type(error)(f"{wanted} ({error})") from None

    def __setitem__(self, key: Any, rows: Any) -> None:
        raise TypeError(f"want update(ids, rows) to write rows of a {type(self).__name__}, got an assignment")

    def _all_rows(self, device: torch.device) -> torch.Tensor:
        return self.gather(torch.arange(self.shape[0], device="cpu"), device=device)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        """For np.asarray, np.save and their kind: all rows, decoded."""
        if copy is False:
            raise ValueError("copy: want None or True, since rows are decoded, got False")
        try:
            rows = self._all_rows(torch.device("cpu")).numpy()
        except TypeError:
            raise TypeError(
                f"want a dtype that NumPy has, got {self.dtype}; gather(ids) and an index [ids] give tensors"
            ) from None
        return rows if dtype is None else rows.astype(dtype, copy=False)

    def __dlpack__(self, **options: Any) -> Any:
        """For torch.as_tensor, torch.from_dlpack and their kind: all rows, decoded."""
        return self._all_rows(self.device).__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[Any, int]:
        return torch.empty(0, dtype=self.dtype, device=self.device).__dlpack_device__()

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """torch asks when one of its functions is given a store."""
        raise TypeError(
            f"torch's {getattr(func, '__name__', func)}: want a tensor, got a {cls.__name__}. Rows are decoded by "
            "gather(ids) or an index: [ids], [:] for all. As a graph's feature: ibp_gnn.attach(graph, key, store) in "
            'DGL; in PyG ibp_gnn.pyg.PyGFeatureStore({"x": store}) beside the graph, not data.x = store'
        )

    def __dir__(self) -> list[str]:
        """What is public, without what stores and caches ask of each other."""
        return sorted(
            name
            for name in super().__dir__()
            if name not in self._INTERNAL and (not name.startswith("_") or name.startswith("__"))
        )


def _as_tensor(ids: list[Any] | range) -> torch.Tensor:
    """A list or range of ids, or of truth values, as an index. (torch takes floats in a list, and cuts them off.)"""
    try:
        array = np.asarray(ids, dtype=None if len(ids) else np.int64)
    except ValueError:  # ragged
        array = np.empty(0, object)
    if array.dtype.kind not in "biu":
        raise IndexError(f"index: want a list of integers, or of truth values, got {ids!r:.100}")
    return torch.tensor(array if array.dtype == np.bool_ else array.astype(np.int64), device="cpu")

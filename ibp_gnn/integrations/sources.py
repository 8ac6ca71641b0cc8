"""What the adapters to GraphBolt and PyG share: features of any kind as RowSources, and how these are written."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import torch

from ..codec.codec import Codec
from ..codec.values import SUPPORTED_DTYPES, as_ids
from ..gpu.cache import CompressedGPUCache
from ..store.feature_store import CompressedFeatureStore, check_ids_on_cpu
from ..store.row_source import RowSource


def is_source(value: Any) -> bool:
    """Whether `value` is a RowSource. A tensor, which has a method of that name, is none, nor is a class."""
    if isinstance(value, (torch.Tensor, type)) or not isinstance(value, RowSource):
        return False
    return isinstance(value.dtype, torch.dtype) and len(value.shape) > 0


def is_array(value: Any) -> bool:
    """Whether `value` holds rows that `compress` may take."""
    return isinstance(value, (torch.Tensor, np.ndarray))


def as_tensor(rows: torch.Tensor | np.ndarray) -> torch.Tensor:
    """`rows` as a tensor that shares their memory."""
    # Not torch.as_tensor, which copies arrays to torch's default device.
    return rows if isinstance(rows, torch.Tensor) else torch.from_numpy(rows)


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
        at = ids.to(self.tensor.device)
        check_ids_on_cpu(at, len(self.tensor))  # torch has another error where there are no rows
        rows = self.tensor.index_select(0, at).to(ids.device if device is None else device)
        return rows if out is None else out.copy_(rows)

    def updated(self, ids: torch.Tensor, rows: torch.Tensor | np.ndarray) -> TensorRows:
        """A copy with other rows for these ids; the tensor here stays as it is. Takes and raises what
        `CompressedFeatureStore.update` does."""
        ids, rows = as_ids(ids).to("cpu", torch.int64), as_tensor(rows)
        want = (len(ids), *self.shape[1:])
        if tuple(rows.shape) != want or rows.dtype != self.dtype:
            raise ValueError(f"rows: want {list(want)} {self.dtype}, got {list(rows.shape)} {rows.dtype}")
        check_ids_on_cpu(ids, len(self.tensor))
        if len(torch.unique(ids)) != len(ids):
            raise ValueError(f"ids: want distinct ids, got {len(ids) - len(torch.unique(ids))} repeats")
        device = self.tensor.device
        return TensorRows(self.tensor.detach().clone().index_copy_(0, ids.to(device), rows.detach().to(device)))

    def __repr__(self) -> str:
        return f"TensorRows({list(self.shape)} {self.dtype})"


def store_of(source: RowSource) -> CompressedFeatureStore | None:
    """The store that has the rows of `source`, if that is a store or a GPU cache of one."""
    if isinstance(source, CompressedGPUCache):
        return source.store
    return source if isinstance(source, CompressedFeatureStore) else None


def can_compress(rows: torch.Tensor | np.ndarray) -> bool:
    """Whether there is something to compress in `rows`: at least one row of at least one value, and a known dtype."""
    if isinstance(rows, torch.Tensor) and (rows.dtype not in SUPPORTED_DTYPES or rows.layout != torch.strided):
        return False
    return rows.ndim > 0 and not is_empty(rows)


def is_empty(rows: torch.Tensor | np.ndarray) -> bool:
    """Whether `rows` has no values, as the features of a relation without edges or of a type without nodes."""
    return 0 in rows.shape


def compress(rows: torch.Tensor | np.ndarray, name: str, **build: Any) -> CompressedFeatureStore:
    """A store of `rows`: [n, *row_shape]. name: what to call them in errors. build: arguments of
    `CompressedFeatureStore.build`, whose TypeError and ValueError get the name in front."""
    try:
        return CompressedFeatureStore.build(rows, **build)
    except (TypeError, ValueError) as error:
        raise type(error)(f"{name}: {error}") from error


def hold(rows: torch.Tensor | np.ndarray, name: str, **build: Any) -> RowSource:
    """A source of `rows`, a tensor or array [n, *row_shape]: a store, or TensorRows if there is nothing to compress.
    name and build: of `compress`. Raises TypeError and ValueError."""
    return compress(rows, name, **build) if can_compress(rows) else TensorRows(as_tensor(rows))


def replace_rows(source: RowSource, rows: Any, name: str, **build: Any) -> RowSource:
    """What holds `rows`, a tensor or array [n, *row_shape], in the place of `source`, which stays as it is for whoever
    else has it. Number, shape and dtype of the rows may be others than before.

    A store of as many rows keeps its order. A GPU cache becomes one of the new store; both are in memory until the old
    one is dropped. name, build: of `compress`; a fitted codec that is not for such rows is fitted again. Raises
    TypeError and ValueError for rows that cannot be held so.
    """
    _check_array(rows, name)
    store, codec = store_of(source), build["codec"]
    if isinstance(codec, Codec) and not have_form(rows, codec.dtype, codec.row_shape):
        build = {**build, "codec": codec.kind}
    if store is not None and store.slot_of is not None and len(store) == len(rows):
        build = {**build, "order": torch.argsort(store.slot_of)}
    if isinstance(source, CompressedGPUCache):
        if not can_compress(rows):
            raise ValueError(f"{name}: want rows that a GPU cache can have, got {list(rows.shape)} {rows.dtype}")
        return source.rebuilt(compress(rows, name, **build))
    return hold(rows, name, **build)


def write_rows(source: RowSource, ids: torch.Tensor, rows: Any, name: str) -> RowSource:
    """Writes rows: [n, *row_shape] of the source's dtype, the new ones of ids: [n] int32/int64, distinct. Returns what
    has them from now on: the source itself, or a copy of TensorRows.

    Raises what `CompressedFeatureStore.update` does, with the name in front of TypeError and ValueError, and
    NotImplementedError for a source that cannot be written. Nothing has changed then.
    """
    store = store_of(source)
    if store is None and not isinstance(source, TensorRows):
        raise NotImplementedError(
            f"{name}: want a CompressedFeatureStore, or a GPU cache of one, to write rows of it, got {source!r}"
        )
    _check_array(rows, name)
    try:
        if isinstance(source, TensorRows):
            return source.updated(ids, rows)
        cast(CompressedFeatureStore, store).update(ids, rows)
    except (TypeError, ValueError) as error:
        raise type(error)(f"{name}: {error}") from error
    return source


def have_form(rows: torch.Tensor | np.ndarray, dtype: torch.dtype, row_shape: tuple[int, ...]) -> bool:
    """Whether `rows` are of this dtype and shape."""
    same_dtype = str(rows.dtype).removeprefix("torch.") == str(dtype).removeprefix("torch.")
    return same_dtype and tuple(rows.shape[1:]) == tuple(row_shape)


def _check_array(rows: Any, name: str) -> None:
    if not is_array(rows):
        raise TypeError(f"{name}: want a tensor or a NumPy array, got {type(rows).__name__}")
    if rows.ndim == 0:
        raise ValueError(f"{name}: want [n, *row_shape], got a scalar")

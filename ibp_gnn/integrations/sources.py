"""What the adapters to GraphBolt and PyG share: features of any kind as RowSources, and how these are written."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import torch

from ..codec.codec import Codec
from ..codec.values import SUPPORTED_DTYPES
from ..gpu.cache import CompressedGPUCache
from ..store.feature_store import CompressedFeatureStore
from ..store.row_source import RowSource
from ..store.tensor_source import TensorSource


def is_array(value: Any) -> bool:
    """Whether `value` holds rows that `compress` may take."""
    return isinstance(value, (torch.Tensor, np.ndarray))


def as_tensor(rows: torch.Tensor | np.ndarray) -> torch.Tensor:
    """`rows` as a tensor that shares their memory."""
    # Not torch.as_tensor, which copies arrays to torch's default device.
    return rows if isinstance(rows, torch.Tensor) else torch.from_numpy(rows)


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
    """A source of `rows`, a tensor or array [n, *row_shape]: a store, or TensorSource if there is nothing to compress.
    name and build: of `compress`. Raises TypeError and ValueError."""
    return compress(rows, name, **build) if can_compress(rows) else TensorSource(as_tensor(rows))


def replace_rows(source: RowSource, rows: Any, name: str, **build: Any) -> RowSource:
    """What holds `rows`, a tensor or array [n, *row_shape], in the place of `source`, which stays as it is for whoever
    else has it. Number, shape and dtype of the rows may be others than before.

    A store of as many rows keeps its order. A GPU cache becomes one of the new store; both are in memory until the old
    one is dropped. name, build: of `compress`; a fitted codec that is not for such rows is fitted again. Raises
    TypeError and ValueError for rows that cannot be held so.
    """
    _check_array(rows, name)
    store, codec = store_of(source), build["codec"]
    if isinstance(codec, Codec) and not are_rows_of(rows, codec.dtype, codec.row_shape):
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
    has them from now on: the source itself, or a copy of TensorSource.

    Raises what `CompressedFeatureStore.update` does, with the name in front of TypeError and ValueError, and
    NotImplementedError for a source that cannot be written. Nothing has changed then.
    """
    store = store_of(source)
    if store is None and not isinstance(source, TensorSource):
        raise NotImplementedError(
            f"{name}: want a CompressedFeatureStore, or a GPU cache of one, to write rows of it, got {source!r}"
        )
    _check_array(rows, name)
    try:
        if isinstance(source, TensorSource):
            return source.updated(ids, as_tensor(rows))
        cast(CompressedFeatureStore, store).update(ids, rows)
    except (TypeError, ValueError) as error:
        raise type(error)(f"{name}: {error}") from error
    return source


def are_rows_of(rows: torch.Tensor | np.ndarray, dtype: torch.dtype, row_shape: tuple[int, ...]) -> bool:
    """Whether `rows` are of this dtype and shape."""
    same_dtype = str(rows.dtype).removeprefix("torch.") == str(dtype).removeprefix("torch.")
    return same_dtype and tuple(rows.shape[1:]) == tuple(row_shape)


def _check_array(rows: Any, name: str) -> None:
    if not is_array(rows):
        raise TypeError(f"{name}: want a tensor or a NumPy array, got {type(rows).__name__}")
    if rows.ndim == 0:
        raise ValueError(f"{name}: want [n, *row_shape], got a scalar")

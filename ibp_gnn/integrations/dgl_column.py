"""A column of a DGLGraph's features whose rows are in a RowSource, and how it crosses process borders.

DGL keeps every feature in a `dgl.frame.Column`. Slicing, cloning, casting and moving a graph makes columns from
columns; a SourceColumn only records what to do then.
"""

from __future__ import annotations

import math
import os
import sys
import uuid
import warnings
import weakref
from collections.abc import Callable
from multiprocessing.reduction import ForkingPickler
from typing import Any

import torch

from ..store.row_source import RowSource
from ..store.tensor_source import TensorSource
from .dgl_compat import import_dgl
from .feature_tensor import FeatureTensor, KeptRows

import_dgl()  # before the first import from dgl, which may fail without it
from dgl.frame import Column, Scheme, _LazyIndex  # noqa: E402

# Above this, decoding all rows of a source gives one warning.
MANY_BYTES = 10**9


class SourceColumn(Column):
    """A `dgl.frame.Column` whose rows are in a RowSource.

    Holds what DGL's own lazy columns hold: row i is row index[i] of the source (index None: row i), to be
    put on `device` (DGL's pair of device and arguments, None: where the ids are) and cast through `casts`
    in order. `kept` holds all rows of a small column once they have been decoded.
    """

    index: torch.Tensor | _LazyIndex | None

    def __init__(
        self,
        handle: SourceHandle,
        *,
        index: torch.Tensor | _LazyIndex | None = None,
        device: tuple[torch.device, dict[str, Any]] | None = None,
        casts: tuple[torch.dtype, ...] = (),
        fetch_device: torch.device | None = None,
        kept: KeptRows | None = None,
    ) -> None:
        # Not Column.__init__, which takes the scheme from a tensor.
        self.handle = handle
        self.casts = casts
        self.fetch_device = fetch_device
        self.kept = KeptRows() if kept is None else kept
        self._init(Scheme(handle.shape[1:], handle.dtype), index, device)

    @property
    def storage(self) -> SourceHandle:
        """What columns of the same rows share. DGL compares it by identity."""
        return self.handle

    @storage.setter
    def storage(self, value: None) -> None:
        # DGL drops the storage of blocks in DataLoader workers, so as not to send features between
        # processes, and puts the parent graph's storage back in the main process. Ours sends a token
        # instead, which also finds the right rows if the parent's column has been replaced in the meantime.
        if value is not None:
            raise TypeError(f"the storage of a SourceColumn cannot be set, got {type(value).__name__}")

    def __len__(self) -> int:
        return self.handle.shape[0] if self.index is None else len(self.index)

    @property
    def dtype(self) -> torch.dtype:
        """dtype of the rows as they are read."""
        return self.casts[-1] if self.casts else self.handle.dtype

    def rows(self, rowids: torch.Tensor, device: torch.device | str) -> torch.Tensor:
        """Return the rows of this column with the given numbers on `device`. rowids: [n] int32/int64."""
        index = self._flat_index()
        ids = rowids if index is None else index.index_select(0, rowids.to(index.device))
        return self._gather(ids, device)

    def fetch(
        self, indices: torch.Tensor, device: torch.device | str, pin_memory: bool = False, **kwargs: Any
    ) -> torch.Tensor:
        """DGL's DataLoader calls this to prefetch the rows of a batch. Pinning is the source's own affair."""
        return self.rows(indices, self.fetch_device or device)

    def __getitem__(self, rowids: torch.Tensor) -> torch.Tensor:
        return self.rows(rowids, self._read_device(rowids))

    @property
    def data(self) -> FeatureTensor:
        """All rows of the column, as a tensor that decodes them when they are needed."""
        shape = (len(self), *self.handle.shape[1:])
        device = self._read_device(self._flat_index())
        kept = self.kept if self._is_small() else None
        # A column of its own to read from: this one may become an ordinary one while the tensor lives.
        return FeatureTensor(shape, self.dtype, device, self.clone().gather, kept)

    @data.setter
    def data(self, value: torch.Tensor) -> None:
        # From now on an ordinary column, in place: graphs share column objects.
        self.__class__ = Column
        for name in ("handle", "casts", "fetch_device", "kept"):
            del self.__dict__[name]
        Column.data.fset(self, value)

    def clone(self) -> SourceColumn:
        return self._derive(kept=self.kept)

    def deepclone(self) -> SourceColumn:
        # Nothing writes to a source, so a deep copy may share it.
        return self._derive()

    def __deepcopy__(self, memo: dict[int, Any]) -> SourceColumn:
        return self._derive()

    def astype(self, new_dtype: torch.dtype) -> SourceColumn:
        # Every cast is kept: float32 to half to float32 rounds, as it does in DGL.
        return self._derive(casts=self.casts if new_dtype == self.dtype else (*self.casts, new_dtype))

    def subcolumn(self, rowids: torch.Tensor) -> SourceColumn:
        if self.index is None:
            return self._derive(index=rowids)
        index = self.index if isinstance(self.index, _LazyIndex) else _LazyIndex(self.index)
        return self._derive(index=index.slice(rowids))

    def pin_memory_(self) -> None:
        """Nothing to pin: the source decides where its rows live."""

    def unpin_memory_(self) -> None:
        """Nothing to unpin."""

    def record_stream(self, stream: torch.cuda.Stream) -> None:
        index = self.index
        if isinstance(index, _LazyIndex) or (index is not None and index.is_cuda):
            index.record_stream(stream)
        rows = self.kept.get()
        if rows is not None and rows.is_cuda:
            rows.record_stream(stream)

    def __repr__(self) -> str:
        return f"SourceColumn(rows={len(self)}, shape={self.shape}, dtype={self.dtype})"

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Ordinary pickling: the compressed source travels, or, for a small part of it, just the rows."""
        if not self._is_small():
            return _rebuild_column, (self.handle, self._state())
        # As bytes: torch pickles float8 and uint16 tensors so that they cannot be loaded.
        rows = self.data.all_rows().contiguous()
        return _rebuild_part, (rows.view(torch.uint8), rows.dtype, self._state() | {"index": None, "casts": ()})

    def gather(self, ids: torch.Tensor | None) -> torch.Tensor:
        """Decode the rows with the given numbers, [k] int32/int64, None for all, onto the device of `data`."""
        index = self._flat_index()
        device = self._read_device(index)
        if ids is not None:
            return self.rows(ids, device)
        self._warn_if_many()
        ids = torch.arange(self.handle.shape[0], device="cpu") if index is None else index
        return self._gather(ids, device)

    def _derive(self, **changes: Any) -> SourceColumn:
        return SourceColumn(self.handle, **({name: getattr(self, name) for name in _STATE} | changes))

    def _state(self) -> dict[str, Any]:
        """What makes this column beside its handle, to be pickled."""
        return {name: getattr(self, name) for name in _STATE} | {"index": self._flat_index()}

    def _warn_if_many(self) -> None:
        num_bytes = len(self) * math.prod(self.handle.shape[1:]) * self.handle.dtype.itemsize
        if num_bytes <= MANY_BYTES or self.handle.warned:
            return
        self.handle.warned = True
        warnings.warn(
            f"all {len(self)} rows of an attached feature are decoded: {num_bytes / 1e9:.1f} GB. If some rows do, "
            "call ibp_gnn.fetch(g, key, ids) or index the feature, as in g.ndata[key][ids]",
            stacklevel=_depth_of_the_caller(),
        )

    def _flat_index(self) -> torch.Tensor | None:
        if isinstance(self.index, _LazyIndex):
            self.index = self.index.flatten()
        return self.index

    def _is_small(self) -> bool:
        # A copy of more than half of the rows would undo what compression saved, so none is kept.
        return self.index is not None and 2 * len(self.index) <= self.handle.shape[0]

    def _read_device(self, index: torch.Tensor | None) -> torch.device:
        if self.device is not None:
            return torch.device(self.device[0])
        return torch.device("cpu") if index is None else index.device

    def _gather(self, ids: torch.Tensor, device: torch.device | str) -> torch.Tensor:
        # Made in inference mode, rows could not be used in training later.
        with torch.inference_mode(False):
            rows = self.handle.live_source().gather(ids, device=device)
            for dtype in self.casts:
                rows = rows.to(dtype)
            return rows


def _depth_of_the_caller() -> int:
    """For a warning of the function that calls this: how far up the first line outside of this folder is."""
    depth, frame = 1, sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_FOLDER):
        depth, frame = depth + 1, frame.f_back
    return depth


_FOLDER = os.path.dirname(__file__)
_STATE = ("index", "device", "casts", "fetch_device")  # of a SourceColumn, besides its handle


class SourceHandle:
    """A source as columns hold it; what crosses process borders in its place.

    Ordinary pickling (pickle, torch.save) takes the source along. Pickling by multiprocessing (a spawned
    process's arguments, queues, pipes) sends the token alone: DataLoader workers sample and never need
    rows, and the payload may be larger than the memory that is left. In a process that knows the token,
    which is the one that attached the source and every process forked from it later, the handle is found
    again; elsewhere reading rows raises.
    """

    def __init__(self, source: RowSource) -> None:
        self.source: RowSource | None = source
        self.token = uuid.uuid4().hex
        self.shape = tuple(source.shape)
        self.dtype = source.dtype
        self.owner_pid = os.getpid()
        self.warned = False  # that all rows are many
        _handles[self.token] = self

    def live_source(self) -> RowSource:
        """Return the source. Raises RuntimeError in a process that has received the token alone."""
        if self.source is None:
            raise RuntimeError(
                f"the rows of this feature are not in process {os.getpid()}: multiprocessing sent the graph "
                f"from process {self.owner_pid} without them, and no graph here holds their source (any "
                "more). Read rows in the process that attached the source, with the sampler's "
                "prefetch_node_feats or prefetch_edge_feats or with ibp_gnn.fetch; or call ibp_gnn.attach in "
                "this process, with a source that it has opened itself."
            )
        return self.source

    def __deepcopy__(self, memo: dict[int, Any]) -> SourceHandle:
        return self

    def __reduce__(self) -> Any:
        return SourceHandle, (self.live_source(),)


# By token, while a column holds it: this table must not keep a detached source in memory.
_handles: weakref.WeakValueDictionary[str, SourceHandle] = weakref.WeakValueDictionary()


def _resolve_handle(token: str, shape: tuple[int, ...], dtype: torch.dtype, owner_pid: int) -> SourceHandle:
    handle = _handles.get(token)
    if handle is None:
        handle = SourceHandle.__new__(SourceHandle)
        handle.source, handle.warned = None, False
        handle.token, handle.shape, handle.dtype, handle.owner_pid = token, shape, dtype, owner_pid
        _handles[token] = handle  # columns that share a source here still share their storage
    return handle


def _reduce_handle(handle: SourceHandle) -> tuple[Callable[..., SourceHandle], tuple[Any, ...]]:
    return _resolve_handle, (handle.token, handle.shape, handle.dtype, handle.owner_pid)


def _send_column(column: SourceColumn) -> tuple[Callable[..., SourceColumn], tuple[Any, ...]]:
    # Rows that have been decoded, by a worker for one, go along.
    return _rebuild_column, (column.handle, column._state(), column.kept.get())


def _rebuild_column(handle: SourceHandle, state: dict[str, Any], rows: torch.Tensor | None = None) -> SourceColumn:
    column = SourceColumn(handle, **state)
    if rows is not None:
        column.kept.keep(rows)
    return column


def _rebuild_part(rows: torch.Tensor, dtype: torch.dtype, state: dict[str, Any]) -> SourceColumn:
    return SourceColumn(SourceHandle(TensorSource(rows.view(dtype))), **state)


def _send_scheme(scheme: Scheme) -> tuple[type[Scheme], tuple[Any, ...]]:
    return Scheme, tuple(scheme)


# ForkingPickler is the pickler of multiprocessing, whatever the start method, and of nothing else.
ForkingPickler.register(SourceHandle, _reduce_handle)
ForkingPickler.register(SourceColumn, _send_column)
# DGL pickles a scheme by the name of its dtype, and has none for float8 or uint16. The loader's workers pickle in a
# thread, where the error is printed and the batch never sent: the loader waits for ever.
ForkingPickler.register(Scheme, _send_scheme)

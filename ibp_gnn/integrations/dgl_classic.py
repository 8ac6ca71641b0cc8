"""Features of a DGLGraph that stay compressed: attach a RowSource to a graph, and DGL reads rows from it.

    ibp_gnn.attach(g, "feat", store)                      # g.ndata["feat"], without the tensor
    sampler = dgl.dataloading.NeighborSampler([10, 10], prefetch_node_feats=["feat"])
    for input_nodes, output_nodes, blocks in dgl.dataloading.DataLoader(g, seeds, sampler, ...):
        x = blocks[0].srcdata["feat"]                     # the rows of this batch, decoded
    x = ibp_gnn.fetch(g, "feat", ids, device="cuda")      # any rows, at any time

How it works: DGL keeps every feature in a `dgl.frame.Column`. `SourceColumn` is one whose rows live in a
RowSource. Slicing, cloning, casting and moving a graph only record what to do; rows are decoded when they
are read:

* DataLoader with prefetch_node_feats or prefetch_edge_feats: the loader calls `SourceColumn.fetch` for the
  rows of the batch, in the main process (or its prefetch thread), whatever the number of workers;
* a block or subgraph whose feature is read: its rows, once; from then on it is an ordinary DGL column;
* `g.ndata["feat"]` on the whole graph, or on a subgraph with more than half of the rows: all of them, into a
  tensor that nobody keeps, so writing into it in place is lost. DGL does the same read for
  `g.ndata["feat"][ids]` (call `fetch` instead) and for `"feat" in g.ndata` (ask `g.ndata.keys()`).

What changes rows (`g.add_nodes`, `g.nodes[ids].data["feat"] = x`), and a few transforms that copy features
(`dgl.reverse`, `dgl.batch`), decode all rows and leave an ordinary column. Leave the DataLoader's `gpu_cache=`
unset: it holds rows as float32, uncompressed.
"""

from __future__ import annotations

import os
import uuid
import weakref
from collections.abc import Callable
from multiprocessing.reduction import ForkingPickler
from typing import Any

import torch

from ibp_gnn.integrations.dgl_compat import import_dgl
from ibp_gnn.row_source import RowSource

import_dgl()  # before the first import from dgl, which may fail without it
from dgl import DGLError, DGLGraph  # noqa: E402
from dgl.frame import Column, Frame, LazyFeature, Scheme, _LazyIndex  # noqa: E402

__all__ = ["SourceColumn", "attach", "detach", "fetch"]

EdgeType = str | tuple[str, str, str]


def attach(
    g: DGLGraph,
    key: str,
    source: RowSource,
    ntype: str | None = None,
    etype: EdgeType | None = None,
    *,
    device: torch.device | str | None = None,
) -> DGLGraph:
    """Make `source` the feature `key` of g's nodes or edges, in place of a tensor. Returns g.

    g: a graph, subgraph or block.
    source: [num_nodes or num_edges, *row_shape]; its rows are read, never changed.
    ntype: node type, needed if there are several; in a block, with its side: "SRC/user" or "DST/user".
    etype: edge type; a homogeneous graph's only edge type is "_E". Neither: node features.
    device: where `fetch` and the DataLoader's prefetch put rows. Default: where they are asked for, which
    is the loader's device. A CPU-only DGL has CPU loaders; device="cuda" decodes on the GPU nevertheless.

    A feature of that name is replaced. Raises TypeError for a source that is no RowSource, ValueError for a
    type that g lacks and for a wrong number of rows.
    """
    if not isinstance(key, str):
        raise TypeError(f"key: want a str, got {type(key).__name__}")
    _check_source(source)
    frame, num_rows, what = _locate(g, ntype, etype)
    if source.shape[0] != num_rows:
        raise ValueError(f"source: want {num_rows} rows, the graph's {what}, got {source.shape[0]}")
    fetch_device = None if device is None else torch.device(device)
    column = SourceColumn(_SourceHandle(source), fetch_device=fetch_device)
    if g.device.type != "cpu":
        column.device = (g.device, {})  # as if it had been attached before g.to(device)
    frame._columns[key] = column  # not frame[key] = column: that wants a tensor
    return g


def detach(g: DGLGraph, key: str, ntype: str | None = None, etype: EdgeType | None = None) -> RowSource:
    """Remove the attached feature `key` from g and return its source. Types as in `attach`.

    On a subgraph, the source is that of the graph it was taken from. Raises KeyError if g has no such
    feature or it is an ordinary tensor, ValueError for a type that g lacks.
    """
    frame, _, what = _locate(g, ntype, etype)
    column = _find_column(frame, key, what)
    if not isinstance(column, SourceColumn):
        raise KeyError(f"{key!r} of the graph's {what} is an ordinary tensor; nothing is attached")
    source = column.handle.live_source()
    del frame._columns[key]
    return source


def fetch(
    g: DGLGraph,
    key: str,
    ids: torch.Tensor,
    *,
    device: torch.device | str | None = None,
    ntype: str | None = None,
    etype: EdgeType | None = None,
) -> torch.Tensor:
    """Return the rows of feature `key` for the given nodes or edges of g, and decode no others.

    ids: [n] int32/int64 on any device, repeats allowed: node or edge ids of g. Types as in `attach`.
    Returns [n, *row_shape] on `device`; default: the device given to `attach`, else that of ids. Features
    that are ordinary tensors are indexed. Work is enqueued on the current stream of a CUDA device.

    Raises KeyError if g has no such feature, ValueError for a type that g lacks, TypeError for other ids,
    IndexError for an id that g lacks.
    """
    frame, _, what = _locate(g, ntype, etype)
    column = _find_column(frame, key, what)
    _check_ids(ids)
    if isinstance(column, SourceColumn):
        if device is None:
            device = column.fetch_device or ids.device
        return column.rows(ids, device)
    data = column.data
    rows = data.index_select(0, ids.to(data.device))
    return rows.to(ids.device if device is None else device)


class SourceColumn(Column):
    """A `dgl.frame.Column` whose rows are in a RowSource.

    Holds what DGL's own lazy columns hold: row i is row index[i] of the source (index None: row i), to be
    put on `device` (DGL's pair of device and arguments, None: where the ids are) and cast through `casts`
    in order.
    """

    index: torch.Tensor | _LazyIndex | None

    def __init__(
        self,
        handle: _SourceHandle,
        *,
        scheme: Scheme | None = None,
        index: torch.Tensor | _LazyIndex | None = None,
        device: tuple[torch.device, dict[str, Any]] | None = None,
        casts: tuple[torch.dtype, ...] = (),
        fetch_device: torch.device | None = None,
    ) -> None:
        # Not Column.__init__, which takes the scheme from a tensor.
        self.handle = handle
        self.casts = casts
        self.fetch_device = fetch_device
        self._init(scheme or Scheme(tuple(handle.shape[1:]), handle.dtype), index, device)

    @property
    def storage(self) -> _SourceHandle:
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
    def data(self) -> torch.Tensor:
        """All rows of the column. Decodes them; the first read of a small part of the source keeps them."""
        index = self._flat_index()
        ids = torch.arange(self.handle.shape[0], device="cpu") if index is None else index
        rows = self._gather(ids, self._read_device(index))
        if self._is_small():
            self.data = rows
        return rows

    @data.setter
    def data(self, value: torch.Tensor) -> None:
        # From now on an ordinary column, in place: graphs share column objects.
        self.__class__ = Column
        for name in ("handle", "casts", "fetch_device"):
            del self.__dict__[name]
        Column.data.fset(self, value)

    def clone(self) -> SourceColumn:
        return self._derive()

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

    def __repr__(self) -> str:
        return f"SourceColumn(rows={len(self)}, shape={self.shape}, dtype={self.dtype})"

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Ordinary pickling: the compressed source travels, or, for a small part of it, just the rows."""
        if self._is_small():
            _ = self.data  # self is an ordinary column from here on, as DGL's are when it pickles them
            return self.__reduce_ex__(protocol)
        return _reduce_column(self)

    def _derive(self, **changes: Any) -> SourceColumn:
        state = {name: getattr(self, name) for name in _STATE}
        return SourceColumn(self.handle, **(state | changes))

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
        rows = self.handle.live_source().gather(ids, device=device)
        for dtype in self.casts:
            rows = rows.to(dtype)
        return rows


_STATE = ("scheme", "index", "device", "casts", "fetch_device")  # of a SourceColumn, besides its handle


class _SourceHandle:
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

    def __deepcopy__(self, memo: dict[int, Any]) -> _SourceHandle:
        return self

    def __reduce__(self) -> Any:
        return _SourceHandle, (self.live_source(),)


# By token, while a column holds it: this table must not keep a detached source in memory.
_handles: weakref.WeakValueDictionary[str, _SourceHandle] = weakref.WeakValueDictionary()


def _resolve_handle(token: str, shape: tuple[int, ...], dtype: torch.dtype, owner_pid: int) -> _SourceHandle:
    handle = _handles.get(token)
    if handle is None:
        handle = _SourceHandle.__new__(_SourceHandle)
        handle.source = None
        handle.token, handle.shape, handle.dtype, handle.owner_pid = token, shape, dtype, owner_pid
        _handles[token] = handle  # columns that share a source here still share their storage
    return handle


def _reduce_handle(handle: _SourceHandle) -> tuple[Callable[..., _SourceHandle], tuple[Any, ...]]:
    return _resolve_handle, (handle.token, handle.shape, handle.dtype, handle.owner_pid)


def _reduce_column(column: SourceColumn) -> tuple[Callable[..., SourceColumn], tuple[Any, ...]]:
    state = {name: getattr(column, name) for name in _STATE} | {"index": column._flat_index()}
    return _rebuild_column, (column.handle, state)


def _rebuild_column(handle: _SourceHandle, state: dict[str, Any]) -> SourceColumn:
    return SourceColumn(handle, **state)


# ForkingPickler is the pickler of multiprocessing, whatever the start method, and of nothing else.
ForkingPickler.register(_SourceHandle, _reduce_handle)
ForkingPickler.register(SourceColumn, _reduce_column)


def _check_source(source: Any) -> None:
    # A tensor has shape, dtype and a method named gather, and a class has its attributes: both look like a
    # RowSource.
    looks = isinstance(source, RowSource) and isinstance(getattr(source, "dtype", None), torch.dtype)
    if isinstance(source, torch.Tensor):
        raise TypeError("source: want a RowSource, got a tensor; assign it to g.ndata[key] or compress it")
    if isinstance(source, type) or not looks:
        got = f"the class {source.__name__}" if isinstance(source, type) else type(source).__name__
        raise TypeError(f"source: want a RowSource (an object with shape, dtype, gather(ids)), got {got}")
    if len(source.shape) == 0:
        raise ValueError("source: want shape (num_rows, *row_shape), got ()")


def _check_ids(ids: Any) -> None:
    if not isinstance(ids, torch.Tensor):
        raise TypeError(f"ids: want an int32 or int64 tensor of shape [n], got {type(ids).__name__}")
    if ids.ndim != 1 or ids.dtype not in (torch.int32, torch.int64):
        raise TypeError(f"ids: want an int32 or int64 tensor of shape [n], got {list(ids.shape)} {ids.dtype}")


def _locate(g: Any, ntype: str | None, etype: EdgeType | None) -> tuple[Frame, int, str]:
    """Return the frame of a node or edge type, its number of rows, and words that name it."""
    if not isinstance(g, DGLGraph):
        raise TypeError(f"g: want a DGLGraph, got {type(g).__name__}")
    if ntype is not None and etype is not None:
        raise ValueError(f"want ntype or etype, got both: {ntype!r} and {etype!r}")
    if etype is not None:
        try:
            type_id = g.get_etype_id(etype)
        except (DGLError, TypeError) as error:
            raise ValueError(f"etype: want one of {g.canonical_etypes}, got {etype!r} ({error})") from None
        what = f"edges of type {g.canonical_etypes[type_id]}"
        return g._edge_frames[type_id], g._graph.num_edges(type_id), what
    names = _node_type_names(g)
    if ntype is None and len(names) == 1:
        ntype = names[0]
    if ntype not in names:
        raise ValueError(f"ntype: want one of {names}, got {ntype!r}")
    type_id = g.get_ntype_id(ntype)
    return g._node_frames[type_id], g._graph.num_nodes(type_id), f"nodes of type {ntype!r}"


def _node_type_names(g: DGLGraph) -> list[str]:
    """Return the names that each stand for one node frame of g; in a block most types are there twice."""
    if not g.is_unibipartite:
        return list(g.ntypes)
    sides = (("SRC/", g.srctypes, g.dsttypes), ("DST/", g.dsttypes, g.srctypes))
    return [side + name if name in other else name for side, own, other in sides for name in own]


def _find_column(frame: Frame, key: str, what: str) -> Column:
    column = frame._columns.get(key)
    if column is None:
        raise KeyError(f"no feature {key!r} for the graph's {what}; there are: {sorted(frame._columns)}")
    if isinstance(column, LazyFeature):
        raise KeyError(f"{key!r} of the graph's {what} is a placeholder that the DataLoader has yet to fill")
    return column

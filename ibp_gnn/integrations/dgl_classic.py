"""Features of a DGLGraph that stay compressed: attach a RowSource to a graph, and DGL reads rows from it.

    ibp_gnn.attach(g, "feat", store)                      # g.ndata["feat"], without the tensor
    sampler = dgl.dataloading.NeighborSampler([10, 10], prefetch_node_feats=["feat"])
    for input_nodes, output_nodes, blocks in dgl.dataloading.DataLoader(g, seeds, sampler, ...):
        x = blocks[0].srcdata["feat"]                     # the rows of this batch, decoded
    x = ibp_gnn.fetch(g, "feat", ids, device="cuda")      # any rows, at any time

What decodes rows, and which:

* DataLoader with prefetch_node_feats or prefetch_edge_feats: those of the batch, in the main process (or the
  loader's prefetch thread), whatever the number of workers. They become an ordinary tensor of the block.
* `g.ndata["feat"]`, of a graph, subgraph or block: none. It is a tensor (feature_tensor.py) that knows its shape,
  dtype and device, and decodes what is read from it: `g.ndata["feat"][ids]` these rows, a computation all of them,
  once for as long as you hold the tensor. If all are more than 1 GB, a warning says so, once for a source.
* Of a subgraph or block with at most half of the source's rows, all rows stay once they have been decoded. They are
  those of that moment; later updates of the source do not reach them.

**Attached features are read only**, in graphs, subgraphs and blocks of any size, before and after a read: what would
write to `g.ndata["feat"]` in place raises RuntimeError (so does `+=` and `requires_grad_()`). Change rows with
`store.update`, or assign a tensor of your own: `g.ndata["feat"] = g.ndata["feat"].clone()`. What you compute or index
from it is an ordinary tensor; writing to that changes nothing in the graph.

What changes rows through the graph (`g.add_nodes`, `g.nodes[ids].data["feat"] = x`), and a few transforms that copy
features (`dgl.batch`), decode all rows and leave an ordinary feature. Leave the DataLoader's `gpu_cache=` unset: it
holds rows as float32, uncompressed.
"""

from __future__ import annotations

from typing import Any

import torch

from ..codec.values import check_gpu
from ..store.row_source import RowSource, is_row_source
from .dgl_compat import import_dgl

import_dgl()  # before the first import from dgl, which may fail without it
from dgl import DGLError, DGLGraph  # noqa: E402
from dgl.frame import Column, Frame, LazyFeature  # noqa: E402
from dgl.transforms import RowFeatNormalizer  # noqa: E402

from .dgl_column import SourceColumn, SourceHandle  # noqa: E402
from .feature_tensor import FeatureTensor  # noqa: E402

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
    """Make `source` the feature `key` of g's nodes or edges, in place of a tensor. A feature of that name is replaced.

    Args:
        g: a graph, subgraph or block.
        key: the feature's name.
        source: [num_nodes or num_edges, *row_shape]; its rows are read, never changed.
        ntype: node type, needed if there are several; in a block, with its side: "SRC/user" or "DST/user".
        etype: edge type; a homogeneous graph's only edge type is "_E". Neither: node features.
        device: where `fetch` and the DataLoader's prefetch put rows. Default: where they are asked for, which is the
            loader's device. A CPU-only DGL has CPU loaders; device="cuda" decodes on the GPU nevertheless.

    Returns:
        g.

    Raises:
        TypeError: a source that is no RowSource, or a key that is no str.
        ValueError: a type that g lacks, or a wrong number of rows.
        RuntimeError: a GPU that torch cannot use.

    Example:
        >>> g = dgl.rand_graph(1000, 5000)
        >>> g = ibp_gnn.attach(g, "feat", store)
        >>> bool((g.ndata["feat"][[3, 4]] == features[[3, 4]]).all())
        True
    """
    if not isinstance(key, str):
        raise TypeError(f"key: want a str, got {type(key).__name__}")
    _check_source(source)
    frame, what = _locate(g, ntype, etype)
    if source.shape[0] != frame.num_rows:
        raise ValueError(f"source: want {frame.num_rows} rows, the graph's {what}, got {source.shape[0]}")
    fetch_device = None if device is None else torch.device(device)
    if fetch_device is not None:
        check_gpu(fetch_device)
    column = SourceColumn(SourceHandle(source), fetch_device=fetch_device)
    if g.device.type != "cpu":
        column.device = (g.device, {})  # as if it had been attached before g.to(device)
    frame._columns[key] = column  # not frame[key] = column: that wants a tensor
    return g


def detach(g: DGLGraph, key: str, ntype: str | None = None, etype: EdgeType | None = None) -> RowSource:
    """Remove the attached feature `key` from g.

    Args:
        g: a graph, subgraph or block.
        key: the feature's name.
        ntype: node type, as in `attach`.
        etype: edge type, as in `attach`.

    Returns:
        The feature's source. On a subgraph, that of the graph it was taken from.

    Raises:
        KeyError: g has no such feature, or it is an ordinary tensor.
        ValueError: a type that g lacks.

    Example:
        >>> g = ibp_gnn.attach(dgl.rand_graph(1000, 5000), "feat", store)
        >>> ibp_gnn.detach(g, "feat") is store
        True
        >>> "feat" in g.ndata
        False
    """
    frame, what = _locate(g, ntype, etype)
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
    """The rows of feature `key` for the given nodes or edges of g; no others are decoded. Features that are ordinary
    tensors are indexed. Work is enqueued on the current stream of a CUDA device.

    Args:
        g: a graph, subgraph or block.
        key: the feature's name.
        ids: [n] int32/int64 on any device, repeats allowed: node or edge ids of g.
        device: where the rows are put. Default: the device given to `attach`, else that of ids.
        ntype: node type, as in `attach`.
        etype: edge type, as in `attach`.

    Returns:
        [n, *row_shape] on `device`.

    Raises:
        KeyError: g has no such feature.
        ValueError: a type that g lacks.
        TypeError: other ids.
        IndexError: an id that g lacks.

    Example:
        >>> g = ibp_gnn.attach(dgl.rand_graph(1000, 5000), "feat", store)
        >>> ids = torch.tensor([8, 8, 2])
        >>> bool((ibp_gnn.fetch(g, "feat", ids) == features[ids]).all())
        True
    """
    frame, what = _locate(g, ntype, etype)
    column = _find_column(frame, key, what)
    _check_ids(ids)
    if isinstance(column, SourceColumn):
        if device is None:
            device = column.fetch_device or ids.device
        return column.rows(ids, device)
    data = column.data
    rows = data.index_select(0, ids.to(data.device))
    return rows.to(ids.device if device is None else device)


def _let_row_normalizer_work() -> None:
    """RowFeatNormalizer divides a feature in place and then assigns it: give it a tensor that it may write to."""
    row_normalize = RowFeatNormalizer.row_normalize

    def normalize(self: Any, feat: torch.Tensor) -> torch.Tensor:
        return row_normalize(self, feat.clone() if isinstance(feat, FeatureTensor) else feat)

    RowFeatNormalizer.row_normalize = normalize


_let_row_normalizer_work()


def _check_source(source: Any) -> None:
    if is_row_source(source):
        return
    if isinstance(source, torch.Tensor):
        raise TypeError("source: want a RowSource, got a tensor; assign it to g.ndata[key] or compress it")
    if isinstance(source, RowSource) and not isinstance(source, type) and tuple(source.shape) == ():
        raise ValueError("source: want shape (num_rows, *row_shape), got ()")
    got = f"the class {source.__name__}" if isinstance(source, type) else type(source).__name__
    raise TypeError(f"source: want a RowSource (an object with shape, dtype, gather(ids)), got {got}")


def _check_ids(ids: Any) -> None:
    if not isinstance(ids, torch.Tensor):
        raise TypeError(f"ids: want an int32 or int64 tensor of shape [n], got {type(ids).__name__}")
    if ids.ndim != 1 or ids.dtype not in (torch.int32, torch.int64):
        raise TypeError(f"ids: want an int32 or int64 tensor of shape [n], got {list(ids.shape)} {ids.dtype}")


def _locate(g: Any, ntype: str | None, etype: EdgeType | None) -> tuple[Frame, str]:
    """Return the frame of a node or edge type, and words that name it. Calls nothing of DGL's that is written in C++:
    torch.compile follows it."""
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
        return g._edge_frames[type_id], what
    names = _node_type_names(g)
    if ntype is None and len(names) == 1:
        ntype = names[0]
    if ntype not in names:
        raise ValueError(f"ntype: want one of {names}, got {ntype!r}")
    type_id = g.get_ntype_id(ntype)
    return g._node_frames[type_id], f"nodes of type {ntype!r}"


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

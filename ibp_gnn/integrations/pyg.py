"""Compressed features in PyG (PyTorch Geometric): a `torch_geometric.data.FeatureStore` that compresses its features.

    features = ibp_gnn.pyg.PyGFeatureStore({"x": x, "y": y})
    graph = Data(edge_index=edge_index, num_nodes=len(x))               # structure only
    sampler = ibp_gnn.pyg.NeighborSampler(graph, [10, 10])
    for batch in NodeLoader((features, graph), sampler, input_nodes=train_ids, batch_size=1024):
        batch.x                                                         # the same bits as x[batch.n_id]

Any loader of PyG's that takes (feature_store, graph_store) works: NeighborLoader, too, which needs pyg-lib or
torch-sparse, and the size of a Data's edges: `graph.put_edge_index(edge_index, layout="coo", size=(n, n))`.

PyG's loaders read features in their workers, in parallel, unless told `filter_per_worker=False`. Pass that to decode
on a GPU (`device="cuda"`), which forked workers cannot.

PyG's loaders ask a feature store for the rows of a batch's nodes alone, so this one takes no features of edges. Keep
those in a store of their own, and read it by the edges of each batch:

    edges = ibp_gnn.CompressedFeatureStore.build(edge_attr)
    batch.edge_attr = edges.gather(batch.e_id)                          # also in a `transform=` of the loader
"""

from __future__ import annotations

import copy
import re
from collections.abc import Mapping
from typing import Any, Literal

import numpy as np
import torch

from .._install import install_command
from ..codec.codec import Codec
from ..codec.values import as_ids, check_gpu
from ..store.feature_store import Layout
from ..store.row_source import RowSource, is_row_source
from .sources import are_rows_of, hold, is_array, replace_rows, write_rows

try:
    from torch_geometric.data import Data, FeatureStore, HeteroData, TensorAttr
except ModuleNotFoundError as error:
    missing = (error.name or "a package").split(".")[0]
    raise ImportError(
        f"ibp_gnn.pyg needs {missing}, which is not installed. Run: {install_command('pyg')}", name=missing
    ) from error

__all__ = ["PyGFeatureStore"]

FeatureKey = tuple[str | None, str]
"""(group_name, attr_name): group_name is the node type, or None in a homogeneous graph."""


class PyGFeatureStore(FeatureStore):
    """Node features by (group_name, attr_name), each compressed in a store of its own.

    Example:
        >>> held = ibp_gnn.pyg.PyGFeatureStore({"x": features}, progress=False)
        >>> ids = torch.tensor([4, 1])
        >>> bool((held[None, "x", ids] == features[ids]).all())
        True
    """

    def __init__(
        self,
        features: Any = None,
        *,
        codec: str | Codec = "auto",
        layout: Layout | Literal["auto"] = "compact",
        pin: bool | str = "auto",
        device: torch.device | str | None = None,
        progress: bool | None = None,
        tensor_attr_cls: type[TensorAttr] | None = None,
    ) -> None:
        """Compresses features. A tensor that cannot be compressed, such as a complex one, or one without rows, stays as
        it is.

        Args:
            features: what to hold from the start; more can be put in later (`put_tensor`, `store[key] = tensor`). One
                of
                - a dict {"x": rows} or {("paper", "x"): rows}; rows is a tensor or NumPy array [n, *row_shape],
                  compressed here, or a RowSource, such as an `ibp_gnn.CompressedGPUCache`;
                - a Data or HeteroData, whose node-level tensors are all taken, labels and masks among them. It keeps
                  its own; delete them from it (after `data.num_nodes = n`) to free the memory.
            codec: of `ibp_gnn.CompressedFeatureStore.build`, for everything that is put in, like the next two.
            layout: see there.
            pin: see there.
            device: where rows are put. None: the device of the ids.
            progress: of `ibp_gnn.CompressedFeatureStore.build`.
            tensor_attr_cls: of PyG's FeatureStore: what names a feature, if not TensorAttr.

        Raises:
            TypeError: other features and rows.
            ValueError: malformed keys, other numbers of rows in a group, features of edges.
            RuntimeError: a GPU that torch cannot use.
        """
        super().__init__(tensor_attr_cls)
        self._features: dict[FeatureKey, RowSource] = {}
        self._build = {"codec": codec, "layout": layout, "pin": pin, "progress": progress}
        self._device = None if device is None else torch.device(device)
        if self._device is not None:
            check_gpu(self._device)
        for key, rows in _collect(features).items():
            self._features[key] = self._new_feature(key, rows)

    def source(self, attr_name: str, group_name: str | None = None) -> RowSource:
        """What holds a feature.

        Args:
            attr_name: its name.
            group_name: the node type; None in a homogeneous graph.

        Returns:
            An `ibp_gnn.CompressedFeatureStore`, or the RowSource that was put in.

        Raises:
            KeyError: a feature that is not here.
        """
        key = (group_name, attr_name)
        if key not in self._features:
            raise KeyError(f"no feature {key}; there are: {list(self._features)}")
        return self._features[key]

    def get_all_tensor_attrs(self) -> list[TensorAttr]:
        """The features, as PyG names them.

        Returns:
            One of the store's `tensor_attr_cls` for each; their index is as that class leaves it.
        """
        attrs = []
        for group_name, attr_name in self._features:
            attr = self._tensor_attr_cls()
            # By name: such a class may take its arguments in any order.
            attr.group_name, attr.attr_name = group_name, attr_name
            attrs.append(attr)
        return attrs

    def put_tensor(self, tensor: Any, *args: Any, **kwargs: Any) -> bool:
        """Puts a feature in, or writes rows of one. If it raises, nothing has changed.

        Args:
            tensor: [n, *row_shape], a tensor or array; or a RowSource, as a whole feature.
            args: as of PyG's FeatureStore: group_name, attr_name and index, or a TensorAttr of them.
                index: None, `:` or `...`: all rows. A feature that is here already is made anew, of any number, shape
                and dtype of rows; what was got from `source` before keeps its rows.
                Else the rows to write: ids [n] int32/int64, distinct, as tensor, array, list or range; a mask
                [num_rows]; a slice; or a number, for one row. They are written into the store that holds them
                (`update`), unless they are all rows, and of another shape or dtype: then the feature is made anew. The
                first put needs all rows.
            kwargs: the same, by name.

        Returns:
            True.

        Raises:
            ValueError: a feature of edges, a first put of some rows.
            ValueError, TypeError, IndexError, NotImplementedError: as `update` of an `ibp_gnn.CompressedFeatureStore`.
        """
        return bool(super().put_tensor(tensor, _with_tensor_index(self._tensor_attr_cls.cast(*args, **kwargs))))

    def update_tensor(self, tensor: Any, *args: Any, **kwargs: Any) -> bool:
        """As `put_tensor`. (PyG's own removes the feature first.)

        Args:
            tensor: see there.
            args: see there.
            kwargs: see there.

        Returns:
            True.
        """
        return self.put_tensor(tensor, *args, **kwargs)

    def get_tensor(self, *args: Any, convert_type: bool = False, **kwargs: Any) -> Any:
        """Rows of a feature.

        Args:
            args: group_name, attr_name and index, or a TensorAttr of them.
                index: [n] int32/int64 ids, repeats allowed, or a mask [num_rows], as tensor, array or list; a range; a
                slice; a number, which gives one row without its first dimension; None, `:` or `...` (all rows). Numbers
                and slices count from the end if negative; ids do not.
            convert_type: give an array for an index that is one.
            kwargs: the same as args, by name.

        Returns:
            The rows of the index.

        Raises:
            KeyError: a feature that is not here.
            IndexError: an id that it has not.
            TypeError: other ids.
        """
        attr = self._tensor_attr_cls.cast(*args, **kwargs)
        rows = super().get_tensor(_with_tensor_index(attr))
        return self._to_type(attr, rows) if convert_type else rows

    def _put_tensor(self, tensor: Any, attr: TensorAttr) -> bool:
        key, index = (attr.group_name, attr.attr_name), attr.index
        held = self._features.get(key)
        if held is None:
            _check_is_of_nodes(key)
            self._features[key] = self._new_feature(key, tensor if _is_whole(index) else _all_rows(key, tensor, index))
        elif not _is_whole(index):
            self._features[key] = self._written(key, held, tensor, index)
        elif is_row_source(tensor):
            self._features[key] = tensor
        else:
            self._features[key] = replace_rows(held, tensor, _name(key), **self._build)
        return True

    def _get_tensor(self, attr: TensorAttr) -> torch.Tensor:
        source = self.source(attr.attr_name, attr.group_name)
        rows = source.gather(_ids_of(attr.index, source.shape[0]), device=self._device)
        return rows if _number(attr.index) is None else rows[0]

    def _remove_tensor(self, attr: TensorAttr) -> bool:
        return self._features.pop((attr.group_name, attr.attr_name), None) is not None

    def _get_tensor_size(self, attr: TensorAttr) -> tuple[int, ...] | None:
        feature = self._features.get((attr.group_name, attr.attr_name))
        return None if feature is None else tuple(feature.shape)

    def _new_feature(self, key: FeatureKey, rows: Any) -> RowSource:
        """What holds the rows of a feature that is not here yet."""
        if not is_row_source(rows) and not is_array(rows):
            raise TypeError(f"{_name(key)}: want a tensor, a NumPy array or a RowSource, got {type(rows).__name__}")
        if is_array(rows) and rows.ndim == 0:
            raise ValueError(f"{_name(key)}: want [n, *row_shape], got a scalar")
        counts = {other: source.shape[0] for other, source in self._features.items() if other[0] == key[0]}
        if counts and rows.shape[0] not in counts.values():
            other, count = next(iter(counts.items()))
            raise ValueError(
                f"{_name(key)}: want {count} rows, as many as {other} has, got {rows.shape[0]}; all features of a "
                f"group are read by the ids of its nodes. {_ABOUT_EDGES}"
            )
        return rows if is_row_source(rows) else hold(rows, _name(key), **self._build)

    def _written(self, key: FeatureKey, held: RowSource, rows: Any, index: Any) -> RowSource:
        """What holds a feature once `rows` are its rows at `index`."""
        num_rows, *row_shape = held.shape
        ids = _ids_of(index, num_rows)
        if is_array(rows):
            if _number(index) is not None and rows.ndim == len(row_shape):
                rows = rows[None]
            anew = rows.ndim > 0 and len(rows) == num_rows and not are_rows_of(rows, held.dtype, tuple(row_shape))
            if anew and _are_all(ids, num_rows):
                return replace_rows(held, _in_order(rows, ids), _name(key), **self._build)
        return write_rows(held, ids, rows, _name(key))

    def __getitem__(self, key: Any) -> Any:
        return super().__getitem__(_with_tensor_index(self._tensor_attr_cls.cast(key)))

    def __setitem__(self, key: Any, value: Any) -> None:
        super().__setitem__(_with_tensor_index(self._tensor_attr_cls.cast(key)), value)

    def __len__(self) -> int:
        """Number of features."""
        return len(self._features)

    def __bool__(self) -> bool:
        # PyG asks `if feature_store` whether there is one, and an empty one is one.
        return True

    def __repr__(self) -> str:
        lines = [f"    {key}: {source!r}," for key, source in self._features.items()]
        return "\n".join(["PyGFeatureStore(", *lines, ")"])


def _name(key: FeatureKey) -> str:
    return f"features[{key}]"


def _collect(features: Any) -> dict[FeatureKey, Any]:
    """What was given, by key."""
    if features is None:
        return {}
    if isinstance(features, Data):
        found = {(None, attr.attr_name): features[attr.attr_name] for attr in features.get_all_tensor_attrs()}
        return {key: rows for key, rows in found.items() if is_array(rows)}  # PyG lists lists, too
    if isinstance(features, HeteroData):
        attrs = features.get_all_tensor_attrs()
        found = {(attr.group_name, attr.attr_name): features[attr.group_name][attr.attr_name] for attr in attrs}
        return {key: rows for key, rows in found.items() if is_array(rows)}
    if not isinstance(features, Mapping):
        raise TypeError(f"features: want a dict, a Data or a HeteroData, got {type(features).__name__}")
    collected = {(None, key) if isinstance(key, str) else key: rows for key, rows in features.items()}
    for key in collected:
        types = [type(part) for part in key] if isinstance(key, tuple) else []
        if len(types) != 2 or types[0] not in (str, type(None), tuple) or types[1] is not str:
            raise ValueError(f"features: want keys 'attr_name' or (group_name, attr_name), got {key!r}")
        _check_is_of_nodes(key)
    return collected


_ABOUT_EDGES = (
    "PyG's loaders ask a feature store for the rows of a batch's nodes alone. Keep features of edges in a store of "
    "their own, edges = ibp_gnn.CompressedFeatureStore.build(rows), and read it by the edges of each batch: "
    "edges.gather(batch.e_id), in a heterograph edges.gather(batch[edge_type].e_id)"
)


def _check_is_of_nodes(key: FeatureKey) -> None:
    """Raises ValueError for a key that names a feature of edges."""
    group_name, attr_name = key
    if isinstance(group_name, tuple):
        raise ValueError(f"{_name(key)}: want the features of a node type, got those of an edge type. {_ABOUT_EDGES}")
    # PyG's own rule, where the number of rows does not tell nodes from edges; but "knowledge" is none of edges.
    words = re.split(r"[\W\d_]+", attr_name) if group_name is None and isinstance(attr_name, str) else []
    if "edge" in words or "edges" in words:
        raise ValueError(
            f"{_name(key)}: want a feature of nodes, whose name is without the word 'edge'. {_ABOUT_EDGES}"
        )


def _all_rows(key: FeatureKey, rows: Any, index: Any) -> Any:
    """The rows of a feature that is not here yet, in order, from those at `index`."""
    if not is_array(rows) or rows.ndim == 0:
        raise TypeError(f"{_name(key)}: want a tensor or a NumPy array [n, *row_shape], got {type(rows).__name__}")
    ids = _ids_of(index, len(rows))
    if not _are_all(ids, len(rows)):
        raise ValueError(
            f"{_name(key)}: want all rows of a feature that is not here yet, got {len(rows)} for an index that is not "
            f"each of 0 to {len(rows) - 1} once; put it with index=None first"
        )
    return _in_order(rows, ids)


def _in_order(rows: Any, ids: torch.Tensor) -> Any:
    """rows: [n, *row_shape], of ids, which are all of 0 to n - 1. Returns them in the order of the ids."""
    order = ids.argsort().cpu()
    if torch.equal(order, torch.arange(len(order), device="cpu")):
        return rows
    return rows[order.to(rows.device)] if isinstance(rows, torch.Tensor) else rows[order.numpy()]


def _are_all(ids: torch.Tensor, num_rows: int) -> bool:
    """Whether ids are each of 0 to num_rows - 1 once. Raises TypeError and ValueError for other ids."""
    ids = as_ids(ids, "index").to("cpu", torch.int64)
    return len(ids) == num_rows and torch.equal(ids.sort().values, torch.arange(num_rows, device="cpu"))


def _with_tensor_index(attr: TensorAttr) -> TensorAttr:
    """The same, with a tensor in the place of an array: PyG takes `array != UNSET`, which is an array, for a bool."""
    if not isinstance(attr.index, np.ndarray):
        return attr
    attr = copy.copy(attr)
    attr.index = _of_array(attr.index)
    return attr


def _of_array(index: np.ndarray) -> torch.Tensor:
    # torch tells uint8 ids from a mask no more, and has no other unsigned ones in all of its versions.
    return torch.from_numpy(index.astype(np.int64) if index.dtype.kind in "iu" else index.copy())


def _is_whole(index: Any) -> bool:
    return index is None or index is Ellipsis or (isinstance(index, slice) and index == slice(None))


def _number(index: Any) -> int | None:
    """The index as one number, if it is one."""
    if isinstance(index, (torch.Tensor, np.ndarray)) and index.ndim == 0:
        index = index.item()
    return int(index) if isinstance(index, (int, np.integer)) and not isinstance(index, bool) else None


def _ids_of(index: Any, num_rows: int) -> torch.Tensor:
    """An index of PyG's as ids; those out of range are left to whoever reads or writes the rows."""
    if _is_whole(index):
        return torch.arange(num_rows, device="cpu")
    number = _number(index)
    if number is not None:
        return torch.tensor([number + num_rows if -num_rows <= number < 0 else number], device="cpu")
    if isinstance(index, slice):
        index = range(num_rows)[index]
    if isinstance(index, range):
        index = np.arange(index.start, index.stop, index.step)
    elif isinstance(index, list):
        index = np.array(index, dtype=None if index else np.int64)
    if isinstance(index, np.ndarray):
        index = _of_array(index)
    if not isinstance(index, torch.Tensor):
        raise TypeError(
            f"index: want a tensor, an array, a list, a range, a slice, an int, None or ..., got {type(index).__name__}"
        )
    if index.dtype == torch.bool:
        if tuple(index.shape) != (num_rows,):
            raise IndexError(f"index: want a mask of shape [{num_rows}], got {list(index.shape)}")
        return index.nonzero().view(-1)
    return index

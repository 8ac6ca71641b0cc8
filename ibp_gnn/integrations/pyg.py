"""Compressed features in PyG (PyTorch Geometric): a `torch_geometric.data.FeatureStore` that compresses its features.

    features = ibp_gnn.pyg.CompressedFeatureStore({"x": x, "y": y})
    graph = Data(edge_index=edge_index, num_nodes=len(x))               # structure only
    sampler = ibp_gnn.pyg.NeighborSampler(graph, [10, 10])
    for batch in NodeLoader((features, graph), sampler, input_nodes=train_ids, batch_size=1024):
        batch.x                                                         # the same bits as x[batch.n_id]

Any loader of PyG's that takes (feature_store, graph_store) works: NeighborLoader, too, which needs pyg-lib or
torch-sparse, and the size of a Data's edges: `graph.put_edge_index(edge_index, layout="coo", size=(n, n))`.

PyG's loaders read features in their workers, in parallel, unless told `filter_per_worker=False`. Pass that to decode
on a GPU (`device="cuda"`), which forked workers cannot.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from ibp_gnn.codec import Codec
from ibp_gnn.feature_store import Layout
from ibp_gnn.integrations.sources import TensorRows, can_compress, compress, is_array, is_source
from ibp_gnn.row_source import RowSource

try:
    from torch_geometric.data import Data, FeatureStore, HeteroData, TensorAttr
except ModuleNotFoundError as error:
    missing = (error.name or "a package").split(".")[0]
    raise ImportError(
        f"ibp_gnn.pyg needs {missing}, which is not installed. Run: pip install 'ibp-gnn[pyg]'", name=missing
    ) from error

__all__ = ["CompressedFeatureStore"]

FeatureKey = tuple[str | None, str]
"""(group_name, attr_name): group_name is the node type, or None in a homogeneous graph."""


class CompressedFeatureStore(FeatureStore):
    """Features by (group_name, attr_name), each compressed in a store of its own."""

    def __init__(
        self,
        features: Any = None,
        *,
        codec: str | Codec = "auto",
        layout: Layout = "compact",
        pin: bool | str = "auto",
        device: torch.device | str | None = None,
        progress: bool = True,
    ) -> None:
        """features: what to hold from the start; more can be put in later (`put_tensor`, `store[key] = tensor`). One of
        - a dict {"x": rows} or {("paper", "x"): rows}; rows is a tensor or NumPy array [n, *row_shape], compressed
          here, or a RowSource, such as an `ibp_gnn.CompressedGPUCache`;
        - a Data or HeteroData, whose node-level tensors are all taken, labels and masks among them. It keeps its own;
          delete them from it (after `data.num_nodes = n`) to free the memory.
        codec, layout, pin, progress: of `ibp_gnn.CompressedFeatureStore.build`, for everything that is put in.
        device: where rows are put. None: the device of the ids.

        A tensor that cannot be compressed, such as a complex one, stays as it is. Raises TypeError and ValueError.
        """
        super().__init__()
        self._features: dict[FeatureKey, RowSource] = {}
        self._build = {"codec": codec, "layout": layout, "pin": pin, "progress": progress}
        self._device = None if device is None else torch.device(device)
        for key, rows in _collect(features).items():
            self._features[key] = self._make_feature(key, rows)

    def source(self, attr_name: str, group_name: str | None = None) -> RowSource:
        """What holds a feature: an `ibp_gnn.CompressedFeatureStore`, or the RowSource that was put in.

        Raises KeyError for a feature that is not here.
        """
        key = (group_name, attr_name)
        if key not in self._features:
            raise KeyError(f"no feature {key}; there are: {list(self._features)}")
        return self._features[key]

    def get_all_tensor_attrs(self) -> list[TensorAttr]:
        """The features, as PyG names them; their index is not set."""
        return [TensorAttr(group_name, attr_name) for group_name, attr_name in self._features]

    def _put_tensor(self, tensor: Any, attr: TensorAttr) -> bool:
        whole = attr.index is None or (isinstance(attr.index, slice) and attr.index == slice(None))
        if not whole:
            raise NotImplementedError(
                f"{attr}: single rows cannot be written into compressed ones. Put the whole tensor, with index=None"
            )
        key = (attr.group_name, attr.attr_name)
        self._features[key] = self._make_feature(key, tensor)
        return True

    def _get_tensor(self, attr: TensorAttr) -> torch.Tensor:
        """index: [n] int32/int64 or a mask [num_rows], as tensor or array, a slice, a number (which gives one row
        without its first dimension), or None (all rows).

        Raises KeyError for a feature that is not here, IndexError for an id that it has not, TypeError for other ids.
        """
        source = self.source(attr.attr_name, attr.group_name)
        rows = source.gather(_ids_of(attr.index, source.shape[0]), device=self._device)
        return rows[0] if isinstance(attr.index, int) else rows

    def _remove_tensor(self, attr: TensorAttr) -> bool:
        return self._features.pop((attr.group_name, attr.attr_name), None) is not None

    def _get_tensor_size(self, attr: TensorAttr) -> tuple[int, ...] | None:
        feature = self._features.get((attr.group_name, attr.attr_name))
        return None if feature is None else tuple(feature.shape)

    def _make_feature(self, key: FeatureKey, rows: Any) -> RowSource:
        name = f"features[{key}]"
        if is_source(rows):
            return rows
        if not is_array(rows):
            raise TypeError(f"{name}: want a tensor, a NumPy array or a RowSource, got {type(rows).__name__}")
        if rows.ndim == 0:
            raise ValueError(f"{name}: want [n, *row_shape], got a scalar")
        return (
            compress(rows, name, **self._build)
            if can_compress(rows)
            else TensorRows(rows if isinstance(rows, torch.Tensor) else torch.from_numpy(rows))
        )

    def __len__(self) -> int:
        """Number of features."""
        return len(self._features)

    def __repr__(self) -> str:
        lines = [f"    {key}: {source!r}," for key, source in self._features.items()]
        return "\n".join(["CompressedFeatureStore(", *lines, ")"])


def _collect(features: Any) -> dict[FeatureKey, Any]:
    """What was given, by key."""
    if features is None:
        return {}
    if isinstance(features, Data):
        return {(None, attr.attr_name): features[attr.attr_name] for attr in features.get_all_tensor_attrs()}
    if isinstance(features, HeteroData):
        attrs = features.get_all_tensor_attrs()
        return {(attr.group_name, attr.attr_name): features[attr.group_name][attr.attr_name] for attr in attrs}
    if not isinstance(features, Mapping):
        raise TypeError(f"features: want a dict, a Data or a HeteroData, got {type(features).__name__}")
    collected = {(None, key) if isinstance(key, str) else key: rows for key, rows in features.items()}
    for key in collected:
        types = [type(part) for part in key] if isinstance(key, tuple) else []
        if len(types) != 2 or types[0] not in (str, type(None)) or types[1] is not str:
            raise ValueError(f"features: want keys 'attr_name' or (group_name, attr_name), got {key!r}")
    return collected


def _ids_of(index: Any, num_rows: int) -> torch.Tensor:
    """An index of PyG's as ids; those out of range are left to whoever reads the rows."""
    if index is None:
        return torch.arange(num_rows, device="cpu")
    if isinstance(index, slice):
        return torch.arange(num_rows, device="cpu")[index]
    if isinstance(index, int):
        return torch.tensor([index + num_rows if index < 0 else index], device="cpu")
    if isinstance(index, np.ndarray):
        index = torch.from_numpy(index)
    if not isinstance(index, torch.Tensor):
        raise TypeError(f"index: want a tensor, an array, a slice, an int or None, got {type(index).__name__}")
    if index.dtype == torch.bool:
        if tuple(index.shape) != (num_rows,):
            raise IndexError(f"index: want a mask of shape [{num_rows}], got {list(index.shape)}")
        return index.nonzero().view(-1)
    return index

"""Errors of PyG's loaders that are about our stores, in words that say what to do."""

from __future__ import annotations

import functools
from typing import Any

from torch_geometric.data import Data, HeteroData
from torch_geometric.sampler import NeighborSampler

from ..store.row_source import is_row_source
from .pyg import PyGFeatureStore


def check_has_no_stores(graph: Any) -> None:
    """Raises TypeError for a Data or HeteroData with a store among its attributes: PyG's loaders copy it to each batch
    as it is."""
    if not isinstance(graph, (Data, HeteroData)):
        return
    for part in graph.stores:
        for name, value in part.items():
            if is_row_source(value):
                key = f'("{part._key}", "{name}")' if isinstance(graph, HeteroData) else f'"{name}"'
                raise TypeError(
                    f"data.{name}: want a tensor, got a {type(value).__name__}. It goes beside the graph: features = "
                    f"ibp_gnn.pyg.PyGFeatureStore({{{key}: store}}); NodeLoader((features, data), sampler, ...)"
                )


def check_has_sizes(graph: Any) -> None:
    """Raises ValueError for a homogeneous graph store that does not say how many nodes its edges are between, which
    PyG's NeighborLoader needs beside a feature store."""
    for attr in graph.get_all_edge_attrs():
        if attr.edge_type is None and (attr.size is None or None in attr.size):
            raise ValueError(
                f"NeighborLoader: want the size of the graph's edges, got {attr.size}; put them in with it: "
                'graph.put_edge_index(edge_index, layout="coo", size=(num_nodes, num_nodes)). NodeLoader with '
                "ibp_gnn.pyg.NeighborSampler(graph, ...) does not need it"
            )


def _check_in_neighbor_loaders() -> None:
    """PyG's own sampler raises "'NoneType' object is not iterable" without sizes, and takes a store for a constant."""
    init = NeighborSampler.__init__

    @functools.wraps(init)
    def checked(self: Any, data: Any, *args: Any, **kwargs: Any) -> None:
        if isinstance(data, tuple) and len(data) == 2 and isinstance(data[0], PyGFeatureStore):
            check_has_sizes(data[1])
        check_has_no_stores(data)
        init(self, data, *args, **kwargs)

    NeighborSampler.__init__ = checked


if not hasattr(NeighborSampler.__init__, "__wrapped__"):
    _check_in_neighbor_loaders()

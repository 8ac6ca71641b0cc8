"""An error of PyG's NeighborLoader beside our feature store, in words that say what to do."""

from __future__ import annotations

import functools
from typing import Any

from torch_geometric.sampler import NeighborSampler

from .pyg import PyGFeatureStore


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


def check_in_neighbor_loaders() -> None:
    """From now on PyG's NeighborLoader calls `check_has_sizes` where it is given a PyGFeatureStore. (By itself it
    raises "'NoneType' object is not iterable".) Idempotent."""
    init = NeighborSampler.__init__
    if hasattr(init, "_ibp_gnn_checks"):
        return

    @functools.wraps(init)
    def checked(self: Any, data: Any, *args: Any, **kwargs: Any) -> None:
        if isinstance(data, tuple) and len(data) == 2 and isinstance(data[0], PyGFeatureStore):
            check_has_sizes(data[1])
        init(self, data, *args, **kwargs)

    checked._ibp_gnn_checks = True  # type: ignore[attr-defined]
    NeighborSampler.__init__ = checked

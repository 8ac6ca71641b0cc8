"""PyG: `PyGFeatureStore` and `NeighborSampler`. Importing this imports torch_geometric, not DGL."""

from __future__ import annotations

from typing import Any

from . import _renamed
from .integrations.pyg import PyGFeatureStore
from .integrations.pyg_errors import check_in_neighbor_loaders
from .integrations.pyg_sampler import NeighborSampler

__all__ = ["NeighborSampler", "PyGFeatureStore"]

check_in_neighbor_loaders()


def __getattr__(name: str) -> Any:
    if name == "CompressedFeatureStore":
        _renamed.warn("ibp_gnn.pyg.CompressedFeatureStore", "ibp_gnn.pyg.PyGFeatureStore", stacklevel=2)
        return PyGFeatureStore
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

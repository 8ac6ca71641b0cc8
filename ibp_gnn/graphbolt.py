"""DGL GraphBolt: `CompressedFeature` and `GraphBoltFeatureStore`. Importing this imports DGL."""

from __future__ import annotations

from typing import Any

from . import _renamed
from .integrations.graphbolt import CompressedFeature, GraphBoltFeatureStore, require_native

__all__ = ["CompressedFeature", "GraphBoltFeatureStore", "require_native"]


def __getattr__(name: str) -> Any:
    if name == "FeatureStore":
        _renamed.warn("ibp_gnn.graphbolt.FeatureStore", "ibp_gnn.graphbolt.GraphBoltFeatureStore", stacklevel=2)
        return GraphBoltFeatureStore
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

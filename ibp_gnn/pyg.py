"""PyG: `CompressedFeatureStore` and `NeighborSampler`. Importing this imports torch_geometric, not DGL."""

from .integrations.pyg import CompressedFeatureStore
from .integrations.pyg_sampler import NeighborSampler

__all__ = ["CompressedFeatureStore", "NeighborSampler"]

"""PyG: `CompressedFeatureStore` and `NeighborSampler`. Importing this imports torch_geometric, not DGL."""

from ibp_gnn.integrations.pyg import CompressedFeatureStore
from ibp_gnn.integrations.pyg_sampler import NeighborSampler

__all__ = ["CompressedFeatureStore", "NeighborSampler"]

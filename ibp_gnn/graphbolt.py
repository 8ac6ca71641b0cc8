"""DGL GraphBolt: `CompressedFeature` and `FeatureStore`. Importing this imports DGL."""

from ibp_gnn.integrations.graphbolt import CompressedFeature, FeatureStore, require_native

__all__ = ["CompressedFeature", "FeatureStore", "require_native"]

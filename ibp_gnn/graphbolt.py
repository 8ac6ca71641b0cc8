"""DGL GraphBolt: `CompressedFeature` and `FeatureStore`. Importing this imports DGL."""

from .integrations.graphbolt import CompressedFeature, FeatureStore, require_native

__all__ = ["CompressedFeature", "FeatureStore", "require_native"]

"""WholeGraph: `Graph` and `NeighborLoader` sample on the GPU, `ShardedGPUCache` caches rows on all GPUs of a machine,
`DistributedFeatureStore` shares them out over machines. Using them imports pylibwholegraph."""

from __future__ import annotations

from .integrations.csc_block import CscBlock
from .integrations.wholegraph_cache import ShardedGPUCache, Split, Tiers
from .integrations.wholegraph_graph import Graph, Sampled
from .integrations.wholegraph_loader import Batch, NeighborLoader
from .integrations.wholegraph_store import DistributedFeatureStore

__all__ = [
    "Batch",
    "CscBlock",
    "DistributedFeatureStore",
    "Graph",
    "NeighborLoader",
    "Sampled",
    "ShardedGPUCache",
    "Split",
    "Tiers",
]

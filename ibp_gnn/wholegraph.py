"""WholeGraph: `Graph` and `NeighborLoader`, for sampling on the GPU. Using them imports pylibwholegraph."""

from __future__ import annotations

from .integrations.csc_block import CscBlock
from .integrations.wholegraph_graph import Graph, Sampled
from .integrations.wholegraph_loader import Batch, NeighborLoader

__all__ = ["Batch", "CscBlock", "Graph", "NeighborLoader", "Sampled"]

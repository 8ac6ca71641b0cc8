"""DistDGL: `compress_partitions`, `attach` and what it attaches, and a cache for it. Importing this imports DGL."""

from .integrations.distdgl import CompressedDistTensor, PullStats, attach
from .integrations.distdgl_cache import DistCache
from .integrations.distdgl_partitions import compress_partitions

__all__ = ["CompressedDistTensor", "DistCache", "PullStats", "attach", "compress_partitions"]

"""ibp_gnn: losslessly compressed node features for DGL. Every public name is listed here.

Importing it neither imports DGL, nor initialises CUDA, nor compiles anything. It does make a later `import dgl` work
on torch versions that DGL's GraphBolt library was not built for (integrations/dgl_compat.py).
"""

from __future__ import annotations

from typing import Any

from ._native import FormatError
from .codec import Codec, CodecReport
from .compressed_rows import CompressedRows
from .feature_store import CompressedFeatureStore
from .gpu_cache import CompressedGPUCache
from .gpu_gather import GatherStats
from .integrations import dgl_compat
from .pinned import PinError
from .row_source import RowSource

__version__ = "0.1.0"

_NEED_DGL = ("attach", "detach", "fetch")  # resolved on first use, since they import DGL

__all__ = [
    "Codec",
    "CodecReport",
    "CompressedFeatureStore",
    "CompressedGPUCache",
    "CompressedRows",
    "FormatError",
    "GatherStats",
    "PinError",
    "RowSource",
    "attach",
    "detach",
    "fetch",
]

dgl_compat.install()


def __getattr__(name: str) -> Any:
    if name in _NEED_DGL:
        from .integrations import dgl_classic

        return getattr(dgl_classic, name)
    raise AttributeError(f"module 'ibp_gnn' has no attribute {name!r}")

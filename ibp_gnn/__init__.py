"""ibp_gnn: losslessly compressed node features for DGL and PyG. Every public name is listed here.

Importing it neither imports DGL, nor initialises CUDA, nor compiles anything. It does make a later `import dgl` work
on torch versions that DGL's GraphBolt library was not built for (integrations/dgl_compat.py).
"""

from __future__ import annotations

import importlib
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

# Resolved on first use, since they import DGL or PyG.
_LAZY_NAMES = {
    "FeatureStore": ".graphbolt",
    "attach": ".integrations.dgl_classic",
    "detach": ".integrations.dgl_classic",
    "fetch": ".integrations.dgl_classic",
}
_LAZY_MODULES = ("graphbolt", "pyg")  # public, but not in __all__: few environments have both

__all__ = [
    "Codec",
    "CodecReport",
    "CompressedFeatureStore",
    "CompressedGPUCache",
    "CompressedRows",
    "FeatureStore",
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
    if name in _LAZY_NAMES:
        return getattr(importlib.import_module(_LAZY_NAMES[name], __name__), name)
    if name in _LAZY_MODULES:
        return importlib.import_module(f".{name}", __name__)
    raise AttributeError(f"module 'ibp_gnn' has no attribute {name!r}")

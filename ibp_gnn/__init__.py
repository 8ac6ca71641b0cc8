"""ibp_gnn: losslessly compressed node features for DGL and PyG. Every public name is listed here.

Importing it imports neither torch nor DGL, nor initialises CUDA, nor compiles anything: each name is resolved on first
use, so that `ibp-gnn doctor` runs where one of these is missing or broken. It does make a later `import dgl` work on
torch versions that DGL's GraphBolt library was not built for (integrations/dgl_compat.py).
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from .integrations import dgl_compat

if TYPE_CHECKING:
    from ._native import FormatError
    from .codec import Codec, CodecReport
    from .compressed_rows import CompressedRows
    from .feature_store import CompressedFeatureStore
    from .gpu_cache import CompressedGPUCache
    from .gpu_gather import GatherStats
    from .pinned import PinError
    from .prefetch import Prefetcher
    from .row_source import RowSource
    from .shared_budget import share_budget

__version__ = "0.1.0"

_LAZY_NAMES = {
    "Codec": ".codec",
    "CodecReport": ".codec",
    "CompressedFeatureStore": ".feature_store",
    "CompressedGPUCache": ".gpu_cache",
    "CompressedRows": ".compressed_rows",
    "FeatureStore": ".graphbolt",
    "FormatError": "._native",
    "GatherStats": ".gpu_gather",
    "PinError": ".pinned",
    "Prefetcher": ".prefetch",
    "RowSource": ".row_source",
    "attach": ".integrations.dgl_classic",
    "detach": ".integrations.dgl_classic",
    "fetch": ".integrations.dgl_classic",
    "share_budget": ".shared_budget",
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
    "Prefetcher",
    "RowSource",
    "attach",
    "detach",
    "fetch",
    "share_budget",
]

dgl_compat.install()


def __getattr__(name: str) -> Any:
    if name in _LAZY_NAMES:
        value = getattr(_import(_LAZY_NAMES[name]), name)
        globals()[name] = value
        return value
    if name in _LAZY_MODULES:
        return _import(f".{name}")
    raise AttributeError(f"module 'ibp_gnn' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *_LAZY_MODULES})


def _import(module: str) -> Any:
    try:
        return importlib.import_module(module, __name__)
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise ModuleNotFoundError(
            "ibp_gnn needs torch, which is not installed here. Run: pip install torch (`ibp-gnn doctor` says more)",
            name="torch",
        ) from error

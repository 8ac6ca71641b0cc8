"""ibp_gnn: losslessly compressed node features for DGL and PyG. Every public name is listed here.

Importing it imports neither torch nor DGL, nor initialises CUDA, nor compiles anything: each name is resolved on first
use, so that `ibp-gnn doctor` runs where one of these is missing or broken. It does make a later `import dgl` work on
torch versions that DGL's GraphBolt library was not built for (integrations/dgl_compat.py).
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from . import _renamed
from .integrations import dgl_compat

if TYPE_CHECKING:
    from ._native import FormatError
    from .codec.codec import Codec, CodecReport
    from .codec.compressed_rows import CompressedRows
    from .codec.gather import GatherStats
    from .embedding.collection import CompressedEmbeddingBagCollection
    from .embedding.embedding import CompressedEmbedding
    from .embedding.embedding_bag import CompressedEmbeddingBag
    from .gpu.budget import share_budget
    from .gpu.cache import CompressedGPUCache
    from .gpu.prefetch import Prefetcher
    from .store.feature_store import CompressedFeatureStore
    from .store.pinned import PinError
    from .store.row_source import RowSource

__version__ = "0.1.0"

_LAZY_NAMES = {
    "Codec": ".codec.codec",
    "CodecReport": ".codec.codec",
    "CompressedEmbedding": ".embedding.embedding",
    "CompressedEmbeddingBag": ".embedding.embedding_bag",
    "CompressedEmbeddingBagCollection": ".embedding.collection",
    "CompressedFeatureStore": ".store.feature_store",
    "CompressedGPUCache": ".gpu.cache",
    "CompressedRows": ".codec.compressed_rows",
    "FormatError": "._native",
    "GatherStats": ".codec.gather",
    "GraphBoltFeatureStore": ".graphbolt",
    "PinError": ".store.pinned",
    "Prefetcher": ".gpu.prefetch",
    "RowSource": ".store.row_source",
    "attach": ".integrations.dgl_classic",
    "detach": ".integrations.dgl_classic",
    "fetch": ".integrations.dgl_classic",
    "share_budget": ".gpu.budget",
}
# Public, but not in __all__: few environments have what all of them need.
_LAZY_MODULES = ("distdgl", "graphbolt", "hotness", "offload", "pyg", "wholegraph")

__all__ = [
    "Codec",
    "CodecReport",
    "CompressedEmbedding",
    "CompressedEmbeddingBag",
    "CompressedEmbeddingBagCollection",
    "CompressedFeatureStore",
    "CompressedGPUCache",
    "CompressedRows",
    "FormatError",
    "GatherStats",
    "GraphBoltFeatureStore",
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
    if name == "FeatureStore":
        _renamed.warn("ibp_gnn.FeatureStore", "ibp_gnn.GraphBoltFeatureStore", stacklevel=2)
        return __getattr__("GraphBoltFeatureStore")
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

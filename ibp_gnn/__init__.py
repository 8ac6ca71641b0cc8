"""ibp_gnn: losslessly compressed node features for DGL and PyG. Every public name is listed here.

Importing it imports neither torch nor DGL, nor initialises CUDA, nor compiles anything: each name is resolved on first
use, so that `ibp-gnn doctor` runs where one of these is missing or broken. It does make a later `import dgl` work on
torch versions that DGL's GraphBolt library was not built for (integrations/dgl_compat.py).
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from typing import TYPE_CHECKING, Any

from . import _lazy, _renamed
from .integrations import dgl_compat, refused_stores

if TYPE_CHECKING:
    from . import distdgl as distdgl
    from . import graphbolt as graphbolt
    from . import hotness as hotness
    from . import offload as offload
    from . import packing as packing
    from . import pyg as pyg
    from . import wholegraph as wholegraph
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
    from .gpu.prefetch_trial import PrefetchTrial
    from .graphbolt import GraphBoltFeatureStore
    from .integrations.dgl_classic import attach, detach, fetch
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
    "PrefetchTrial": ".gpu.prefetch_trial",
    "Prefetcher": ".gpu.prefetch",
    "RowSource": ".store.row_source",
    "attach": ".integrations.dgl_classic",
    "detach": ".integrations.dgl_classic",
    "fetch": ".integrations.dgl_classic",
    "share_budget": ".gpu.budget",
}
# Public, but not in __all__: few environments have what all of them need.
_LAZY_MODULES = ("distdgl", "graphbolt", "hotness", "offload", "packing", "pyg", "wholegraph")

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
    "PinError",
    "PrefetchTrial",
    "Prefetcher",
    "RowSource",
    "share_budget",
]
# `from ibp_gnn import *` takes what is installed. Looked for before the hook below, which would notice.
if importlib.util.find_spec("dgl") is not None:
    __all__ += ["GraphBoltFeatureStore", "attach", "detach", "fetch"]

dgl_compat.install()
refused_stores.install()


if not TYPE_CHECKING:  # which would find every name there

    def __getattr__(name: str) -> Any:
        if name == "FeatureStore":
            value = __getattr__("GraphBoltFeatureStore")
            _renamed.warn("ibp_gnn.FeatureStore", "ibp_gnn.GraphBoltFeatureStore", stacklevel=2)
            return value
        if name not in _LAZY_NAMES and name not in _LAZY_MODULES:
            raise AttributeError(f"module 'ibp_gnn' has no attribute {name!r}")
        try:
            module = importlib.import_module(_LAZY_NAMES.get(name, f".{name}"), __name__)
        except ImportError as error:  # as AttributeError: hasattr, help() and inspect go on
            raise AttributeError(f"ibp_gnn.{name}: {_reason(error)}") from error
        value = globals()[name] = module if name in _LAZY_MODULES else getattr(module, name)
        return value


def _why_missing(name: str) -> str | None:
    if name not in _LAZY_NAMES:
        return None
    try:
        getattr(sys.modules[__name__], name)
    except AttributeError as error:
        return str(error)
    return None


_lazy.MissingNames(__name__, _why_missing).install()


def __dir__() -> list[str]:
    return sorted({*globals(), *_LAZY_NAMES, *_LAZY_MODULES})


def _reason(error: ImportError) -> str:
    if error.name != "torch":
        return str(error)
    return "ibp_gnn needs torch, which is not installed here. Run: pip install torch (`ibp-gnn doctor` says more)"

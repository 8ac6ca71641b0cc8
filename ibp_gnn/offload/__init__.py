"""Models larger than the GPU: weights and the KV cache lie losslessly compressed in page-locked CPU memory.

    from ibp_gnn import offload

    handle = offload.offload(model, device="cuda", gpu_budget="20GB")
    cache = offload.CompressedOffloadedCache(model.config)
    model.generate(**inputs, past_key_values=cache)

Public names are listed here, and imported on first use: some need transformers or safetensors.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .._lazy import import_on_use

if TYPE_CHECKING:
    from .compressed_checkpoint import load_checkpoint, save_checkpoint
    from .kv_cache import CompressedOffloadedCache
    from .model import Offload, OffloadReport, offload
    from .pages import CompressedPages, PageReport
    from .weights_map import CompressedWeights

_NAMES = {
    "CompressedOffloadedCache": ".kv_cache",
    "CompressedPages": ".pages",
    "CompressedWeights": ".weights_map",
    "Offload": ".model",
    "OffloadReport": ".model",
    "PageReport": ".pages",
    "load_checkpoint": ".compressed_checkpoint",
    "offload": ".model",
    "save_checkpoint": ".compressed_checkpoint",
}

__all__ = [
    "CompressedOffloadedCache",
    "CompressedPages",
    "CompressedWeights",
    "Offload",
    "OffloadReport",
    "PageReport",
    "load_checkpoint",
    "offload",
    "save_checkpoint",
]

__getattr__ = import_on_use(__name__, _NAMES)

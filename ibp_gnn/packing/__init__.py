"""Floats of 16 and 8 bits, packed into words of 32 bits, and inference with packed weights. LOSSY: nothing in ibp_gnn
does so unless it is asked to.

    from ibp_gnn import packing

    w = packing.pack_fp8(weight, "e4m3", scale="row")
    y = packing.packed_gemv(w, x)
    packing.pack_model(model, "e5m2")

Public names are listed here, and imported on first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .._lazy import import_on_use

if TYPE_CHECKING:
    from .linear import packed_gemv
    from .pack import pack_fp8, pack_fp16, unpack
    from .packed_model import PackedLinear, pack_model
    from .packed_tensor import PackedTensor

_NAMES = {
    "PackedLinear": ".packed_model",
    "PackedTensor": ".packed_tensor",
    "pack_fp16": ".pack",
    "pack_fp8": ".pack",
    "pack_model": ".packed_model",
    "packed_gemv": ".linear",
    "unpack": ".pack",
}

__all__ = [
    "PackedLinear",
    "PackedTensor",
    "pack_fp16",
    "pack_fp8",
    "pack_model",
    "packed_gemv",
    "unpack",
]

__getattr__ = import_on_use(__name__, _NAMES)

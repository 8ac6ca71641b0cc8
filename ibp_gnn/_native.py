"""The compiled backends, and nothing else: `cpu` is always there, `cuda()` only where it was built.

Importing this module neither initialises CUDA nor compiles anything.
"""

from __future__ import annotations

import functools
from types import ModuleType
from typing import Any

import torch

from . import _extension
from .errors import FormatError as FormatError

try:
    cpu: Any = _extension.load("_cpu")
except ImportError as error:  # a source tree that was never built, or built for another Python
    raise ImportError(
        f"ibp_gnn's compiled CPU extension cannot be loaded ({error}); build it with `pip install .` in the "
        "source tree, with the Python that you run"
    ) from error

# "" = the fastest code path of this CPU; "scalar", "avx2" or "avx512" forces one (tests, benchmarks).
cpu_path = ""


@functools.cache
def cuda() -> ModuleType:
    """The CUDA backend. Raises RuntimeError with the reason where it was not built."""
    try:
        return _extension.load("_cuda")
    except ImportError as error:
        raise RuntimeError(
            f"ibp_gnn was built without its CUDA extension ({error}); install nvcc and run "
            "`IBP_CUDA=ON pip install .` in the source tree. Without a GPU all works on device='cpu'"
        ) from error


def cuda_is_built() -> bool:
    try:
        cuda()
    except RuntimeError:
        return False
    return True


def threads() -> int:
    """CPU threads to use, following torch.set_num_threads (1 in DataLoader workers)."""
    return torch.get_num_threads()

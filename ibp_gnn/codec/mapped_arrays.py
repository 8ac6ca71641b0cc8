"""Arrays that are memory-mapped files: reading them without keeping their pages."""

from __future__ import annotations

import mmap
from collections.abc import Callable
from typing import Any

import numpy as np


def page_releaser(array: Any) -> Callable[[slice | None], None]:
    """What has to be called after array[rows] was read (None: after rows all over it): it keeps no pages of a file that
    is mapped to be read only in this process; they stay in the page cache while there is room. Does nothing for other
    arrays."""
    mapping = array
    while isinstance(mapping, np.ndarray):
        mapping = mapping.base
    if (
        not isinstance(mapping, mmap.mmap)
        or not memoryview(mapping).readonly  # a private mapping's changes would be lost
        or not hasattr(mmap, "MADV_DONTNEED")
        or not array.flags.c_contiguous
    ):
        return lambda rows: None
    start = array.ctypes.data - np.frombuffer(mapping, np.uint8, 1).ctypes.data
    row_bytes = array.strides[0]

    def release(rows: slice | None) -> None:
        first, end, _ = (rows or slice(None)).indices(len(array))
        low = (start + first * row_bytes) // mmap.PAGESIZE * mmap.PAGESIZE
        if end > first:
            mapping.madvise(mmap.MADV_DONTNEED, low, start + end * row_bytes - low)

    return release

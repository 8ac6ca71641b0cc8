"""Buffers that show what else was touched: a border of known bytes, or a page behind them that must not be."""

from __future__ import annotations

import ctypes
import mmap

import numpy as np

FILL = 0xA5  # what outputs hold before a call


def filled(*shape: int) -> np.ndarray:
    return np.full(shape, FILL, np.uint8)


def guarded(array: np.ndarray) -> np.ndarray:
    """A copy whose last byte is the last of a page, with a page behind it that must not be touched."""
    pages = -(-max(1, array.nbytes) // mmap.PAGESIZE)
    region = mmap.mmap(-1, (pages + 1) * mmap.PAGESIZE)
    whole = np.frombuffer(region, np.uint8)
    libc = ctypes.CDLL(None, use_errno=True)
    guard = ctypes.c_void_p(whole.ctypes.data + pages * mmap.PAGESIZE)
    if libc.mprotect(guard, ctypes.c_size_t(mmap.PAGESIZE), 0) != 0:
        raise OSError(ctypes.get_errno(), "mprotect")
    copy = whole[pages * mmap.PAGESIZE - array.nbytes : pages * mmap.PAGESIZE].view(array.dtype).reshape(array.shape)
    copy[...] = array
    return copy

"""Host memory that a GPU reads in place."""

from __future__ import annotations

import contextlib
import os
import resource
import weakref

import torch

from .. import _native
from ..codec.compressed_rows import CompressedRows
from ..codec.gather import MappedRows


class PageLock:
    """Page-locks and maps a buffer for every GPU, as long as this object lives and is not closed. Nothing is copied.
    Keeps the buffer alive. No kernel may be reading it at the end: plans hold on to what theirs read."""

    def __init__(self, buffer: torch.Tensor, device: torch.device | None) -> None:
        """buffer: uint8 [n] in CPU memory. device: whose context does it; None: the current one. Raises RuntimeError if
        the system refuses. Other Python threads go on meanwhile."""
        with _context_of(device):
            self.address: int = _native.cuda().register_host_memory(buffer.data_ptr(), buffer.numel())
        self._release = weakref.finalize(self, _unlock, buffer, device, os.getpid())
        self._release.atexit = False  # then kernels may be reading: the system unlocks when the process ends

    def close(self) -> None:
        """Idempotent."""
        self._release()


class PinnedRows:
    """A store's slots and overflow rows, page-locked. Immutable."""

    def __init__(
        self,
        rows: CompressedRows,
        device: torch.device | None = None,
        *,
        before: PinnedRows | None = None,
        held_by: object = None,
    ) -> None:
        """device: as for PageLock. before: what rows that share some of these buffers have; those are not locked anew.
        held_by: what has to stay as long as a GPU may read the rows. Raises PinError."""
        self.rows, self.held_by = rows, held_by
        locks: dict[str, PageLock] = {}
        for name in ("slots", "overflow"):
            buffer = getattr(rows, name)
            if before is not None and getattr(before.rows, name).data_ptr() == buffer.data_ptr():
                locks[name] = getattr(before, name)
                continue
            try:
                locks[name] = PageLock(buffer, device)
            except RuntimeError as error:
                raise PinError(_why(rows, error)) from error
        self.slots, self.overflow = locks["slots"], locks["overflow"]

    def mapped(self, bitmask: torch.Tensor) -> MappedRows:
        """bitmask: that of the rows, on the GPU that is to read them."""
        return MappedRows(self.rows, self.slots.address, self.overflow.address, bitmask, held_by=self)


class PinError(RuntimeError):
    """The system refused to page-lock the memory; the message says how much was asked and what the limit is.

    Example:
        >>> try: pinned = ibp_gnn.CompressedFeatureStore.build(features, pin=True, progress=False)
        ... except ibp_gnn.PinError: pinned = ibp_gnn.CompressedFeatureStore.build(features, pin=False, progress=False)
        >>> len(pinned)
        1000
    """


def _unlock(buffer: torch.Tensor, device: torch.device | None, process: int) -> None:
    if os.getpid() == process:  # a forked child has no CUDA
        with _context_of(device):
            _native.cuda().unregister_host_memory(buffer.data_ptr())


def _context_of(device: torch.device | None) -> contextlib.AbstractContextManager[object]:
    """So that no context is made on GPU 0 for a store that another one reads."""
    return contextlib.nullcontext() if device is None else torch.cuda.device(device)


def _why(rows: CompressedRows, error: Exception) -> str:
    limit = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
    ulimit = "unlimited" if limit == resource.RLIM_INFINITY else f"{limit // 1024} KiB"
    way = "" if torch.cuda.is_available() else ". Without a GPU nothing needs page-locked rows: pin='auto' or pin=False"
    asked = rows.slots.numel() + rows.overflow.numel()
    return (
        f"could not page-lock {asked} bytes ({asked / 2**30:.2f} GiB) of compressed rows: {error}; "
        f"`ulimit -l` is {ulimit}{way}"
    )

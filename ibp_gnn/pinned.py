"""Host memory that a GPU reads in place."""

from __future__ import annotations

import resource
import weakref

import torch

from . import _native
from .compressed_rows import CompressedRows


class PinnedRows:
    """Page-locks and maps a store's slots and overflow rows for every GPU. Nothing is copied. Raises PinError."""

    def __init__(self, rows: CompressedRows) -> None:
        cuda = _native.cuda()
        self.rows = rows
        self.addresses: dict[str, int] = {}
        registered: list[int] = []
        self._release = weakref.finalize(self, _unregister, registered)
        for name in ("slots", "overflow"):
            buffer = getattr(rows, name)
            try:
                self.addresses[name] = cuda.register_host_memory(buffer.data_ptr(), buffer.numel())
            except RuntimeError as error:
                self.close()
                raise PinError(_why(rows, error)) from error
            registered.append(buffer.data_ptr())

    def close(self) -> None:
        """Unmaps; no kernel may be reading. Idempotent."""
        self._release()


class PinError(RuntimeError):
    """The system refused to page-lock the memory; the message says how much was asked and what the limit is."""


def _unregister(addresses: list[int]) -> None:
    if addresses:
        torch.cuda.synchronize()
    while addresses:
        _native.cuda().unregister_host_memory(addresses.pop())


def _why(rows: CompressedRows, error: Exception) -> str:
    limit = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
    ulimit = "unlimited" if limit == resource.RLIM_INFINITY else f"{limit // 1024} KiB"
    asked = rows.slots.numel() + rows.overflow.numel()
    return (
        f"could not page-lock {asked} bytes ({asked / 2**30:.2f} GiB) of compressed rows: {error}; "
        f"`ulimit -l` is {ulimit}"
    )

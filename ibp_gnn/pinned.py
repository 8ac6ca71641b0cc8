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
        self.rows = rows
        self.addresses: dict[str, int] = {}
        self._registered: list[int] = []
        self._release = weakref.finalize(self, _unregister, self._registered)
        for name in ("slots", "overflow"):
            try:
                self.addresses[name] = self._register(rows, name)
            except PinError:
                self.close()
                raise

    def replace_overflow(self, rows: CompressedRows) -> None:
        """rows: the same, but for the overflow area, which is page-locked before the old one is let go. No kernel may
        be reading. Raises PinError, and has changed nothing then."""
        address, old = self._register(rows, "overflow"), self.rows.overflow
        self.rows, self.addresses["overflow"] = rows, address
        self._registered.remove(old.data_ptr())
        _native.cuda().unregister_host_memory(old.data_ptr())

    def _register(self, rows: CompressedRows, name: str) -> int:
        """Returns the buffer's address for GPUs."""
        cuda, buffer = _native.cuda(), getattr(rows, name)
        try:
            address = cuda.register_host_memory(buffer.data_ptr(), buffer.numel())
        except RuntimeError as error:
            raise PinError(_why(rows, error)) from error
        self._registered.append(buffer.data_ptr())
        return address

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

"""CPU memory that GPUs copy from at full speed: page-locked in pieces, freed as a whole."""

from __future__ import annotations

import ctypes

import torch

from ..store.pinned import PageLock, PinError

_PIECE_BYTES = 256 << 20
_ALIGN_BYTES = 256


class HostArena:
    """Hands out CPU memory, piece after piece of one allocation, and page-locks all of it.

    Single allocations would share memory pages, which can be page-locked once only.
    """

    def __init__(self, *, pin: bool) -> None:
        """pin: whether `lock` page-locks."""
        self._pin = pin
        self._pieces: list[torch.Tensor] = []
        self._used = 0  # of the last piece
        self._locks: list[PageLock] = []
        self.nbytes = 0

    def take(self, length: int) -> torch.Tensor:
        """uint8 [length], at a multiple of 256 bytes, not initialised. Not after `lock`."""
        if not self._pieces or self._used + length > self._pieces[-1].numel():
            with torch.inference_mode(False):
                # Memory that is not written takes no room: what is left of a piece costs nothing.
                piece = torch.empty(max(_PIECE_BYTES, length) + _ALIGN_BYTES, dtype=torch.uint8, device="cpu")
            skip = -piece.data_ptr() % _ALIGN_BYTES
            self._shrink_last()
            self._pieces.append(piece[skip:])
            self._used = 0
        part = self._pieces[-1][self._used : self._used + length]
        self._used += -(-length // _ALIGN_BYTES) * _ALIGN_BYTES
        self.nbytes += length
        return part

    def lock(self, device: torch.device | None) -> None:
        """Page-locks what was handed out. device: whose context does it; None: the current one. Raises PinError."""
        self._shrink_last()
        if not self._pin:
            return
        try:
            for piece in self._pieces:
                self._locks.append(PageLock(piece, device))
        except RuntimeError as error:
            self.close()
            raise PinError(
                f"could not page-lock {self.nbytes / 2**30:.2f} GiB of compressed weights: {error}"
            ) from error

    def address_of(self, part: torch.Tensor) -> int:
        """The address by which GPUs read a part of locked memory."""
        for piece, lock in zip(self._pieces, self._locks, strict=True):
            offset = part.data_ptr() - piece.data_ptr()
            if 0 <= offset < piece.numel():
                return lock.address + offset
        raise ValueError("part: want memory of this arena, locked, got other memory")

    def close(self) -> None:
        """Unlocks. No GPU may be reading."""
        for lock in self._locks:
            lock.close()
        self._locks = []

    def _shrink_last(self) -> None:
        if self._pieces:
            self._pieces[-1] = self._pieces[-1][: max(self._used, 1)]


def return_freed_memory() -> None:
    """Gives memory that was freed back to the system, where the C library would keep it: glibc's."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)

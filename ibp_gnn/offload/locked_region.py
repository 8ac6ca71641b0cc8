"""A range of addresses that is filled from its start, and page-locked as far as it is filled."""

from __future__ import annotations

import mmap
from collections.abc import Iterator

import torch

from ..store.pinned import PageLock, PinError

_FEWEST_BYTES, _MOST_BYTES = 64 << 10, 64 << 20  # that are locked at once, if not more are asked for
_NO_RESERVE = 0x4000  # Linux' MAP_NORESERVE, which Python names from 3.13 on


class Budget:
    """How many bytes may be used, by several regions together."""

    def __init__(self, limit: int) -> None:
        self.limit, self.used = limit, 0

    def take(self, length: int, *, beyond: bool = False) -> None:
        """Raises MemoryError if it is used up and it must not go beyond; then nothing is taken."""
        if self.used + length > self.limit and not beyond:
            raise MemoryError(
                f"budget: want {self.used + length} bytes of CPU memory for pages, got a limit of {self.limit}"
            )
        self.used += length

    def give_back(self, length: int) -> None:
        self.used -= length


class LockedRegion:
    """Addresses for `capacity` bytes, which take no memory until `grow` is called. GPUs read and write what is locked
    by the same addresses."""

    def __init__(self, capacity: int, budget: Budget, *, pin: bool, device: torch.device | None = None) -> None:
        """budget: what grows counts there. pin: whether it is page-locked; device: whose context does it, None: the
        current one."""
        self._budget, self._pin, self._device = budget, pin, device
        self._mapping = mmap.mmap(-1, max(capacity, 1), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _NO_RESERVE)
        with torch.inference_mode(False):
            self.bytes = torch.frombuffer(self._mapping, dtype=torch.uint8)
        self.nbytes = 0  # that may be used
        self._locks: list[PageLock] = []
        self._ends: list[int] = []  # of what was locked at once

    def grow(self, length: int, *, beyond_budget: bool = False) -> None:
        """Makes at least `length` bytes usable. Raises MemoryError, but not for the budget if it may go beyond, and
        PinError; then nothing has changed."""
        if length <= self.nbytes:
            return
        page = mmap.PAGESIZE
        ahead = min(max(_FEWEST_BYTES, self.nbytes // 4), _MOST_BYTES)
        wanted = min(max(length, self.nbytes + ahead), self.bytes.numel())
        if length > wanted:
            raise MemoryError(f"want {length} bytes of addresses, got {self.bytes.numel()}")
        end = min(-(-wanted // page) * page, self.bytes.numel())
        if self._budget.used + end - self.nbytes > self._budget.limit:
            end = min(-(-length // page) * page, self.bytes.numel())
        self._budget.take(end - self.nbytes, beyond=beyond_budget)
        if self._pin:
            piece = self.bytes[self.nbytes : end]
            try:
                lock = PageLock(piece, self._device)
            except RuntimeError as error:
                self._budget.give_back(end - self.nbytes)
                raise PinError(f"could not page-lock {end - self.nbytes} bytes of pages: {error}") from error
            if lock.address != piece.data_ptr():
                lock.close()
                self._budget.give_back(end - self.nbytes)
                raise PinError("want a system where GPUs use the addresses of the CPU, got one with others")
            self._locks.append(lock)
            self._ends.append(end)
        self.nbytes = end

    def write(self, start: int, source: torch.Tensor) -> None:
        """source: uint8 [n], contiguous, on the CPU or the GPU: to the bytes from `start` on. On a GPU enqueued on the
        current stream."""
        for first, end in self._spans(start, start + source.numel()):
            self.bytes[first:end].copy_(source[first - start : end - start], non_blocking=True)

    def read(self, start: int, out: torch.Tensor) -> None:
        """The other way round."""
        for first, end in self._spans(start, start + out.numel()):
            out[first - start : end - start].copy_(self.bytes[first:end], non_blocking=True)

    def _spans(self, start: int, end: int) -> Iterator[tuple[int, int]]:
        """The same bytes, in pieces that were locked at once: CUDA copies no others."""
        cuts = [start, *(cut for cut in self._ends if start < cut < end), end]
        yield from zip(cuts[:-1], cuts[1:], strict=True)

    def close(self) -> None:
        """Unlocks. No GPU may be using it."""
        for lock in self._locks:
            lock.close()
        self._locks, self._ends = [], []
        self._budget.give_back(self.nbytes)
        self.nbytes = 0
        self.bytes = self.bytes[:0]

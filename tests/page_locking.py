"""Page-locking without a GPU."""

from __future__ import annotations


class Registers:
    """Stands in for the CUDA extension: remembers what is page-locked, or refuses to. The fixture `registers`."""

    def __init__(self) -> None:
        self.locked: dict[int, int] = {}  # bytes, by address
        self.refuses = False

    def register_host_memory(self, address: int, nbytes: int) -> int:
        if self.refuses:
            raise RuntimeError("cudaErrorMemoryAllocation (out of memory)")
        self.locked[address] = nbytes
        return address

    def unregister_host_memory(self, address: int) -> None:
        del self.locked[address]

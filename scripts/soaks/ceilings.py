"""What a process holds, which must not grow."""

from __future__ import annotations

import ctypes
import gc
import os
from pathlib import Path

import torch

from ibp_gnn.store.pinned import PageLock

_MOST_MORE = {"page_locks": 0, "gpu": 0, "descriptors": 4, "mappings": 0}


_MMAP_THRESHOLD = -3  # of mallopt


def give_memory_back() -> None:
    """Once in a process: what is freed goes back to the system, so that `held` counts it no more. Else the C library
    keeps blocks of up to 32 MB for later."""
    ctypes.CDLL(None).mallopt(_MMAP_THRESHOLD, 1 << 18)


def held() -> dict[str, int]:
    """rss: bytes of memory, without files and what processes share; page_locks: buffers that stores have locked; gpu:
    bytes that torch has given out; descriptors: open files; mappings: of memory that stores share."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        torch.cuda.synchronize()
    return {
        "rss": int(status["RssAnon"].split()[0]) << 10,
        "page_locks": sum(type(thing) is PageLock for thing in gc.get_objects()),
        "gpu": torch.cuda.memory_allocated() if torch.cuda.is_initialized() else 0,
        "descriptors": len(os.listdir("/proc/self/fd")),
        "mappings": Path("/proc/self/maps").read_text().count("memfd:ibp_gnn_rows"),
    }


class Growth(AssertionError):
    """More is held than at the start."""


class Ceilings:
    """Takes what is held once it has settled, and compares what is held later."""

    def __init__(self, most_rss: int, settles_after: int = 5) -> None:
        """most_rss: how much more memory is none yet. settles_after: rounds in which libraries load code and fill
        caches."""
        self._most_more = {"rss": most_rss, **_MOST_MORE}
        self._settles_after, self.rounds = settles_after, 0
        self.first: dict[str, int] = {}
        self.most: dict[str, int] = {}

    def check(self) -> None:
        """Called after each round, when all of it is dropped. Raises Growth."""
        self.rounds += 1
        now = held()
        if self.rounds <= self._settles_after:
            # The most of what the first rounds left: they differ in what they load.
            self.first = {name: max(value, self.first.get(name, 0)) for name, value in now.items()}
        self.most = {name: max(value, self.most.get(name, 0)) for name, value in now.items()}
        for name, value in now.items():
            if value > self.first[name] + self._most_more[name]:
                raise Growth(f"{name}: want at most {self._most_more[name]} more than {self.first[name]}, got {value}")

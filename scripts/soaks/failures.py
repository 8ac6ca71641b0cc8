"""Allocations that fail: those that one thread asks torch for, and all of a process."""

from __future__ import annotations

import contextlib
import functools
import resource
import threading
from collections.abc import Callable, Iterator
from typing import Any

import torch

_countdown = threading.local()
_FUNCTIONS = ("empty", "full", "cat", "zeros_like", "ones_like", "arange", "nonzero")
_METHODS = ("clone", "index_select", "to", "contiguous", "new_zeros", "index_copy_")
ALLOCATION_ERRORS = (MemoryError, RuntimeError, OSError)


class NoMemory(RuntimeError):
    """In the place of what torch raises."""


def install() -> None:
    """Once in a process, before `failing_after`."""
    for holder, names in ((torch, _FUNCTIONS), (torch.Tensor, _METHODS)):
        for name in names:
            setattr(holder, name, _counted(getattr(holder, name), name))


def _counted(function: Callable[..., Any], name: str) -> Callable[..., Any]:
    @functools.wraps(function)
    def call(*arguments: Any, **named: Any) -> Any:
        left = getattr(_countdown, "left", None)
        if left is not None:
            _countdown.left = left - 1
            if left == 0:
                raise NoMemory(f"injected: no memory in torch's {name}")
        return function(*arguments, **named)

    return call


@contextlib.contextmanager
def failing_after(calls: int) -> Iterator[None]:
    """The calling thread's allocation after so many fails; those after it, which put things right, do not."""
    _countdown.left = calls
    try:
        yield
    finally:
        _countdown.left = None


def limit_memory(more_bytes: int) -> None:
    """This process gets so much more address space, and no byte above it: threads, and what native code allocates,
    fail, too."""
    with open("/proc/self/statm") as file:
        now = int(file.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (now + more_bytes, resource.RLIM_INFINITY))

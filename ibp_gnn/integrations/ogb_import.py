"""Importing ogb, or DGL, which imports it where it is installed, without ogb's version check."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from typing import Any

_MISSING = object()


@contextlib.contextmanager
def without_version_check() -> Iterator[None]:
    """Within, ogb's first import does not ask PyPI for the newest version of itself, on a thread without a timeout that
    Python waits for at exit: it does not where its package `outdated` cannot be imported."""
    modules: dict[str, Any] = sys.modules
    before = modules.get("outdated", _MISSING)
    modules["outdated"] = None  # Python's way to say: cannot be imported
    try:
        yield
    finally:
        if before is _MISSING:
            del modules["outdated"]
        else:
            modules["outdated"] = before

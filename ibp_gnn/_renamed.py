"""Public names that have become others: the old ones go on for a release."""

from __future__ import annotations

import warnings


def warn(old: str, new: str, *, stacklevel: int) -> None:
    """A FutureWarning, since those who use the names are end users: Python hides a DeprecationWarning but in scripts.
    stacklevel: as for `warnings.warn` of whoever calls."""
    warnings.warn(f"{old} is now {new}; the old name stays for one release", FutureWarning, stacklevel=stacklevel + 1)

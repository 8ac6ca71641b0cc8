"""Public names of packages: imported on first use; and why one cannot be had, for `from ibp_gnn import NAME` too."""

from __future__ import annotations

import importlib
import importlib.abc
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any


def import_on_use(package: str, modules: Mapping[str, str]) -> Callable[[str], Any]:
    """modules: of each public name, the module of the package that has it, with a dot first. Returns the package's
    `__getattr__`, which keeps in the package what it has imported."""

    def import_name(name: str) -> Any:
        if name not in modules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(importlib.import_module(modules[name], package), name)
        setattr(sys.modules[package], name, value)
        return value

    return import_name


class MissingNames(importlib.abc.MetaPathFinder):
    """`from ibp_gnn import attach` looks for a module `ibp_gnn.attach` where the package has no such attribute. This
    finder raises ImportError with the reason, which Python would replace by "cannot import name"."""

    def __init__(self, package: str, why_missing: Callable[[str], str | None]) -> None:
        """why_missing(name): the reason; None for a name that is no public one."""
        self.package, self._why_missing = package, why_missing

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        package, _, name = fullname.rpartition(".")
        reason = self._why_missing(name) if package == self.package else None
        if reason is not None:
            raise ImportError(reason, name=fullname)
        return None

    def install(self) -> None:
        """Behind all other finders; in the place of one that an earlier import of the package left."""
        others = [finder for finder in sys.meta_path if getattr(finder, "package", None) != self.package]
        sys.meta_path[:] = [*others, self]

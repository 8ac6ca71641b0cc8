"""`graph.ndata["feat"] = store` (DGL) and `data.x = store` (PyG) raise TypeError, and say what to do.

Both libraries would take the store, and fail much later with an error that does not speak of it. This module changes
how they assign, whichever is imported first; it imports none of them.
"""

from __future__ import annotations

import functools
import importlib.abc
import importlib.machinery
import sys
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

_PYG_FEATURES = ("x", "y", "pos", "edge_attr", "edge_weight")  # those that PyG itself reads; other names are the user's


def install() -> None:
    """Idempotent, light, and does its work in modules that are imported already."""
    wanted = (_Finder.__module__, _Finder.__qualname__)
    # By name, not isinstance: a reload of this module makes a second class.
    if not any((type(one).__module__, type(one).__qualname__) == wanted for one in sys.meta_path):
        sys.meta_path.insert(0, _Finder())
    for name, change in _CHANGES.items():
        if getattr(getattr(sys.modules.get(name), "__spec__", None), "_initializing", True) is False:
            change(sys.modules[name])


class _Finder(importlib.abc.MetaPathFinder):
    """Wraps the loaders of the modules that are changed; every other name passes by."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname not in _CHANGES:
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader, _CHANGES[fullname])
        return spec


class _Loader(importlib.abc.Loader):
    """Runs the real module, then changes it."""

    def __init__(self, inner: importlib.abc.Loader, change: Callable[[ModuleType], None]) -> None:
        self._inner, self._change = inner, change

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        return self._inner.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        # From here on the module is its real loader's, of which inspect and others ask more.
        module.__loader__ = self._inner
        if module.__spec__ is not None:
            module.__spec__.loader = self._inner
        self._inner.exec_module(module)
        self._change(module)


def _change_dgl(view: ModuleType) -> None:
    def check(key: str, value: Any) -> None:
        for one in value.values() if isinstance(value, dict) else [value]:
            if _is_source(one):
                raise TypeError(
                    f"graph.ndata[{key!r}], graph.edata[{key!r}]: want a tensor, got a {type(one).__name__}. "
                    f"ibp_gnn.attach(graph, {key!r}, store) attaches it; ntype= and etype= name nodes or edges"
                )

    _check_items(view, "HeteroNodeDataView", check)
    _check_items(view, "HeteroEdgeDataView", check)


def _change_pyg(storage: ModuleType) -> None:
    def check(key: str, value: Any) -> None:
        if key in _PYG_FEATURES and _is_source(value):
            raise TypeError(
                f"data.{key}: want a tensor, got a {type(value).__name__}. It goes beside the graph: features = "
                f'ibp_gnn.pyg.PyGFeatureStore({{"{key}": store}}); NodeLoader((features, data), sampler, ...). '
                "Of a heterograph the key is (node_type, name); rows of edges: store.gather(batch.e_id)"
            )

    _check_items(storage, "BaseStorage", check)


_CHANGES = {"dgl.view": _change_dgl, "torch_geometric.data.storage": _change_pyg}


def _is_source(value: Any) -> bool:
    if not hasattr(value, "gather"):  # quick, for all else that is assigned
        return False
    from ..store.row_source import is_row_source

    return is_row_source(value)


def _check_items(module: ModuleType, name: str, check: Callable[[str, Any], None]) -> None:
    """The class's `__setitem__` checks what it is given first."""
    cls = getattr(module, name, None)
    set_item = getattr(cls, "__setitem__", None)
    if cls is None or set_item is None or hasattr(set_item, "_ibp_gnn_checks"):
        return

    @functools.wraps(set_item)
    def checked(self: Any, key: str, value: Any) -> None:
        check(key, value)
        set_item(self, key, value)

    checked._ibp_gnn_checks = True  # type: ignore[attr-defined]
    cls.__setitem__ = checked

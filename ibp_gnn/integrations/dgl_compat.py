"""Make `import dgl` work on today's torch, and import it in one way everywhere.

DGL 2.1.0, the only Linux wheel on PyPI, ships a native GraphBolt library for torch 2.0.0 to 2.2.1 alone,
and `import dgl` fails on every other torch because `dgl.graphbolt` cannot find it. Nothing else in DGL
needs that library. `install()` therefore registers an import hook for the one name `dgl.graphbolt`:

* the native library exists: it is loaded, nothing changes;
* it does not: the Python part of GraphBolt is imported without it (feature stores, item sets and data pipes
  work, native sampling raises torch's own error);
* a package that GraphBolt needs is missing as well: `dgl.graphbolt` becomes a stub whose attributes raise
  ImportError with the reason.

The hook must be in place before `import dgl`, so `import ibp_gnn` installs it. Installing it imports
neither dgl nor torch.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.abc
import importlib.machinery
import os
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from types import ModuleType
from typing import Any

from .._install import install_command
from .ogb_import import without_version_check

_GRAPHBOLT = "dgl.graphbolt"
_NATIVE_LIBRARY = "graphbolt_pytorch_"  # then a torch version: libgraphbolt_pytorch_2.2.1.so
_STUB_REASON = "__ibp_gnn_stub_reason__"


def install() -> None:
    """Register the import hook for `dgl.graphbolt`. Idempotent, light, and harmless once dgl is imported."""
    wanted = (GraphBoltFinder.__module__, GraphBoltFinder.__qualname__)
    # By name, not isinstance: a reload of this module makes a second class.
    if not any((type(f).__module__, type(f).__qualname__) == wanted for f in sys.meta_path):
        sys.meta_path.insert(0, GraphBoltFinder())


def import_dgl() -> ModuleType:
    """Return the `dgl` module; the one way in which ibp_gnn imports it.

    Sets DGLBACKEND=pytorch where it is unset: else the first import of DGL writes a file in the home
    folder. Raises ImportError, with the step that helps, if DGL is missing, fails, or runs on another
    backend.
    """
    install()
    _set_default_backend()
    dgl = sys.modules.get("dgl")
    _refuse_half_imported_dgl(dgl)
    # Before the import, which would look for another framework, or write the file, when it is another word.
    _check_backend(os.environ["DGLBACKEND"] if dgl is None else dgl.backend.backend_name)
    try:
        with without_version_check():
            dgl = importlib.import_module("dgl")
    except ModuleNotFoundError as error:
        missing = error.name or "a package"
        what = "DGL is not installed" if missing == "dgl" else f"DGL needs {missing}, which is not installed"
        raise ImportError(f"{what}. Run: {install_command('dgl')}", name=missing) from error
    except Exception as error:
        # DGL loads native libraries as it is imported; OSError and AttributeError occur, among others.
        raise ImportError(
            f"import dgl failed with {type(error).__name__}: {error}. ibp_gnn is tested with DGL 2.1.0; to "
            f"get it with the packages that it needs, run: {install_command('dgl')}",
            name="dgl",
        ) from error
    _make_spawned_workers_import_ibp_gnn()
    return dgl


def _check_backend(name: str) -> None:
    if name != "pytorch":
        raise ImportError(
            f"DGL backend: want pytorch, got {name!r}. Set DGLBACKEND=pytorch before dgl is imported",
            name="dgl",
        )


def _refuse_half_imported_dgl(dgl: ModuleType | None) -> None:
    """Raise ImportError if an earlier `import dgl` failed in this process.

    Its submodules stay in sys.modules, so that a second import yields a `dgl` that lacks most attributes.
    Removing them does not help: DGL has registered names with torch, and fails when it registers them
    again.
    """
    submodule = "dgl.backend"  # the first one that `import dgl` completes
    if submodule in sys.modules and not hasattr(dgl, "backend"):
        raise ImportError(
            "an earlier `import dgl` failed in this process and left it half imported. In a new process, "
            "`import ibp_gnn` before `import dgl`",
            name="dgl",
        )


def graphbolt_is_native() -> bool:
    """Whether GraphBolt's native library is loaded and its samplers work. Imports DGL, like import_dgl."""
    import_dgl()
    graphbolt = importlib.import_module(_GRAPHBOLT)
    if _STUB_REASON in graphbolt.__dict__:
        return False
    import torch

    return any(_is_native_library(path) for path in torch.classes.loaded_libraries)


class GraphBoltFinder(importlib.abc.MetaPathFinder):
    """Wraps the loader of `dgl.graphbolt`, and notices the import of `dgl`; every other name passes by."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname == "dgl":
            _set_default_backend()
        if fullname != _GRAPHBOLT:
            return None
        for finder in sys.meta_path:
            if finder is self or not hasattr(finder, "find_spec"):
                continue
            spec = finder.find_spec(fullname, path, target)
            if spec is not None:
                if spec.loader is not None:
                    spec.loader = _GraphBoltLoader(spec.loader)
                return spec
        return None


class _GraphBoltLoader(importlib.abc.Loader):
    """Runs the real module, with or without its native library, or turns it into a stub."""

    def __init__(self, inner: importlib.abc.Loader) -> None:
        self.inner = inner

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        return self.inner.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        # From here on the module is its real loader's, of which inspect and others ask more.
        module.__loader__ = self.inner
        if module.__spec__ is not None:
            module.__spec__.loader = self.inner
        with _native_library_optional() as library:
            try:
                self.inner.exec_module(module)
            except Exception as error:
                # Without its library, any error is a consequence of that. With it, ImportError alone means
                # a missing dependency, unless it names a module of DGL: a damaged DGL must be seen.
                of_dgl = (getattr(error, "name", None) or "").split(".")[0] == "dgl"
                if not library.absent and (of_dgl or not isinstance(error, ImportError)):
                    raise
                _make_stub(module, error)
                if library.broken:
                    warnings.warn(f"{_GRAPHBOLT} is unavailable: {error}", RuntimeWarning, stacklevel=2)


class _LibraryProbe:
    """What happened to GraphBolt's native library while `dgl.graphbolt` was imported."""

    absent = False  # asked for and not there
    broken = False  # there, and it did not load


@contextlib.contextmanager
def _native_library_optional() -> Iterator[_LibraryProbe]:
    """Answer for a native GraphBolt library that does not exist.

    GraphBolt looks for its library with os.path.exists and loads it with torch.classes.load_library, both
    looked up at call time. Every other path, and a library that does exist, goes to the real functions.
    """
    import torch  # dgl.backend has imported it before dgl.graphbolt is reached

    real_exists, real_load = os.path.exists, torch.classes.load_library
    probe = _LibraryProbe()

    def exists(path: Any) -> bool:
        if real_exists(path):
            return True
        if _is_native_library(path):
            probe.absent = True
            return True
        return False

    def load_library(path: Any) -> None:
        if _is_native_library(path) and not real_exists(path):
            return
        try:
            real_load(path)
        except Exception:
            probe.broken = True
            raise

    os.path.exists, torch.classes.load_library = exists, load_library  # type: ignore[method-assign]
    try:
        yield probe
    finally:
        os.path.exists, torch.classes.load_library = real_exists, real_load  # type: ignore[method-assign]


def _is_native_library(path: Any) -> bool:
    return _NATIVE_LIBRARY in os.path.basename(str(path))


def _make_stub(module: ModuleType, error: BaseException) -> None:
    """Empty a half-imported `dgl.graphbolt`; every attribute then raises ImportError with the reason."""
    for name in [name for name in sys.modules if name.startswith(_GRAPHBOLT + ".")]:
        del sys.modules[name]
    for name in [name for name in vars(module) if not name.startswith("__")]:
        delattr(module, name)
    reason = f"{type(error).__name__}: {error}. To get all that it needs, run: {install_command('dgl')}"

    def missing_attribute(name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)  # import machinery, inspect and pickle probe for these
        raise ImportError(f"{_GRAPHBOLT}.{name} is unavailable: {reason}", name=_GRAPHBOLT)

    module.__dict__[_STUB_REASON] = reason
    module.__dict__["__getattr__"] = missing_attribute


def _set_default_backend() -> None:
    os.environ.setdefault("DGLBACKEND", "pytorch")


def _make_spawned_workers_import_ibp_gnn() -> None:
    """Let spawned DataLoader workers import DGL.

    A spawned worker unpickles the loader's parts, which imports DGL, before it runs a line of user code.
    Unless its main module imports ibp_gnn (a notebook's does not), the hook above would be missing there.
    So these parts are pickled behind a reference to this module, for multiprocessing alone; ordinary
    pickles stay as they are.
    """
    from multiprocessing.reduction import ForkingPickler

    loader = importlib.import_module("dgl.dataloading.dataloader")
    for name in ("TensorizedDataset", "DDPTensorizedDataset", "CollateWrapper", "WorkerInitWrapper"):
        cls = getattr(loader, name, None)
        if cls is not None:
            ForkingPickler.register(cls, _reduce_loader_part)


def _reduce_loader_part(part: Any) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    # The pickle names _rebuild_loader_part, and so imports ibp_gnn, before it names any class of DGL.
    return _rebuild_loader_part, (type(part), vars(part))


def _rebuild_loader_part(cls: type, state: dict[str, Any]) -> Any:
    part: Any = object.__new__(cls)
    vars(part).update(state)
    return part

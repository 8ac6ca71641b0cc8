"""Finds the compiled extensions `ibp_gnn._cpu` and `ibp_gnn._cuda`, from within a source tree as well.

Python run in a source tree takes its folder ibp_gnn/, which has no compiled files, for the package. Those of the
installed package serve, if they were compiled from the same sources: the build leaves a list of those beside them.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import sys
from importlib.machinery import PathFinder
from pathlib import Path
from types import ModuleType

_PACKAGE = Path(__file__).parent
_CSRC = _PACKAGE.parent / "csrc"
_LIST = "_csrc.sha256"  # written by csrc/CMakeLists.txt, in the format of sha256sum
_SUFFIXES = (".cc", ".cmake", ".cu", ".cuh", ".h", ".map", ".txt")


def load(name: str) -> ModuleType:
    """name: "_cpu" or "_cuda". Returns the module, and initialises no CUDA.

    Raises ModuleNotFoundError where none was built, ImportError where it cannot be loaded, or where this is a source
    tree and the installed one was built from other sources.
    """
    full_name = f"ibp_gnn.{name}"
    try:
        return importlib.import_module(full_name)
    except ModuleNotFoundError as error:
        installed = None
        if error.name == full_name and (_CSRC / "CMakeLists.txt").is_file():
            installed = _find_installed(full_name)
        if installed is None:
            raise
    _check_sources(installed)
    return _load_file(full_name, installed)


def source_list(csrc: Path) -> str:
    """What the build writes for these sources: a line for each file, "HASH  PATH", in the order of paths."""
    paths = sorted(path.relative_to(csrc).as_posix() for path in csrc.rglob("*") if path.suffix in _SUFFIXES)
    return "".join(f"{hashlib.sha256((csrc / path).read_bytes()).hexdigest()}  {path}\n" for path in paths)


def _find_installed(full_name: str) -> Path | None:
    """The file in the first package ibp_gnn on sys.path that has it for this Python."""
    spec = PathFinder.find_spec(full_name, [str(Path(entry) / "ibp_gnn") for entry in sys.path])
    return None if spec is None or spec.origin is None else Path(spec.origin)


def _check_sources(extension: Path) -> None:
    try:
        built_from = (extension.parent / _LIST).read_text()
    except FileNotFoundError:
        built_from = ""  # by a version that left no list
    changed = set(built_from.splitlines()) ^ set(source_list(_CSRC).splitlines())
    if changed:
        example = min(line.split("  ", 1)[1] for line in changed)
        raise ImportError(
            f"{extension}: want it built from the sources in {_CSRC}, got one that was built from others "
            f"({example} differs); run `pip install .` in the source tree"
        )


def _load_file(full_name: str, path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(full_name, path)
    assert spec is not None and spec.loader is not None  # the finder has found such a file
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    sys.modules[full_name] = module
    package, _, name = full_name.rpartition(".")
    setattr(sys.modules[package], name, module)
    return module

"""The `ogb` package without its habits: no version check on the network, no questions on stdin, no refused files.

Nothing of it is changed for good; each function puts back what it replaced.
"""

from __future__ import annotations

import _codecs
import contextlib
import csv
import importlib
import shutil
import socket
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

from .._install import install_command
from ..integrations.ogb_import import without_version_check
from .node_dataset import DatasetError

_TIMEOUT_SECONDS = 30.0
# Modules whose functions we call that ask questions.
_ASKING = ("ogb.utils.url",)


def import_ogb(module: str) -> Any:
    """Returns a module of ogb. Raises ImportError with the pip command when it is not installed."""
    try:
        with without_version_check():
            return importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise ImportError(
            f"OGB data sets: want the package ogb, got {error}; install it with: {install_command('ogb')}",
            name=error.name,
        ) from error


def master_entry(name: str) -> dict[str, str]:
    """What ogb knows about its node-prediction data set `name`: version, url, number of classes and so on."""
    folder = Path(import_ogb("ogb.nodeproppred").__file__).parent
    with open(folder / "master.csv", newline="", encoding="utf-8") as file:
        header, *rows = csv.reader(file)
    if name not in header[1:]:
        raise DatasetError(f"want a data set that this ogb knows, one of {header[1:]}, got {name!r}")
    column = header.index(name)
    return {row[0]: row[column] for row in rows}


def download(url: str, root: Path, unpacked: str, folder: Path, *, allow_large: bool) -> None:
    """Lets ogb download and unpack a data set, whose archive has the folder `unpacked`, as `folder`, which must not
    exist. allow_large: say yes to ogb's question before a download of more than 1 GB.

    Raises DatasetError if there is no network, if the answer is no, and if something is in the way.
    """
    urls = import_ogb("ogb.utils.url")
    if (root / unpacked).exists():
        raise DatasetError(f"want to unpack {url} as {root / unpacked}, but that exists; move it away")
    with quiet_ogb(f"{folder} does not exist", "y" if allow_large else None):
        try:
            urls.decide_download(url)  # True, or an error of ours
            archive = urls.download_url(url, str(root))
        except (OSError, RuntimeError, ValueError) as error:  # RuntimeError: a download that broke off
            if isinstance(error, DatasetError):
                raise
            raise DatasetError(f"{folder}: no such folder, and downloading {url} failed: {error}") from error
        urls.extract_zip(archive, str(root))
    Path(archive).unlink()
    shutil.move(root / unpacked, folder)


@contextlib.contextmanager
def quiet_ogb(situation: str, answer: str | None) -> Iterator[None]:
    """Within, ogb's questions get `answer`, or raise DatasetError with the question and the `situation`; what it
    prints goes to stderr; and no connection waits for ever."""

    def reply(question: str = "") -> str:
        if answer is None:
            raise DatasetError(
                f"{situation}, and ogb asks: {question.strip()!r}. Nothing is asked here: say yes with "
                "dataset.allow_large_download=true, or download and unpack it by hand"
            )
        return answer

    modules = [import_ogb(name) for name in _ASKING]
    timeout = socket.getdefaulttimeout()
    socket.setdefaulttimeout(_TIMEOUT_SECONDS)
    for module in modules:
        module.input = reply  # found before the built-in one
    try:
        with contextlib.redirect_stdout(sys.stderr):
            yield
    finally:
        for module in modules:
            del module.input
        socket.setdefaulttimeout(timeout)


# Since torch 2.4, torch.load can be told which globals a file may name.
_LOADS_SAFELY = hasattr(torch.serialization, "add_safe_globals")


def load_torch_file(path: Path) -> Any:
    """torch.load of a file that ogb wrote: dicts, numbers, tensors and NumPy arrays.

    From torch 2.4 on nothing else is loaded, and no code of a file is run. Earlier versions run what a file says, so
    there the file must be trusted, as with ogb itself.
    Raises DatasetError if torch cannot or will not read it.
    """
    try:
        with _numpy_allowed():
            return torch.load(path, map_location="cpu", weights_only=_LOADS_SAFELY)
    except Exception as error:  # whatever a damaged pickle makes of it
        lines = str(error).strip().splitlines() or [type(error).__name__]
        reason = next((line.strip() for line in lines if "unsupported" in line.lower()), lines[0])
        raise DatasetError(f"{path}: want a file that ogb wrote with torch.save; torch.load says: {reason}") from error


@contextlib.contextmanager
def _numpy_allowed() -> Iterator[None]:
    """Within, torch.load takes NumPy arrays and scalars, too."""
    if not _LOADS_SAFELY:
        yield
        return
    multiarray = importlib.import_module("numpy._core.multiarray" if hasattr(np, "_core") else "numpy.core.multiarray")
    functions = [
        _named(function, f"numpy.{core}.multiarray")
        for function in (multiarray._reconstruct, multiarray.scalar)
        for core in ("_core", "core")  # as NumPy 2 calls it in a file, and NumPy 1
    ]
    dtypes = {type(np.dtype(code)) for code in "?bBhHiIlLqQefdSU"}
    before = list(torch.serialization.get_safe_globals())  # what the user allowed
    torch.serialization.add_safe_globals([*functions, np.ndarray, np.dtype, _codecs.encode, *dtypes])
    try:
        yield
    finally:
        torch.serialization.clear_safe_globals()
        torch.serialization.add_safe_globals(before)


def _named(function: Callable[..., Any], module: str) -> Callable[..., Any]:
    """The function as one of `module`: by these names torch knows it when it finds it in a file."""

    def call(*arguments: Any) -> Any:
        return function(*arguments)

    call.__module__, call.__name__, call.__qualname__ = module, function.__name__, function.__name__
    return call

"""Feature arrays from files: .npy (memory-mapped), .npz, .pt and .safetensors. No file can run code here."""

from __future__ import annotations

import pickle
import re
import warnings
import zipfile
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ..codec.values import as_tensor, check_row_shape

Rows = np.ndarray | torch.Tensor


class ArrayFileError(ValueError):
    """A file that holds no usable feature array; the message names the file, what is wanted and what was got."""


def load_rows(path: str | Path, key: str | None = None) -> Rows:
    """Returns the rows [n, *row_shape], at least 2-dimensional and n >= 1, of a dtype that can be compressed, on the
    CPU; a read-only memmap for .npy.

    key: which array of a .npz, .pt or .safetensors file. None takes the only array with 2 dimensions or more.
    Raises ArrayFileError for anything else, FileNotFoundError without a file, and ImportError with the pip command if
    .safetensors needs a package that is missing.
    """
    path = Path(path)
    read = _READERS.get(path.suffix.lower())
    if read is None and path.is_dir():
        raise IsADirectoryError(f"{path}: want a file, got a folder")
    if read is None:
        raise ArrayFileError(f"{path}: want a file named {', '.join(f'*{suffix}' for suffix in _READERS)}")
    if not path.exists():
        raise FileNotFoundError(f"{path}: no such file")
    if path.is_dir():
        raise IsADirectoryError(f"{path}: want a file, got a folder")
    rows = read(path, key)
    if not isinstance(rows, (np.ndarray, torch.Tensor)):
        raise ArrayFileError(f"{path}: want an array, got {_described(type(rows).__name__)}")
    if isinstance(rows, torch.Tensor) and rows.layout != torch.strided:
        layout = str(rows.layout).removeprefix("torch.")
        raise ArrayFileError(f"{path}: want a dense tensor, got layout {layout}; save features.to_dense()")
    shape = list(rows.shape)
    if len(shape) < 2 or len(rows) == 0:
        raise ArrayFileError(f"{path}: want at least 1 row and 2 dimensions, [rows, columns, ...], got shape {shape}")
    try:
        check_row_shape(tuple(shape))
        as_tensor(rows[:0])
    except (TypeError, ValueError) as error:
        raise ArrayFileError(f"{path}: {error}") from error
    return rows


def _read_npy(path: Path, key: str | None) -> Any:
    if key is not None:
        raise ArrayFileError(f"{path}: want no key, since a .npy file holds one array, got {key!r}")
    try:
        rows = np.load(path, mmap_mode="r", allow_pickle=False)
    except (ValueError, EOFError) as error:
        raise ArrayFileError(f"{path}: not an array that NumPy can map: {_numpy_reason(error)}") from error
    if not isinstance(rows, np.ndarray):
        raise ArrayFileError(f"{path}: want one array, as numpy.save writes it, got a .npz archive of this name")
    return rows


def _read_npz(path: Path, key: str | None) -> Any:
    try:
        with np.load(path, allow_pickle=False) as npz:
            if not isinstance(npz, np.lib.npyio.NpzFile):
                raise ArrayFileError(f"{path}: want a .npz archive, got another file")
            return _pick(path, npz.files, key, lambda name: npz[name])
    except (ValueError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        if isinstance(error, ArrayFileError):
            raise
        raise ArrayFileError(f"{path}: not a .npz archive of plain arrays: {_numpy_reason(error)}") from error


def _read_pt(path: Path, key: str | None) -> Any:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of sparse layouts, which are refused below
            content = torch.load(path, map_location="cpu", weights_only=True)
    except (pickle.UnpicklingError, RuntimeError, EOFError, ValueError, KeyError, AttributeError) as error:
        # Not torch's own words: they advise to load the file in a way that runs its code.
        found = re.search(r"GLOBAL ([\w.]+)", str(error))
        got = "no file of torch.save, or a damaged one" if found is None else _described(found[1])
        raise ArrayFileError(f"{path}: want a tensor or a dict of tensors, got {got}") from error
    if isinstance(content, Mapping):
        tensors = {str(name): value for name, value in content.items() if isinstance(value, torch.Tensor)}
        if not tensors:
            kinds = ", ".join(sorted({f"{name!r}: {type(value).__name__}" for name, value in content.items()})[:8])
            raise ArrayFileError(
                f"{path}: want a dict of tensors, got {{{kinds}}}; is it the checkpoint of a training? Save the node "
                "features alone: torch.save(x, FILE)"
            )
        return _pick(path, list(tensors), key, tensors.__getitem__)
    if key is not None:
        raise ArrayFileError(f"{path}: want no key, since the file holds a {type(content).__name__}, got {key!r}")
    return content


def _described(name: str) -> str:
    """name: of a class that is no array. Returns what it is likely to be, and what to save instead."""
    if "torch_geometric" in name or name in ("Data", "HeteroData"):
        return f"PyG's {name}; save its features alone: torch.save(data.x, FILE)"
    if "dgl" in name:
        return f"DGL's {name}; save its features alone: torch.save(graph.ndata[NAME], FILE)"
    if name.startswith("torch.nn") or name.startswith("torch.optim"):
        return f"a model ({name}); want node features: torch.save(x, FILE)"
    return f"an object of class {name}; save its features alone: torch.save(x, FILE)"


def _numpy_reason(error: Exception) -> str:
    """NumPy's words, but not its advice to load a file in a way that runs its code."""
    text = str(error)
    if "pickle" in text or "Python objects" in text or "Object arrays" in text:
        return "it holds Python objects, or is no file of NumPy's"
    return text.splitlines()[0] if text else type(error).__name__


def _read_safetensors(path: Path, key: str | None) -> Any:
    try:
        import safetensors
    except ImportError as error:
        raise ImportError(
            f"{path}: reading it needs a package that is missing; install it with: pip install safetensors",
            name="safetensors",
        ) from error
    try:
        with safetensors.safe_open(path, framework="pt") as tensors:
            return _pick(path, list(tensors.keys()), key, tensors.get_tensor)
    except safetensors.SafetensorError as error:
        raise ArrayFileError(f"{path}: not a safetensors file: {error}") from error


def _pick(path: Path, names: list[str], key: str | None, read: Callable[[str], Any]) -> Any:
    """The array named `key`, or the only one that can be rows."""
    if key is not None:
        if key not in names:
            raise ArrayFileError(f"{path}: want one of {_listed(names)}, got key {key!r}")
        return read(key)
    matrices = [name for name in names if read(name).ndim >= 2]  # one at a time in memory
    if len(matrices) > 1:
        raise ArrayFileError(f"{path}: want a key, one of {_listed(matrices)}")
    if not matrices:
        raise ArrayFileError(f"{path}: want an array with 2 dimensions or more, got only {_listed(names)} with fewer")
    return read(matrices[0])


def _listed(names: list[str], most: int = 20) -> str:
    shown = ", ".join(repr(name) for name in names[:most])
    return f"[{shown}{', ...' if len(names) > most else ''}]"


_READERS: dict[str, Callable[[Path, str | None], Any]] = {
    ".npy": _read_npy,
    ".npz": _read_npz,
    ".pt": _read_pt,
    ".pth": _read_pt,
    ".safetensors": _read_safetensors,
}

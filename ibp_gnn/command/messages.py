"""How `ibp-gnn` and the scripts say what went wrong: one line that has the path, what was being done, and the names of
the options that the user typed."""

from __future__ import annotations

import errno
import os
import re
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from .command_error import CommandError

# What the package calls things, by what the user calls them; of all subcommands.
_OPTION_OF = {
    "chunk_rows": "--chunk-rows",
    "codec": "--codec",
    "features": "FILE",
    "hotness": "--order",
    "ids": "--ids",
    "layout": "--layout",
    "max_rows": "--sample",
    "rows": "FILE",
    "seed": "--seed",
}
_REASONS = {
    errno.ENOENT: "no such file",
    errno.EISDIR: "want a file, got a folder",
    errno.ENOTDIR: "a part of the path is a file, not a folder",
    errno.EACCES: "no permission",
    errno.EPERM: "no permission",
    errno.EROFS: "the file system can only be read",
    errno.EEXIST: "there is a file of this name",
}


@contextmanager
def explained(doing: str, path: Path | None = None, names: Mapping[str, str] | None = None) -> Iterator[None]:
    """What the system, the user's files and arguments do not allow, as CommandError.

    doing: what is done meanwhile, for instance "reading a store". path: of what. names: options by the package's names
    for them, where they are not those of all subcommands."""
    try:
        yield
    except BrokenPipeError:  # of standard output: see concurrency/exit_status.py
        raise
    except OSError as error:
        raise CommandError(os_error_text(error, doing, path)) from error
    except (ValueError, TypeError, IndexError) as error:  # FormatError and ArrayFileError are ValueErrors
        raise CommandError(as_options(str(error), names or {})) from error


def os_error_text(error: OSError, doing: str, path: Path | None = None) -> str:
    """PATH: reason (doing). An error without a number is of this package, and has path and reason already."""
    if error.errno is None:
        where = "" if path is None or str(path) in str(error) else f"{path}: "
        return f"{where}{error} ({doing})"
    name = Path(os.fsdecode(error.filename)) if isinstance(error.filename, (str, bytes)) else path
    reason = _REASONS.get(error.errno) or (error.strerror or str(error)).lower()
    if error.errno == errno.ENOENT and name is not None and not name.parent.is_dir():
        reason = f"no such folder as {name.parent}"
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        reason = f"the disk is full{_sizes(path or name)}"
    return f"{name}: {reason} ({doing})"


def as_options(text: str, names: Mapping[str, str]) -> str:
    """The text with the option's name in front, where it starts with the package's name of an argument."""
    match = re.match(r"(\w+)(, \w+)?(?=: )", text)
    if match is None:
        return text
    name = {**_OPTION_OF, **names}.get(match[1])
    return text if name is None else name + text[match.end() :]


def check_outputs(**paths: Path | None) -> None:
    """By option: files that are to be written after some work. Raises CommandError before it for one that cannot be."""
    for option, path in paths.items():
        if path is not None and (path.is_dir() or not path.parent.is_dir()):
            raise CommandError(f"--{option}: want a file in an existing folder, got {path}")


def check_plot(path: Path | None) -> None:
    """Raises CommandError for a suffix that is none of a picture, ImportError without matplotlib."""
    if path is None:
        return
    from .plots import require_matplotlib

    if path.suffix.lower() not in (".png", ".svg", ".pdf"):
        raise CommandError(f"--plot: want a name ending in .png, .svg or .pdf, got {path}")
    require_matplotlib()


def write_text(option: str, path: Path, text: str) -> None:
    with explained(f"writing --{option}", path):
        path.write_text(text, encoding="utf-8")


def _sizes(path: Path | None) -> str:
    """What is written of a file, and how much room is left."""
    if path is None:
        return ""
    written = sum(each.stat().st_size for each in path.parent.glob(f"{path.name}*") if each.is_file())
    return f": {written} bytes of {path.name} are written, {shutil.disk_usage(path.parent).free} are free"

"""What errors of the command say: the path, what was being done, and options as the user typed them."""

from __future__ import annotations

import errno
import sys
from pathlib import Path

import pytest

from ibp_gnn.command import messages
from ibp_gnn.command.command_error import CommandError
from ibp_gnn.command.messages import as_options, explained, os_error_text


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        (errno.ENOENT, "no such file"),
        (errno.EISDIR, "want a file, got a folder"),
        (errno.EACCES, "no permission"),
        (errno.EROFS, "the file system can only be read"),
        (errno.EIO, "input/output error"),
    ],
)
def test_errors_of_the_system(tmp_path: Path, code: int, reason: str) -> None:
    path = tmp_path / "x"
    error = OSError(code, "Input/output error", str(path))
    assert os_error_text(error, "reading a store") == f"{path}: {reason} (reading a store)"
    assert os_error_text(OSError(code, "Input/output error"), "reading a store", path) == (
        f"{path}: {reason} (reading a store)"
    ), "where the system does not say which file"


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(CommandError, match=f"x.json: no such folder as {tmp_path / 'none'} \\(writing --json\\)"):
        messages.write_text("json", tmp_path / "none" / "x.json", "")


def test_a_full_disk_says_both_sizes(tmp_path: Path) -> None:
    (tmp_path / "x.ibp.partial").write_bytes(bytes(1000))
    text = os_error_text(OSError(errno.ENOSPC, "No space left on device"), "building x.ibp", tmp_path / "x.ibp")
    assert text.startswith(f"{tmp_path / 'x.ibp'}: the disk is full: 1000 bytes of x.ibp are written, ")
    assert text.endswith(" are free (building x.ibp)")


def test_our_own_errors_keep_their_words(tmp_path: Path) -> None:
    error = FileNotFoundError(f"{tmp_path}: want 7 bytes of free disk space for x, got 3")
    assert os_error_text(error, "building x", tmp_path) == f"{error} (building x)"
    assert os_error_text(OSError("want 7, got 3"), "building x", tmp_path) == f"{tmp_path}: want 7, got 3 (building x)"


def test_names_of_options() -> None:
    assert as_options("hotness: want shape [3], got [4]", {}) == "--order: want shape [3], got [4]"
    assert as_options("rows: want 2 dimensions", {"rows": "FEATURES"}) == "FEATURES: want 2 dimensions"
    assert as_options("hotness, hot_ids: want fewer", {}) == "--order: want fewer"
    for text in ("a.npy: want rows", "capacity: want bytes", "no argument here"):
        assert as_options(text, {}) == text


def test_what_is_explained(tmp_path: Path) -> None:
    for error, message in (
        (ValueError("codec: want a, got b"), "^--codec: want a, got b$"),
        (IndexError("ids: want 0, got 1"), "^--ids: want 0, got 1$"),
        (PermissionError(errno.EACCES, "denied", "x"), r"^x: no permission \(reading\)$"),
    ):
        with pytest.raises(CommandError, match=message), explained("reading", tmp_path):
            raise error
    for passed in (KeyboardInterrupt(), BrokenPipeError(), ZeroDivisionError()):
        with pytest.raises(type(passed)), explained("reading", tmp_path):
            raise passed


def test_outputs_are_checked_before_the_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    messages.check_outputs(json=None, plot=tmp_path / "x.png")
    for path in (tmp_path, tmp_path / "none" / "x"):
        with pytest.raises(CommandError, match=f"--plot: want a file in an existing folder, got {path}"):
            messages.check_outputs(json=None, plot=path)
    with pytest.raises(CommandError, match="--plot: want a name ending in .png, .svg or .pdf, got x.txt"):
        messages.check_plot(Path("x.txt"))
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ImportError, match="pip install matplotlib"):
        messages.check_plot(Path("x.png"))
    messages.check_plot(None)

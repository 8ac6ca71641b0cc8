"""How far a build of a store file has come: a JSON object a line, each on the disk before the work goes on."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from .file_io import sync_folder, write_all
from .locks import open_locked

_VERSION = 2  # of the lines


class LostWorkError(OSError):
    """What an earlier build has written, as its journal says, is not there any more."""


class Journal:
    """Lines: what is built from what; what sizing settled (`plan`); then one per chunk that is on the disk. A line that
    a kill cut off does not count. Locked while it is open."""

    def __init__(self, path: Path, source: dict[str, Any]) -> None:
        """Goes on with the journal at `path` if it is of a build with the same source; else starts it anew. Raises
        BlockingIOError if another process has it open."""
        self._path = path
        try:
            self._fd = open_locked(path)
        except BlockingIOError as error:
            raise BlockingIOError(f"{path}: another process is building this store") from error
        source = json.loads(json.dumps({"journal": _VERSION, **source}))
        self._source = {"source": source}
        lines, self._end = _read_lines(self._fd)
        self.resumed = bool(lines) and lines[0] == self._source
        self.plan: dict[str, Any] | None = None
        self.chunks: list[dict[str, Any]] = []
        if self.resumed:
            os.ftruncate(self._fd, self._end)
            self.plan, self.chunks = lines[1]["plan"] if len(lines) > 1 else None, lines[2:]
        else:
            self.start_over()
            sync_folder(path)

    def start_over(self) -> None:
        """Forgets all that was done."""
        self.plan, self.chunks, self._end = None, [], 0
        os.ftruncate(self._fd, 0)
        self._append(self._source)

    def write_plan(self, plan: dict[str, Any]) -> None:
        self._append({"plan": plan})

    def write_chunk(self, chunk: dict[str, Any]) -> None:
        """chunk: what to know to go on after it, itself on the disk."""
        self._append(chunk)

    def delete(self) -> None:
        """The build is complete."""
        self._path.unlink()

    def __enter__(self) -> Journal:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._fd)

    def _append(self, line: dict[str, Any]) -> None:
        data = (json.dumps(line) + "\n").encode()
        write_all(self._fd, memoryview(data), self._end)
        os.fsync(self._fd)
        self._end += len(data)


def _read_lines(fd: int) -> tuple[list[Any], int]:
    """The whole lines, and where the last of them ends."""
    with open(os.dup(fd), "rb") as file:
        file.seek(0)
        text = file.read()
    lines: list[Any] = []
    end = 0
    for line in text.splitlines(keepends=True):
        try:
            parsed = json.loads(line)
        except ValueError:
            break
        if not line.endswith(b"\n") or not isinstance(parsed, dict):
            break
        lines.append(parsed)
        end += len(line)
    return lines, end

"""The rows of a store file as a store holds them: mapped, in memory of its own, or in memory that processes share."""

from __future__ import annotations

import os
from typing import Any, Literal

import torch

from ...codec.compressed_rows import CompressedRows
from .header import FormatError
from .reading import StoreFile
from .sharing import SharedCopy

Place = Literal["mapped", "private", "shared"]


class HeldFile:
    """`rows` are checked, unless they are mapped: then by `check` and `check_slots`. One thread at a time calls
    `to_memory` and `back_to_mapping`; in a store, the one that page-locks."""

    def __init__(self, file: StoreFile, place: Place) -> None:
        """Raises FormatError and OSError."""
        self.file, self._place = file, place
        self._shared = SharedCopy(file) if place == "shared" else None
        self._is_mapped = place == "mapped"
        self.is_checked = not self._is_mapped
        if self._shared is not None:
            self.rows: CompressedRows = self._shared.rows
        else:
            self.rows = file.map_rows() if place == "mapped" else file.read_rows()
        self._mapped: CompressedRows | None = None  # what `to_memory` has read

    @classmethod
    def again(cls, path: str, identity: tuple[int, ...], place: Place) -> HeldFile:
        """What `__getstate__` returned, in another process. Mapped rows are checked when they are read. Raises
        FormatError if it is another file by now."""
        file = StoreFile(path)
        if file.identity != identity:
            raise FormatError(f"{path}: want the file that it was when the store was pickled, got another one")
        return cls(file, place)

    def check(self, progress: bool | None = None) -> None:
        """Checks all that has not been. progress: of `progress_bar`. Raises FormatError."""
        if not self.is_checked:
            self.file.check(progress)
            self.is_checked = True

    def check_slots(self, slots: torch.Tensor) -> None:
        """slots: int32/int64 [n] in range, on the CPU. Checks all that decoding them reads. Raises FormatError."""
        if not self.is_checked:
            self.file.check_slots(self.rows, slots)

    def to_memory(self) -> CompressedRows:
        """The rows in memory, where they can be page-locked: what is mapped is read. Raises FormatError."""
        if self._is_mapped:
            read = self.file.read_rows()
            self._mapped, self.rows, self._is_mapped, self.is_checked = self.rows, read, False, True
        return self.rows

    def back_to_mapping(self) -> None:
        """Lets go of what `to_memory` has read, where it was mapped before: nobody page-locks it, after all. Nothing
        happens otherwise."""
        if self._mapped is not None:
            self.rows, self._mapped, self._is_mapped = self._mapped, None, True

    def close(self) -> None:
        """The rows must not be used any more. Idempotent."""
        self.file.close()
        if self._shared is not None:
            self._shared.close()

    def __getstate__(self) -> dict[str, Any]:
        """Another process maps what this one maps, or has read to page-lock it."""
        return {"path": os.fspath(self.file.path.absolute()), "identity": self.file.identity, "place": self._place}

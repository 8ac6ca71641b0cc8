"""What a store's rows have to be: plain tensors, one for each version that an update makes."""

from __future__ import annotations

import threading

import torch

from ibp_gnn.testing.bits import assert_bitwise_equal


class Difference(AssertionError):
    """A row is wrong. This is what the soak looks for."""


class Truth:
    """Every version of the rows that somebody may still see. One thread updates; any thread compares."""

    def __init__(self, rows: torch.Tensor) -> None:
        """rows: [n, *row_shape], on the CPU."""
        self._versions = {0: rows}
        self._lock = threading.Lock()
        self.committed = 0  # the last version that an update has returned from
        self._started = 0
        self.failed = 0  # updates that were taken back
        self.values = 0  # that were compared, of all threads

    @property
    def rows(self) -> torch.Tensor:
        """The newest version."""
        return self._versions[self.committed]

    def begin(self, ids: torch.Tensor, rows: torch.Tensor) -> None:
        """An update is about to be called: from now on, gathers may see its rows."""
        after = self.rows.clone()
        after[ids] = rows
        with self._lock:
            self._started += 1
            self._versions[self._started] = after

    def commit(self) -> None:
        """The update has returned: gathers that begin now see its rows."""
        self.committed = self._started

    def take_back(self) -> None:
        """The update has failed: nobody may see its rows."""
        self.failed += 1
        with self._lock:
            del self._versions[self._started]
            self._started += 1
            self._versions[self._started] = self.rows
            self.committed = self._started

    def after_fork_in_child(self) -> None:
        """Another thread may have held the lock."""
        self._lock = threading.Lock()

    def compare(self, got: torch.Tensor, ids: torch.Tensor, since: int, what: str) -> None:
        """got: the rows of these ids, gathered by a call that began when `since` was committed. Raises Difference
        unless they are those of one version since then."""
        got, ids = got.cpu(), ids.cpu().to(torch.int64)
        with self._lock:
            versions = [rows for version, rows in self._versions.items() if version >= since]
            self.values += got.numel()
        message = ""
        for rows in reversed(versions):
            try:
                return assert_bitwise_equal(got, rows.index_select(0, ids))
            except AssertionError as error:
                message = message or str(error)
        raise Difference(f"{what}: of {len(versions)} versions none has these rows; the newest: {message}")

"""A compressed store of rows that come in order, part by part, and are never all there uncompressed."""

from __future__ import annotations

from typing import Any, cast

import torch

from .. import CompressedFeatureStore, CompressedRows
from ..codec import dispatch
from ..codec.slot_length import assign_overflow, best_lead_bytes, count_overflow, payload_histogram
from ..codec.values import as_tensor, to_bytes
from ..store.build import Layout, choose_slot_bytes, fit_codec

_WHOLE_BITMASK_WORDS = 32  # rows


class StoreBuilder:
    """`append` rows 0, 1, 2, ... in parts of any length, then `finish`.

    The slots are allocated once. How many rows overflow is known only at the end: that area grows by a quarter whenever
    it is full.
    """

    def __init__(
        self, num_rows: int, sample: Any, *, codec: str = "auto", layout: str = "compact", pin: bool | str = "auto"
    ) -> None:
        """num_rows: how many will come, at least 1. sample: [n, *row_shape], n >= 1, rows like those to come, to which
        codec and slots are fitted; rows of other kinds are stored as well, in more bytes. Raises ValueError for a
        layout that wants all rows' lengths beforehand."""
        if layout not in ("compact", "inplace"):
            raise ValueError(f"layout: want compact or inplace for rows that come part by part, got {layout!r}")
        layout = cast(Layout, layout)
        rows = as_tensor(sample, "sample").cpu()
        self.codec = fit_codec(rows, codec, layout)
        histogram = payload_histogram(self.codec.measure(rows), self.codec.row_bytes)
        slot_bytes = choose_slot_bytes(histogram, layout)
        self._histogram = torch.zeros_like(histogram)  # of the rows that were written
        self._pin, self._layout = pin, layout
        expected = num_rows * count_overflow(histogram, slot_bytes) // len(rows)
        self._rows = CompressedRows.empty(num_rows, self.codec.row_bytes, slot_bytes, expected)
        self._pending = rows[:0]
        self._written = self._overflowed = 0

    def append(self, rows: torch.Tensor) -> None:
        """rows: [n, *row_shape] on any device. Raises ValueError for other rows, and for more than were announced."""
        self.codec.check_rows(rows)
        rows = torch.cat([self._pending, rows.detach().cpu()])
        if self._written + len(rows) > self._rows.num_rows:
            raise ValueError(f"rows: want {self._rows.num_rows} in all, got {self._written + len(rows)} so far")
        whole = len(rows) // _WHOLE_BITMASK_WORDS * _WHOLE_BITMASK_WORDS
        self._write(rows[:whole])
        self._pending = rows[whole:].clone()

    def finish(self) -> CompressedFeatureStore:
        """Returns the store; the writer is then empty. Raises ValueError if rows are missing."""
        got = self._written + len(self._pending)
        if got != self._rows.num_rows:
            raise ValueError(f"rows: want {self._rows.num_rows} in all, got {got}")
        self._write(self._pending)
        rows, self._rows = self._rows, self._rows.view(0, 0)
        if rows.num_overflow != self._overflowed:
            rows = rows.with_overflow(self._overflowed)
        # Not the sample's: a GPU takes a payload that is longer than all of them for a damaged one.
        lead_bytes = best_lead_bytes(self.codec.form, self._histogram, rows.slot_bytes)
        return CompressedFeatureStore(self.codec, rows, lead_bytes, self._pin, layout=self._layout)

    def _write(self, rows: torch.Tensor) -> None:
        if len(rows) == 0:
            return
        row_bytes = to_bytes(rows)
        payload_bytes = dispatch.measure(self.codec.form, row_bytes)
        self._histogram += payload_histogram(payload_bytes, self.codec.row_bytes)
        overflow_index, overflowed = assign_overflow(
            payload_bytes, self._rows.slot_bytes, self.codec.row_bytes, self._overflowed
        )
        if overflowed > self._rows.num_overflow:
            self._rows = self._rows.with_overflow(max(overflowed, self._rows.num_overflow * 5 // 4))
        part = self._rows.view(self._written, len(rows))
        dispatch.encode(self.codec.form, row_bytes, overflow_index, part, first_row=self._written)
        self._written, self._overflowed = self._written + len(rows), overflowed

"""Bags of rows, pooled: what is the same on every device. csrc/core/pooling.h says what is computed, bit for bit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, NamedTuple

import torch
from torch.utils.dlpack import to_dlpack

from .. import _native
from .compressed_rows import CompressedRows
from .forms import Form

Mode = Literal["sum", "mean", "max"]
# As csrc/core/pooling.h numbers them.
MODES: dict[str, int] = {"sum": 0, "mean": 1, "max": 2}
TYPES = {torch.float32: 0, torch.float16: 1, torch.bfloat16: 2}
NO_PADDING = -1


class Bags(NamedTuple):
    """Which ids are pooled together: those of one feature, or of several, one after the other. All tensors are
    contiguous and on one device."""

    ids: torch.Tensor
    """int32/int64 [n]"""
    offsets: torch.Tensor | None
    """int32/int64 [k]: where each bag starts, feature by feature; behind their end all bags start at n. None: all bags
    have bag_ids ids."""
    bag_ids: int
    num_bags: int
    """Of each feature."""
    weights: torch.Tensor | None = None
    """float32 [n]"""

    def each(self, move: Callable[[torch.Tensor], torch.Tensor]) -> Bags:
        """With what `move` makes of each tensor."""
        offsets = None if self.offsets is None else move(self.offsets)
        weights = None if self.weights is None else move(self.weights)
        return self._replace(ids=move(self.ids), offsets=offsets, weights=weights)

    def bounds(self) -> torch.Tensor:
        """int64 [num_bags + 1] on the device, for one feature: where bags start and end."""
        if self.offsets is None:
            return torch.arange(self.num_bags + 1, device=self.ids.device) * self.bag_ids
        bounds = self.offsets.to(torch.int64)[: self.num_bags + 1]
        if len(bounds) <= self.num_bags:
            bounds = torch.cat([bounds, bounds.new_full((1,), len(self.ids))])
        return bounds

    def of_feature(self, key: int) -> Bags:
        """The bags of one feature, its ids alone. Waits for the device where bags have offsets."""
        if self.offsets is None:
            first, last = key * self.num_bags * self.bag_ids, (key + 1) * self.num_bags * self.bag_ids
            offsets = None
        else:
            bounds = self._replace(offsets=self.offsets[key * self.num_bags :]).bounds()
            first, last = int(bounds[0]), int(bounds[-1])
            offsets = bounds - first
        weights = None if self.weights is None else self.weights[first:last]
        return Bags(self.ids[first:last], offsets, self.bag_ids, self.num_bags, weights)


def pool_on_cpu(
    form: Form,
    rows: CompressedRows,
    bags: Bags,
    out: torch.Tensor,
    *,
    mode: str,
    padding_id: int = NO_PADDING,
    slot_of: torch.Tensor | None = None,
) -> None:
    """bags: of one feature, on the CPU; out: [num_bags, width] of the rows' dtype, contiguous, which is written;
    padding_id: an id that is left out; slot_of: as for dispatch.decode_on_cpu. Raises IndexError, FormatError, and
    ValueError for offsets that fall."""
    _native.cpu.pool(
        form.native,
        to_dlpack(rows.slots),
        rows.slot_bytes,
        to_dlpack(rows.bitmask),
        to_dlpack(rows.overflow),
        rows.num_rows,
        to_dlpack(bags.ids.to(torch.int64)),
        to_dlpack(bags.bounds().contiguous()),
        None if bags.weights is None else to_dlpack(bags.weights),
        padding_id,
        MODES[mode],
        TYPES[out.dtype],
        to_dlpack(out.view(torch.uint8).view(len(out), form.row_bytes)),
        _native.threads(),
        _native.cpu_path,
        None if slot_of is None else to_dlpack(slot_of),
        *(rows.packing or (0, 0)),
    )

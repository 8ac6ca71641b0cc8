"""Pooling on one GPU: rows of several tables are looked up, decoded and added in one launch."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from .. import _native
from .gather import GpuGather, current_stream
from .pool import MODES, NO_PADDING, TYPES, Bags

# Rows that are not in GPU memory are first brought there, once each and in the order of where they lie, where a batch
# asks for many of them again and again: many ids, and next to no rows cached, for a cache has those that are asked for
# often. Else that costs more than it saves (scripts/bench_dlrm.py).
STAGE_MIN_IDS = 4096
STAGE_BELOW_CACHED = 0.05  # of all rows
# Of so many ids or more, the rows of one part of the bags are brought while those of the part before are pooled.
STAGE_PART_IDS = 1 << 17
_STAGE_MOST_BYTES = 1 << 30


class PooledFeature(NamedTuple):
    """One column of the output: bags of the rows of one table."""

    gather: GpuGather
    key: int
    """Which of the features of Bags."""
    mode: str
    padding_id: int = NO_PADDING
    column: int = 0
    """The first value of a row of the output that is its own."""


class StagedIds(NamedTuple):
    """Rows that `GpuPool.stage` has brought to GPU memory. Whoever reads them on another stream waits for them."""

    rows: Any
    scratch: torch.Tensor
    plan: Any


class GpuPool:
    """Pools rows of these features' tables, [num_bags, width] each, into the columns of one output.

    Tables whose rows a kernel can decode and add (codec "dict" without a zero code, rows of up to 1 KB) share a launch
    for each kind of rows. Rows of other tables are gathered, then pooled in the same order: equal bits, more memory.

    Call its methods with the locks of the stores held: it reads what their plans read, and follows their updates.
    """

    def __init__(self, device: torch.device, dtype: torch.dtype, features: Sequence[PooledFeature]) -> None:
        self.device, self.dtype = device, dtype
        self.features = tuple(features)
        self._planned: _Planned | None = None

    def pool(self, bags: Bags, out: torch.Tensor, staged: StagedIds | None = None) -> None:
        """Enqueued on the current stream; no host sync, unless rows of one of several features have to be gathered
        first. Raises what an earlier gather of these tables has reported.

        bags: on the device. out: [num_bags, columns], contiguous, on the device. staged: from `stage`, for these ids or
        others; None: what of these ids is worth staging is staged now.
        """
        for feature in self.features:
            feature.gather.raise_reported()
        planned = self._plan()
        stream = current_stream(self.device)
        request = _request(bags, out)
        if planned.native is not None:
            pieces = torch.empty(planned.native.piece_bytes(len(bags.ids)), dtype=torch.uint8, device=self.device)
            where = planned.features.data_ptr(), request
            if staged is not None and staged.plan is planned.native:
                planned.native.pool(*where, staged.rows, pieces.data_ptr(), stream.cuda_stream)
                staged.scratch.record_stream(stream)
            elif planned.misses_repeat and self._stages(planned, bags):
                layout = planned.layout(len(bags.ids), _num_parts(bags))
                scratch = torch.empty(layout.bytes, dtype=torch.uint8, device=self.device)
                scratches = scratch.data_ptr(), pieces.data_ptr()
                planned.native.stage_and_pool(*where, layout, *scratches, stream.cuda_stream)
            else:
                planned.native.pool(*where, None, pieces.data_ptr(), stream.cuda_stream)
            planned.features.record_stream(stream)
        for feature in planned.others:
            self._gather_and_pool(feature, bags if len(self.features) == 1 else bags.of_feature(feature.key), out)
        for part in (bags.ids, bags.offsets, bags.weights, out):
            if part is not None:
                part.record_stream(stream)

    def stage(self, bags: Bags) -> StagedIds | None:
        """Brings the rows of these ids that are not in GPU memory there. Enqueued on the current stream; no host sync.
        None: there are none, or a pooling fetches them as fast."""
        planned = self._plan()
        if planned.native is None or not self._stages(planned, bags):
            return None
        stream = current_stream(self.device)
        layout = planned.layout(len(bags.ids), 1)
        scratch = torch.empty(layout.bytes, dtype=torch.uint8, device=self.device)
        where = planned.features.data_ptr(), _request(bags, None), layout, scratch.data_ptr(), stream.cuda_stream
        staged = StagedIds(planned.native.stage(*where), scratch, planned.native)
        planned.features.record_stream(stream)
        for part in (bags.ids, bags.offsets):
            if part is not None:
                part.record_stream(stream)
        return staged

    def _stages(self, planned: _Planned, bags: Bags) -> bool:
        return planned.native.num_misses > 0 and len(bags.ids) >= STAGE_MIN_IDS

    def _plan(self) -> _Planned:
        planned = self._planned
        if planned is None or not planned.is_of(self.features):
            planned = self._planned = _Planned.make(self.device, self.dtype, self.features)
        return planned

    def _gather_and_pool(self, feature: PooledFeature, bags: Bags, out: torch.Tensor) -> None:
        """bags: of this feature alone."""
        width = feature.gather.form.row_bytes // out.element_size()
        rows = torch.empty(len(bags.ids), width, dtype=out.dtype, device=self.device)
        feature.gather.gather(bags.ids, rows)
        pool_rows(rows, bags, out, mode=feature.mode, padding_id=feature.padding_id, column=feature.column)


def pool_rows(
    rows: torch.Tensor, bags: Bags, out: torch.Tensor, *, mode: str, padding_id: int = NO_PADDING, column: int = 0
) -> None:
    """Pools rows that have been gathered. rows: [n, width], the row of each id of the bags, which are of one feature;
    out: [num_bags, columns], whose columns from `column` on are written. Both contiguous, on the GPU of the bags.
    Enqueued on the current stream."""
    cuda, stream = _native.cuda(), current_stream(rows.device)
    with torch.cuda.device(rows.device):
        request = _request(bags, out)
        kind = TYPES[out.dtype], MODES[mode], padding_id, column * out.element_size()
        cuda.pool_rows(request, rows.data_ptr(), rows.shape[1], *kind, stream.cuda_stream)


class _Planned:
    """What one set of gather plans is pooled with. It keeps none of them alive: their owners do, and after an update of
    a store there are others."""

    def __init__(
        self,
        plans: list[Any],
        native: Any,
        features: torch.Tensor,
        others: list[PooledFeature],
        misses_repeat: bool,
    ) -> None:
        """misses_repeat: whether a batch may ask for the same rows that are not cached many times."""
        self._plans = [weakref.ref(plan) for plan in plans]
        self.native = native  # None: no feature can be decoded and pooled at once
        self.features = features
        self.others = others
        self.misses_repeat = misses_repeat
        self._layout: tuple[tuple[int, int], Any] | None = None

    @classmethod
    def make(cls, device: torch.device, dtype: torch.dtype, features: Sequence[PooledFeature]) -> _Planned:
        cuda = _native.cuda()
        plans = [feature.gather.plan for feature in features]
        at_once = [cuda.can_pool(plan) for plan in plans]
        others = [feature for feature, can in zip(features, at_once, strict=True) if not can]
        described = [
            (plan, feature.key, MODES[feature.mode], feature.padding_id, feature.column * dtype.itemsize)
            for feature, plan, can in zip(features, plans, at_once, strict=True)
            if can
        ]
        native, of_features = None, torch.empty(0, dtype=torch.uint8, device="cpu")
        if described:
            native = cuda.make_pool_plan(device.index, described)
            of_features = torch.empty(native.features_bytes, dtype=torch.uint8, device="cpu")
            native.write_features(of_features)
            with torch.cuda.device(device):
                of_features = of_features.to(device)
                torch.cuda.current_stream(device).synchronize()  # there for every stream
        tables = {id(feature.gather): feature.gather for feature in features}.values()
        cached, rows = sum(table.num_cached for table in tables), sum(table.num_rows for table in tables)
        return cls(plans, native, of_features, others, cached < STAGE_BELOW_CACHED * rows)

    def is_of(self, features: Sequence[PooledFeature]) -> bool:
        return all(ref() is feature.gather.plan for ref, feature in zip(self._plans, features, strict=True))

    def layout(self, num_ids: int, parts: int) -> Any:
        """Of scratch memory for rows of so many ids; batches are of similar sizes."""
        last = self._layout
        if last is None or last[0] != (num_ids, parts):
            stride = self.native.layout(1, 1).stride
            most_rows = max(1, min(num_ids, _STAGE_MOST_BYTES // stride))
            last = self._layout = (num_ids, parts), self.native.layout(most_rows, parts)
        return last[1]


def _num_parts(bags: Bags) -> int:
    most: int = _native.cuda().MOST_STAGE_PARTS
    return max(1, min(len(bags.ids) // STAGE_PART_IDS, bags.num_bags, most))


def _request(bags: Bags, out: torch.Tensor | None) -> Any:
    return _native.cuda().PoolRequest(
        ids=bags.ids.data_ptr(),
        ids_are_int64=bags.ids.dtype is torch.int64,
        num_ids=bags.ids.numel(),
        offsets=0 if bags.offsets is None else bags.offsets.data_ptr(),
        offsets_are_int64=bags.offsets is None or bags.offsets.dtype is torch.int64,
        num_offsets=0 if bags.offsets is None else bags.offsets.numel(),
        bag_ids=bags.bag_ids,
        num_bags=bags.num_bags,
        weights=0 if bags.weights is None else bags.weights.data_ptr(),
        out=0 if out is None else out.data_ptr(),
        out_stride_bytes=0 if out is None else out.shape[1] * out.element_size(),
    )

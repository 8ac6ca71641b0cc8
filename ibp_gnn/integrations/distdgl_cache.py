"""DistCache: the hottest rows of a CompressedDistTensor, compressed, in memory of the client, on its GPU or not."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch

from .. import _native
from ..codec.compressed_rows import CompressedRows
from ..codec.gather import GatherStats
from ..codec.values import as_ids, check_ids_on_cpu, prepare_out, resolve_device, to_bytes
from ..gpu.capacity import parse_capacity
from ..store.order import hottest_first
from .dgl_compat import import_dgl
from .distdgl import CompressedDistTensor

_CHUNK_BYTES = 64 << 20  # of rows that are pulled at a time


class DistCache:
    """Serves rows from the memory of `device`, and pulls the others. A RowSource with the same bits; it takes the place
    of the feature in the graph, too. Which rows are cached is decided once, here.

    Example:
        >>> feature, degrees = dist_graph.ndata["feat"], torch.arange(1000)
        >>> dist_graph.ndata["feat"] = ibp_gnn.distdgl.DistCache(feature, "10%", hotness=degrees, device="cpu")
        >>> x = dist_graph.ndata["feat"][torch.tensor([3, 999])]
        >>> dist_graph.ndata["feat"].stats().hits
        1
    """

    def __init__(
        self,
        feature: CompressedDistTensor,
        capacity: int | float | str,
        *,
        hotness: torch.Tensor,
        device: torch.device | str = "cuda",
    ) -> None:
        """Pulls the hottest rows. Each client has a cache of its own.

        Args:
            feature: what `attach` attached.
            capacity: memory for the cached rows: bytes, "4GB", a share of the feature's bytes, "100000 rows", or on a
                GPU "auto" (see CompressedGPUCache). A table in CPU memory of where they are, 4 bytes for each row of
                the feature, comes on top.
            hotness: [num_rows] numbers, e.g. degrees; the rows with the highest go first.
            device: where they are cached.

        Raises:
            ValueError: not even one row fits, or a bad argument.
            TypeError: a capacity of another type.
            FormatError: a row is damaged.
        """
        self.feature, self.device = feature, resolve_device(device, torch.device("cuda"))
        order = hottest_first(hotness, len(feature))
        limit, most_rows = parse_capacity(
            capacity, num_rows=len(feature), store_bytes=feature.nbytes, device=self.device
        )
        self._rows = _pull_first(feature, order[:most_rows], limit).to(self.device)
        if self._rows.num_rows == 0:
            raise ValueError(f"capacity: want room for at least 1 row, got {capacity!r}")
        self._position = torch.full((len(feature),), -1, dtype=torch.int32, device="cpu")
        self._position[order[: self._rows.num_rows]] = torch.arange(
            self._rows.num_rows, dtype=torch.int32, device="cpu"
        )
        self._hits = self._misses = 0

    def __getitem__(self, ids: Any) -> torch.Tensor:
        """The rows of these ids, on their device. Raises as `gather`."""
        return self.gather(import_dgl().distributed.utils.totensor(ids))

    def gather(
        self, ids: Any, *, device: torch.device | str | None = None, out: torch.Tensor | None = None
    ) -> torch.Tensor:
        """As CompressedDistTensor.gather. To another device than the cache's, all rows are pulled.

        Args:
            ids: [n] int32/int64, on CPU or CUDA, repeats and n == 0 allowed.
            device: where the rows are put. None: the ids' device.
            out: where they are written: right shape, dtype, device; contiguous. None: a new tensor.

        Returns:
            [n, *row_shape] on `device`.

        Raises:
            IndexError, TypeError, ValueError, FormatError: as there.
        """
        feature, ids = self.feature, as_ids(ids)
        target = resolve_device(device, ids.device)
        if target != self.device:
            self._misses += len(ids)
            return feature.gather(ids, device=target, out=out)
        out = prepare_out(out, (len(ids), *feature.codec.row_shape), self.dtype, target)
        ids = ids.to("cpu", torch.int64)
        check_ids_on_cpu(ids, len(feature))
        position = self._position[ids]
        is_hit = position >= 0
        hits, misses = torch.nonzero(is_hit).flatten(), torch.nonzero(~is_hit).flatten()
        if len(hits):
            _write(out, hits, feature.codec.decompress(self._rows, position[hits]))
        if len(misses):
            _write(out, misses, feature.gather(ids[misses], device=target))
        self._hits, self._misses = self._hits + len(hits), self._misses + len(misses)
        return out

    @property
    def shape(self) -> tuple[int, ...]:
        """(num_rows, *row_shape) of the feature, cached or not."""
        return self.feature.shape

    @property
    def dtype(self) -> torch.dtype:
        """Of the rows."""
        return self.feature.dtype

    @property
    def num_cached(self) -> int:
        """How many rows are cached."""
        return self._rows.num_rows

    @property
    def nbytes(self) -> int:
        """Bytes of the cached rows, on `device`."""
        return self._rows.nbytes

    def stats(self) -> GatherStats:
        """hits: rows from the cache; misses: rows that were pulled. What those took, `feature.stats()` says."""
        return GatherStats(hits=self._hits, misses=self._misses)

    def reset_stats(self) -> None:
        """Of the cache; the feature has its own."""
        self._hits = self._misses = 0

    def __len__(self) -> int:
        return len(self.feature)

    def __repr__(self) -> str:
        return f"DistCache({self.num_cached} of {len(self)} rows, {self.nbytes} bytes on {self.device})"


def _pull_first(feature: CompressedDistTensor, order: torch.Tensor, limit: int | None) -> CompressedRows:
    """The rows of the first of these ids, as many as take at most `limit` bytes (None: all), on the CPU."""
    layout, slack = feature.layout, _native.cpu.SLACK_BYTES
    most = len(order) if limit is None else min(len(order), limit // layout.slot_bytes)
    rows = CompressedRows.empty(most, layout.row_bytes, layout.slot_bytes, 0)
    overflow = [rows.overflow_matrix()]
    first = num_overflow = 0
    for ids in order[:most].split(max(1, _CHUNK_BYTES // layout.slot_bytes // 32) * 32):  # whole words of the bitmask
        part = feature.pull(ids)
        fitting = part.num_rows
        if limit is not None:
            cost = layout.slot_bytes + part.overflows().to(torch.int64) * layout.row_bytes
            bits = (torch.arange(first + 1, first + len(ids) + 1, device="cpu") + 31) // 32 * 4
            left = limit - first * layout.slot_bytes - num_overflow * layout.row_bytes - 2 * slack
            fitting = int((torch.cumsum(cost, 0) + bits <= left).sum())
        part = part.select(torch.arange(fitting, device="cpu"), first_overflow=num_overflow)
        rows.slot_matrix()[first : first + fitting] = part.slot_matrix()
        rows.bitmask[first // 8 : first // 8 + len(part.bitmask)] = part.bitmask
        overflow.append(part.overflow_matrix())
        first, num_overflow = first + fitting, num_overflow + part.num_overflow
        if fitting < len(ids):
            break
    slots = rows.slots[: first * layout.slot_bytes + slack]
    if first < most:
        slots = slots.clone()  # a view would keep the room for all of them
        slots[first * layout.slot_bytes :] = 0
    overflow.append(torch.zeros(1, slack, dtype=torch.uint8, device="cpu"))
    together = torch.cat([part.flatten() for part in overflow])
    bitmask = rows.bitmask[: _native.cpu.bitmask_bytes(first)]
    return dataclasses.replace(rows, num_rows=first, slots=slots, bitmask=bitmask, overflow=together)


def _write(out: torch.Tensor, where: torch.Tensor, rows: torch.Tensor) -> None:
    """out: [n, *row_shape], contiguous; where: int64 [m] on the CPU; rows: [m, *row_shape] of out's device. As bytes,
    since torch can index them in every dtype."""
    to_bytes(out)[where.to(out.device)] = to_bytes(rows)

"""Features of a DistGraph that stay compressed on DistDGL's servers and on the way, and are decoded by the client.

    config = compress_partitions("parts/papers.json", ["feat"])     # once, after dgl.distributed.partition_graph
    dgl.distributed.initialize("ip_config.txt")                     # servers: DGL_CONF_PATH is this config
    g = attach(dgl.distributed.DistGraph("papers"), config)
    x = g.ndata["feat"][input_nodes]                                # the same bits as before

Slots are pulled as DGL pulls any tensor: from shared memory where the partition is this machine's, else by its C++ fast
path. There is no code of ours in the servers.
"""

from __future__ import annotations

import dataclasses
import os
import threading
from pathlib import Path
from typing import Any

import torch

from .. import _native
from .._native import FormatError
from ..codec.codec import Codec
from ..codec.compressed_rows import CompressedRows, index_bytes, pack_bits
from ..codec.values import as_ids, check_ids_on_cpu, prepare_out, resolve_device
from ..store.feature_store import CompressedFeatureStore
from .dgl_compat import import_dgl
from .distdgl_format import FeatureLayout, first_ids, layouts, overflow_name, read_config, slots_name


@dataclasses.dataclass(frozen=True)
class PullStats:
    """Counted since the last reset. rows: pulled, from whatever partition; pulled_bytes: what they took, overflow rows
    included; network_bytes: of these, from other machines' partitions; raw_bytes: what the rows are when decoded.

    Example:
        >>> ibp_gnn.distdgl.PullStats(rows=2, pulled_bytes=96, raw_bytes=128).savings
        0.25
    """

    rows: int = 0
    pulled_bytes: int = 0
    network_bytes: int = 0
    raw_bytes: int = 0

    @property
    def savings(self) -> float:
        """1 - pulled_bytes / raw_bytes; 0 if nothing was pulled."""
        return 1 - self.pulled_bytes / self.raw_bytes if self.raw_bytes else 0.0

    def __add__(self, other: PullStats) -> PullStats:
        return PullStats(*(one + two for one, two in zip(_counts(self), _counts(other), strict=True)))


def _counts(stats: PullStats) -> tuple[int, ...]:
    return stats.rows, stats.pulled_bytes, stats.network_bytes, stats.raw_bytes


def attach(dist_graph: Any, part_config: str | os.PathLike[str]) -> Any:
    """Puts the compressed features of these partitions in the place of their slots: `dist_graph.ndata["feat"]`, or
    `dist_graph.nodes["paper"].data["feat"]`, is a CompressedDistTensor then.

    Args:
        dist_graph: a DistGraph whose servers have loaded the partitions of part_config.
        part_config: what `compress_partitions` returned; the client needs it, and the codecs beside it.

    Returns:
        dist_graph.

    Raises:
        OSError, FormatError: config or codec cannot be read.
        ValueError: the servers have loaded other partitions, or nothing in the config is compressed.

    Example:
        >>> dist_graph = ibp_gnn.distdgl.attach(dist_graph, "parts/papers.ibp.json")
        >>> dist_graph.ndata["feat"][torch.tensor([7, 7])].shape
        torch.Size([2, 16])
    """
    path = Path(part_config)
    config = read_config(path)
    found = layouts(config)
    if not found:
        raise ValueError(f"part_config: want one of compress_partitions, got {path}, in which nothing is compressed")
    attached = []
    for (node_type, feature), layout in found.items():
        data = dist_graph.nodes[node_type].data
        if slots_name(feature) not in data or (layout.piece_bytes and overflow_name(feature) not in data):
            raise ValueError(f"dist_graph: want servers with the partitions of {path}, got features {sorted(data)}")
        slots, overflow = data[slots_name(feature)], data[overflow_name(feature)] if layout.piece_bytes else None
        with CompressedFeatureStore.load(path.parent / layout.codec, mmap=False, pin=False) as no_rows:
            codec = no_rows.codec
        tensor = CompressedDistTensor(slots, overflow, codec, layout, first_ids(config, node_type), feature)
        attached.append((data, feature, tensor))
    for data, feature, tensor in attached:  # all or none
        data[feature] = tensor
        del data[slots_name(feature)]
        data.pop(overflow_name(feature), None)
    return dist_graph


class CompressedDistTensor:
    """Rows of a node feature, by id, as a DistTensor gives them; and a RowSource. Made by `attach`. Several threads may
    gather, one after the other: DGL's client is for one.

    Example:
        >>> feature = dist_graph.ndata["feat"]
        >>> x = feature.gather(torch.tensor([3, 500]), device="cpu")  # or "cuda": compressed over PCIe, too
        >>> feature.stats().rows, feature.stats().savings > 0.1
        (2, True)
    """

    def __init__(
        self,
        slots: Any,
        overflow: Any,
        codec: Codec,
        layout: FeatureLayout,
        first_id: list[int],
        name: str,
    ) -> None:
        """Use `attach`.

        Args:
            slots: DistTensor uint8 [num_rows, slot_bytes + 1].
            overflow: DistTensor uint8 [num_rows, piece_bytes], or None if no row overflows.
            codec: of the rows.
            layout: see distdgl_format.py.
            first_id: of each partition, and the number of rows.
            name: of the feature.

        Raises:
            ValueError: the tensors do not fit the layout.
            FormatError: the codec does not.
        """
        wanted = (first_id[-1], layout.slot_bytes + 1)
        for tensor, shape in ((slots, wanted), (overflow, (first_id[-1], layout.piece_bytes))):
            if tensor is not None and (tuple(tensor.shape) != shape or tensor.dtype != torch.uint8):
                raise ValueError(f"{name}: want slots {list(shape)} uint8, got {list(tensor.shape)} {tensor.dtype}")
        if codec.row_bytes != layout.row_bytes:
            raise FormatError(f"{name}: want a codec of rows of {layout.row_bytes} bytes, got {codec.row_bytes}")
        self.codec, self.layout, self.name = codec, layout, name
        self._slots, self._overflow = slots, overflow
        self._first_id = torch.tensor(first_id, dtype=torch.int64, device="cpu")
        self._stats = PullStats()
        self._lock = threading.Lock()

    def __getitem__(self, ids: Any) -> torch.Tensor:
        """The rows of these ids, on their device. Raises as `gather`."""
        return self.gather(import_dgl().distributed.utils.totensor(ids))

    def gather(
        self, ids: Any, *, device: torch.device | str | None = None, out: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Pulls compressed rows to CPU memory, and decodes them: there, or on a GPU, which gets them compressed, on its
        current stream, and is waited for.

        Args:
            ids: [n] int32/int64, on CPU or CUDA, repeats and n == 0 allowed.
            device: where the rows are put. None: the ids' device.
            out: where they are written: right shape, dtype, device; contiguous. None: a new tensor.

        Returns:
            [n, *row_shape] on `device`.

        Raises:
            IndexError: names the first bad id.
            TypeError: other ids.
            ValueError: an `out` that does not fit.
            FormatError: a row is damaged.
        """
        ids = as_ids(ids)
        target = resolve_device(device, ids.device)
        out = prepare_out(out, (len(ids), *self.codec.row_shape), self.dtype, target)
        return self.codec.decompress(self.pull(ids.cpu()).to(target), out=out)

    def pull(self, ids: torch.Tensor) -> CompressedRows:
        """The rows, not decoded.

        Args:
            ids: [n] int32/int64 on the CPU.

        Returns:
            n rows on the CPU.

        Raises:
            IndexError, FormatError: as `gather`.
        """
        check_ids_on_cpu(ids, len(self))
        ids, layout = ids.to(torch.int64), self.layout
        with self._lock:
            pulled = self._pull_from(self._slots, ids)
            self._stats += PullStats(rows=len(ids), raw_bytes=len(ids) * layout.row_bytes)
            holds_payload = pulled[:, -1] == 1
            raw = torch.nonzero(~holds_payload).flatten() if layout.slot_bytes < layout.row_bytes else ids[:0]
            index = pulled[raw, : _native.cpu.OVERFLOW_INDEX_BYTES].to(torch.int64)
            overflow_index = (index << torch.arange(index.shape[1], device="cpu") * 8).sum(1)
            overflow = self._pull_overflow(ids[raw], overflow_index) if len(raw) else None
        rows = CompressedRows.empty(len(ids), layout.row_bytes, layout.slot_bytes, len(raw))
        rows.slot_matrix().copy_(pulled[:, :-1])
        rows.bitmask.copy_(pack_bits(holds_payload))
        if overflow is not None:
            rows.overflow_matrix().copy_(overflow)
            own = index_bytes(torch.arange(len(raw), device="cpu"))
            rows.slot_matrix()[raw, : _native.cpu.OVERFLOW_INDEX_BYTES] = own
        return rows

    def _pull_overflow(self, ids: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
        """ids: int64 [n] of rows that overflow; index: int64 [n], their overflow rows' numbers in their partitions.
        Returns uint8 [n, row_bytes]. Raises FormatError."""
        part = torch.searchsorted(self._first_id, ids, right=True) - 1
        pieces = self.layout.pieces_per_row
        first = self._first_id[part] + index * pieces
        bad = first + pieces > self._first_id[part + 1]
        if self._overflow is None or bool(bad.any()):
            raise FormatError(
                f"{self.name}: row {int(ids[bad][0] if bad.any() else ids[0])} is damaged: overflow index"
            )
        piece_ids = (first[:, None] + torch.arange(pieces, device="cpu")).flatten()
        return self._pull_from(self._overflow, piece_ids).view(len(ids), -1)[:, : self.layout.row_bytes]

    def _pull_from(self, tensor: Any, ids: torch.Tensor) -> torch.Tensor:
        """ids: int64 [n]. Returns uint8 [n, width]. DGL's pull takes no empty list."""
        if len(ids) == 0:
            return torch.empty(0, tensor.shape[1], dtype=torch.uint8, device="cpu")
        here = tensor.part_policy.part_id
        away = (ids < self._first_id[here]) | (ids >= self._first_id[here + 1])
        width = tensor.shape[1]
        self._stats += PullStats(pulled_bytes=len(ids) * width, network_bytes=int(away.sum()) * width)
        return tensor[ids]

    @property
    def shape(self) -> tuple[int, ...]:
        """(num_rows, *row_shape), over all servers."""
        return (len(self), *self.codec.row_shape)

    @property
    def dtype(self) -> torch.dtype:
        """Of the rows."""
        return self.codec.dtype

    @property
    def part_policy(self) -> Any:
        """DGL's, of the slots."""
        return self._slots.part_policy

    @property
    def nbytes(self) -> int:
        """Bytes on all servers together."""
        return self.layout.nbytes

    @property
    def savings(self) -> float:
        """1 - nbytes / what the rows take uncompressed."""
        return 1 - self.nbytes / (self.layout.num_rows * self.layout.row_bytes)

    def stats(self) -> PullStats:
        """What this client has pulled since the last reset."""
        return self._stats

    def reset_stats(self) -> None:
        self._stats = PullStats()

    def __len__(self) -> int:
        return int(self._first_id[-1])

    def __repr__(self) -> str:
        return f"CompressedDistTensor({self.name!r}, {list(self.shape)} {self.dtype}, savings={self.savings:.1%})"

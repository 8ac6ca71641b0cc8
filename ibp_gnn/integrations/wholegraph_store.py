"""DistributedFeatureStore: compressed rows shared out over processes of all machines, decoded where they are used."""

from __future__ import annotations

import os
from typing import Any, NamedTuple

import torch

from ..codec.codec import Codec
from ..codec.compressed_rows import CompressedRows, index_bytes, pack_bits
from ..codec.gather import GatherStats, GpuGather, MappedRows
from ..codec.values import as_ids, check_ids_on_cpu, prepare_out, resolve_device
from ..distributed.agreement import describe, require_same_made
from ..gpu.cache import hot_order, rows_that_fit
from ..gpu.capacity import parse_capacity
from ..gpu.side_stream import SideStream
from ..store.feature_store import CompressedFeatureStore
from . import wholegraph
from .wholegraph import Location

_WORD_BYTES = 4  # WholeGraph has tensors of words, not of bytes
_ROWS_AT_ONCE = 1 << 16  # that are copied from a store
_INDEX_BYTES = 4  # what an overflow index takes in a slot


class Pending(NamedTuple):
    """Rows that are on their way."""

    rows: torch.Tensor
    side: SideStream

    def wait(self) -> torch.Tensor:
        """Makes the current stream wait for the rows.

        Returns:
            [n, *row_shape], on the store's GPU.
        """
        self.side.hand_over([self.rows])
        return self.rows


class DistributedFeatureStore:
    """Rows of which each process has a part, in its GPU's memory or in CPU memory. A gather pulls compressed slots over
    the network (NCCL) and decodes them on the GPU that asked; the hottest rows may be cached there. A RowSource and a
    context manager.

    To make and to close one and **each gather is a collective call**: all processes gather equally often, though other
    ids and other numbers of them, none included. The rows do not change.

    Example:
        >>> with ibp_gnn.wholegraph.DistributedFeatureStore(store, location="cuda", cache="100 rows") as rows:
        ...     x = rows.gather(torch.tensor([3, 500]), device="cuda")
        >>> bool((x.cpu() == features[[3, 500]]).all()), rows.stats().hits
        (True, 1)
    """

    def __init__(
        self,
        store: CompressedFeatureStore,
        *,
        location: Location = "cpu",
        cache: int | float | str | None = None,
        hotness: torch.Tensor | None = None,
        hot_ids: torch.Tensor | None = None,
    ) -> None:
        """Copies this process's part of the rows, and those that it caches. The store may be closed afterwards.

        Args:
            store: the rows, the same in every process; one loaded from a file, with verify="read", is read only where
                this process's rows lie.
            location: "cpu": in page-locked memory; "cuda": in GPU memory.
            cache: GPU memory of each process for its cache of the hottest rows, as CompressedGPUCache's capacity; None:
                no cache.
            hotness: as CompressedGPUCache's.
            hot_ids: as CompressedGPUCache's.

        Raises:
            FormatError: the store's file is damaged.
            ImportError: pylibwholegraph is not installed.
            RuntimeError: no GPU, or another process cannot read its rows.
            ValueError: a bad argument, packed rows, or processes whose stores have other shapes or codecs. Rows are not
                compared.
        """
        if location not in ("cuda", "cpu"):
            raise ValueError(f"location: want cuda or cpu, got {location!r}")
        if cache is None and (hotness is not None or hot_ids is not None):
            raise ValueError("cache: want a capacity beside hotness or hot_ids, got None")
        wholegraph.require_slots(store)
        wholegraph.library()
        self.device = wholegraph.require_gpu()
        communicator = wholegraph.of_all()
        require_same_made(lambda: f"{describe(store)} {location}", "store")
        self.codec: Codec = store.codec
        self.shape, self.dtype, self._slot_bytes = store.shape, store.dtype, store.slot_bytes
        self._stats = GatherStats()
        self._last: GpuGather | None = None
        self._records: _SharedRows | None = _SharedRows(len(store), self._slot_bytes + 1, location, communicator)
        first, count = self._records.part
        own = torch.arange(first, first + count, device="cpu")
        counts = _gathered(int(store.overflows(own).sum()), communicator.get_size())
        first_overflow = sum(counts[: communicator.get_rank()])
        self._overflow: _SharedRows | None = None
        if sum(counts):
            self._overflow = _SharedRows(sum(counts), self.codec.row_bytes, location, communicator)
        raw: list[torch.Tensor] = []

        def read() -> str:
            raw.append(self._fill(store, own, first_overflow))
            self._cache_hottest(store, cache, hotness, hot_ids)
            return ""

        try:
            require_same_made(read, "rows")
        except Exception:
            if communicator.get_size() == 1:  # else it would wait for the others, which may be gone
                self.close()
            raise
        self._records.barrier()
        if self._overflow is not None:
            self._overflow.write_anywhere(first_overflow, raw[0])

    def _fill(self, store: CompressedFeatureStore, own: torch.Tensor, first_overflow: int) -> torch.Tensor:
        """Writes this process's slots. own: int64 [n], its ids, rising by one; it may have none. first_overflow: number
        of its first overflow row. Returns these: uint8 [m, row_bytes]."""
        assert self._records is not None
        raw = [torch.empty(0, self.codec.row_bytes, dtype=torch.uint8, device="cpu")]
        for start in range(0, len(own), _ROWS_AT_ONCE):
            ids = own[start : start + _ROWS_AT_ONCE]
            rows = store.copy_of(ids, first_overflow=first_overflow + sum(map(len, raw)))
            is_raw = (~rows.is_compressed()).to(torch.uint8).unsqueeze(1)
            self._records.write(int(ids[0]), torch.cat([rows.slot_matrix(), is_raw], 1))
            raw.append(rows.overflow_matrix())
        return torch.cat(raw)

    def _cache_hottest(
        self,
        store: CompressedFeatureStore,
        capacity: int | float | str | None,
        hotness: torch.Tensor | None,
        hot_ids: torch.Tensor | None,
    ) -> None:
        self._cached: CompressedRows | None = None
        self._place: torch.Tensor | None = None
        if capacity is None:
            return
        order = hot_order(store, hotness, hot_ids)
        limit, most_rows = parse_capacity(capacity, num_rows=len(store), store_bytes=store.nbytes, device=self.device)
        fixed = 4 * len(store) + self.codec.form.device_nbytes
        hot = order[: rows_that_fit(store, order[:most_rows], limit, capacity, fixed)]
        self._cached = store.copy_of(hot).to(self.device)
        place = torch.full((len(store),), -1, dtype=torch.int32, device="cpu")
        place[hot] = torch.arange(len(hot), dtype=torch.int32, device="cpu")
        self._place = place.to(self.device)

    @classmethod
    def load(cls, path: str | os.PathLike[str], **options: Any) -> DistributedFeatureStore:
        """A collective call. Reads a store file, each process its part; no process holds all rows.

        Args:
            path: the file, as this process sees it.
            options: of the constructor.

        Returns:
            The store.

        Raises:
            FormatError: what was read of the file is damaged.
            OSError: the file cannot be read.
            ImportError, RuntimeError, ValueError: as the constructor.
        """
        with CompressedFeatureStore.load(path, verify="read", pin=False) as store:
            return cls(store, **options)

    def gather(
        self, ids: Any, *, device: torch.device | str | None = None, out: torch.Tensor | None = None
    ) -> torch.Tensor:
        """A collective call. The rows of these ids; waits for the current stream. If it raises here (other than after
        `close`), other processes get their rows all the same.

        Args:
            ids: [n] int32/int64, on CPU or CUDA, repeats and n == 0 allowed.
            device: where the rows are put. None: the ids' device.
            out: where they are written: right shape, dtype, device; contiguous. None: a new tensor.

        Returns:
            [n, *row_shape] on `device`.

        Raises:
            IndexError: names the first bad id.
            FormatError: a row of an earlier gather is damaged.
            TypeError: other ids.
            ValueError: an `out` that does not fit, or after `close`.
        """
        if self._records is None:
            raise ValueError("this DistributedFeatureStore is closed")
        try:
            ids = as_ids(ids)
            target = resolve_device(device, ids.device)
            out = prepare_out(out, (len(ids), *self.codec.row_shape), self.dtype, target)
        except Exception:
            self._pull(torch.empty(0, dtype=torch.int64, device=self.device))  # the others wait for this process
            raise
        rows = out if target == self.device else torch.empty(out.shape, dtype=self.dtype, device=self.device)
        given, ids = ids, ids.to(self.device, torch.int64)
        is_bad = (ids < 0) | (ids >= len(self))
        self._gather(ids.masked_fill(is_bad, 0), rows)
        if bool(is_bad.any()):
            check_ids_on_cpu(given.cpu(), len(self))
        return out if rows is out else out.copy_(rows)

    def gather_async(self, ids: Any) -> Pending:
        """A collective call. As `gather`, to the store's GPU, on a stream of its own: the network works while the
        current stream does.

        Args:
            ids: [n] int32/int64, on CPU or CUDA.

        Returns:
            What `wait` gives the rows of.

        Raises:
            FormatError, IndexError, TypeError, ValueError: as `gather`.
        """
        side = SideStream(self.device)
        if isinstance(ids, torch.Tensor):
            side.take([ids])
        with torch.cuda.stream(side.stream):
            rows = self.gather(ids, device=self.device)
        return Pending(rows, side)

    def _gather(self, ids: torch.Tensor, out: torch.Tensor) -> None:
        """ids: int64 [n], in range; out: [n, *row_shape]; on the GPU."""
        num_cached = 0 if self._cached is None else self._cached.num_rows
        if self._place is None:
            places, missing = torch.arange(len(ids), device=self.device), None
        else:
            places = self._place[ids].to(torch.int64)
            missing = torch.nonzero(places < 0).flatten()
            places[missing] = num_cached + torch.arange(len(missing), device=self.device)
        pulled = self._pull(ids if missing is None else ids[missing])
        if self._last is not None:
            self._last.raise_reported()  # it has run: pulling waits for the stream
        moved = pulled.num_rows * self._records_bytes + pulled.num_overflow * self.codec.row_bytes
        self._stats += GatherStats(
            len(ids) - pulled.num_rows, pulled.num_rows, moved, pulled.num_rows * self.codec.row_bytes
        )
        if len(ids) == 0:
            return
        self._last = GpuGather(
            self.codec.form,
            self.device,
            MappedRows.on_device(pulled),
            lead_bytes=self._slot_bytes,
            cache=self._cached,
            store_offset=num_cached,
            num_rows=num_cached + pulled.num_rows,
        )
        self._last.gather(places, out, max_blocks=0)

    def _pull(self, ids: torch.Tensor) -> CompressedRows:
        """A collective call. The rows of these ids, compressed, on the GPU."""
        assert self._records is not None
        records, count = self._records.gather(ids), len(ids)
        is_raw = torch.nonzero(records[:, self._slot_bytes]).flatten() if self._overflow is not None else ids[:0]
        pulled = CompressedRows.empty(count, self.codec.row_bytes, self._slot_bytes, len(is_raw), self.device)
        slots = pulled.slot_matrix()
        # torch copies rows with gaps element by element: words are fewer than bytes.
        element = torch.int32 if self._slot_bytes % _WORD_BYTES == 0 else torch.uint8
        slots.view(element).copy_(records[:, : self._slot_bytes].view(element))
        pulled.bitmask.copy_(pack_bits(records[:, self._slot_bytes] == 0))
        if self._overflow is not None:
            shifts = 8 * torch.arange(_INDEX_BYTES, device=self.device)
            at = (slots[is_raw, :_INDEX_BYTES].to(torch.int64) << shifts).sum(1)
            pulled.overflow_matrix().copy_(self._overflow.gather(at))
            slots[is_raw, :_INDEX_BYTES] = index_bytes(torch.arange(len(is_raw), device=self.device))
        return pulled

    @property
    def _records_bytes(self) -> int:
        assert self._records is not None
        return self._records.moved_bytes

    @property
    def num_cached(self) -> int:
        """How many rows each GPU has a copy of."""
        return 0 if self._cached is None else self._cached.num_rows

    def stats(self) -> GatherStats:
        """What this process has gathered since the last reset.

        Returns:
            hits: rows of its cache; misses: rows pulled, from its own part, too; pcie_bytes: their bytes; raw_bytes:
            what they are uncompressed.
        """
        return self._stats

    def reset_stats(self) -> None:
        self._stats = GatherStats()

    def close(self) -> None:
        """A collective call. Frees the rows. Idempotent."""
        shared = [rows for rows in (self._records, self._overflow) if rows is not None]
        self._records = self._overflow = self._cached = self._place = self._last = None
        for rows in shared:
            rows.close()

    def __len__(self) -> int:
        return self.shape[0]

    def __enter__(self) -> DistributedFeatureStore:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        if self._records is None:
            return "DistributedFeatureStore(closed)"
        return f"DistributedFeatureStore({list(self.shape)} {self.dtype}, {self.num_cached} rows cached here)"


class _SharedRows:
    """Rows of bytes over all processes, in whole words."""

    def __init__(self, num_rows: int, row_bytes: int, location: Location, communicator: Any) -> None:
        self._module, self._communicator, self._row_bytes = wholegraph.library(), communicator, row_bytes
        words = -(-row_bytes // _WORD_BYTES)
        self.moved_bytes = words * _WORD_BYTES
        self._num_rows = num_rows
        # A row for each process at least.
        shape = [max(num_rows, communicator.get_size()), words]
        self._tensor = self._module.create_wholememory_tensor(
            communicator, "distributed", location, shape, torch.int32, None
        )
        self._local, self._first = self._tensor.get_local_tensor(host_view=location == "cpu")

    @property
    def part(self) -> tuple[int, int]:
        """The first row of this process, and how many it has."""
        return self._first, max(0, min(len(self._local), self._num_rows - self._first))

    def write(self, first: int, rows: torch.Tensor) -> None:
        """rows: uint8 [n, row_bytes], of this process's part, from row `first` on."""
        at = first - self._first
        self._local[at : at + len(rows)].copy_(self._padded(rows))

    def write_anywhere(self, first: int, rows: torch.Tensor) -> None:
        """A collective call. rows: uint8 [n, row_bytes], for whatever processes have them."""
        at = torch.arange(first, first + len(rows), device="cuda")
        self._tensor.scatter(self._padded(rows).cuda(), at)
        self.barrier()

    def _padded(self, rows: torch.Tensor) -> torch.Tensor:
        padded = torch.zeros(len(rows), self.moved_bytes, dtype=torch.uint8, device=rows.device)
        padded[:, : self._row_bytes] = rows
        return padded.view(torch.int32)

    def gather(self, indices: torch.Tensor) -> torch.Tensor:
        """A collective call. indices: int64 [n] on the GPU. Returns uint8 [n, row_bytes], a view of whole words."""
        rows: torch.Tensor = self._tensor.gather(indices)
        return rows.view(torch.uint8)[:, : self._row_bytes]

    def barrier(self) -> None:
        torch.cuda.synchronize()
        self._communicator.barrier()

    def close(self) -> None:
        self.barrier()
        self._module.destroy_wholememory_tensor(self._tensor)


def _gathered(value: int, size: int) -> list[int]:
    """A collective call. The value of each process, by rank."""
    if size == 1:
        return [value]
    values: list[Any] = [None] * size
    torch.distributed.all_gather_object(values, value)
    return values

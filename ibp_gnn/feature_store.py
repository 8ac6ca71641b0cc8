"""CompressedFeatureStore: all rows of a feature matrix, compressed, in CPU memory."""

from __future__ import annotations

import os
import warnings
from typing import Any, Literal

import numpy as np
import torch
from tqdm import tqdm

from . import backend
from .codec import Codec, best_lead_bytes, best_slot_bytes, payload_histogram
from .compressed_rows import CompressedRows
from .gpu_gather import GatherStats, GpuGather, MappedRows
from .pinned import PinError, PinnedRows
from .rows import as_ids, as_tensor, check_row_shape, prepare_out, resolve_device, to_bytes

Layout = Literal["compact", "inplace"]
_CHUNK_BYTES = 64 << 20
# Random rows over more than about 1 GB of mapped memory are bound by address translation, not by bytes; ordered
# they are not. Ordering a small batch costs more than it saves.
_ORDER_FOOTPRINT_BYTES = 1 << 30
_ORDER_MIN_IDS = 4096
# Few blocks saturate the link, keep the addresses in flight close together, and leave the GPU to training. Short rows
# take more decoding for each byte that crosses the link (bench_gather: 460-byte slots are fastest with 32 blocks,
# slots of 176 and 196 bytes with 64).
_MISS_BLOCKS = 32
_MISS_BLOCKS_SHORT_SLOTS = 64
_SHORT_SLOT_BYTES = 256


class CompressedFeatureStore:
    """Compressed rows of one dtype and shape, by id. Make it with `build`. A RowSource; a context manager; picklable
    (with its rows). Safe to read from several threads."""

    def __init__(self, codec: Codec, rows: CompressedRows, lead_bytes: int, pin: bool | str = "auto") -> None:
        """rows: on the CPU, made with `codec`. Use `build`."""
        if pin not in (True, False, "auto"):
            raise ValueError(f"pin: want True, False or 'auto', got {pin!r}")
        self.codec = codec
        self._rows: CompressedRows | None = rows
        self._lead_bytes = lead_bytes
        self._pin = pin
        self._pinned: PinnedRows | None = None
        self._pin_failed = False
        self._pinned_by = os.getpid()
        self._gathers: dict[torch.device, GpuGather] = {}
        if pin is True:
            self._pin_now()

    @classmethod
    def build(
        cls,
        features: Any,
        codec: str | Codec = "ibp",
        *,
        layout: Layout = "compact",
        pin: bool | str = "auto",
        chunk_rows: int | None = None,
        progress: bool = True,
    ) -> CompressedFeatureStore:
        """features: [n, *row_shape] tensor, NumPy array or memmap, n >= 1; read in chunks of chunk_rows (None: 64 MiB
        worth), twice: once for the sizes, once to compress, so that memory stays bounded by the result and a chunk.

        codec: a name, fitted on a sample here, or a fitted Codec of the same dtype and row shape.
        layout: "compact" = slots of the length that makes slots and overflow rows smallest; "inplace" = slots as long
        as a raw row.
        pin: "auto" = page-lock the rows at the first gather to a GPU, and warn and copy through a staging buffer if
        that fails; True = page-lock now, or raise PinError; False = always the staging buffer.
        progress: show a progress bar. Raises TypeError and ValueError on bad arguments.
        """
        if layout not in ("compact", "inplace"):
            raise ValueError(f"layout: want 'compact' or 'inplace', got {layout!r}")
        if not isinstance(features, (np.ndarray, torch.Tensor)):
            as_tensor(features, "features")  # raises
        check_row_shape(tuple(features.shape), "features")
        num_rows = len(features)
        if num_rows == 0:
            raise ValueError(f"features: want at least 1 row, got shape {list(features.shape)}")
        if isinstance(codec, str):
            codec = Codec.fit(features, codec=codec)
        elif not isinstance(codec, Codec):
            raise TypeError(f"codec: want a name or a Codec, got {type(codec).__name__}")
        if chunk_rows is not None and chunk_rows < 1:
            raise ValueError(f"chunk_rows: want at least 1, got {chunk_rows}")
        # Whole bitmask words per chunk.
        step = -(-(chunk_rows or max(1, _CHUNK_BYTES // codec.row_bytes)) // 32) * 32

        def chunks(what: str) -> Any:
            with tqdm(total=num_rows, desc=what, unit="row", unit_scale=True, disable=not progress) as bar:
                for first in range(0, num_rows, step):
                    chunk = as_tensor(features[first : first + step], "features").cpu()
                    codec.check_rows(chunk)
                    yield first, to_bytes(chunk)
                    bar.update(len(chunk))

        histogram = torch.zeros(codec.row_bytes + 1, dtype=torch.int64)
        for _, chunk in chunks("sizing"):
            histogram += payload_histogram(backend.measure(codec.form, chunk), codec.row_bytes)
        slot_bytes = best_slot_bytes(histogram, codec.row_bytes) if layout == "compact" else codec.row_bytes
        num_overflow = int(histogram[slot_bytes + 1 :].sum())
        rows = CompressedRows.empty(num_rows, codec.row_bytes, slot_bytes, num_overflow)
        first_overflow = 0
        for first, chunk in chunks("compressing"):
            spills = codec.spills(backend.measure(codec.form, chunk), slot_bytes)
            part = rows.view(first, len(chunk))
            backend.encode(codec.form, chunk, first_overflow + torch.cumsum(spills, 0) - 1, part)
            first_overflow += int(spills.sum())
        return cls(codec, rows, best_lead_bytes(codec.form, histogram, slot_bytes), pin)

    def gather(
        self, ids: Any, *, device: torch.device | str | None = None, out: torch.Tensor | None = None
    ) -> torch.Tensor:
        """ids: [n] int32/int64, on CPU or CUDA, repeats and n == 0 allowed. Returns [n, *row_shape] on `device` (None:
        the ids' device), in `out` if given (right shape, dtype, device; contiguous).

        CPU: decodes with torch.get_num_threads() threads. CUDA: one kernel on the current stream reads the compressed
        rows where they lie in page-locked CPU memory; no host sync if the ids are on the device.
        Raises IndexError naming the first bad id; where ids are on a GPU, at the next gather or `check` after the
        kernel ran, rows of bad ids being zeros. ValueError after `close`.
        """
        rows = self.rows
        ids = as_ids(ids)
        target = resolve_device(device, ids.device)
        if target.type == "cuda":
            self._check_process()  # before torch allocates there, whose message would not say what to do
        out = prepare_out(out, (len(ids), *self.codec.row_shape), self.dtype, target)
        out_bytes = to_bytes(out)
        if target.type == "cpu":
            backend.decode_on_cpu(self.codec.form, rows, ids.cpu(), out_bytes)
            return out
        check_ids_on_cpu(ids, rows.num_rows)
        if self._pin_now():
            self._gather_mapped(ids.to(target, non_blocking=True), out_bytes, target)
        else:
            self._gather_staged(ids, out, target)
        return out

    def _gather_mapped(self, ids: torch.Tensor, out_bytes: torch.Tensor, device: torch.device) -> None:
        positions = None
        if len(ids) >= _ORDER_MIN_IDS and self.rows.nbytes >= _ORDER_FOOTPRINT_BYTES:
            ids, positions = torch.sort(ids)
        blocks = _MISS_BLOCKS_SHORT_SLOTS if self.slot_bytes <= _SHORT_SLOT_BYTES else _MISS_BLOCKS
        self.gather_on(device).gather(ids, out_bytes, positions=positions, max_blocks=blocks)

    def _gather_staged(self, ids: torch.Tensor, out: torch.Tensor, device: torch.device) -> None:
        """Copies the compressed rows to the GPU through ordinary memory, and decodes them there."""
        wanted = ids.to("cpu", torch.int64)
        check_ids_on_cpu(wanted, self.rows.num_rows)
        self.codec.decompress(self.rows.select(wanted, device), out=out)

    def gather_on(self, device: torch.device) -> GpuGather:
        """The kernel's plan for a device, over the page-locked rows."""
        if device not in self._gathers:
            self._gathers[device] = GpuGather(self.codec, device, self.mapped_rows(device), lead_bytes=self._lead_bytes)
        return self._gathers[device]

    def mapped_rows(self, device: torch.device) -> MappedRows:
        """The page-locked rows as this device sees them; its copy of the bitmask is made here. Raises RuntimeError if
        they are not page-locked."""
        self._check_process()
        if not self._pin_now() or self._pinned is None:
            raise RuntimeError("the store's rows are not page-locked (pin=False, or it failed: see the warning)")
        address = self._pinned.addresses
        return MappedRows(self.rows, address["slots"], address["overflow"], self.rows.bitmask.to(device))

    @property
    def lead_bytes(self) -> int:
        """Bytes of a slot that a GPU fetches before it knows the payload's length."""
        return self._lead_bytes

    @property
    def can_map(self) -> bool:
        """Whether GPUs read the rows in place; page-locks them now if that is still to be done."""
        return self._pin_now()

    def _pin_now(self) -> bool:
        """Page-locks the rows once, as `pin` asks. Returns whether they are page-locked."""
        if self._pinned is not None:
            return True
        if self._pin is False or self._pin_failed:
            return False
        try:
            self._pinned, self._pinned_by = PinnedRows(self.rows), os.getpid()
        except PinError as error:
            if self._pin is True:
                raise
            self._pin_failed = True
            warnings.warn(f"{error}. Gathers to a GPU copy through a staging buffer, which is slower.", stacklevel=4)
            return False
        return True

    def _check_process(self) -> None:
        forked = self._pinned is not None and self._pinned_by != os.getpid()
        if forked or getattr(torch.cuda, "_is_in_bad_fork", lambda: False)():
            raise RuntimeError(
                "a store cannot gather to a GPU in a process forked after CUDA was initialised; gather to the CPU "
                "there, or start the worker processes with the 'spawn' method"
            )

    @property
    def rows(self) -> CompressedRows:
        """The compressed rows. Raises ValueError after `close`."""
        if self._rows is None:
            raise ValueError("this CompressedFeatureStore is closed")
        return self._rows

    @property
    def shape(self) -> tuple[int, ...]:
        return (self.rows.num_rows, *self.codec.row_shape)

    @property
    def dtype(self) -> torch.dtype:
        return self.codec.dtype

    @property
    def layout(self) -> Layout:
        return "compact" if self.slot_bytes < self.codec.row_bytes else "inplace"

    @property
    def slot_bytes(self) -> int:
        return self.rows.slot_bytes

    @property
    def nbytes(self) -> int:
        """Bytes of CPU memory: slots, overflow rows, bitmask, codec, slack."""
        return self.rows.nbytes + self.codec.nbytes

    @property
    def raw_nbytes(self) -> int:
        return self.rows.raw_nbytes

    @property
    def savings(self) -> float:
        """1 - nbytes / raw_nbytes; negative if compressing does not pay."""
        return 1 - self.nbytes / self.raw_nbytes

    def stats(self) -> GatherStats:
        """What gathers to GPUs have moved since the last reset. Waits for each GPU's current stream."""
        return sum((gather.stats() for gather in self._gathers.values()), GatherStats())

    def reset_stats(self) -> None:
        for gather in self._gathers.values():
            gather.reset_stats()

    def check(self) -> None:
        """Waits for the GPUs in use, then raises IndexError or FormatError if any gather so far met one."""
        for gather in self._gathers.values():
            gather.check()

    def close(self) -> None:
        """Waits for the GPUs that read the rows, then frees them. Idempotent. Raises what `check` would."""
        try:
            self.check()
        finally:
            self._gathers.clear()
            if self._pinned is not None and self._pinned_by == os.getpid():
                self._pinned.close()
            self._pinned = self._rows = None

    def __len__(self) -> int:
        return self.rows.num_rows

    def __enter__(self) -> CompressedFeatureStore:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        if self._rows is None:
            return "CompressedFeatureStore(closed)"
        return (
            f"CompressedFeatureStore({list(self.shape)} {self.dtype}, {self.layout}, slot_bytes={self.slot_bytes}, "
            f"nbytes={self.nbytes}, savings={self.savings:.1%})"
        )

    def __getstate__(self) -> dict[str, Any]:
        return {"codec": self.codec, "rows": self.rows, "lead_bytes": self._lead_bytes, "pin": self._pin}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(**state)  # type: ignore[misc]


def check_ids_on_cpu(ids: torch.Tensor, num_rows: int) -> None:
    """Raises IndexError naming the first id outside [0, num_rows), if the ids are in CPU memory."""
    if ids.is_cuda or len(ids) == 0:
        return
    bad = torch.nonzero((ids < 0) | (ids >= num_rows))
    if len(bad):
        position = int(bad[0])
        raise IndexError(f"ids: want 0 <= id < {num_rows}, got {int(ids[position])} at position {position}")

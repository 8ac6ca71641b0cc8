"""CompressedFeatureStore: all rows of a feature matrix, compressed, in CPU memory or a file."""

from __future__ import annotations

import os
import warnings
from typing import Any, Literal

import torch

from . import backend
from .codec import Codec
from .compressed_rows import CompressedRows
from .gpu_gather import GatherStats, GpuGather, MappedRows
from .pinned import PinError, PinnedRows
from .rows import as_ids, prepare_out, resolve_device, to_bytes
from .store_file.building import Job, Layout, build_in_memory
from .store_file.held_rows import FileRows
from .store_file.reading import StoreFile
from .store_file.writing import save


class CompressedFeatureStore:
    """Compressed rows of one dtype and shape, by id. Make it with `build` or `load`. A RowSource; a context manager;
    picklable (with its rows, or the name of its file). Safe to read from several threads."""

    def __init__(
        self,
        codec: Codec,
        rows: CompressedRows,
        lead_bytes: int,
        pin: bool | str = "auto",
        slot_of: torch.Tensor | None = None,
        file_rows: FileRows | None = None,
    ) -> None:
        """rows: on the CPU, made with `codec`; slot_of: see the property; file_rows: what holds the rows of a file. Use
        `build` and `load`."""
        if pin not in (True, False, "auto"):
            raise ValueError(f"pin: want True, False or 'auto', got {pin!r}")
        self.codec = codec
        self._rows: CompressedRows | None = rows
        self._slot_of = slot_of
        self._file_rows = file_rows
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
        order: Any = None,
        pin: bool | str = "auto",
        chunk_rows: int | None = None,
        progress: bool = True,
    ) -> CompressedFeatureStore:
        """features: [n, *row_shape] tensor, NumPy array or memmap, n >= 1; read in chunks of chunk_rows (None: 24 MiB
        worth), twice: once for the sizes, once to compress, so that memory stays bounded by the result and a chunk.

        codec: a name, fitted on a sample here, or a fitted Codec of the same dtype and row shape.
        layout: "compact" = slots of the length that makes slots and overflow rows smallest; "inplace" = slots as long
        as a raw row.
        order: [n] int32/int64, every id once, hottest first: the row of node order[s] goes to slot s. None: node i's
        row goes to slot i. Ids stay what they are; a store in this order is cheaper to cache and to read.
        pin: "auto" = page-lock the rows at the first gather to a GPU, and warn and copy through a staging buffer if
        that fails; True = page-lock now, or raise PinError; False = always the staging buffer.
        progress: show a progress bar. Raises TypeError and ValueError on bad arguments.
        """
        job = Job.check(features, codec, layout, order, chunk_rows, progress)
        rows, lead_bytes = build_in_memory(job)
        return cls(job.codec, rows, lead_bytes, pin, job.slot_of)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes a store file (ibp_gnn/store_file/header.py), which is there as a whole or not at all, and replaces one
        that is there. Raises OSError. `ibp-gnn build` makes store files of features that do not fit in memory."""
        save(self, path)

    @classmethod
    def load(
        cls,
        path: str | os.PathLike[str],
        *,
        mmap: bool = True,
        shared: bool = False,
        pin: bool | str = "auto",
        verify: Literal["load", "read"] = "load",
    ) -> CompressedFeatureStore:
        """Opens a store file, which must not be changed while it is open; it may come from anyone.

        mmap: True = the rows stay in the file, mapped; False = they are read to memory, in parallel.
        shared: instead, to memory that all processes of this user which load the file so have in common; the first one
        fills it (ibp_gnn/store_file/sharing.py).
        pin: as for `build`. Mapped rows are read to memory, to be page-locked there.
        verify: when the checksums of mapped rows are compared: "load" = all of them now, in parallel; "read" = those of
        the blocks that a gather touches, at the first one that does (all of them before rows go to a GPU's kernel).

        Raises FormatError saying where the file is damaged, OSError, PinError; with verify="read", `gather` may raise
        FormatError, too.
        """
        if verify not in ("load", "read"):
            raise ValueError(f"verify: want 'load' or 'read', got {verify!r}")
        if verify == "read" and (shared or not mmap):
            raise ValueError("verify: want 'load' for rows that are read to memory, got 'read'")
        held = FileRows(StoreFile(path), "shared" if shared else "mapped" if mmap else "private")
        if verify == "load":
            held.check()
        return cls(**_parts(held), pin=pin)

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
        rows = self._held
        ids = as_ids(ids)
        target = resolve_device(device, ids.device)
        if target.type == "cuda":
            self._check_process()  # before torch allocates there, whose message would not say what to do
        out = prepare_out(out, (len(ids), *self.codec.row_shape), self.dtype, target)
        out_bytes = to_bytes(out)
        if target.type == "cpu":
            ids = ids.cpu()
            self._check_file_rows(ids)
            backend.decode_on_cpu(self.codec.form, rows, ids, out_bytes, self._slot_of)
            return out
        check_ids_on_cpu(ids, rows.num_rows)
        if self._pin_now():
            self.gather_on(target).gather(ids.to(target, non_blocking=True), out_bytes)
        else:
            self._gather_staged(ids, out, target)
        return out

    def _gather_staged(self, ids: torch.Tensor, out: torch.Tensor, device: torch.device) -> None:
        """Copies the compressed rows to the GPU through ordinary memory, and decodes them there."""
        wanted = ids.to("cpu", torch.int64)
        self._check_file_rows(wanted)
        self.codec.decompress(self._held.select(self.to_slots(wanted), device), out=out)

    def _check_file_rows(self, ids: torch.Tensor) -> None:
        """ids: on the CPU. Raises IndexError; and FormatError if what is read of the file for them is damaged."""
        if self._file_rows is not None and not self._file_rows.is_checked:
            check_ids_on_cpu(ids, self._held.num_rows)
            self._file_rows.check_slots(self.to_slots(ids))

    def gather_on(self, device: torch.device) -> GpuGather:
        """The kernel's plan for a device, over the page-locked rows."""
        if device not in self._gathers:
            place = None if self._slot_of is None else self._slot_of.to(device)
            self._gathers[device] = GpuGather(
                self.codec, device, self.mapped_rows(device), lead_bytes=self._lead_bytes, place=place
            )
        return self._gathers[device]

    def mapped_rows(self, device: torch.device) -> MappedRows:
        """The page-locked rows as this device sees them; its copy of the bitmask is made here. Raises RuntimeError if
        they are not page-locked."""
        self._check_process()
        if not self._pin_now() or self._pinned is None:
            raise RuntimeError("the store's rows are not page-locked (pin=False, or it failed: see the warning)")
        address = self._pinned.addresses
        return MappedRows(self.rows, address["slots"], address["overflow"], self.rows.bitmask.to(device))

    def to_slots(self, ids: torch.Tensor) -> torch.Tensor:
        """ids: [n] int32/int64 in range, on the CPU. Returns the slots of these nodes: the ids themselves, or int64 [n]
        where the store has an order."""
        return ids if self._slot_of is None else self._slot_of[ids].to(torch.int64)

    @property
    def slot_of(self) -> torch.Tensor | None:
        """int32 [num_rows] on the CPU: the slot of each node id; None where node i is in slot i."""
        return self._slot_of

    @property
    def lead_bytes(self) -> int:
        """Bytes of a slot that a GPU fetches before it knows the payload's length."""
        return self._lead_bytes

    @property
    def can_map(self) -> bool:
        """Whether GPUs read the rows in place; page-locks them now if that is still to be done."""
        return self._pin_now()

    def _pin_now(self) -> bool:
        """Page-locks the rows once, as `pin` asks. Returns whether they are page-locked. Raises FormatError."""
        if self._pinned is not None:
            return True
        if self._pin is False or self._pin_failed:
            return False
        try:
            if self._file_rows is not None:
                self._rows = self._file_rows.to_memory()
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
        """The compressed rows, all checked if they lie in a file. Raises FormatError if that is damaged, and ValueError
        after `close`."""
        rows = self._held
        if self._file_rows is not None:
            self._file_rows.check()
        return rows

    @property
    def _held(self) -> CompressedRows:
        if self._rows is None:
            raise ValueError("this CompressedFeatureStore is closed")
        return self._rows

    @property
    def shape(self) -> tuple[int, ...]:
        return (self._held.num_rows, *self.codec.row_shape)

    @property
    def dtype(self) -> torch.dtype:
        return self.codec.dtype

    @property
    def layout(self) -> Layout:
        return "compact" if self.slot_bytes < self.codec.row_bytes else "inplace"

    @property
    def slot_bytes(self) -> int:
        return self._held.slot_bytes

    @property
    def nbytes(self) -> int:
        """Bytes of CPU memory, or of a mapped file: slots, overflow rows, bitmask, table of slots, codec, slack."""
        table = 0 if self._slot_of is None else self._slot_of.nbytes
        return self._held.nbytes + self.codec.nbytes + table

    @property
    def raw_nbytes(self) -> int:
        return self._held.raw_nbytes

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
            if self._file_rows is not None:
                self._file_rows.close()

    def __len__(self) -> int:
        return self._held.num_rows

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
        if self._file_rows is not None and self._held is not None:  # raises if closed
            return {"file": self._file_rows.__getstate__(), "pin": self._pin}
        return {
            "codec": self.codec,
            "rows": self.rows,
            "lead_bytes": self._lead_bytes,
            "pin": self._pin,
            "slot_of": self._slot_of,
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        if "file" in state:
            state = {**_parts(FileRows.again(**state["file"])), "pin": state["pin"]}
        self.__init__(**state)  # type: ignore[misc]


def _parts(held: FileRows) -> dict[str, Any]:
    """The arguments of a store of these rows. Raises FormatError."""
    file = held.file
    parts = {"codec": file.codec(), "rows": held.rows, "lead_bytes": file.header.lead_bytes}
    return {**parts, "slot_of": file.slot_of(), "file_rows": held}


def check_ids_on_cpu(ids: torch.Tensor, num_rows: int) -> None:
    """Raises IndexError naming the first id outside [0, num_rows), if the ids are in CPU memory."""
    if ids.is_cuda or len(ids) == 0:
        return
    bad = torch.nonzero((ids < 0) | (ids >= num_rows))
    if len(bad):
        position = int(bad[0])
        raise IndexError(f"ids: want 0 <= id < {num_rows}, got {int(ids[position])} at position {position}")

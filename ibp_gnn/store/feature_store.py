"""CompressedFeatureStore: all rows of a feature matrix, compressed, in CPU memory or a file."""

from __future__ import annotations

import contextlib
import copyreg
import logging
import os
import warnings
import weakref
from multiprocessing.reduction import ForkingPickler
from typing import Any, Literal, NamedTuple, cast

import numpy as np
import torch

from .. import _renamed
from ..codec import dispatch
from ..codec.codec import Codec
from ..codec.compressed_rows import CompressedRows
from ..codec.gather import GatherStats, GpuGather, MappedRows, checked_ids_on_gpu
from ..codec.slot_length import least_lead_bytes
from ..codec.values import as_ids, as_tensor, check_ids_on_cpu, prepare_out, resolve_device, to_bytes
from ..concurrency.fork_safe_lock import ForkSafeLock
from ..concurrency.interrupts import uninterrupted
from ..concurrency.read_write_lock import ReadWriteLock
from .build import Job, Layout, build_in_memory, warn_if_larger
from .compiled_gather import gather_by_name, is_compiling, name_source
from .file.held_file import HeldFile
from .file.reading import StoreFile
from .file.writing import save
from .pinned import PinError, PinnedRows
from .precision import Precision, PrecisionName
from .shared_rows import SharedRows
from .tensor_like import INDEX_ADVICE, TensorLike
from .updates import RowWriter, StoreCache, StoreOnGpu, UndoError, write_all

_logger = logging.getLogger(__name__)


class _OnGpu(NamedTuple):
    """What one GPU reads the rows with."""

    gather: GpuGather
    bitmask: torch.Tensor  # a copy of the rows'


class CompressedFeatureStore(TensorLike):
    """Compressed rows of one dtype and shape, by id. Make it with `build` or `load`. A RowSource; a context manager;
    picklable (with its rows, or the name of its file). Safe to read from several threads, also while one updates. Sizes
    are those of a tensor, and an index decodes rows: `store[ids]`, `store[3]`, `store[1:5]`, `store[mask]`.
    `np.asarray(store)` and `torch.as_tensor(store)` decode all. `save` and `load` keep it in a file.

    Between processes: multiprocessing (arguments of a process, queues, pipes) sends no copy. Rows in memory move, the
    first time, to memory that the processes map together (ibp_gnn/store/shared_rows.py); CUDA graphs with gathers have
    to be captured again then. Rows of a mapped file, or of shared=True, go by the file's name. A process that is forked
    has what was there at the fork, or shares rows that were sent before.

    lock: held (`with store.lock:`) by whoever reads `rows` while another thread may update them. A child that is forked
    inside of it is outside: updates do not wait for it, and what it reads later may be of a later version.

    Example:
        >>> store = ibp_gnn.CompressedFeatureStore.build(features, progress=False)
        >>> x = store.gather(torch.tensor([5, 5, 999]))
        >>> bool((x == features[[5, 5, 999]]).all()), store.savings > 0.1
        (True, True)
        >>> bool((store[-1] == features[-1]).all())
        True
    """

    _INTERNAL = frozenset(
        "add_cache remove_cache copy_of overflows gather_on gather_to_kept mapped_rows to_slots can_map".split()
    )

    def __new__(cls, *parts: Any, **named: Any) -> CompressedFeatureStore:
        """Refuses what is no part of a store, features for one. (Unpickling calls it without arguments.)"""
        codec = parts[0] if parts else named.get("codec", named.get("features"))
        if (parts or named) and not isinstance(codec, Codec):
            name = cls.__name__
            raise TypeError(
                f"{name}(codec, rows, ...): want a Codec and its rows, got {type(codec).__name__}. Make a store with "
                f"{name}.build(features), or open a file with {name}.load(path)"
            )
        return super().__new__(cls)

    def __init__(
        self,
        codec: Codec,
        rows: CompressedRows,
        lead_bytes: int,
        pin: bool | str = "auto",
        slot_of: torch.Tensor | None = None,
        held_file: HeldFile | None = None,
        writable: bool = True,
        shared: SharedRows | None = None,
        layout: Layout | None = None,
        precision: Precision | None = None,
    ) -> None:
        """Use `build` and `load`.

        Args:
            codec: what the rows were made with.
            rows: on the CPU.
            lead_bytes: see the property.
            pin: as for `build`.
            slot_of: see the property.
            held_file: what holds the rows of a file.
            writable: whether `update` may write the rows.
            shared: where the rows are if processes share them.
            layout: what was asked for. None: what the slots look like.
            precision: see the property.

        Raises:
            ValueError: another `pin`.
            PinError: with pin=True.
        """
        if pin not in (True, False, "auto"):
            raise ValueError(f"pin: want True, False or 'auto', got {pin!r}")
        self.codec = codec
        self.device = torch.device("cpu")  # whose memory the rows are in
        self._rows: CompressedRows | None = rows
        self._slot_of = slot_of
        self._held_file = held_file
        self._lead_bytes = lead_bytes
        self._pin = pin
        self._layout = layout
        self._precision = precision
        self._pinned: PinnedRows | None = None
        self._pinned_by: tuple[int, torch.device | None] = os.getpid(), None  # process, and the GPU it was for
        self._pin_failed: str | None = None  # why
        self._on_gpus: dict[torch.device, _OnGpu] = {}
        self._setup = ForkSafeLock()  # held to page-lock the rows, and to plan for a GPU, in the presence of readers
        self._writable = writable
        self._writer: RowWriter | None = None  # from the first update on
        self._version = 0
        self._torn: str | None = None  # why the rows are neither old nor new ones
        self._caches: weakref.WeakSet[StoreCache] = weakref.WeakSet()
        self._shared = shared
        self._name = name_source(self)
        self.lock = ReadWriteLock()
        self.lock.outer = shared
        if pin is True:
            self._pin_now()

    @classmethod
    def build(
        cls,
        features: torch.Tensor | np.ndarray,
        codec: str | Codec = "auto",
        *,
        layout: Layout | Literal["auto"] = "compact",
        order: torch.Tensor | np.ndarray | None = None,
        pin: bool | str = "auto",
        chunk_rows: int | None = None,
        progress: bool | None = None,
        precision: PrecisionName | None = None,
        out_dtype: torch.dtype | None = None,
    ) -> CompressedFeatureStore:
        """Compresses all rows of features, in chunks.

        Args:
            features: [n, *row_shape] tensor, NumPy array or memmap, n >= 0; read twice: once for the sizes, once to
                compress, so that memory stays bounded by the result and a chunk. Of a tensor that needs grad, the
                values of this moment: no gradient goes through a store.
            codec: a name, fitted on a sample here, or a fitted Codec of the same dtype and row shape.
            layout: "compact" = slots of the length that makes slots and overflow rows smallest; "inplace" = slots as
                long as a raw row; "packed" = rows end to end, without slots: smaller where payloads differ in length,
                but such a store cannot be updated; "auto" = "packed" if that takes at least 15 % less than "compact".
            order: [n] int32/int64, every id once, hottest first: the row of node order[s] goes to slot s. None: node
                i's row goes to slot i. Ids stay what they are; a store in this order is cheaper to cache and to read.
            pin: "auto" = page-lock the rows at the first gather to a GPU, and warn and copy through a staging buffer if
                that fails; True = page-lock now, or raise PinError; False = always the staging buffer.
            chunk_rows: rows of a chunk. None: 24 MiB worth.
            progress: whether to show a progress bar. None: where stderr is a terminal, from a second on.
            precision: LOSSY: values are rounded to it first: "bf16", "fp16", "fp8_e4m3" or "fp8_e5m2", the last two
                with a scale for each column. None: lossless.
            out_dtype: with a precision, the dtype of the store and of what it gathers: floats that hold the precision's
                values. None: that of features.

        Returns:
            The store, in CPU memory. If it takes more bytes than the raw rows, a warning says so.

        Raises:
            TypeError: features of a type or dtype that is not supported, or another codec.
            ValueError: other bad arguments.
            PinError: with pin=True, if the system refuses.
        """
        job = Job.check(features, codec, layout, order, chunk_rows, progress, precision, out_dtype)
        rows, lead_bytes = build_in_memory(job)
        store = cls(job.codec, rows, lead_bytes, pin, job.slot_of, layout=job.layout, precision=job.precision)
        _logger.debug("built %s", store)
        warn_if_larger(store.nbytes, store.raw_nbytes, stacklevel=2)
        return store

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes a store file (ibp_gnn/store/file/header.py), which is there as a whole or not at all, and replaces one
        that is there. It holds the rows of one moment: updates and gathers go on meanwhile. If several updates come
        between, memory for a copy of all rows is needed. `ibp-gnn build` makes store files of features that do not fit
        in memory.

        Args:
            path: the file.

        Raises:
            OSError: the file cannot be written.
            FormatError: the rows lie in a damaged file.
            ValueError: after `close`.
        """
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
        progress: bool | None = None,
        lossy: bool = False,
    ) -> CompressedFeatureStore:
        """Opens a store file, which must not be changed while it is open; it may come from anyone.

        Args:
            path: the file.
            mmap: True = the rows stay in the file, mapped; False = they are read to memory, in parallel; only then can
                they be updated. If somebody truncates a mapped file, reading its rows kills the process (SIGBUS), which
                no Python code can catch. Where that may happen, use mmap=False: it raises FormatError if the file is
                cut while it is read, and does not need the file afterwards.
            shared: instead, to memory that all processes of this user which load the file so have in common; the first
                one fills it (ibp_gnn/store/file/sharing.py).
            pin: as for `build`. Mapped rows are read to memory, to be page-locked there.
            verify: when the checksums of mapped rows are compared: "load" = all of them now, in parallel; "read" =
                those of the blocks that a gather touches, at the first one that does (all of them before rows go to a
                GPU's kernel).
            progress: as for `build`, while checksums are compared.
            lossy: whether to take a file whose values were rounded (the `precision` of `build`). A lossless one is
                always taken.

        Returns:
            The store.

        Raises:
            FormatError: the file is damaged; says where. With verify="read", `gather` may raise it, too.
            OSError: the file cannot be read.
            PinError: with pin=True, if the system refuses.
            ValueError: another `verify`, or "read" for rows that are read to memory; a LOSSY file, but with
                lossy=True.
        """
        if verify not in ("load", "read"):
            raise ValueError(f"verify: want 'load' or 'read', got {verify!r}")
        if verify == "read" and (shared or not mmap):
            raise ValueError("verify: want 'load' for rows that are read to memory, got 'read'")
        file = StoreFile(path)
        if file.header.precision is not None and not lossy:
            file.close()
            raise ValueError(
                f"{file.path}: want lossless rows, got {file.header.precision}; lossy=True (in a training config "
                f"store.precision={file.header.precision.name}) takes them"
            )
        held = HeldFile(file, "shared" if shared else "mapped" if mmap else "private")
        if verify == "load":
            held.check(progress)
        return cls(**_parts(held), pin=pin, writable=not (mmap or shared))

    def gather(
        self,
        ids: torch.Tensor | np.ndarray,
        device: torch.device | str | None = None,
        *,
        out: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """The rows of these ids.

        CPU: decodes with torch.get_num_threads() threads. CUDA: one kernel on the current stream reads the compressed
        rows where they lie in page-locked CPU memory; no host sync if the ids are on the device.

        Args:
            ids: [n] int32/int64, on CPU or CUDA, repeats and n == 0 allowed.
            device: where the rows are put. None: the ids' device.
            out: where they are written: right shape, dtype, device; contiguous; no tensor that needs grad, but under
                torch.no_grad(). None: a new tensor.

        Returns:
            [n, *row_shape] on `device`.

        Raises:
            IndexError: names the first bad id; where ids are on a GPU, at the next gather or `check` after the kernel
                ran, rows of bad ids being zeros.
            TypeError: other ids. (An index, `store[ids]`, takes lists, ranges and masks, too.)
            ValueError: an `out` that does not fit, or after `close`.
            RuntimeError: an `out` that needs grad, or a GPU that torch cannot use.
        """
        if out is None and is_compiling():
            return gather_by_name(ids, self._name, device)
        ids = as_ids(ids, advice=INDEX_ADVICE)
        target = resolve_device(device, ids.device)
        if target.type == "cuda":
            self._check_process()  # before torch allocates there, whose message would not say what to do
        out = prepare_out(out, (ids.shape[0], *self.codec.row_shape), self.dtype, target)
        if target.type == "cpu":
            ids = ids.cpu()
            with self.lock:
                self._check_file_rows(ids)
                dispatch.decode_on_cpu(self.codec.form, self._held, ids, to_bytes(out), self._slot_of)
            return out
        self._gather_to_gpu(ids, out)
        return out

    def gather_to_kept(self, ids: torch.Tensor, out: torch.Tensor) -> None:
        """For the Prefetcher: as `gather`; out: on a GPU, and its memory is not used again before the current stream
        has written it."""
        self._check_process()
        self._gather_to_gpu(ids, out, out_is_kept=True)

    def _gather_to_gpu(self, ids: torch.Tensor, out: torch.Tensor, *, out_is_kept: bool = False) -> None:
        num_rows, device = len(self), out.device
        if not self.is_pinned():
            check_ids_on_cpu(ids, num_rows)  # before the rows are page-locked, which takes time
        with self.lock:
            if self._pin_now(device):
                on_gpu = checked_ids_on_gpu(ids, device, num_rows)
                self.gather_on(device).gather(on_gpu, out, out_is_kept=out_is_kept)
            else:
                self._gather_staged(ids, out, device)

    def update(self, ids: torch.Tensor | np.ndarray, rows: torch.Tensor | np.ndarray) -> None:
        """Writes new rows over old ones. Every gather from now on, by a GPU cache of this store, too, gives these rows
        bit for bit.

        They are encoded with the store's codec and slot length, where they are. What does not fit its slot goes to the
        overflow area, which may have to grow: then it is copied, and old and new one are in memory together. Gathers of
        other threads, and of other processes that share the rows, see all of an update or nothing of it; this call
        waits for them, and for the GPUs in use, before and after it writes. CUDA graphs with gathers have to be
        captured again. Of the processes that share the rows, the one that made the store updates them.

        If it raises, nothing has changed, in the store and in its caches, whenever that happened. (If what was written
        can't be taken back either, every later call says so.)

        Args:
            ids: [n] int32/int64, distinct, n == 0 allowed, on any device.
            rows: [n, *row_shape] of the store's dtype, their new values, on any device. A LOSSY store rounds them.

        Raises:
            IndexError: names the first bad id.
            ValueError: repeated ids, other shapes and dtypes, a store whose rows are packed, in a file, or in memory
                that torch shares.
            TypeError: ids or rows of another type.
            PinError, OSError, or torch's OutOfMemoryError: there is no room for a larger overflow area or for what is
                to be written.
            RuntimeError: in a process forked from the one that page-locked the rows, in one that does not own rows that
                are shared (naming the one that does), and while GPUs of another process read them in place.
        """
        held = self._held
        if held.packing is not None:
            raise ValueError(
                "update: want rows in slots, got packed rows, which lie end to end and leave no room for longer ones; "
                "build the store with layout='compact'"
            )
        if not self._writable:
            raise ValueError(
                "update: want rows in memory of this process alone, got a store whose rows are in a file or in shared "
                "memory; load it with mmap=False, shared=False"
            )
        if self._shared is not None:
            self._shared.check_owner()
        if any(part.is_shared() for part in (held.slots, held.bitmask, held.overflow)):
            raise ValueError(
                "update: want rows in memory of this process alone, got rows that torch.multiprocessing shares with "
                "another process"
            )
        ids, rows = as_ids(ids).to("cpu", torch.int64), as_tensor(rows)
        self.codec.check_rows(rows)
        if self._precision is not None:
            rows = self._precision.round(rows)
        if len(rows) != len(ids):
            raise ValueError(f"rows: want {len(ids)} of them, as many as ids, got {len(rows)}")
        check_ids_on_cpu(ids, held.num_rows)
        in_order = ids.sort().values
        repeated = in_order[1:][in_order[1:] == in_order[:-1]]
        if len(repeated):
            raise ValueError(f"ids: want distinct ids, got {int(repeated[0])} more than once")
        if len(ids) == 0:
            return
        new = self.codec.compress(rows, slot_bytes=held.slot_bytes).to("cpu")
        lead_bytes = least_lead_bytes(self.codec.form, to_bytes(rows), held.slot_bytes)
        # A signal's handler that raises, Ctrl-C for one, may do so until the writing begins; then after all is done.
        with uninterrupted(at_once=False) as signals, self.lock.exclusive(), self._apart_from_processes():
            self._replace(ids, new, lead_bytes, signals)

    def _apart_from_processes(self) -> contextlib.AbstractContextManager[None]:
        _ = self._held  # raises if another thread has closed the store meanwhile
        return contextlib.nullcontext() if self._shared is None else self._shared.updating()

    def _replace(self, ids: torch.Tensor, new: CompressedRows, lead_bytes: int, signals: uninterrupted) -> None:
        """ids: int64 [n] on the CPU; new: their rows, on the CPU; lead_bytes: what they need at least. The lock is held
        alone. First comes all that may fail, then the writing, which is undone if it fails, then what cannot fail."""
        held = self._held
        process, locked_for = self._pinned_by
        if self._pinned is not None and process != os.getpid():
            raise RuntimeError("update: want the process that page-locked the store's rows, got one forked from it")
        shared = self._shared
        writer = self._writer or RowWriter(held, None if shared is None else shared.with_overflow)
        caches, slots = list(self._caches), self.to_slots(ids)
        for device in {*self._on_gpus, *(cache.device for cache in caches)}:
            torch.cuda.synchronize(device)  # gathers that read the rows, those of replayed CUDA graphs among them
        lead_bytes = max(self.lead_bytes, lead_bytes)
        patch, pinned = writer.prepare(slots, new), self._pinned
        try:
            if pinned is not None and patch.rows is not held:
                pinned = PinnedRows(patch.rows, locked_for, before=pinned, held_by=shared)
            overwrites, remaps, of_caches = list(patch.overwrites), [], []
            for on_gpu in self._on_gpus.values():
                overwrites.append(patch.of_bitmask(on_gpu.bitmask))
                mapped = cast(PinnedRows, pinned).mapped(on_gpu.bitmask)
                remaps.append(on_gpu.gather.remap(mapped, lead_bytes=lead_bytes))
            for cache in caches:
                on_gpus = StoreOnGpu(cast(PinnedRows, pinned), lead_bytes)
                of_caches.append(cache.prepare_update(ids, slots, new, patch, on_gpus))
                overwrites += of_caches[-1].overwrites
        except BaseException:
            if pinned is not None and pinned is not self._pinned:
                pinned.overflow.close()
            raise
        # What old plans and page-locks hold is let go of at the end: that may wait for a GPU.
        before = self._pinned, [remap.gather.plan for remap in remaps], [cache.plan for cache in caches]
        signals.put_off()
        if shared is not None:
            shared.begin_write()
        try:
            write_all(overwrites)
        except BaseException as error:
            if isinstance(error, UndoError):
                self._torn = f"this CompressedFeatureStore cannot be used any more: in an update, {error}"
            else:
                if shared is not None:
                    shared.undo_write()
                if pinned is not None and pinned is not self._pinned:
                    pinned.overflow.close()
            raise
        writer.commit(patch)
        self._writer, self._rows, self._pinned, self._lead_bytes = writer, patch.rows, pinned, lead_bytes
        for remap in remaps:
            remap.commit()
        for cache, of_cache in zip(caches, of_caches, strict=True):
            cache.commit_update(of_cache)
        self._version += 1
        if shared is not None:
            shared.end_write(patch.rows, lead_bytes)
        del before
        if self._held_file is not None:  # the rows were read from it, and are no longer the same
            self._held_file.close()
            self._held_file = None

    def _share(self) -> SharedRows:
        """Moves rows of this process's memory to memory that processes share; does nothing if they are there. Both are
        in memory meanwhile. Raises OSError or PinError if there is no room, and RuntimeError in a thread that holds the
        lock to read; nothing has changed then."""
        if self._shared is not None:
            return self._shared
        with self.lock.exclusive():
            if self._shared is None:
                shared = SharedRows.copy_of(self._held, self._slot_of, self._lead_bytes, self._version)
                try:
                    self._move_to(shared)
                except BaseException:
                    shared.close()
                    raise
            return cast(SharedRows, self._shared)

    def _move_to(self, shared: SharedRows) -> None:
        """The lock is held alone. First comes all that may fail."""
        pinned, remaps = self._pinned, []
        process, locked_for = self._pinned_by
        if pinned is not None and process == os.getpid():
            pinned = PinnedRows(shared.rows, locked_for, held_by=shared)
            for on_gpu in self._on_gpus.values():
                mapped = pinned.mapped(on_gpu.bitmask)
                remaps.append(on_gpu.gather.remap(mapped, lead_bytes=shared.lead_bytes))
            remaps += [cache.prepare_move(StoreOnGpu(pinned, shared.lead_bytes)) for cache in self._caches]
        before = self._rows, self._pinned, [remap.gather.plan for remap in remaps]  # let go of at the end
        with uninterrupted():
            self._shared = self.lock.outer = shared
            self._rows, self._slot_of, self._pinned = shared.rows, shared.slot_of, pinned
            if self._writer is not None:
                self._writer.move(shared.rows, shared.with_overflow)
            for remap in remaps:
                remap.commit()
        del before
        if self._held_file is not None:  # it holds the rows that were read from it
            self._held_file.close()
            self._held_file = None

    def _gather_staged(self, ids: torch.Tensor, out: torch.Tensor, device: torch.device) -> None:
        """Copies the compressed rows to the GPU through ordinary memory, and decodes them there."""
        wanted = ids.to("cpu", torch.int64)
        self._check_file_rows(wanted)
        self.codec.decompress(self._held.select(self.to_slots(wanted), device), out=out)

    def _check_file_rows(self, ids: torch.Tensor) -> None:
        """ids: on the CPU. Raises IndexError; and FormatError if what is read of the file for them is damaged."""
        if self._held_file is not None and not self._held_file.is_checked:
            check_ids_on_cpu(ids, self._held.num_rows)
            self._held_file.check_slots(self.to_slots(ids))

    def copy_of(self, ids: torch.Tensor, *, first_overflow: int = 0) -> CompressedRows:
        """For what holds rows of its own: a copy of these, compressed. ids: int64 [n] on the CPU. first_overflow:
        overflow rows are numbered from it on. Of a mapped file what they lie in is read and checked. Raises IndexError
        and FormatError."""
        with self.lock:
            check_ids_on_cpu(ids, len(self))
            self._check_file_rows(ids)
            return self._held.select(self.to_slots(ids), first_overflow=first_overflow)

    def overflows(self, ids: torch.Tensor) -> torch.Tensor:
        """For what holds rows of its own: which of these lie in the overflow area. ids: int64 [n] on the CPU, in range.
        Returns bool [n], not checked where they lie in a mapped file."""
        with self.lock:
            return self._held.overflows(self.to_slots(ids))

    def gather_on(self, device: torch.device) -> GpuGather:
        """The kernel's plan for a device, over the page-locked rows. Call it with `lock` held."""
        on_gpu = self._on_gpus.get(device)
        if on_gpu is None:
            mapped = self.mapped_rows(device)
            with self._setup:
                on_gpu = self._on_gpus.get(device)  # another thread may have been faster
                if on_gpu is None:
                    place = None if self._slot_of is None else self._slot_of.to(device)
                    gather = GpuGather(self.codec.form, device, mapped, lead_bytes=self.lead_bytes, place=place)
                    on_gpu = self._on_gpus[device] = _OnGpu(gather, mapped.bitmask)
        return on_gpu.gather

    def mapped_rows(self, device: torch.device) -> MappedRows:
        """The page-locked rows as this device sees them; a copy of the bitmask is made there. Call it with `lock` held.
        Raises RuntimeError if they are not page-locked."""
        self._check_process()
        if not self._pin_now(device) or self._pinned is None:
            raise RuntimeError(f"the store's rows are not page-locked: {self._pin_failed or 'pin=False'}")
        return self._pinned.mapped(self.rows.bitmask.to(device))

    def add_cache(self, cache: StoreCache) -> None:
        """Updates reach this cache, too, as long as it lives. Call it with `lock` held since its rows were read."""
        self._caches.add(cache)

    def remove_cache(self, cache: StoreCache) -> None:
        """It has been closed. Call it with `lock` held alone."""
        self._caches.discard(cache)

    def to_slots(self, ids: torch.Tensor) -> torch.Tensor:
        """ids: [n] int32/int64 in range, on the CPU. Returns the slots of these nodes: the ids themselves, or int64 [n]
        where the store has an order."""
        return ids if self._slot_of is None else self._slot_of[ids].to(torch.int64)

    @property
    def precision(self) -> Precision | None:
        """What the values were rounded to, LOSSY; None for a lossless store."""
        return self._precision

    @property
    def slot_of(self) -> torch.Tensor | None:
        """int32 [num_rows] on the CPU: the slot of each node id; None where node i is in slot i."""
        return self._slot_of

    @property
    def lead_bytes(self) -> int:
        """Bytes of a slot that a GPU fetches before it knows the payload's length."""
        return self._lead_bytes if self._shared is None else self._shared.lead_bytes

    def is_pinned(self) -> bool:
        """As of a tensor.

        Returns:
            Whether the rows are page-locked by now.
        """
        return self._pinned is not None

    @property
    def can_map(self) -> bool:
        """The old name of `page_lock`."""
        _renamed.warn("CompressedFeatureStore.can_map", "CompressedFeatureStore.page_lock()", stacklevel=2)
        return self.page_lock()

    def page_lock(self) -> bool:
        """Page-locks the rows now, as `pin` asks, unless they are.

        Returns:
            Whether GPUs read the rows in place.

        Raises:
            FormatError: the rows lie in a damaged file.
            PinError: pin=True, and the system refuses.
        """
        with self.lock:
            return self._pin_now()

    def _pin_now(self, device: torch.device | None = None) -> bool:
        """Page-locks the rows once, as `pin` asks, for a GPU (None: the current one). Returns whether they are
        page-locked. Raises FormatError."""
        if self._pinned is not None:
            return True
        if self._pin is False or self._pin_failed:
            return False
        with self._setup:
            if self._pinned is not None or self._pin_failed:  # by another thread
                return self._pinned is not None
            try:
                rows = self._held if self._held_file is None else self._held_file.to_memory()
                if self._shared is not None:
                    self._shared.read_in_place()
                pinned = PinnedRows(rows, device, held_by=self._shared)
            except PinError as error:
                if self._held_file is not None:
                    self._held_file.back_to_mapping()
                if self._shared is not None:
                    self._shared.end_read_in_place()
                if self._pin is True:
                    raise
                self._pin_failed = str(error)
                what = f"{error}. Gathers to a GPU copy through a staging buffer, which is slower."
                warnings.warn(what, stacklevel=4)
                return False
            self._rows, self._pinned, self._pinned_by = rows, pinned, (os.getpid(), device)
        return True

    def _check_process(self) -> None:
        forked = self._pinned is not None and self._pinned_by[0] != os.getpid()
        if forked or getattr(torch.cuda, "_is_in_bad_fork", lambda: False)():
            raise RuntimeError(
                "a store cannot gather to a GPU in a process forked after CUDA was initialised; gather to the CPU "
                "there, or start the worker processes with the 'spawn' method"
            )

    @property
    def rows(self) -> CompressedRows:
        """The compressed rows, all checked if they lie in a file. Raises FormatError if that is damaged, and ValueError
        after `close`."""
        rows, held_file = self._held, self._held_file
        if held_file is not None:
            held_file.check()
        return rows

    @property
    def _held(self) -> CompressedRows:
        if self._torn is not None:
            raise RuntimeError(self._torn)
        if self._rows is None:
            raise ValueError("this CompressedFeatureStore is closed")
        return self._rows if self._shared is None else self._shared.rows

    @property
    def shape(self) -> tuple[int, ...]:
        """(num_rows, *row_shape)."""
        return (self._held.num_rows, *self.codec.row_shape)

    @property
    def dtype(self) -> torch.dtype:
        """Of the rows."""
        return self.codec.dtype

    @property
    def layout(self) -> Layout:
        """What `build` was asked for, or "auto" has taken. A file holds the slots' length alone: of one whose slots are
        as long as a row it is "inplace"."""
        if self._held.packing is not None:
            return "packed"
        if self._layout is not None:
            return self._layout
        return "compact" if self.slot_bytes < self.codec.row_bytes else "inplace"

    @property
    def slot_bytes(self) -> int:
        """Length of each row's slot; of packed rows, of the longest payload."""
        return self._held.slot_bytes

    @property
    def nbytes(self) -> int:
        """Bytes of CPU memory, or of a mapped file: slots, overflow rows, bitmask, table of slots, codec, slack."""
        table = 0 if self._slot_of is None else self._slot_of.nbytes
        return self._held.nbytes + self.codec.nbytes + table

    @property
    def raw_nbytes(self) -> int:
        """Bytes of the same rows, uncompressed."""
        return self._held.raw_nbytes

    @property
    def savings(self) -> float:
        """1 - nbytes / raw_nbytes; negative if compressing does not pay; 0 without rows."""
        return 1 - self.nbytes / self.raw_nbytes if self.raw_nbytes else 0.0

    @property
    def version(self) -> int:
        """How many updates the rows have had since the store was made."""
        return self._version if self._shared is None else self._shared.version

    def stats(self) -> GatherStats:
        """What gathers to GPUs have moved since the last reset. Waits for each GPU's current stream.

        Returns:
            The counts, of all GPUs together.
        """
        return sum((on_gpu.gather.stats() for on_gpu in list(self._on_gpus.values())), GatherStats())

    def count_unique(self, device: torch.device | str = "cuda") -> None:
        """From now on `stats` counts different rows that gathers to this GPU read, too: a bit of its memory for each
        row.

        Args:
            device: the GPU.

        Raises:
            RuntimeError: the rows are not page-locked.
        """
        with self.lock.exclusive():
            self.gather_on(resolve_device(device, torch.device("cuda"))).count_unique()

    def reset_stats(self) -> None:
        """From now on `stats` counts from zero. Does not wait."""
        for on_gpu in list(self._on_gpus.values()):
            on_gpu.gather.reset_stats()

    def check(self) -> None:
        """Waits for the GPUs in use.

        Raises:
            IndexError: a gather so far met a bad id.
            FormatError: a gather so far met a damaged row.
        """
        for on_gpu in list(self._on_gpus.values()):
            on_gpu.gather.check()

    def close(self) -> None:
        """Frees the rows, and closes the caches of this store, after the gathers of other threads and on whatever
        stream and GPU. Idempotent. Without it, the memory is freed in the same way when nobody holds the store any
        more.

        Raises:
            IndexError, FormatError: as `check`.
        """
        try:
            self.check()
        finally:
            with self.lock.exclusive():
                for cache in list(self._caches):
                    cache.release()
                for on_gpu in self._on_gpus.values():
                    on_gpu.gather.wait()
                self._on_gpus = {}
                # Unlocked with the last plan: one that another thread is dropping may still be waiting for its kernel.
                self._pinned = self._rows = self._writer = None
                if self._held_file is not None:
                    self._held_file.close()
                if self._shared is not None:
                    self._shared.close()
                    self._slot_of = None

    def __len__(self) -> int:
        return self._held.num_rows

    def __enter__(self) -> CompressedFeatureStore:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        if self._rows is None:
            return "CompressedFeatureStore(closed)"
        lossy = "" if self._precision is None else f", {self._precision}"
        return (
            f"CompressedFeatureStore({list(self.shape)} {self.dtype}, {self.layout}, slot_bytes={self.slot_bytes}, "
            f"nbytes={self.nbytes}, savings={self.savings:.1%}{lossy})"
        )

    def __getstate__(self) -> dict[str, Any]:
        """For pickle and copy: a file's name, or a copy of the rows, which no update changes while it is written."""
        with self.lock:
            held = self._held
            if self._held_file is not None and not self._writable:
                return {"file": self._held_file.__getstate__(), "pin": self._pin, "writable": False}
            return {
                "codec": self.codec,
                "rows": held.select(torch.arange(len(self), device="cpu")),
                "lead_bytes": self.lead_bytes,
                "pin": self._pin,
                "slot_of": self._slot_of,
                "layout": self._layout,
                "precision": self._precision,
            }

    def _reduce_for_processes(self) -> tuple[Any, ...]:
        """What multiprocessing sends. A process that does not use a GPU does not page-lock: pin=True is "auto" there.
        Raises OSError, PinError and RuntimeError, as `_share`."""
        pin = "auto" if self._pin is True else self._pin
        if self._writable:
            state = {"shared": self._share(), "codec": self.codec, "pin": pin, "layout": self._layout}
            state["precision"] = self._precision
        else:
            state = {**self.__getstate__(), "pin": pin}  # a file's name
        return copyreg.__newobj__, (type(self),), state  # type: ignore[attr-defined]

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        ForkingPickler.register(cls, cls._reduce_for_processes)

    def __setstate__(self, state: dict[str, Any]) -> None:
        if "file" in state:
            state = {**_parts(HeldFile.again(**state.pop("file"))), **state}
        elif "shared" in state:
            shared = state["shared"]
            state = {"rows": shared.rows, "lead_bytes": shared.lead_bytes, "slot_of": shared.slot_of, **state}
        self.__init__(**state)  # type: ignore[misc]


ForkingPickler.register(CompressedFeatureStore, CompressedFeatureStore._reduce_for_processes)


def _refuse_weights_only(cls: type) -> None:
    raise TypeError(
        "torch.load makes nothing but tensors of a file, unless it may run code (weights_only=False), and this one "
        "holds a pickled CompressedFeatureStore. store.save(path) and CompressedFeatureStore.load(path) keep a store "
        "in a file that may come from anyone"
    )


if hasattr(torch.serialization, "add_safe_globals"):  # what torch.load finds under this name, to refuse it by
    torch.serialization.add_safe_globals(
        [type("CompressedFeatureStore", (), {"__module__": __name__, "__new__": _refuse_weights_only})]
    )


def _parts(held: HeldFile) -> dict[str, Any]:
    """The arguments of a store of these rows. Raises FormatError."""
    file = held.file
    parts = {"codec": file.codec(), "rows": held.rows, "lead_bytes": file.header.lead_bytes}
    return {**parts, "slot_of": file.slot_of(), "held_file": held, "precision": file.header.precision}

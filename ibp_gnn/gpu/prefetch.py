"""Prefetcher: the features of the next mini-batches are fetched while this one trains.

    batches = ibp_gnn.Prefetcher(loader, cache, device="cuda")
    for (input_nodes, output_nodes, blocks), x in batches:
        ...                                # x: the same bits as cache.gather(input_nodes, device="cuda")

No threads: the loader runs where it always did, in the thread that asks for the next batch; what overlaps is the GPU's
work, on a stream of its own.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable, Generator, Iterable, Sized
from typing import Any, Generic, NamedTuple, TypeVar, cast

import torch

from ..codec.values import as_ids, check_ids_on_cpu, resolve_device
from ..store.feature_store import CompressedFeatureStore
from ..store.row_source import RowSource, is_row_source
from .cache import CompressedGPUCache
from .prefetch_trial import PrefetchTrial
from .side_stream import SideStream

Batch = TypeVar("Batch")

_END: Any = object()
_NO_VERSION: Any = object()  # differs from every version


def first_of(batch: Any) -> Any:
    """The first part of a tuple or list, which is where DGL's loader has the input nodes; any other batch itself."""
    return batch[0] if isinstance(batch, (tuple, list)) else batch


class Prefetcher(Generic[Batch]):
    """Wraps a loader: yields each of its batches with the features for it. Can be iterated again and again, as the
    loader can. A context manager.

    Example:
        >>> loader = [torch.tensor([1, 2]), torch.tensor([2, 5, 5])]
        >>> for ids, x in ibp_gnn.Prefetcher(loader, store, device="cpu"): print(list(x.shape))
        [2, 16]
        [3, 16]
        >>> bool((x == features[ids]).all())
        True
    """

    def __init__(
        self,
        loader: Iterable[Batch],
        source: RowSource,
        *,
        device: torch.device | str,
        ids: Callable[[Batch], Any] = first_of,
        lookahead: int = 1,
        trial: PrefetchTrial | None = None,
    ) -> None:
        """Fetches nothing yet.

        Args:
            loader: any iterable of batches.
            source: the features; a store, a GPU cache or any other RowSource. Ids in CPU memory reach it there. To a
                source of your own they come pinned if `device` is a GPU: its `ids.to(device, non_blocking=True)` does
                not wait. If its rows change, give it a `version` that changes with them, as the stores of ibp_gnn have.
            device: where the features go. On the CPU nothing overlaps: the calls, their order and the bits are the
                same.
            ids: the ids of a batch's rows, [n] int32/int64 on the CPU or a GPU, repeats and n == 0 allowed. Default:
                the first part of a batch that is a tuple or list, else the batch.
            lookahead: how many batches are fetched together, in one gather. It pays where one large gather is cheaper
                than several small ones: rows of a large store in CPU memory, read in order by a GPU. Up to 2 *
                lookahead batches are held, the one in use among them.
            trial: measures the first steps on a GPU with and without fetching ahead, and goes on in the faster way.
                One serves all prefetchers of a loop, those of later epochs among them. None: always ahead.

        Raises:
            TypeError: a source that is no RowSource, a loader that is no iterable.
            ValueError: a lookahead below 1.
        """
        if not is_row_source(source):
            raise TypeError(f"source: want a RowSource (shape, dtype and gather), got {type(source).__name__}")
        if not isinstance(loader, Iterable):
            raise TypeError(f"loader: want an iterable of batches, got {type(loader).__name__}")
        if isinstance(lookahead, bool) or not isinstance(lookahead, int) or lookahead < 1:
            raise ValueError(f"lookahead: want a whole number of at least 1, got {lookahead!r}")
        self._loader, self._source, self._ids, self._lookahead = loader, source, ids, lookahead
        self._device = resolve_device(device, torch.device("cpu"))
        self._is_own = type(source) in (CompressedFeatureStore, CompressedGPUCache)
        self._trial = trial if self._device.type == "cuda" else None
        self._running: weakref.WeakSet[Generator[Any, None, None]] = weakref.WeakSet()

    def __iter__(self) -> Generator[tuple[Batch, torch.Tensor], None, None]:
        """Yields (batch, features [n, *row_shape] on `device`), in the loader's order. The stream that is current when
        a batch is asked for may use its features; the host waits for the GPU only to stay within a few steps of it.

        The features are those that the source has at the moment of the yield: a batch that was fetched before an update
        is fetched again. So in a loop that updates the source at every step, fetching ahead gains nothing.

        An error of the loader, of `ids` or of the gather is raised in the place of the batch that it is about, after
        all batches before it; then the iteration is over. What a kernel reports of ids on a GPU comes later, as with
        RowSource.gather. Leaving the loop early ends the fetches that are under way.
        """
        run = self._iterate()
        self._running.add(run)
        return run

    def __len__(self) -> int:
        """The loader's. Raises TypeError if it has none."""
        return len(cast(Sized, self._loader))

    def close(self) -> None:
        """Ends the iterations under way, and waits for their fetches. Idempotent."""
        for run in list(self._running):
            run.close()

    def __enter__(self) -> Prefetcher[Batch]:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _iterate(self) -> Generator[tuple[Batch, torch.Tensor], None, None]:
        side = SideStream(self._device) if self._device.type == "cuda" else None
        batches = iter(self._loader)
        group: list[tuple[Batch, torch.Tensor]] = []  # batches with their ids, to be fetched together
        ready: deque[_Fetched] = deque()
        failure: Exception | None = None
        ended, ahead = False, True
        if self._trial is not None:
            self._trial.begin()
        try:
            while True:
                if side is not None:
                    side.pace()
                if self._trial is not None:
                    ahead = self._trial.step()
                at_once, most = (self._lookahead, 2 * self._lookahead) if ahead else (1, 1)
                # One batch a step, so that sampling is spread evenly. The group after the one in use is always whole,
                # and under way.
                while not ended and len(ready) + len(group) < most:
                    try:
                        batch = next(batches, _END)
                        ended = batch is _END
                        if not ended:
                            group.append((batch, self._ids_of(batch)))
                    except Exception as error:
                        failure, ended = error, True
                    if group and (ended or len(group) == at_once):
                        try:
                            ready += self._fetch(group, side if ahead else None)
                        except Exception as error:
                            failure, ended = error, True
                        group = []
                if group and not ready:  # fetching ahead has ended, and left a part of a group
                    ready += self._fetch(group, None)
                    group = []
                if not ready:
                    break
                yield self._hand_over(ready.popleft())
            if failure is not None:
                raise failure
        finally:
            failure = None  # its traceback holds this frame
            if side is not None and ready:
                side.stream.synchronize()

    def _ids_of(self, batch: Batch) -> torch.Tensor:
        ids = as_ids(self._ids(batch))
        if self._lookahead > 1:  # or gather would not know which of the batches a bad id is of
            check_ids_on_cpu(ids, self._source.shape[0])
        return ids

    def _fetch(self, group: list[tuple[Batch, torch.Tensor]], side: SideStream | None) -> list[_Fetched]:
        ids = [one for _, one in group]
        version = self._version()
        event = made_on = None
        if side is None:
            rows = self._gather(ids)
        else:
            side.take(ids)
            try:
                rows, made_on = self._gather_on(side, ids)
                event = side.stream.record_event()
            except BaseException:
                side.stream.synchronize()  # nothing that was allocated for it is in use
                raise
        if version != self._version():  # an update meanwhile: of these rows nobody knows
            version = _NO_VERSION
        fetched = zip(group, rows, strict=True)
        return [_Fetched(batch, own_ids, part, event, made_on, version) for (batch, own_ids), part in fetched]

    def _gather_on(self, side: SideStream, ids: list[torch.Tensor]) -> tuple[list[torch.Tensor], torch.cuda.Stream]:
        """The rows of each batch, written on the side stream; and the stream whose memory they are.

        That of our own sources is the current one's: the memory is used again behind all that reads it there, and no
        record_stream is needed, after which torch's allocator would ask for an event at every allocation of the
        training step.
        """
        if not self._is_own:
            with torch.cuda.stream(side.stream):
                return self._gather(ids), side.stream
        lengths = [len(one) for one in ids]
        rows = torch.empty(sum(lengths), *self._source.shape[1:], dtype=self._source.dtype, device=self._device)
        made_on = side.follow()
        with torch.cuda.stream(side.stream):
            joined = ids[0] if len(ids) == 1 else torch.cat(ids)
            cast(CompressedGPUCache, self._source).gather_to_kept(joined, rows)
        return list(rows.split(lengths)), made_on

    def _hand_over(self, fetched: _Fetched) -> tuple[Batch, torch.Tensor]:
        """Makes the current stream wait for the rows, and the allocator keep them until it has passed their last
        use."""
        if fetched.version != self._version():
            if fetched.done is not None and fetched.made_on is not None:
                fetched.made_on.wait_event(fetched.done)  # the memory is let go of
            return fetched.batch, self._gather([fetched.ids])[0]
        if fetched.done is not None:
            stream = torch.cuda.current_stream(self._device)
            stream.wait_event(fetched.done)
            if stream != fetched.made_on:
                fetched.rows.record_stream(stream)
        return fetched.batch, fetched.rows

    def _version(self) -> Any:
        return getattr(self._source, "version", None)

    def _gather(self, ids: list[torch.Tensor]) -> list[torch.Tensor]:
        """The rows of each batch, on the current stream."""
        rows = self._source.gather(self._pinned(ids[0] if len(ids) == 1 else torch.cat(ids)), device=self._device)
        return list(rows.split([len(one) for one in ids]))

    def _pinned(self, ids: torch.Tensor) -> torch.Tensor:
        """Pinned if they are on the way from the CPU to a GPU: a copy from pageable memory makes the host wait. torch
        reuses the pinned memory only after the copy. Our own sources do that themselves."""
        pins = self._device.type == "cuda" and not ids.is_cuda and not self._is_own
        return ids.pin_memory() if pins else ids


class _Fetched(NamedTuple):
    batch: Any
    ids: torch.Tensor
    rows: torch.Tensor
    done: torch.cuda.Event | None
    """Recorded behind what writes the rows; None if that is the stream that is current when they are handed over."""
    made_on: torch.cuda.Stream | None
    """Whose memory they are."""
    version: Any
    """Of the source when the fetch began."""

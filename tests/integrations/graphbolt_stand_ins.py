"""What GraphBolt 2.4 and its GPU caches do with a Feature, small enough to run on a CPU.

DGL's wheel has no GPU cache and is GraphBolt 2.1. These make the same calls in the same order, on any device.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch

from ibp_gnn.integrations.dgl_compat import import_dgl

import_dgl()
from dgl import graphbolt as gb  # noqa: E402


class RowCache:
    """The first rows that it is given, on one device: what gb.GPUCache does, without evictions."""

    def __init__(self, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> None:
        self._rows = torch.zeros(shape, dtype=dtype, device=device)
        self._slots: dict[int, int] = {}

    def query(self, keys: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Returns (values with gaps, the places of the gaps, the keys that are missing there)."""
        slots = torch.tensor([self._slots.get(key, -1) for key in keys.tolist()], dtype=torch.int64)
        slots = slots.to(self._rows.device)
        values = self._rows.new_empty((len(keys), *self._rows.shape[1:]))
        hit = slots >= 0
        values[hit] = self._rows[slots[hit]]
        missing = (~hit).nonzero().view(-1)
        return values, missing, keys.to(self._rows.device)[missing]

    def replace(self, keys: torch.Tensor, values: torch.Tensor) -> None:
        for key, value in zip(keys.tolist(), values, strict=True):
            if key not in self._slots and len(self._slots) < len(self._rows):
                self._slots[key] = len(self._slots)
                self._rows[self._slots[key]] = value


class CachedFeature(gb.Feature):
    """Calls its fallback as gb.GPUCachedFeature of 2.1 does (`read`), and as that of 2.4 does (`read_async`)."""

    def __init__(self, fallback: gb.Feature, cache_rows: int, device: torch.device) -> None:
        super().__init__()
        self._fallback = fallback
        self._device = device
        probe = fallback.read(torch.tensor([0]))
        assert probe.device.type == "cpu"
        self._cache = RowCache((cache_rows, *probe.shape[1:]), probe.dtype, device)

    def read(self, ids: torch.Tensor | None = None) -> torch.Tensor:
        if ids is None:
            return self._fallback.read()
        values, missing, keys = self._cache.query(ids)
        rows = self._fallback.read(keys).to(self._device)
        values[missing] = rows
        self._cache.replace(keys, rows)
        return values

    def read_async(self, ids: torch.Tensor) -> Iterator[Any]:
        values, missing, keys = self._cache.query(ids)
        yield
        reader = self._fallback.read_async(keys)
        stages = self._fallback.read_async_num_stages(keys.device)
        for stage in range(stages):
            pending = next(reader)
            if stage < stages - 1:
                yield

        def finish() -> torch.Tensor:
            rows = pending.wait()
            self._cache.replace(keys, rows)
            values[missing] = rows
            return values

        yield Waiter(finish)

    def read_async_num_stages(self, ids_device: torch.device) -> int:
        return 1 + self._fallback.read_async_num_stages(ids_device)

    def size(self) -> torch.Size:
        return self._fallback.size()

    def count(self) -> int:
        return self._fallback.count()


class Waiter:
    def __init__(self, finish: Callable[[], Any]) -> None:
        self.wait = finish


class AsyncFetcher:
    """Fetches as GraphBolt 2.4's FeatureFetcher does: each stage of `read_async` is a step of the pipeline with a
    buffer of one batch behind it, and the result is waited for after the last."""

    def __init__(self, samples: Iterable[torch.Tensor], store: Any, keys: list[tuple], trace: list[tuple]) -> None:
        self._samples, self._store, self._keys, self._trace = samples, store, keys, trace
        # It asks for both devices, whether there is a GPU or not.
        devices = [torch.device("cpu"), torch.device("cuda")]
        known = [store[key] for key in keys if key in store]
        self.stages = max(feature.read_async_num_stages(device) for feature in known for device in devices)

    def __iter__(self) -> Iterator[tuple[torch.Tensor, dict[tuple, torch.Tensor]]]:
        batches: Iterator[Any] = map(self._start, enumerate(self._samples))
        for stage in range(self.stages, 0, -1):
            batches = _buffer(self._advance(batches, stage))
        return map(self._finish, batches)

    def _start(self, numbered: tuple[int, torch.Tensor]) -> tuple[int, torch.Tensor, dict[tuple, Any]]:
        number, ids = numbered
        features = {}
        for key in self._keys:
            stages = self._store[key].read_async_num_stages(ids.device)
            if stages == 0:
                features[key] = (Waiter(lambda key=key: self._store[key].read(ids)), 0)
            else:
                features[key] = (self._store[key].read_async(ids), stages)
        return number, ids, features

    def _advance(self, batches: Iterator[Any], stage: int) -> Iterator[Any]:
        for number, ids, features in batches:
            for key, (handle, left) in features.items():
                if left == stage:
                    value = next(handle)
                    features[key] = (handle if stage > 1 else value, stage - 1)
            self._trace.append(("started", number))
            yield number, ids, features

    def _finish(self, batch: tuple[int, torch.Tensor, dict[tuple, Any]]) -> tuple[torch.Tensor, dict]:
        number, ids, features = batch
        self._trace.append(("waits", number))
        rows = {key: handle.wait() for key, (handle, _) in features.items()}
        self._trace.append(("has", number))
        return ids, rows


def _buffer(batches: Iterator[Any]) -> Iterator[Any]:
    """Yields each batch once the next one has been made."""
    held = []
    for batch in batches:
        held.append(batch)
        if len(held) > 1:
            yield held.pop(0)
    yield from held

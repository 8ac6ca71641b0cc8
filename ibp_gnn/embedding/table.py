"""One frozen table: its rows compressed in CPU memory, the hottest of them in GPU memory, too."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ..codec.codec import Codec
from ..codec.gather import GatherStats, GpuGather
from ..codec.pool import TYPES
from ..codec.values import as_tensor, resolve_device
from ..gpu.cache import CompressedGPUCache
from ..store.feature_store import CompressedFeatureStore
from ..store.order import hottest_first

Capacity = int | float | str
_DENSE_BYTES = 64 << 20  # rows of `to_dense` that are decoded at once


class Table(torch.nn.Module):
    """A store of the rows, and what serves them: the store, or a cache of it on one GPU. A part of the public modules,
    whose state_dict has its rows: the bytes of a store file, as a uint8 tensor in CPU memory."""

    def __init__(self, store: CompressedFeatureStore, source: CompressedGPUCache | CompressedFeatureStore) -> None:
        super().__init__()
        self.store, self.source = store, source

    @classmethod
    def open(
        cls,
        table: Any,
        *,
        capacity: Capacity | None,
        hotness: Any,
        device: torch.device | str | None,
        codec: str | Codec,
        pin: bool | str,
        progress: bool,
        name: str = "table",
    ) -> Table:
        """table: as for CompressedEmbedding.from_pretrained. capacity: None = no cache."""
        store = open_store(table, hotness=hotness, codec=codec, pin=pin, progress=progress, name=name)
        if capacity is None:
            return cls(store, store)
        in_order = not isinstance(table, CompressedFeatureStore | str | os.PathLike)  # it was built hottest first
        return cls(
            store,
            CompressedGPUCache(
                store,
                capacity,
                hotness=None if in_order else hotness,
                device=resolve_device(device, torch.device("cuda")),
            ),
        )

    @property
    def num_embeddings(self) -> int:
        return len(self.store)

    @property
    def embedding_dim(self) -> int:
        return self.store.shape[1]

    @property
    def dtype(self) -> torch.dtype:
        return self.store.dtype

    @property
    def cache_device(self) -> torch.device | None:
        """The GPU of the cache; None without one."""
        return self.source.device if isinstance(self.source, CompressedGPUCache) else None

    def gather_on(self, device: torch.device) -> GpuGather | None:
        """What reads the rows on this GPU; None where they are not page-locked. Call it with the store's lock held."""
        if isinstance(self.source, CompressedGPUCache) and self.source.device == device:
            return self.source.gather_on(device)
        return self.store.gather_on(device) if self.store.page_lock() else None

    def stats(self) -> GatherStats:
        return self.source.stats()

    def check(self) -> None:
        self.source.check()

    def to_dense(self, device: torch.device | str | None) -> torch.Tensor:
        """[num_embeddings, embedding_dim] on `device`, None: in CPU memory."""
        target = resolve_device(device, torch.device("cpu"))
        dense = torch.empty(self.store.shape, dtype=self.dtype, device=target)
        rows = max(1, _DENSE_BYTES // self.store.codec.row_bytes)
        for first in range(0, len(dense), rows):
            ids = torch.arange(first, min(len(dense), first + rows), device="cpu")
            self.source.gather(ids, device=target, out=dense[first : first + len(ids)])
        return dense

    def close(self) -> None:
        self.store.close()

    def get_extra_state(self) -> torch.Tensor:
        """uint8 [n]: a store file."""
        with tempfile.TemporaryDirectory(prefix="ibp_gnn_") as folder:
            path = Path(folder) / "table.ibp"
            self.store.save(path)
            return torch.from_numpy(np.fromfile(path, dtype=np.uint8))

    def set_extra_state(self, state: Any) -> None:
        """state: from `get_extra_state`, of a table of the same shape and dtype. Raises FormatError for other bytes,
        ValueError for another shape or dtype; nothing has changed then."""
        if not isinstance(state, torch.Tensor) or state.dtype != torch.uint8 or state.ndim != 1:
            got = f"{list(state.shape)} {state.dtype}" if isinstance(state, torch.Tensor) else type(state).__name__
            raise ValueError(f"state of a table: want the bytes of a store file, uint8 [n], got {got}")
        with tempfile.TemporaryDirectory(prefix="ibp_gnn_") as folder:
            path = Path(folder) / "table.ibp"
            state.cpu().contiguous().numpy().tofile(path)
            store = CompressedFeatureStore.load(path, mmap=False)
        if store.shape != self.store.shape or store.dtype != self.dtype:
            wanted, got = f"{list(self.store.shape)} {self.dtype}", f"{list(store.shape)} {store.dtype}"
            raise ValueError(f"state of a table: want rows of {wanted}, got {got}")
        source = self.source.rebuilt(store) if isinstance(self.source, CompressedGPUCache) else store
        before, self.store, self.source = self.store, store, source
        before.close()

    def extra_repr(self) -> str:
        return repr(self.source)


def open_store(
    table: Any, *, hotness: Any, codec: str | Codec, pin: bool | str, progress: bool, name: str
) -> CompressedFeatureStore:
    """The rows of a table, in the order of their hotness if they are compressed here. Raises as from_pretrained."""
    if isinstance(table, CompressedFeatureStore):
        store = table
    elif isinstance(table, str | os.PathLike):
        store = CompressedFeatureStore.load(table, mmap=False, pin=pin)
    else:
        rows = _frozen_rows(table, name)
        order = None if hotness is None else hottest_first(hotness, len(rows))
        store = CompressedFeatureStore.build(rows, codec, order=order, pin=pin, progress=progress)
    if len(store.shape) != 2 or store.dtype not in TYPES:
        raise ValueError(
            f"{name}: want [num_embeddings, embedding_dim] float32, float16 or bfloat16, got {list(store.shape)} "
            f"{store.dtype}"
        )
    return store


def _frozen_rows(table: Any, name: str) -> torch.Tensor:
    if isinstance(table, torch.nn.Module):
        weight = getattr(table, "weight", None)
        if not isinstance(weight, torch.Tensor):
            raise TypeError(f"{name}: want a module with a weight, such as nn.Embedding, got {type(table).__name__}")
        if getattr(table, "max_norm", None) is not None:
            raise ValueError(f"{name}: want max_norm=None, which changes rows as they are read, got {table.max_norm}")
        table = weight
    if isinstance(table, torch.Tensor) and table.requires_grad:
        raise ValueError(
            f"{name}: want a table that is not trained, got requires_grad=True. Its rows are compressed, so gradients "
            "cannot change them. Freeze it first (weight.requires_grad_(False), or from_pretrained(..., freeze=True)), "
            "and write new rows with update(ids, rows)"
        )
    rows = as_tensor(table, name)
    if rows.ndim != 2:
        raise ValueError(f"{name}: want [num_embeddings, embedding_dim], got {rows.ndim} dimensions")
    if rows.dtype not in TYPES:
        raise TypeError(f"{name}: want float32, float16 or bfloat16, got {rows.dtype}")
    return rows


def check_frozen(freeze: bool) -> None:
    """Raises ValueError."""
    if freeze is not True:
        raise ValueError(
            f"freeze: want True, got {freeze!r}: rows are compressed, so gradients cannot change them. Write new rows "
            "with update(ids, rows), or train with torch.nn and compress what it has learned"
        )

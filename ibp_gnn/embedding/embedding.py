"""CompressedEmbedding: torch.nn.Embedding of a frozen table, compressed."""

from __future__ import annotations

import os
from typing import Any

import torch

from ..codec.codec import Codec
from ..codec.gather import GatherStats
from ..codec.values import resolve_device
from .bags import padding_id
from .table import Capacity, Table, check_frozen


class FrozenTable(torch.nn.Module):
    """What the modules of one table share."""

    def __init__(self, table: Table, device: torch.device | None, padding_idx: int | None) -> None:
        super().__init__()
        self.table = table
        self.device = table.cache_device if device is None else device
        self._padding_id = padding_id(padding_idx, table.num_embeddings)

    @property
    def num_embeddings(self) -> int:
        """Number of rows of the table."""
        return self.table.num_embeddings

    @property
    def embedding_dim(self) -> int:
        """Values of a row."""
        return self.table.embedding_dim

    @property
    def dtype(self) -> torch.dtype:
        """Of the rows."""
        return self.table.dtype

    @property
    def padding_idx(self) -> int | None:
        """The id whose row does not count; None if there is none."""
        return None if self._padding_id < 0 else self._padding_id

    @property
    def nbytes(self) -> int:
        """Bytes of CPU memory."""
        return self.table.store.nbytes

    def update(self, ids: Any, rows: Any) -> None:
        """Writes new rows over old ones, while others look them up: each lookup sees all of an update or nothing.

        Args:
            ids: [n] int32/int64, distinct.
            rows: [n, embedding_dim] of the table's dtype.

        Raises:
            IndexError: names the first bad id.
            ValueError: repeated ids, another shape or dtype, a store whose rows are in a file.
        """
        self.table.store.update(ids, rows)

    def to_dense(self, device: torch.device | str | None = None) -> torch.Tensor:
        """All rows, as they were given.

        Args:
            device: where they are put; None: in CPU memory.

        Returns:
            [num_embeddings, embedding_dim] on `device`.
        """
        return self.table.to_dense(device)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes a store file, which `from_pretrained` takes.

        Args:
            path: the file.

        Raises:
            OSError: the file cannot be written.
        """
        self.table.store.save(path)

    def stats(self) -> GatherStats:
        """What lookups on the GPU have read since the last reset. Waits for the current stream.

        Returns:
            The counts.
        """
        return self.table.stats()

    def reset_stats(self) -> None:
        self.table.source.reset_stats()

    def check(self) -> None:
        """Waits for the GPU.

        Raises:
            IndexError: a lookup so far met a bad id.
            FormatError: a lookup so far met a damaged row.
        """
        self.table.check()

    def close(self) -> None:
        """Frees the rows when the lookups that were launched have run. Idempotent."""
        self.table.close()

    def _target(self, input: torch.Tensor) -> torch.device:
        return resolve_device(self.device, input.device)

    def extra_repr(self) -> str:
        padding = "" if self.padding_idx is None else f", padding_idx={self.padding_idx}"
        return f"{self.num_embeddings}, {self.embedding_dim}{padding}, device={self.device}"


class CompressedEmbedding(FrozenTable):
    """torch.nn.Embedding of a table that is not trained: the same bits, from compressed rows. Safe to use from several
    threads.

    Example:
        >>> embedding = ibp_gnn.CompressedEmbedding.from_pretrained(features, progress=False)
        >>> ids = torch.tensor([[5, 5], [7, 999]])
        >>> bool((embedding(ids) == features[ids]).all()), list(embedding(ids).shape)
        (True, [2, 2, 16])
    """

    @classmethod
    def from_pretrained(
        cls,
        embeddings: Any,
        *,
        capacity: Capacity | None = None,
        hotness: Any = None,
        device: torch.device | str | None = None,
        freeze: bool = True,
        padding_idx: int | None = None,
        codec: str | Codec = "auto",
        pin: bool | str = "auto",
        progress: bool = True,
    ) -> CompressedEmbedding:
        """Compresses a table.

        Args:
            embeddings: [num_embeddings, embedding_dim] float32, float16 or bfloat16: a tensor, NumPy array or memmap;
                or a frozen nn.Embedding or nn.EmbeddingBag; or a CompressedFeatureStore of such rows, or its file.
            capacity: GPU memory of a cache of the hottest rows, as for CompressedGPUCache ("4GB", a share of the rows'
                bytes, "auto"). None: no cache; lookups on a GPU read all rows from page-locked CPU memory.
            hotness: [num_embeddings] numbers, how often each row is read: the rows with the highest are cached.
            device: where the results are put. None: the cache's GPU, without a cache where the ids are.
            freeze: True.
            padding_idx: kept; lookups do not depend on it, as with torch.
            codec: as for CompressedFeatureStore.build.
            pin: as for CompressedFeatureStore.build.
            progress: show a progress bar.

        Returns:
            The module. It has no parameters.

        Raises:
            ValueError: a table that is trained, or a bad argument.
            TypeError: a table of another type or dtype.
            RuntimeError: a capacity where there is no GPU, or rows that cannot be page-locked.
        """
        check_frozen(freeze)
        how: dict[str, Any] = {"hotness": hotness, "device": device, "codec": codec, "pin": pin, "progress": progress}
        table = Table.open(embeddings, capacity=capacity, name="embeddings", **how)
        return cls(table, None if device is None else resolve_device(device, torch.device("cpu")), padding_idx)

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """The rows of these ids.

        Args:
            input: int32/int64 of any shape, on CPU or CUDA.

        Returns:
            [*input.shape, embedding_dim]. To a GPU: enqueued on the current stream, no host sync.

        Raises:
            IndexError: names the first bad id; where ids are on a GPU, at the next lookup or `check` after the kernel
                ran, rows of bad ids being zeros.
            RuntimeError, TypeError: another dtype, or no tensor.
        """
        if not isinstance(input, torch.Tensor):
            raise TypeError(f"input: want a tensor, got {type(input).__name__}")
        if input.dtype not in (torch.int32, torch.int64):
            raise RuntimeError(f"input: want int32 or int64, got {input.dtype}")
        rows = self.table.source.gather(input.reshape(-1), device=self._target(input))
        return rows.view(*input.shape, self.embedding_dim)

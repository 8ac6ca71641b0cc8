"""CompressedEmbeddingBag: torch.nn.EmbeddingBag of a frozen table, compressed."""

from __future__ import annotations

from typing import Any

import torch

from ..codec.codec import Codec
from ..codec.pool import Mode
from ..codec.values import resolve_device
from .bags import as_bags, check_mode
from .embedding import FrozenTable
from .lookup import Feature, Lookup
from .table import Capacity, Table, check_frozen


class CompressedEmbeddingBag(FrozenTable):
    """torch.nn.EmbeddingBag of a table that is not trained: rows are looked up, decoded and pooled in one kernel, and
    never written out. Safe to use from several threads.

    The order of summation is fixed, the same on every device: values are taken to float32. A bag of fewer than 256 ids
    is summed from the first to the last. A longer one is cut into pieces of 128 ids, of which the last takes what is
    left over, too; each piece is summed so, then their sums. A weight is multiplied with the value, rounded, then added
    (no fused multiply-add). The mean is the sum divided by the number of ids. max gives NaN if a value is NaN. The
    result is rounded to the table's dtype; each NaN is the quiet one without payload. Ids that are padding_idx are left
    out. Bags without ids are 0.

    A kernel decodes and pools at once if rows are stored by codec "dict" without a zero code and take at most 1 KB, and
    so do their slots. Other rows are gathered and then pooled by a second kernel, in the same order: equal bits.

    Example:
        >>> bag = ibp_gnn.CompressedEmbeddingBag.from_pretrained(features, mode="mean", progress=False)
        >>> pooled = bag(torch.tensor([1, 2, 2, 999]), torch.tensor([0, 3]))
        >>> bool((pooled[0] == (features[1] + features[2] + features[2]) / 3).all()), list(pooled.shape)
        (True, [2, 16])
    """

    def __init__(
        self,
        table: Table,
        device: torch.device | None,
        *,
        mode: Mode,
        padding_idx: int | None,
        include_last_offset: bool,
    ) -> None:
        """Use `from_pretrained`.

        Args:
            table: what is looked up.
            device: as for `from_pretrained`.
            mode: as for `from_pretrained`.
            padding_idx: as for `from_pretrained`.
            include_last_offset: as for `from_pretrained`.

        Raises:
            ValueError: another mode.
        """
        super().__init__(table, device, padding_idx)
        check_mode(mode)
        self.mode, self.include_last_offset = mode, bool(include_last_offset)
        self._lookup: Lookup | None = None

    @classmethod
    def from_pretrained(
        cls,
        embeddings: Any,
        *,
        capacity: Capacity | None = None,
        hotness: Any = None,
        device: torch.device | str | None = None,
        freeze: bool = True,
        mode: Mode | None = None,
        padding_idx: int | None = None,
        include_last_offset: bool | None = None,
        codec: str | Codec = "auto",
        pin: bool | str = "auto",
        progress: bool = True,
    ) -> CompressedEmbeddingBag:
        """Compresses a table.

        Args:
            embeddings: as for CompressedEmbedding.from_pretrained. Of an nn.EmbeddingBag, mode, padding_idx and
                include_last_offset are taken, too, where they are not given.
            capacity: as for CompressedEmbedding.from_pretrained.
            hotness: [num_embeddings] numbers, how often each row is read: the rows with the highest are cached.
            device: where the results are put. None: the cache's GPU, without a cache where the ids are.
            freeze: True.
            mode: "sum", "mean" (default) or "max".
            padding_idx: an id that is left out; from the end if negative.
            include_last_offset: offsets have one more number at their end, where the last bag ends.
            codec: as for CompressedFeatureStore.build.
            pin: as for CompressedFeatureStore.build.
            progress: show a progress bar.

        Returns:
            The module. It has no parameters.

        Raises:
            ValueError: a table that is trained, or a bad argument.
            AssertionError: a padding_idx that is no row, as with torch.
            TypeError: a table of another type or dtype.
            RuntimeError: a capacity where there is no GPU, or rows that cannot be page-locked.
        """
        check_frozen(freeze)
        given = embeddings if isinstance(embeddings, torch.nn.Module) else None
        pooling: Any = getattr(given, "mode", "mean") if mode is None else mode
        check_mode(pooling)
        padding_idx = getattr(given, "padding_idx", None) if padding_idx is None else padding_idx
        if include_last_offset is None:
            include_last_offset = getattr(given, "include_last_offset", False)
        how: dict[str, Any] = {"hotness": hotness, "device": device, "codec": codec, "pin": pin, "progress": progress}
        table = Table.open(embeddings, capacity=capacity, name="embeddings", **how)
        target = None if device is None else resolve_device(device, torch.device("cpu"))
        return cls(table, target, mode=pooling, padding_idx=padding_idx, include_last_offset=include_last_offset)

    def forward(
        self,
        input: torch.Tensor,
        offsets: torch.Tensor | None = None,
        per_sample_weights: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Pools bags of rows.

        Args:
            input: int32/int64 [n] with offsets, or [num_bags, ids of a bag] without, on CPU or CUDA.
            offsets: int32/int64 [num_bags], where each bag starts; the first is 0. Of a GPU's memory they are not
                checked: what falls or is too large gives wrong sums; nothing outside the table is read.
            per_sample_weights: the shape of input, of the table's dtype or float32; with mode "sum" only.

        Returns:
            [num_bags, embedding_dim] of the table's dtype. To a GPU: enqueued on the current stream, no host sync.

        Raises:
            IndexError: names the first bad id; where ids are on a GPU, at the next lookup or `check` after the kernel
                ran, a bad id having counted as a row of zeros.
            ValueError, RuntimeError, NotImplementedError: where torch.nn.EmbeddingBag raises these.
            TypeError: something that is no tensor.
        """
        bags = as_bags(
            input,
            offsets,
            per_sample_weights,
            mode=self.mode,
            dtype=self.dtype,
            include_last_offset=self.include_last_offset,
            num_rows=self.num_embeddings,
        )
        lookup = self._lookup
        if lookup is None or not lookup.is_current():
            lookup = self._lookup = Lookup([Feature(self.table, 0, self.mode, self._padding_id, 0)])
        return lookup.pool(bags, self._target(input))

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, mode={self.mode!r}"

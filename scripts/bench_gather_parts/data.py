"""The rows, raw and compressed, and the batches of ids that are fetched."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

import torch
from bench_parts.uncompressed import registered

from ibp_gnn import Codec, CompressedFeatureStore
from ibp_gnn.rows import dtype_from_name

from .config import Case, Config

Order = Literal["random", "ordered", "joined"]
_SAMPLE_ROWS, _ROWS_AT_ONCE = 16_384, 1 << 18


@dataclasses.dataclass(frozen=True)
class Rows:
    """raw: [n, d] in page-locked CPU memory, which GPUs read at raw_address; store: of the same rows."""

    raw: torch.Tensor
    raw_address: int
    store: CompressedFeatureStore
    device: torch.device

    @property
    def row_bytes(self) -> int:
        return self.raw.shape[1] * self.raw.element_size()

    @property
    def raw_bytes(self) -> int:
        return len(self.raw) * self.row_bytes


@contextmanager
def open_rows(case: Case, config: Config) -> Iterator[Rows]:
    """The store's slots take case.footprint_gb."""
    dtype, device = dtype_from_name(case.dtype), torch.device("cuda", torch.cuda.current_device())
    sample = (torch.randn(_SAMPLE_ROWS, case.dim) * 0.1).to(dtype)
    codec = Codec.fit(sample, codec=config.codec)
    num_rows = max(1, int(case.footprint_gb * 1e9 / codec.compress(sample).slot_bytes))
    raw = torch.empty(num_rows, case.dim, dtype=dtype)
    with registered(raw) as address:  # before they are filled: copies to page-locked memory are fast
        for part in raw.split(_ROWS_AT_ONCE):
            part.copy_((torch.randn(part.shape, device=device) * 0.1).to(dtype))
        with CompressedFeatureStore.build(raw, codec, pin=True, progress=False) as store:
            yield Rows(raw, address, store, device)


@dataclasses.dataclass(frozen=True)
class IdSet:
    """int64 on the GPU. joined: the ids of several batches, one after the other; random: those of the first batch;
    ordered: the same, sorted."""

    joined: torch.Tensor
    random: torch.Tensor
    ordered: torch.Tensor


@dataclasses.dataclass(frozen=True)
class Batch:
    """size: ids of a batch. out: buffer for as many rows as the longest of the id sets has."""

    size: int
    sets: list[IdSet]
    out: torch.Tensor
    _joined_rows: torch.Tensor

    def expected(self, order: Order) -> torch.Tensor:
        """The rows of the first set, on the GPU."""
        if order == "joined":
            return self._joined_rows
        rows = self._joined_rows[: self.size]
        return rows[torch.sort(self.sets[0].random).indices] if order == "ordered" else rows


def make_batch(rows: Rows, size: int, config: Config) -> Batch:
    sets = []
    for _ in range(config.id_sets):
        joined = torch.randint(len(rows.raw), (config.lookahead * size,), device=rows.device)
        sets.append(IdSet(joined, joined[:size], torch.sort(joined[:size]).values))
    expected = rows.raw[sets[0].joined.cpu()].to(rows.device)
    return Batch(size, sets, torch.empty_like(expected), expected)

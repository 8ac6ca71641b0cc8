"""The rows, raw and compressed, and the batches of ids that are fetched."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

import torch
from bench_parts.uncompressed import registered

from ibp_gnn import Codec, CompressedFeatureStore
from ibp_gnn.codec.values import dtype_from_name

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
class Batch:
    """size: ids of a batch; lookahead: batches whose ids are joined, one after the other. out: buffer for the rows of
    so many. All ids are int64 on the GPU."""

    size: int
    lookahead: int
    out: torch.Tensor
    _num_rows: int
    _joined: torch.Tensor
    _joined_rows: torch.Tensor

    def draw(self, order: Order) -> torch.Tensor:
        """New ids each time: what an earlier call read may still be in a cache of the CPU or the GPU."""
        count = self.lookahead * self.size if order == "joined" else self.size
        ids = torch.randint(self._num_rows, (count,), device=self.out.device)
        return torch.sort(ids).values if order == "ordered" else ids

    def to_check(self, order: Order) -> tuple[torch.Tensor, torch.Tensor]:
        """The same ids each time, and their rows."""
        if order == "joined":
            return self._joined, self._joined_rows
        ids, rows = self._joined[: self.size], self._joined_rows[: self.size]
        if order == "random":
            return ids, rows
        ids, positions = torch.sort(ids)
        return ids, rows[positions]


def make_batch(rows: Rows, size: int, config: Config) -> Batch:
    joined = torch.randint(len(rows.raw), (config.lookahead * size,), device=rows.device)
    expected = rows.raw[joined.cpu()].to(rows.device)
    return Batch(size, config.lookahead, torch.empty_like(expected), len(rows.raw), joined, expected)

"""What bench_gather.py measures: its config, the rows, raw and compressed, and the batches of ids that are fetched."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

import torch

from ibp_gnn import Codec, CompressedFeatureStore
from ibp_gnn.codec.values import dtype_from_name
from ibp_gnn.config import setting

from .uncompressed import registered

Order = Literal["random", "ordered", "joined"]
_SAMPLE_ROWS, _ROWS_AT_ONCE = 16_384, 1 << 18


@dataclasses.dataclass(frozen=True)
class Case:
    """Rows of N(0, 0.1), the same statistics as dense learned features, and gathers of them by uniform ids.

    footprint_gb: of the compressed slots in CPU memory, in units of 1e9 bytes. batch_sizes: ids of a gather.
    hit_shares: shares of the rows that a compressed GPU cache holds, beside an uncompressed one of the same bytes.
    on_gpu: whether to measure rows that are all in GPU memory, too. wholegraph: whether to measure WholeGraph, which
    takes another copy of the raw rows in CPU memory."""

    dim: int = setting(128, ge=1)
    dtype: Literal["float32", "float16", "bfloat16"] = "float32"
    footprint_gb: float = setting(8.0, gt=0)
    batch_sizes: tuple[int, ...] = setting((200_000,), ge=1)
    hit_shares: tuple[float, ...] = setting((), gt=0, lt=1)
    on_gpu: bool = True
    wholegraph: bool = True

    @property
    def name(self) -> str:
        return f"{self.dim} x {self.dtype}, {self.footprint_gb:g} GB"


@dataclasses.dataclass(frozen=True)
class Config:
    """raw_blocks: of the kernel that copies ordered raw rows, the fastest one counts. lookahead: batches that are
    fetched at once. repeats: timed calls of each method, each with new ids.
    host_ids, host_calls: ids of a call and number of calls for the time that a call takes on the host."""

    cases: tuple[Case, ...] = (Case(),)
    codec: str = "auto"
    raw_blocks: tuple[int, ...] = setting((16, 32, 64), ge=1)
    lookahead: int = setting(4, ge=2)
    repeats: int = setting(12, ge=1)
    host_ids: int = setting(1000, ge=1)
    host_calls: int = setting(300, ge=1)
    seed: int = setting(0, ge=0)


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

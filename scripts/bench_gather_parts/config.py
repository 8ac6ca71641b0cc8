"""What bench_gather.py measures."""

from __future__ import annotations

import dataclasses
from typing import Literal

from ibp_gnn.config import setting


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

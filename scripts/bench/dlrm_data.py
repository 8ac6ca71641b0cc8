"""What bench_dlrm.py measures: its config, tables in the shape of Criteo's, raw and compressed, and batches of bags."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal

import torch
from tqdm import tqdm

from ibp_gnn import CompressedEmbeddingBagCollection
from ibp_gnn.codec.values import dtype_from_name
from ibp_gnn.config import setting

from .rows import CodecName, RowsConfig, make_rows
from .uncompressed import registered

# Rows of the 26 tables of Criteo's terabyte data set, and how many ids of each a sample has, both as MLPerf's
# DLRM-DCNv2 takes them (mlcommons/training, recommendation_v2).
TABLE_ROWS = (
    *(40_000_000, 39_060, 17_295, 7_424, 20_265, 3, 7_122, 1_543, 63, 40_000_000, 3_067_956, 405_282, 10),
    *(2_209, 11_938, 155, 4, 976, 14, 40_000_000, 40_000_000, 40_000_000, 590_152, 12_973, 108, 36),
)
BAG_IDS = (3, 2, 1, 2, 6, 1, 1, 1, 1, 7, 3, 8, 1, 6, 9, 5, 1, 1, 1, 12, 100, 27, 10, 3, 1, 1)


@dataclasses.dataclass(frozen=True)
class Case:
    """26 tables, all of one width and dtype. rows: of all tables together; the largest are cut until it is so.
    cpu: whether to measure nn.EmbeddingBag on the CPU, on_gpu: raw rows that are all in GPU memory, too; wholegraph:
    WholeGraph, which takes another copy of the raw rows in CPU memory."""

    dim: int = setting(128, ge=1)
    dtype: Literal["float32", "float16", "bfloat16"] = "float32"
    rows: int = setting(10_000_000, ge=26)
    batch_sizes: tuple[int, ...] = setting((2_048, 8_192, 32_768, 65_536), ge=1)
    cpu: bool = True
    on_gpu: bool = True
    wholegraph: bool = True

    @property
    def name(self) -> str:
        return f"26 x {self.dim} {self.dtype}, {self.rows / 1e6:g} M rows"


@dataclasses.dataclass(frozen=True)
class Config:
    """data: of the rows, as bench_codec.py names it; its values are cut to rows of the wanted width and tiled.
    alpha: the k-th hottest row of a table is read as 1 / k ** alpha. cache: of the stores' bytes, a share.
    repeats: timed calls of each method, each of another batch; of few batches, which are made beforehand."""

    cases: tuple[Case, ...] = (Case(),)
    data: str = "minilm_embeddings"
    codec: CodecName = "auto"
    alpha: float = setting(1.05, gt=0)
    cache: float = setting(0.2, gt=0, le=1)
    raw_blocks: tuple[int, ...] = setting((16, 32, 64), ge=1)
    repeats: int = setting(20, ge=1)
    batches: int = setting(4, ge=1)
    seed: int = setting(0, ge=0)


@dataclasses.dataclass(frozen=True)
class Jagged:
    """What the collection takes of torchrec's KeyedJaggedTensor, where that is not installed. ids: int64 [n] of all
    features; starts: int64 [features * bags + 1]; of_table: int64 [n] on the CPU, which table each id is of; raw: int64
    [n], numbers of the raw rows."""

    names: tuple[str, ...]
    ids: torch.Tensor
    starts: torch.Tensor
    raw: torch.Tensor
    table_ends: tuple[int, ...]

    def keys(self) -> list[str]:
        return list(self.names)

    def values(self) -> torch.Tensor:
        return self.ids

    def offsets(self) -> torch.Tensor:
        return self.starts

    def lengths(self) -> torch.Tensor:
        return self.starts.diff()

    def weights_or_none(self) -> None:
        return None

    @property
    def num_bags(self) -> int:
        return (len(self.starts) - 1) // len(self.names)

    def to(self, device: torch.device) -> Jagged:
        parts = {name: getattr(self, name).to(device) for name in ("ids", "starts", "raw")}
        return dataclasses.replace(self, **parts)

    def ids_of(self, table: int) -> tuple[int, int]:
        """Where the ids of this table begin and end."""
        return (self.table_ends[table - 1] if table else 0), self.table_ends[table]


@dataclasses.dataclass(frozen=True)
class Tables:
    """raw: [rows, dim] of all tables, hottest first whatever table they are of, page-locked at raw_address; to_raw: of
    each table int64 [rows of it], the number of each row there; compressed: of the same rows."""

    case: Case
    raw: torch.Tensor
    raw_address: int
    to_raw: list[torch.Tensor]
    by_rank: list[torch.Tensor]
    compressed: CompressedEmbeddingBagCollection
    device: torch.device

    @property
    def row_bytes(self) -> int:
        return self.raw.shape[1] * self.raw.element_size()

    def draw(self, num_bags: int, alpha: float, generator: torch.Generator) -> Jagged:
        """A batch, on the CPU."""
        ids, raw = [], []
        for of_rank, to_raw, count in zip(self.by_rank, self.to_raw, BAG_IDS, strict=True):
            chosen = of_rank[power_law(len(of_rank), num_bags * count, alpha, generator)]
            ids.append(chosen)
            raw.append(to_raw[chosen])
        lengths = torch.tensor(BAG_IDS).repeat_interleave(num_bags)
        starts = torch.cat([torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)])
        ends = torch.cumsum(num_bags * torch.tensor(BAG_IDS), 0).tolist()
        return Jagged(tuple(self.compressed.tables), torch.cat(ids), starts, torch.cat(raw), tuple(ends))


def table_rows(total: int) -> list[int]:
    """Of each table: Criteo's, the largest cut so that all together are at most `total`."""
    low, high = 1, max(TABLE_ROWS)
    while low < high:
        middle = (low + high + 1) // 2
        if sum(min(rows, middle) for rows in TABLE_ROWS) <= total:
            low = middle
        else:
            high = middle - 1
    return [min(rows, low) for rows in TABLE_ROWS]


def power_law(num_rows: int, count: int, alpha: float, generator: torch.Generator) -> torch.Tensor:
    """int64 [count] ranks below num_rows, rank k as often as 1 / (k + 1) ** alpha."""
    uniform = torch.rand(count, generator=generator, dtype=torch.float64)
    if alpha == 1:
        ranks = (num_rows + 1) ** uniform
    else:
        ranks = (1 + uniform * ((num_rows + 1) ** (1 - alpha) - 1)) ** (1 / (1 - alpha))
    return (ranks.long() - 1).clamp(0, num_rows - 1)


@contextmanager
def open_tables(case: Case, config: Config, device: torch.device) -> Iterator[Tables]:
    """Makes the tables and compresses them."""
    generator = torch.Generator().manual_seed(config.seed)
    dtype = dtype_from_name(case.dtype)
    values = make_rows(config.data, RowsConfig(seed=config.seed)).reshape(-1)
    base = values[: len(values) // case.dim * case.dim].view(-1, case.dim).to(dtype)
    sizes = table_rows(case.rows)
    by_rank, hotness = [], []
    for rows, count in zip(sizes, BAG_IDS, strict=True):
        by_rank.append(torch.randperm(rows, generator=generator))
        ranks = torch.arange(1, rows + 1, dtype=torch.float64)
        of_rank = ranks**-config.alpha
        hotness.append(torch.empty(rows, dtype=torch.float64))
        hotness[-1][by_rank[-1]] = count * of_rank / of_rank.sum()
    order = torch.argsort(torch.cat(hotness), descending=True, stable=True)
    number = torch.empty_like(order)
    number[order] = torch.arange(len(order))
    raw = torch.empty(len(order), case.dim, dtype=dtype)
    to_raw, stores = list(number.split(sizes)), {}
    for table, rows in enumerate(tqdm(sizes, desc="tables", leave=False)):
        of_table = base[(torch.arange(rows) + 1009 * table) % len(base)]
        raw[to_raw[table]] = of_table
        stores[f"t{table}"] = of_table
    del order, number
    compressed = CompressedEmbeddingBagCollection.from_pretrained(
        stores,
        capacity=config.cache,
        hotness={f"t{table}": one for table, one in enumerate(hotness)},
        device=device,
        codec=config.codec,
        progress=False,
    )
    del stores, hotness
    try:
        with registered(raw) as address:
            yield Tables(case, raw, address, to_raw, by_rank, compressed, device)
    finally:
        compressed.close()


def describe(tables: Tables) -> dict[str, Any]:
    """Of the record."""
    stores = [tables.compressed.tables[name].store for name in tables.compressed.tables]
    sources = [tables.compressed.tables[name].source for name in tables.compressed.tables]
    store_bytes, raw_bytes = sum(store.nbytes for store in stores), sum(store.raw_nbytes for store in stores)
    return {
        "name": tables.case.name,
        "dim": tables.case.dim,
        "dtype": tables.case.dtype,
        "rows": sum(len(store) for store in stores),
        "raw_bytes": raw_bytes,
        "store_bytes": store_bytes,
        "savings": 1 - store_bytes / raw_bytes,
        "cache_bytes": sum(source.nbytes for source in sources if source not in stores),
        "cached_rows": sum(source.num_cached for source in sources if source not in stores),
    }

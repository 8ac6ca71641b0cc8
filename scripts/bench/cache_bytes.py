"""What rows cost in GPU memory, compressed and not, in bytes of a real store of real rows.

Features wider or narrower than a real matrix are cut from it: two word vectors make one row of glove_100, one token
embedding makes three of minilm_128. A graph with more nodes than there are rows repeats them: node v has row v % rows.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any, Literal

import numpy as np
import torch

from ibp_gnn import CompressedFeatureStore, _native
from ibp_gnn.codec.values import dtype_from_name
from ibp_gnn.config import setting
from ibp_gnn.datasets import load_dataset
from ibp_gnn.datasets.wordnet import find_glove_data

from .rows import minilm_rows

TABLE_BYTES_PER_NODE = 4
"""int32: where a node's row is. The compressed and the uncompressed cache both need it."""
Rows = Literal["wordnet_glove", "wordnet_bow", "glove_100", "minilm_128"]


@dataclasses.dataclass(frozen=True)
class Features:
    """rows: real rows, repeated over the nodes of the graph; see above."""

    rows: Rows = setting()
    dtype: Literal["float32", "bfloat16", "float16"] = "float32"


@dataclasses.dataclass(frozen=True)
class RowBytes:
    """A feature matrix of num_nodes rows. overflows: bool [distinct rows]: those that a slot is too short for."""

    num_nodes: int
    row_bytes: int
    slot_bytes: int
    overflows: torch.Tensor
    codec: str
    codec_bytes: int
    """Codec tables on the GPU."""
    payload_bytes: float
    """Mean over the rows of what a payload takes; of a row that does not get smaller, row_bytes."""

    @property
    def raw_bytes(self) -> int:
        return self.num_nodes * self.row_bytes

    @property
    def table_bytes(self) -> int:
        return TABLE_BYTES_PER_NODE * self.num_nodes

    @property
    def compressed_extra_bytes(self) -> int:
        """What a compressed cache holds beyond table and rows, however many rows: the bitmask of the rows in CPU
        memory, the codec, the slack behind slots and overflow."""
        return _native.cpu.bitmask_bytes(self.num_nodes) + self.codec_bytes + 2 * _native.cpu.SLACK_BYTES

    def compressed_rows(self, capacities: list[int], order: torch.Tensor) -> list[int]:
        """order: int64 [num_nodes], hottest first. Returns how many rows from its front a cache of each capacity (in
        bytes) holds: slots, overflow rows and bitmask paid."""
        count = torch.arange(1, len(order) + 1)
        cost = count * self.slot_bytes + (count + 31) // 32 * 4
        cost += torch.cumsum(self.overflows[order % len(self.overflows)], 0) * self.row_bytes
        room = torch.tensor(capacities) - self.table_bytes - self.compressed_extra_bytes
        return torch.searchsorted(cost, room, right=True).tolist()

    def uncompressed_rows(self, capacities: list[int]) -> list[int]:
        rows = [(capacity - self.table_bytes) // self.row_bytes for capacity in capacities]
        return [min(max(count, 0), self.num_nodes) for count in rows]

    def describe(self) -> dict[str, Any]:
        """Numbers that do not depend on a trace."""
        overflow_share = float(self.overflows.double().mean())
        mean_row = self.slot_bytes + overflow_share * self.row_bytes + 1 / 8
        saved = self.row_bytes - mean_row
        return {
            "row_bytes": self.row_bytes,
            "slot_bytes": self.slot_bytes,
            "codec": self.codec,
            "overflow_share": round(overflow_share, 6),
            "effective_rows_limit": round(self.row_bytes / mean_row, 4),
            "effective_rows_without_padding": round(self.row_bytes / self.payload_bytes, 4),
            # From here on the rows make up for the bytes that only a compressed cache has.
            "break_even_rows": round(self.compressed_extra_bytes / saved) if saved > 0 else None,
        }


def measure_rows(features: Features, num_nodes: int) -> RowBytes:
    """Compresses the rows as a user would, with codec="auto", in a compact store. Raises ImportError, saying what to
    install, if a package with the rows is missing."""
    return dataclasses.replace(_measure_once(features), num_nodes=num_nodes)


@functools.cache
def _measure_once(features: Features) -> RowBytes:
    """Of the real rows, each once."""
    rows = real_rows(features.rows).to(dtype_from_name(features.dtype))
    with CompressedFeatureStore.build(rows, "auto", pin=False, progress=False) as store:
        return RowBytes(
            num_nodes=len(rows),
            row_bytes=store.codec.row_bytes,
            slot_bytes=store.slot_bytes,
            overflows=store.rows.overflows(),
            codec=store.codec.kind,
            codec_bytes=store.codec.form.device_nbytes,
            payload_bytes=float(store.codec.measure(rows).clamp(max=store.codec.row_bytes).double().mean()),
        )


def real_rows(name: str) -> torch.Tensor:
    """float32 [n, d] on the CPU."""
    if name.startswith("wordnet_"):
        return load_dataset("wordnet", name.removeprefix("wordnet_")).features
    if name == "minilm_128":
        return minilm_rows("minilm_embeddings").reshape(-1, 128)
    vectors = np.load(find_glove_data() / "glove_6B_50d_emb.npy", mmap_mode="r", allow_pickle=False)
    return torch.from_numpy(np.array(vectors[:200_000])).reshape(-1, 100)

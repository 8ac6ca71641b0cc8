"""Where the rows of a trace would be read from if many GPUs trained at once: a simulation, for bench_cache_hit.py.

The batches of a trace go to the GPUs in turn. Each machine has as many GPUs, which read each other's memory; its caches
hold the hottest rows as ShardedGPUCache shares them out. What none of them has comes from CPU memory: of the one
machine, or, if there are several, of that which holds the row's part (DistributedFeatureStore), over the network.
"""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any, Literal, get_args

import numpy as np
import torch

from ibp_gnn.integrations.wholegraph_cache import Split, choose_split

from .cache_bytes import RowBytes
from .cache_traces import Epoch

Placement = Literal["replicate", "shard", "auto"]
PLACEMENTS: tuple[Placement, ...] = get_args(Placement)
KINDS = ("uncompressed", "compressed")
TIERS = ("local", "peer", "host", "network")


@dataclasses.dataclass(frozen=True)
class Cluster:
    """gpus: of all machines; machines: with equally many each."""

    gpus: int
    machines: int

    @property
    def gpus_of_machine(self) -> int:
        return self.gpus // self.machines


def simulate(
    batches: Epoch,
    order: torch.Tensor,
    scores: torch.Tensor,
    rows: RowBytes,
    shares: list[float],
    clusters: list[Cluster],
) -> list[dict[str, Any]]:
    """order: int64 [num_nodes], hottest first; scores: [num_nodes], how hot. shares: capacities of a GPU's cache, as
    shares of the raw rows' bytes, besides the table of ids. Returns, for each cluster, share, placement and kind of
    cache, how many rows are replicated and sharded, and how many accesses each tier serves."""
    results = []
    hot_scores = scores[order].double()
    position = np.empty(rows.num_nodes, np.int64)
    position[order.numpy()] = np.arange(rows.num_nodes)
    splits: dict[tuple[Any, ...], Split] = {}  # clusters of equal machines have the same
    for cluster, share, placement, kind in itertools.product(clusters, shares, PLACEMENTS, KINDS):
        key = cluster.gpus_of_machine, share, placement, kind
        if key not in splits:
            each, room = _bytes(rows, order, share, kind)
            splits[key] = choose_split(
                each, room, cluster.gpus_of_machine, placement, hot_scores, row_bits=kind == "compressed"
            )
        results.append(
            {"gpus": cluster.gpus, "machines": cluster.machines, "share": share, "placement": placement, "cache": kind}
            | splits[key]._asdict()
            | count_tiers(batches, position, splits[key], cluster)
        )
    return results


def count_tiers(batches: Epoch, position: np.ndarray, split: Split, cluster: Cluster) -> dict[str, int]:
    """position: int64 [num_nodes], where each row stands among the hottest. Returns accesses by tier."""
    counts = dict.fromkeys(TIERS, 0)
    size, num_nodes = cluster.gpus_of_machine, len(position)
    for number, ids in enumerate(batches):
        gpu = number % cluster.gpus
        machine, rank = divmod(gpu, size)
        at = position[ids]
        is_shard = (at >= split.replicated) & (at < sum(split))
        own = (at - split.replicated) % size == rank
        missed = ids[at >= sum(split)].astype(np.int64)
        here = int((missed * cluster.machines // num_nodes == machine).sum())
        counts["local"] += int((at < split.replicated).sum() + (is_shard & own).sum())
        counts["peer"] += int((is_shard & ~own).sum())
        counts["host"] += here
        counts["network"] += len(missed) - here
    return counts


def _bytes(rows: RowBytes, order: torch.Tensor, share: float, kind: str) -> tuple[torch.Tensor, int]:
    """Bytes of each row, hottest first, and those that a GPU has for them."""
    room = round(share * rows.raw_bytes)
    if kind == "uncompressed":
        return torch.full((rows.num_nodes,), rows.row_bytes, dtype=torch.int64), room
    overflows = rows.overflows[order % len(rows.overflows)].to(torch.int64)
    return rows.slot_bytes + overflows * rows.row_bytes, room - rows.compressed_extra_bytes

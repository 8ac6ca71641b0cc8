"""What a training with a GPU cache would read and wait for: rows, hits, bytes over PCIe, seconds. No GPU is needed."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import torch

from ... import _native
from ...codec.slot_length import best_lead_bytes, payload_histogram
from ...gpu import hotness
from ...store.order import hottest_first
from ..analysis import Analysis
from .epoch_sampler import EpochSampler

POLICIES = ("degree", "reverse_pagerank", "presample")
PAYS_FROM = 1.10  # times as fast as raw rows
HARDLY_FROM = 1.03
_TABLE_BYTES_PER_ROW = 4  # int32: where a row lies; both caches need it


@dataclasses.dataclass(frozen=True)
class RowCosts:
    """Of rows, on average. store_bytes, cached_bytes: in CPU memory and in a cache; fetched_bytes: over PCIe for a
    miss. fixed_bytes: what a cache takes besides its rows."""

    num_rows: int
    store_bytes: float
    cached_bytes: float
    fetched_bytes: float
    fixed_bytes: int

    def rows_in(self, capacity: int) -> int:
        """How many rows a cache of so many bytes holds."""
        return int(min(max((capacity - self.fixed_bytes) / self.cached_bytes, 0), self.num_rows))


def raw_costs(num_rows: int, row_bytes: int) -> RowCosts:
    return RowCosts(num_rows, row_bytes, row_bytes, row_bytes, _TABLE_BYTES_PER_ROW * num_rows)


def compressed_costs(analysis: Analysis, sample: torch.Tensor) -> RowCosts:
    """Of the codec that "auto" takes in a compact store. sample: rows like those that were analyzed."""
    codec, report = analysis.codec, analysis.best
    lengths = codec.measure(sample).cpu()
    lead = best_lead_bytes(codec.form, payload_histogram(lengths, codec.row_bytes), report.compact_slot_bytes)
    in_overflow = lengths > report.compact_slot_bytes
    fetched = torch.where(in_overflow, codec.row_bytes, lengths.clamp(min=lead))
    row = report.compact_slot_bytes + report.overflow_share * codec.row_bytes + 1 / 8  # a bit of the bitmask
    fixed = _native.cpu.bitmask_bytes(analysis.total_rows) + codec.form.device_nbytes + 2 * _native.cpu.SLACK_BYTES
    return RowCosts(
        analysis.total_rows,
        row,
        row,
        float(fetched.double().mean()),
        _TABLE_BYTES_PER_ROW * analysis.total_rows + fixed,
    )


@dataclasses.dataclass(frozen=True)
class Traffic:
    """What an epoch reads, batch by batch. counts: int64 [num_nodes], how often each row. epochs: the share of an epoch
    that was sampled."""

    counts: torch.Tensor
    epochs: float

    @property
    def accesses(self) -> int:
        """Of a whole epoch."""
        return round(int(self.counts.sum()) / self.epochs)


@dataclasses.dataclass(frozen=True)
class Sampled:
    """A graph as `plan` sees it. measured: what an epoch reads. orders: by policy, int64 [num_nodes], hottest first."""

    measured: Traffic
    orders: dict[str, torch.Tensor]

    def hit_rates(self, cached_rows: int) -> dict[str, float]:
        """By policy: of a cache of so many rows."""
        total = max(1, int(self.measured.counts.sum()))
        return {
            name: int(self.measured.counts[order[:cached_rows]].sum()) / total for name, order in self.orders.items()
        }


def sample_graph(
    src: torch.Tensor,
    dst: torch.Tensor,
    num_nodes: int,
    train_ids: torch.Tensor,
    fanouts: Sequence[int],
    *,
    batch_size: int,
    batches: int | None,
    seed: int = 0,
) -> Sampled:
    """Samples two epochs, the first for the policy `presample`, the second to count hits.

    src, dst: int64 [num_edges]. train_ids: int64 [n]. fanouts: input layer first. batches: at most so many of each
    epoch; None: all."""
    sampler, rng = EpochSampler(src, dst, num_nodes), np.random.default_rng(seed)
    traffic = []
    for _ in range(2):
        epoch = sampler.batches(train_ids, fanouts, batch_size=batch_size, rng=rng, most=batches)
        traffic.append(_count(epoch, num_nodes, -(-len(train_ids) // batch_size)))
    scores = {
        "degree": hotness.degree(src, num_nodes),
        "reverse_pagerank": hotness.reverse_pagerank(src, dst, num_nodes, train_ids),
        "presample": traffic[0].counts,
    }
    return Sampled(
        traffic[1], {name: hottest_first(score, num_nodes).to(torch.int64) for name, score in scores.items()}
    )


def _count(epoch: Iterable[torch.Tensor], num_nodes: int, batches_of_epoch: int) -> Traffic:
    counts, batches = torch.zeros(num_nodes, dtype=torch.int64, device="cpu"), 0
    for nodes in epoch:
        counts[nodes] += 1
        batches += 1
    return Traffic(counts, batches / batches_of_epoch)


@dataclasses.dataclass(frozen=True)
class CachePlan:
    """Of raw or of compressed rows. hit_rates: by policy; the rest: with the best of them. fits: all rows are cached.
    pcie_bytes, fetch_seconds: of an epoch."""

    store_bytes: int
    cached_rows: int
    fits: bool
    hit_rates: dict[str, float]
    policy: str
    pcie_bytes: int
    fetch_seconds: float


def plan_cache(costs: RowCosts, sampled: Sampled, capacity: int, link_bytes_per_s: float) -> CachePlan:
    """capacity: bytes of GPU memory for the cache."""
    rows = costs.rows_in(capacity)
    rates = sampled.hit_rates(rows)
    policy = max(rates, key=lambda name: rates[name])
    moved = sampled.measured.accesses * (1 - rates[policy]) * costs.fetched_bytes
    return CachePlan(
        round(costs.num_rows * costs.store_bytes),
        rows,
        rows == costs.num_rows,
        rates,
        policy,
        round(moved),
        moved / link_bytes_per_s,
    )


@dataclasses.dataclass(frozen=True)
class Plan:
    """Raw and compressed rows beside each other. curve: (bytes of the cache, hit rate raw, compressed), each with the
    best policy. sampled_share: of an epoch."""

    num_rows: int
    row_bytes: int
    codec: str
    savings: float
    capacity: int
    link_bytes_per_s: float
    accesses: int
    sampled_share: float
    raw: CachePlan
    compressed: CachePlan
    curve: list[tuple[int, float, float]]

    @property
    def times_as_fast(self) -> float | None:
        """Fetching compressed rows, beside raw ones; None where neither waits for PCIe."""
        if self.compressed.fetch_seconds == 0:
            return None if self.raw.fetch_seconds == 0 else float("inf")
        return self.raw.fetch_seconds / self.compressed.fetch_seconds

    @property
    def verdict(self) -> str:
        raw, ours = seconds_text(self.raw.fetch_seconds), seconds_text(self.compressed.fetch_seconds)
        ratio = self.times_as_fast
        if self.raw.fits:
            return "It does not pay: all rows fit in this GPU memory uncompressed, and nothing is fetched over PCIe."
        if self.savings <= 0:
            return "It does not pay: no codec makes these rows smaller."
        if ratio is None:
            return "It does not pay: nothing is fetched over PCIe either way."
        if ratio == float("inf"):
            return f"It pays: compressed, all rows fit in this GPU memory, and the {raw} of fetching an epoch are gone."
        figures = f"fetching takes {ours} an epoch instead of {raw}, {ratio:.2f} times as fast"
        if ratio >= PAYS_FROM:
            return f"It pays where fetching is what training waits for: {figures}."
        if ratio >= HARDLY_FROM:
            return f"It hardly pays: {figures}; measure before you use it."
        return f"It does not pay: {figures}."

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        ratio = self.times_as_fast
        return {
            **dataclasses.asdict(self),
            "times_as_fast": None if ratio is None or ratio == float("inf") else ratio,
            "verdict": self.verdict,
        }


def seconds_text(seconds: float) -> str:
    return f"{seconds:.3g} s" if seconds >= 1 or seconds == 0 else f"{1000 * seconds:.3g} ms"


def make_plan(
    analysis: Analysis, sample: torch.Tensor, sampled: Sampled, capacity: int, link_bytes_per_s: float
) -> Plan:
    """sample: rows like those that were analyzed; others as in `plan_cache`."""
    row_bytes = analysis.codec.row_bytes
    costs = raw_costs(analysis.total_rows, row_bytes), compressed_costs(analysis, sample)
    curve = []
    for share in np.linspace(0, 1, 21):
        size = costs[0].fixed_bytes + round(float(share) * analysis.total_rows * row_bytes)
        raw, ours = (max(sampled.hit_rates(each.rows_in(size)).values()) for each in costs)
        curve.append((size, raw, ours))
    return Plan(
        analysis.total_rows,
        row_bytes,
        analysis.best.codec,
        analysis.best.savings,
        capacity,
        link_bytes_per_s,
        sampled.measured.accesses,
        sampled.measured.epochs,
        plan_cache(costs[0], sampled, capacity, link_bytes_per_s),
        plan_cache(costs[1], sampled, capacity, link_bytes_per_s),
        curve,
    )

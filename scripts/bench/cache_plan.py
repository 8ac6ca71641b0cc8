"""What `ibp-gnn plan` says of the caches whose hits bench_cache_hit.py counts: from its own samples of the graph and of
the rows, beside the counted hit rates."""

from __future__ import annotations

import dataclasses
from typing import Any

from ibp_gnn.codec.codec import sample_rows
from ibp_gnn.codec.values import dtype_from_name
from ibp_gnn.command.analysis import analyze
from ibp_gnn.command.plan.estimate import RowCosts, Sampled, compressed_costs, raw_costs, sample_graph

from .cache_bytes import Features, real_rows
from .cache_traces import Structure

TARGET_POINTS = 2.0
"""By how many percentage points an estimated hit rate may differ from the counted one."""
_SEED = 1000  # added to the benchmark's, so that no epoch is one of those that are counted
_COUNTED = {"degree": "degree", "reverse_pagerank": "reverse_pagerank", "presample": "presample_1"}


def estimate_costs(features: Features, num_nodes: int) -> dict[str, RowCosts]:
    rows = real_rows(features.rows).to(dtype_from_name(features.dtype))
    analysis = dataclasses.replace(analyze(rows), total_rows=num_nodes)
    return {
        "uncompressed": raw_costs(num_nodes, analysis.codec.row_bytes),
        "compressed": compressed_costs(analysis, sample_rows(rows)),
    }


def sample(graph: Structure, fanouts: list[int], *, batch_size: int, seed: int) -> Sampled:
    return sample_graph(
        graph.src,
        graph.dst,
        graph.num_nodes,
        graph.train_ids,
        fanouts,
        batch_size=batch_size,
        batches=None,
        seed=_SEED + seed,
    )


def estimate_rates(sampled: Sampled, costs: dict[str, RowCosts], capacities: list[int]) -> dict[str, Any]:
    """By kind of rows and policy: the hit rate at each capacity."""
    return {
        kind: {
            policy: [round(sampled.hit_rates(of_kind.rows_in(capacity))[policy], 5) for capacity in capacities]
            for policy in sampled.orders
        }
        for kind, of_kind in costs.items()
    }


def compare(traces: list[dict[str, Any]]) -> dict[str, Any] | None:
    """Percentage points between estimated and counted hit rates, over all that were counted; None without any."""
    found: list[tuple[float, str]] = []
    for trace in traces:
        for at, estimates in enumerate(trace.get("plan", [])):
            for kind, by_policy in estimates.items():
                for policy, rates in by_policy.items():
                    if _COUNTED[policy] not in trace["by_bytes"]:
                        continue
                    counted = trace["by_bytes"][_COUNTED[policy]][at][f"{kind}_hits"]
                    where = f"{trace['graph']} {trace['fanouts']}, {policy}, {kind}"
                    found += [
                        (100 * abs(rate - hits / trace["accesses"]), where)
                        for rate, hits in zip(rates, counted, strict=True)
                    ]
    if not found:
        return None
    points, where = max(found)
    return {
        "compared": len(found),
        "most_points": round(points, 3),
        "mean_points": round(sum(points for points, _ in found) / len(found), 3),
        "where": where,
        "reached": points <= TARGET_POINTS,
    }

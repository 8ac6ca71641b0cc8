#!/usr/bin/env python
"""Hit rate of a GPU cache against its bytes: compressed and not, by policy. Needs no GPU.

Which rows a batch reads comes from real sampling: DGL's neighbour sampler on WordNet and on generated graphs in the
shapes of OGB's. What a row costs comes from real compact stores of real rows (codec="auto"). A static cache holds the
first rows of its policy's order that fit, and its hits are then counted exactly; `hindsight` orders by the accesses of
the measured epochs themselves, which no policy can know. Every byte on the GPU is paid for: slots, overflow rows,
bitmasks, codec, and, by both caches, the table from ids to rows.

Dynamic policies are simulated with as many rows as the static ones beside them, after epochs that a `presample` has
counted as well; what they need for their own bookkeeping is not paid for, in their favour.

What `ibp-gnn plan` estimates of the static caches, from samples of its own, is compared with these counts. All of the
config takes about ten minutes on 2 cores.

python scripts/bench_cache_hit.py --config configs/bench_cache_hit.yaml --json out.json --plot out.png
python scripts/bench_cache_hit.py --config configs/bench_cache_tiers.yaml --json tiers.json
python scripts/bench_cache_hit.py --from-json scripts/results/cache_hit.json --plot out.png
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, Literal

import torch
from bench import cache_plan, cache_policies, cache_report, cache_tiers, frame
from bench.cache_bytes import RowBytes, measure_rows
from bench.cache_traces import Graph, Structure, hits_of_first, hotness_of, load_structure, sample_trace
from tqdm import tqdm

from ibp_gnn.config import ConfigError, setting, to_dict
from ibp_gnn.store.order import hottest_first


@dataclasses.dataclass(frozen=True)
class Config:
    """fanouts: every item is one trace per graph; numbers with dashes between them, one a layer, input layer first.
    measured_epochs: the epochs in which hits are counted. presample_epochs: for each number n a policy "presample_<n>",
    which counts accesses in the n epochs before them. warm_epochs: one of these numbers; dynamic policies start as so
    many epochs have left them, and are compared with the presample that has seen the same. shares: cache sizes; a size
    is the bytes of the id table, which every cache of the graph needs, and this share of all raw rows' bytes.
    dynamic_shares: cache sizes for the dynamic policies, as shares of all rows. gpus: for each of these numbers, where
    rows would be read from on so many GPUs (bench/cache_tiers.py), gpus_of_machine to a machine, with the presample of
    warm_epochs; tier_shares: the size of each GPU's cache then, as in shares."""

    graphs: tuple[Graph, ...] = ()
    fanouts: tuple[str, ...] = ("15-10-5", "10-10-10")
    batch_size: int = setting(1024, ge=1)
    policies: tuple[Literal["degree", "reverse_pagerank"], ...] = ("degree", "reverse_pagerank")
    presample_epochs: tuple[int, ...] = setting((1, 3, 5), ge=1)
    warm_epochs: int = setting(3, ge=1)
    measured_epochs: int = setting(2, ge=1)
    shares: tuple[float, ...] = setting((0.01, 0.02, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8), gt=0, le=1)
    dynamic: tuple[Literal["lru", "clock", "sieve", "lfu"], ...] = ("lru", "clock", "sieve", "lfu")
    dynamic_shares: tuple[float, ...] = setting((0.1, 0.4), gt=0, le=1)
    gpus: tuple[int, ...] = setting((), ge=1)
    gpus_of_machine: int = setting(8, ge=1)
    tier_shares: tuple[float, ...] = setting((0.02, 0.05, 0.1), gt=0, le=1)
    seed: int = setting(0, ge=0)

    def __post_init__(self) -> None:
        for text in self.fanouts:
            parse_fanouts(text)
        if list(self.shares) != sorted(set(self.shares)):
            raise ConfigError(f"shares: want rising numbers, got {list(self.shares)}")
        if self.warm_epochs not in self.presample_epochs:
            raise ConfigError(
                f"warm_epochs: want one of presample_epochs {list(self.presample_epochs)}, got {self.warm_epochs}"
            )
        for count in self.gpus:
            if count > self.gpus_of_machine and count % self.gpus_of_machine:
                raise ConfigError(f"gpus: want multiples of gpus_of_machine {self.gpus_of_machine}, got {count}")

    def clusters(self) -> list[cache_tiers.Cluster]:
        return [cache_tiers.Cluster(count, -(-count // self.gpus_of_machine)) for count in self.gpus]


def parse_fanouts(text: str) -> list[int]:
    """ "15-10-5" as [15, 10, 5]. Raises ConfigError for what is no such list."""
    parts = text.split("-")
    if not all(part.isdigit() and int(part) > 0 for part in parts):
        raise ConfigError(f"fanouts: want positive numbers with dashes between them, like '15-10-5', got {text!r}")
    return [int(part) for part in parts]


def main(arguments: list[str] | None = None) -> None:
    frame.main(frame.Benchmark("cache_hit", __doc__ or "", Config, prepare, measure, cache_report), arguments)


def prepare(config: Config) -> torch.device:
    return torch.device("cpu")


def measure(config: Config, record: frame.Record, save: Callable[[], None]) -> None:
    record |= {"feature_sets": [], "traces": []}
    for graph_config in config.graphs:
        graph = load_structure(graph_config, config.seed)
        sizes, costs = [], []
        for features in graph_config.features:
            rows = measure_rows(features, graph.num_nodes)
            capacities = [rows.table_bytes + round(share * rows.raw_bytes) for share in config.shares]
            sizes.append((rows, capacities))
            costs.append(cache_plan.estimate_costs(features, graph.num_nodes))
            record["feature_sets"].append(
                {
                    "graph": graph.name,
                    **to_dict(features),
                    "raw_bytes": rows.raw_bytes,
                    **rows.describe(),
                    "capacity_bytes": capacities,
                    "uncompressed_rows": rows.uncompressed_rows(capacities),
                }
            )
        for fanouts in config.fanouts:
            trace = measure_trace(graph, fanouts, sizes, config)
            sampled = cache_plan.sample(graph, parse_fanouts(fanouts), batch_size=config.batch_size, seed=config.seed)
            trace["plan"] = [
                cache_plan.estimate_rates(sampled, of_rows, capacities)
                for of_rows, (_, capacities) in zip(costs, sizes, strict=True)
            ]
            record["traces"].append(trace)
            save()
    record["summary"] = cache_report.summarize(record, record["config"])
    save()


def measure_trace(
    graph: Structure, fanouts: str, sizes: list[tuple[RowBytes, list[int]]], config: Config
) -> dict[str, Any]:
    """Hits of every policy, in the order of the graph's feature sets and of the capacities."""
    trace = sample_trace(
        graph,
        parse_fanouts(fanouts),
        batch_size=config.batch_size,
        warm_epochs=max(config.presample_epochs),
        measured_epochs=config.measured_epochs,
        seed=config.seed,
    )
    accesses = hotness_of("hindsight", graph, trace)
    slots = [max(1, round(share * graph.num_nodes)) for share in config.dynamic_shares]
    static, by_bytes = {}, {}
    for policy in [*config.policies, *(f"presample_{epochs}" for epochs in config.presample_epochs), "hindsight"]:
        order = hottest_first(hotness_of(policy, graph, trace), graph.num_nodes)
        hits = hits_of_first(order, accesses)
        static[policy] = hits[slots].tolist()
        by_bytes[policy] = []
        for rows, capacities in sizes:
            held = rows.compressed_rows(capacities, order)
            by_bytes[policy].append(
                {
                    "compressed_rows": held,
                    "compressed_hits": hits[held].tolist(),
                    "uncompressed_hits": hits[rows.uncompressed_rows(capacities)].tolist(),
                }
            )
    simulated = {}
    for policy in config.dynamic:
        simulated[policy] = []
        for num_slots in tqdm(slots, desc=f"{graph.name} {fanouts}: {policy}", leave=False):
            cache = cache_policies.POLICIES[policy](graph.num_nodes, num_slots)
            cache_policies.count_hits(cache, trace.warm_batches(config.warm_epochs))
            simulated[policy].append(cache_policies.count_hits(cache, trace.measured_batches()))
    batches = trace.measured_batches()
    scores = hotness_of(f"presample_{config.warm_epochs}", graph, trace)
    order = hottest_first(scores, graph.num_nodes)
    clusters, shares = config.clusters(), list(config.tier_shares)
    return {
        "graph": graph.name,
        "fanouts": fanouts,
        "nodes": graph.num_nodes,
        "edges": len(graph.src),
        "train_nodes": len(graph.train_ids),
        "batches": len(batches),
        "accesses": sum(len(batch) for batch in batches),
        "by_bytes": by_bytes,
        "by_rows": {"rows": slots, "hits": {**static, **simulated}},
        "tiers": [cache_tiers.simulate(batches, order, scores, rows, shares, clusters) for rows, _ in sizes],
    }


if __name__ == "__main__":
    frame.run_as_script(main)

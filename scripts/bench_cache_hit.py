#!/usr/bin/env python
"""Hit rate of a GPU cache against its bytes: compressed and not, by policy. Needs no GPU.

Which rows a batch reads comes from real sampling: DGL's neighbour sampler on WordNet and on generated graphs in the
shapes of OGB's. What a row costs comes from real compact stores of real rows (codec="auto"). A static cache holds the
first rows of its policy's order that fit, and its hits are then counted exactly; `hindsight` orders by the accesses of
the measured epochs themselves, which no policy can know. Every byte on the GPU is paid for: slots, overflow rows,
bitmasks, codec, and, by both caches, the table from ids to rows.

Dynamic policies are simulated with as many rows as the static ones beside them, after epochs that a `presample` has
counted as well; what they need for their own bookkeeping is not paid for, in their favour.
"""

from __future__ import annotations

import argparse
import json
import re
from pathlib import Path
from typing import Any

import torch
from bench_cache_parts import dynamic
from bench_cache_parts.config import Config, parse_fanouts
from bench_cache_parts.plot import plot
from bench_cache_parts.row_bytes import RowBytes, measure_rows
from bench_cache_parts.static import hits_of_first, hotness_of
from bench_cache_parts.summary import summarize
from bench_cache_parts.tables import policies_table, rows_table, summary_lines
from bench_cache_parts.traces import Structure, load_structure, sample_trace
from tqdm import tqdm

from ibp_gnn.command.plots import require_matplotlib
from ibp_gnn.config import load, to_dict
from ibp_gnn.store.order import hottest_first
from ibp_gnn.training.record import git_commit, hardware, versions


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", type=Path, help="YAML file; its settings: bench_cache_parts/config.py")
    parser.add_argument("--set", dest="overrides", nargs="*", default=[], metavar="KEY=VALUE", help="override settings")
    parser.add_argument("--json", type=Path, help="where to write the results")
    parser.add_argument("--plot", type=Path, help="where to draw them")
    parsed = parser.parse_args(arguments)
    config = load(Config, parsed.config, parsed.overrides)
    if parsed.plot:
        require_matplotlib()  # before the work, not after it
    record = {
        "benchmark": "cache_hit",
        "config": to_dict(config),
        "hardware": hardware(torch.device("cpu")),
        "versions": versions(),
        "commit": git_commit(Path(__file__).parent),
        **run(config),
    }
    if parsed.json:
        parsed.json.write_text(to_json(record))
    if parsed.plot:
        plot(record, parsed.plot)
    for fanouts in config.fanouts:
        print(rows_table(record, fanouts), policies_table(record, fanouts), sep="\n\n", end="\n\n")
    print("\n".join(summary_lines(record)))


def run(config: Config) -> dict[str, Any]:
    feature_sets: list[dict[str, Any]] = []
    traces: list[dict[str, Any]] = []
    for graph_config in config.graphs:
        graph = load_structure(graph_config, config.seed)
        sizes = []
        for features in graph_config.features:
            rows = measure_rows(features, graph.num_nodes)
            capacities = [rows.table_bytes + round(share * rows.raw_bytes) for share in config.shares]
            sizes.append((rows, capacities))
            feature_sets.append(
                {
                    "graph": graph.name,
                    **to_dict(features),
                    "raw_bytes": rows.raw_bytes,
                    **rows.describe(),
                    "capacity_bytes": capacities,
                    "uncompressed_rows": rows.uncompressed_rows(capacities),
                }
            )
        traces += [measure_trace(graph, fanouts, sizes, config) for fanouts in config.fanouts]
    results = {"feature_sets": feature_sets, "traces": traces}
    return {**results, "summary": summarize(results, config)}


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
            cache = dynamic.POLICIES[policy](graph.num_nodes, num_slots)
            dynamic.count_hits(cache, trace.warm_batches(config.warm_epochs))
            simulated[policy].append(dynamic.count_hits(cache, trace.measured_batches()))
    batches = trace.measured_batches()
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
    }


def to_json(record: dict[str, Any]) -> str:
    """Indented, but with every list of numbers on one line."""
    text = json.dumps(record, indent=1)
    return re.sub(r"\[[^][{}\"]*\]", lambda match: " ".join(match[0].split()), text) + "\n"


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""Writes the tables of README.md and docs/*.md from scripts/results/*.json. Needs nothing but Python.

    python scripts/make_tables.py            # rewrites the regions in place
    python scripts/make_tables.py --check    # changes nothing; fails if a region is not what would be written

A region is what stands between a line `<!-- generated: NAME -->` and the next line `<!-- end -->`. NAME is a key of
REGIONS below. Everything outside of the regions is written by hand.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import textwrap
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

REPOSITORY = Path(__file__).resolve().parents[1]
RESULTS = REPOSITORY / "scripts" / "results"
DOCUMENTS = (
    REPOSITORY / "README.md",
    REPOSITORY / "docs" / "benchmarks.md",
    REPOSITORY / "docs" / "distributed.md",
    REPOSITORY / "docs" / "dlrm.md",
    REPOSITORY / "docs" / "precision.md",
)

Record = dict[str, Any]
_BEGIN = re.compile(r"<!-- generated: (\S+) -->")
_END = "<!-- end -->"

_DATA_NAMES = {
    "wordnet_glove": "WordNet `glove`",
    "wordnet_bow": "WordNet `bow`",
    "wordnet_relu_1": "hidden layer 1 of GraphSAGE on WordNet",
    "wordnet_relu_2": "hidden layer 2",
    "glove": "GloVe word vectors",
    "minilm_embeddings": "MiniLM token embeddings",
    "minilm_weights": "MiniLM weights",
    "wordllama": "wordllama token embeddings",
}
_FANOUTS = "15-10-5"
_HIT_SHARES = (0.05, 0.1, 0.2, 0.4)
_TIER_SHARES = (0.05, 0.2)


class DocumentError(Exception):
    """A document or a result is not what this script can work with; the message says why."""


# --- what the regions say ------------------------------------------------------------------------------------------


def does_it_pay(sizes: Record) -> list[str]:
    """README's four rows."""
    shown = [
        ("wordnet_glove", "float32", "dense float32 (mean word vectors)"),
        ("wordnet_glove", "bfloat16", "the same as bfloat16"),
        ("wordnet_relu_1", "float32", "after a ReLU, float32 (hidden layer of GraphSAGE)"),
        ("wordnet_bow", "float32", "sparse float32 (bag of words)"),
    ]
    by_key = {(one["data"], one["dtype"]): one for one in sizes["sizes"]}
    rows = []
    for data, dtype, label in shown:
        one = by_key[data, dtype]
        memory = 1 - one["compact_store_share"]["auto_slots"]
        rows.append([label, f"{one['savings']['auto']:.0%}", f"{memory:.0%}"])
    return _table(["features", "fewer bytes to transfer, up to", "less memory"], rows)


def sampling_sentence(epoch: Record) -> list[str]:
    """README's sentence on epochs with DGL's sampling, and with sampling on the GPU."""
    sampling, ours, ratios, on_gpu, plain = [], [], [], [], []
    for one in epoch["sets"]:
        times = {method["method"]: method for method in one["methods"]}
        sampling.append(one["sampling_ms"])
        ours.append(times["ours_prefetch"]["epoch_ms"])
        ratios.append(times["raw_cache_prefetch"]["with_sampling_ms"] / times["ours_prefetch"]["with_sampling_ms"])
        on_gpu.append(one["ratios"]["gpu_sampling_vs_raw_cache"])
        plain.append(one["ratios"]["gpu_sampling_vs_raw"])
    sentence = (
        f"- DGL's wheels sample on the CPU. That takes {min(sampling):.0f} to {max(sampling):.0f} ms an epoch in our "
        f"benchmark, where fetching and training take {min(ours):.0f} to {max(ours):.0f} ms. **With this sampling "
        f"included, the compressed cache is {min(ratios):.2f} to {max(ratios):.2f} times as fast as an uncompressed "
        "cache of equal bytes.** The sampler hides what compression saves. Sampling on the GPU ([`loop: "
        f"wholegraph`](docs/training.md#sampling-on-the-gpu)) is {min(plain):.1f} to {max(plain):.1f} times as fast as "
        f"the plain DGL loop, and {min(on_gpu):.2f} to {max(on_gpu):.2f} times as fast as the same with an "
        "uncompressed cache."
    )
    return textwrap.wrap(sentence, 125, subsequent_indent="  ", break_on_hyphens=False)


def plan_sentence(cache_hit: Record) -> list[str]:
    """How near `ibp-gnn plan` comes to counted hits."""
    plan = cache_hit["summary"]["plan"]
    sentence = (
        f"`ibp-gnn plan` estimates these hit rates from samples of its own. Of {plan['compared']} estimates, the mean "
        f"is {plan['mean_points']:.2f} percentage points from the counted rate, the worst {plan['most_points']:.2f}."
    )
    return textwrap.wrap(sentence, 125, break_on_hyphens=False)


def codec_sizes(sizes: Record) -> list[str]:
    rows = []
    for one in sizes["sizes"]:
        bits = one["bits_per_value"]
        rows.append(
            [
                f"{_name(one)}, {one['dtype']}",
                f"{one['entropy_bound']['bits_per_value']:.2f}",
                f"{bits['ibp_best']:.2f}",
                f"{bits['dict']:.2f}",
                f"{one['savings']['auto']:.1%}",
                f"{one['compact_store_share']['auto_slots']:.3f}",
            ]
        )
    return _table(["features", "entropy", "best `ibp`", "`dict`", "savings with `auto`", "store"], rows)


def codec_cpu(cpu: Record) -> list[str]:
    by_data: dict[str, dict[str, Record]] = {}
    for one in cpu["cpu"]:
        if one["threads"] == max(cpu["config"]["cpu"]["threads"]):
            by_data.setdefault(f"{_name(one)}, {one['width']} x {one['dtype']}", {})[one["codec"]] = one
    rows = [
        [
            name,
            f"{codecs['auto']['index_select_gb_per_s']:.1f}",
            f"{codecs['auto']['decode_gb_per_s']:.1f}",
            f"{codecs['auto']['decode_to_index_select']:.2f}",
            f"{codecs['ibp']['decode_to_index_select']:.2f}",
        ]
        for name, codecs in by_data.items()
    ]
    return _table(["features", "index_select", "`auto`", "`auto` / index_select", "`ibp` / index_select"], rows)


def codec_gpu(gpu: Record) -> list[str]:
    rows = [
        [
            f"{_name(one)}, {one['width']} x {one['dtype']}",
            f"{one['raw_bytes_per_row']} -> {one['slot_bytes']}",
            f"{one['hbm_decode_gb_per_s']:.0f}",
            f"{one['hbm_decode_to_copy']:.2f}",
            f"{one['pinned_decode_to_copy']:.2f}",
            f"{one['pinned_raw_to_pcie_bytes']:.2f}",
        ]
        for one in gpu["gpu"]
        if one["codec"] == "auto"
    ]
    return _table(["features", "bytes of a row", "GB/s", "GPU memory", "page-locked memory", "its limit"], rows)


def codec_peers(peers: Record) -> list[str]:
    rows = []
    for one in peers["peers"]:
        if "failed" in one:
            continue
        per_chunk = one["rows_per_chunk"]
        rows.append(
            [
                f"{_name(one)}, {one['width']} x {one['dtype']}",
                one["method"],
                "1 row" if per_chunk == 1 else f"{per_chunk} rows",
                f"{one['size_to_raw']:.3f}",
                f"{one['compress_gb_per_s']:.2f}",
                f"{one['decode_gb_per_s']:.2f}",
                f"{one['random_rows_gb_per_s']:.3f}",
            ]
        )
    head = ["features", "method", "compressed at once", "size / raw", "compress", "decode all", "decode random rows"]
    return _table(head, rows)


def gather(record: Record) -> list[str]:
    rows = []
    for case in record["cases"]:
        for size in dict.fromkeys(method["ids"] for method in case["methods"]):
            times = {(one["method"], one["share"]): one["ms"] for one in case["methods"] if one["ids"] == size}

            def ms(*methods: str, share: float | None = None, times: dict[Any, float] = times) -> str:
                found = [times.get((method, share)) for method in methods]
                return "-" if None in found else ", ".join(_ms(value) for value in found if value is not None)

            rows.append(
                [
                    case["name"],
                    f"{size:,}",
                    ms("raw_unordered"),
                    ms("raw_ordered"),
                    ms("wholegraph_host"),
                    ms("ours"),
                    ms("raw_lookahead", "ours_lookahead"),
                    ms("raw_on_gpu", "wholegraph_device", "all_hit"),
                    ms("raw_cache", "cache", share=0.5),
                ]
            )
    head = ["rows", "ids", "raw, unordered", "raw, ordered", "WholeGraph", "compressed"]
    head += ["four batches at once: raw, compressed", "all on the GPU: raw, WholeGraph, compressed"]
    return _table([*head, "half on the GPU: raw, compressed"], rows)


def gather_cpu(record: Record) -> list[str]:
    """What picking rows on the CPU and copying them takes."""
    rows = []
    for case in record["cases"]:
        cpu = [one for one in case["methods"] if one["method"] == "cpu"]
        rows.append([case["name"], ", ".join(f"{one['ids']:,} ids {_ms(one['ms'])}" for one in cpu)])
    return _table(["rows", "ms"], rows)


def gather_host(record: Record) -> list[str]:
    rows = []
    for case in record["cases"]:
        host, more = case["host_us"], case["host_overhead_us"]
        rows.append(
            [
                case["name"],
                f"{host['launch']:.1f}",
                f"{host['store']:.1f} (+{more['store']:.1f})",
                f"{host['cache']:.1f} (+{more['cache']:.1f})",
            ]
        )
    return _table(["rows", "bare launch", "`store.gather`", "`cache.gather`"], rows)


def epoch(record: Record) -> list[str]:
    rows = []
    for one in record["sets"]:
        times = {method["method"]: method for method in one["methods"]}

        def pair(first: str, second: str, times: dict[str, Record] = times) -> str:
            return f"{times[first]['epoch_ms']:.0f} / {times[second]['epoch_ms']:.0f}"

        alone = times["raw_cache"]["fetch_alone_ms"], times["ours"]["fetch_alone_ms"]
        hits = one["caches"]["raw_cache"]["hit_rate"], one["caches"]["ours"]["hit_rate"]
        rows.append(
            [
                one["name"],
                f"{times['raw']['epoch_ms']:.0f}",
                pair("raw_cache", "raw_cache_prefetch"),
                pair("ours", "ours_prefetch"),
                f"{times['on_gpu']['epoch_ms']:.0f}",
                f"{alone[0]:.0f} -> {alone[1]:.0f} ({alone[0] / alone[1]:.2f}x)",
                f"{hits[0]:.0%} -> {hits[1]:.0%}",
            ]
        )
    head = ["features", "plain DGL loop", "raw cache", "compressed cache", "all raw rows on the GPU"]
    return _table([*head, "fetches alone", "hits"], rows)


def epoch_ratios(record: Record) -> list[str]:
    shown = {
        "ours_vs_raw": "plain loop; prefetch",
        "ours_vs_raw_cache": "raw cache; no prefetch",
        "ours_vs_raw_cache_prefetch": "raw cache; prefetch on both sides",
        "prefetch_vs_serial": "prefetch to none, compressed cache",
        "lookahead_vs_prefetch": "`lookahead=4` to 1",
    }
    rows = [[one["name"], *(f"{one['ratios'][name]:.2f}x" for name in shown)] for one in record["sets"]]
    return _table(["features", *shown.values()], rows)


def epoch_gpu_sampling(record: Record) -> list[str]:
    rows = []
    for one in record["sets"]:
        times = {method["method"]: method for method in one["methods"]}
        shown = ("wholegraph", "wholegraph_cached", "raw_cache", "ours", "on_gpu")
        rows.append(
            [
                one["name"],
                f"{times['raw']['with_sampling_ms']:.0f}",
                *(f"{times[key]['with_gpu_sampling_ms']:.0f}" for key in shown),
                f"{one['ratios']['gpu_sampling_vs_raw']:.1f}x",
                f"{one['ratios']['gpu_sampling_vs_raw_cache']:.2f}x",
                f"{one['ratios']['gpu_sampling_vs_wholegraph_cached']:.2f}x",
            ]
        )
    head = ["features", "plain DGL loop", "WholeGraph", "WholeGraph, its cache", "raw cache", "compressed cache"]
    return _table([*head, "all raw rows on the GPU", "to the plain loop", "to the raw cache", "to WholeGraph's"], rows)


def epoch_sampling(record: Record) -> list[str]:
    rows = []
    for one in record["sets"]:
        times = {method["method"]: method["with_sampling_ms"] for method in one["methods"]}

        def against(ours: str, other: str, times: dict[str, float] = times) -> str:
            return f"{times[other]:.0f} -> {times[ours]:.0f} ({times[other] / times[ours]:.2f}x)"

        rows.append(
            [
                one["name"],
                f"{one['sampling_ms']:.0f}",
                against("ours_prefetch", "raw"),
                against("ours", "raw_cache"),
                against("ours_prefetch", "raw_cache_prefetch"),
            ]
        )
    head = ["features", "sampling alone", "plain loop -> compressed, prefetch", "raw cache -> compressed cache"]
    return _table([*head, "the same, prefetch on both sides"], rows)


def cache_rows(record: Record) -> list[str]:
    shares, policy = record["config"]["shares"], f"presample_{record['config']['warm_epochs']}"
    shown = [at for at, share in enumerate(shares) if share in _HIT_SHARES]
    rows = []
    for trace in _traces(record):
        sets = [one for one in record["feature_sets"] if one["graph"] == trace["graph"]]
        for features, curve in zip(sets, trace["by_bytes"][policy], strict=True):
            pairs = zip(curve["compressed_rows"], features["uncompressed_rows"], strict=True)
            ratios = [ours / theirs for ours, theirs in pairs if theirs and ours < trace["nodes"]]
            rates = [
                f"{curve['uncompressed_hits'][at] / trace['accesses']:.1%} -> "
                f"{curve['compressed_hits'][at] / trace['accesses']:.1%}"
                for at in shown
            ]
            rows.append(
                [
                    trace["graph"],
                    f"{features['rows']}, {features['dtype']}",
                    f"{features['row_bytes']} -> {features['slot_bytes']}",
                    f"{min(ratios):.2f} to {max(ratios):.2f}",
                    *rates,
                ]
            )
    head = [f"fanouts {_FANOUTS}", "features", "bytes of a row", "effective rows"]
    return _table([*head, *(f"hits at {shares[at]:.0%}" for at in shown)], rows)


def cache_policies(record: Record) -> list[str]:
    traces = _traces(record)
    shares = ", ".join(f"{share:.0%}" for share in record["config"]["dynamic_shares"])
    rows = []
    for policy in traces[0]["by_rows"]["hits"]:
        cells = [
            ", ".join(f"{hits / trace['accesses']:.1%}" for hits in trace["by_rows"]["hits"][policy])
            for trace in traces
        ]
        rows.append([policy.replace("_", " "), *cells])
    return _table([f"hit rates at {shares} of the rows", *(trace["graph"] for trace in traces)], rows)


def dlrm(record: Record) -> list[str]:
    shown = {
        "ours_vs_cpu": "`nn.EmbeddingBag` on the CPU, copied",
        "ours_vs_raw_ordered": "raw rows, ordered, then pooled",
        "ours_vs_raw_cache": "raw cache of equal bytes, then pooled",
        "ours_vs_unfused": "ours, gathered, then pooled",
        "ours_vs_one_by_one": "ours, a call for each table",
        "ours_vs_torch_on_gpu": "all rows on the GPU, `nn.EmbeddingBag`",
    }
    rows = []
    for case in record["cases"]:
        times = {(row["batch"], row["method"]): row["ms"] for row in case["methods"]}
        for one in case["ratios"]:
            ratios = [f"{one['ms'][pair]:.2f}" for pair in shown]
            rows.append([case["name"], f"{one['batch']:,}", f"{times[one['batch'], 'ours']:.2f}", *ratios])
    return _table(["tables", "batch", "ours, ms", *shown.values()], rows)


def dlrm_data(record: Record) -> list[str]:
    """What the values are; and the largest difference to torch's module, by case."""
    differences = [
        f"{max(row['max_difference'] for row in case['methods'] if row['method'] in ('cpu', 'torch_on_gpu')):.1e} for "
        f"{case['dim']} x {case['dtype']}"
        for case in record["cases"]
    ]
    return [
        f"The values are {_name(record['config'])}, tiled. The largest difference to `nn.EmbeddingBag`, of sums of up "
        f"to 100 rows, was {' and '.join(differences)}."
    ]


class Graph(NamedTuple):
    """What decides how much memory it takes."""

    name: str
    nodes: int
    edges: int
    """As a sampler has them, both directions counted."""
    row_bytes: int


class Sizes(NamedTuple):
    """Bytes, and rows of all as shares."""

    store: float
    """Of all compressed rows."""
    dgl_graph: float
    """In each process: DGL's CSC, int64 offsets, neighbours and edge ids."""
    wholegraph_part: float
    """On each GPU: its part of int64 offsets and int32 neighbours."""
    tables: float
    """On each GPU: a place and a bit for each row."""
    replicated: float
    """Rows that every GPU's cache has."""
    sharded: float
    """Rows that the caches of a machine have together."""
    sharded_raw: float
    """The same, uncompressed."""


def precision_accuracy(record: Record) -> list[str]:
    """WordNet's accuracy by precision, and how it was measured."""
    rows = [
        [
            one["precision"] or "lossless",
            f"{32 * one['store_bytes'] / one['raw_bytes']:.1f}",
            f"{one['store_bytes'] / one['raw_bytes']:.0%}",
            f"{one['mean']:.2%}",
            f"{one['deviation']:.2%}",
        ]
        for one in record["accuracy"]
    ]
    head = ["store", "bits a value", "of the raw bytes", "test accuracy", "standard deviation"]
    seeds = min(len(one["test"]) for one in record["accuracy"])
    training = record["config"]["accuracy"]
    how = (
        f"GraphSAGE on WordNet, mean word vectors as features, {seeds} seeds; {training['training']} with "
        f"{', '.join(training['settings']) or 'nothing changed'}."
    )
    return [*_table(head, rows), "", *textwrap.wrap(how, 125)]


def precision_sizes(record: Record) -> list[str]:
    rows = [
        [
            f"{_DATA_NAMES.get(one['data'], one['data'])}, {one['rows'][1]} values a row",
            of["precision"] or "lossless",
            f"{of['bits_per_value']:.2f}",
            f"{of['relative_error']:.2%}" if "relative_error" in of else "0",
            f"{of['max_error']:.2g}" if "max_error" in of else "0",
        ]
        for one in record["sizes"]
        for of in one["precisions"]
    ]
    return _table(["data, float32", "store", "bits a value", "relative error", "largest error"], rows)


def precision_gathers(record: Record) -> list[str]:
    rows = [
        [
            str(one["dim"]),
            f"{one['ids']:,}",
            one["precision"] or "lossless",
            str(one["slot_bytes"]),
            f"{one['vs_raw_ordered']:.2f}x",
            f"{one['output_gb_per_s']['store']:.0f}",
        ]
        for one in record["gathers"]
    ]
    head = ["values a row", "rows", "store", "bytes a row", "as fast as raw rows", "GB/s of float32 written"]
    what = (
        "Random rows to a GPU, all of them in page-locked CPU memory. Raw rows are float32, and fetched in the order "
        "of where they lie, ordering included; so are ours where the store is large."
    )
    return [*_table(head, rows), "", *textwrap.wrap(what, 125)]


_PRODUCTS = {
    "torch_float16": "torch float16",
    "torch_float8_e4m3": "torch float8",
    "fp16_x_float32": "`fp16`",
    "e4m3_x_float32": "`e4m3`",
    "e5m2_x_float32": "`e5m2`",
    "e4m3_x_float16": "`e4m3`, x float16",
    "e5m2_x_float16": "`e5m2`, x float16",
}


def packing_products(record: Record) -> list[str]:
    rows = [
        [f"{one['size']:,}", str(one["batch"])]
        + [f"{one['vs_float32'][name]:.2f}x" if name in one["vs_float32"] else "" for name in _PRODUCTS]
        for one in record["products"]
    ]
    what = (
        "How many times as fast as torch's float32, of square matrices that are not in the L2 cache. x is float32 "
        "unless it says something else. torch's float8 takes x of float8, 16 vectors or more."
    )
    return [*_table(["rows and columns", "vectors", *_PRODUCTS.values()], rows), "", *textwrap.wrap(what, 125)]


def sizes_of(graph: Graph, store_share: float, gpus: int, cache_bytes: float) -> Sizes:
    """store_share: what compressed rows take of raw ones. gpus: of a machine. cache_bytes: of each GPU, for everything
    that its cache holds."""
    tables = 4 * graph.nodes + graph.nodes / 8
    row_bytes = graph.row_bytes * store_share
    room, raw_room = cache_bytes - tables, cache_bytes - 4 * graph.nodes
    all_bytes = graph.nodes * row_bytes
    return Sizes(
        store=all_bytes,
        dgl_graph=8 * (graph.nodes + 1) + 16 * graph.edges,
        wholegraph_part=(8 * (graph.nodes + 1) + 4 * graph.edges) / gpus,
        tables=tables,
        replicated=min(1.0, room / all_bytes),
        sharded=min(1.0, gpus * room / all_bytes),
        sharded_raw=min(1.0, gpus * raw_room / (graph.nodes * graph.row_bytes)),
    )


def sizing(sizes: Record) -> list[str]:
    """Two graphs that are known to be large; rows as compressible as MiniLM's embeddings; caches of 20 GB a GPU."""
    share = {
        one["dtype"]: one["compact_store_share"]["auto_slots"]
        for one in sizes["sizes"]
        if one["data"] == "minilm_embeddings"
    }
    papers = Graph("papers100M, 128 x float32", 111_059_956, 2 * 1_615_685_872, 128 * 4)
    mag = Graph("MAG240M papers, 768 x float16", 121_751_666, 2 * 1_297_748_926, 768 * 2)
    rows = []
    for graph, dtype in ((papers, "float32"), (mag, "float16")):
        for gpus, machines in ((1, 1), (2, 1), (8, 1), (8, 4)):
            found = sizes_of(graph, share[dtype], gpus, 20e9)
            part = f", or {_gb(found.store / machines)} shared out" if machines > 1 else ""
            rows.append(
                [
                    graph.name,
                    f"{gpus}" if machines == 1 else f"{machines} x {gpus}",
                    f"{_gb(graph.nodes * graph.row_bytes)} -> {_gb(found.store)}{part}",
                    f"{gpus} x {_gb(found.dgl_graph)}",
                    _gb(found.wholegraph_part),
                    _gb(found.tables),
                    f"{found.replicated:.0%}",
                    f"{found.sharded:.0%} ({found.sharded_raw:.0%})",
                ]
            )
    head = ["features", "GPUs", "rows in CPU memory", "graphs of `loop: dgl`", "graph on each GPU, `loop: wholegraph`"]
    return _table([*head, "tables on each GPU", "rows cached, replicated", "sharded (uncompressed)"], rows)


def cache_tiers(record: Record) -> list[str]:
    """Of the graph in papers100M's shape. What one machine reads from its host, several read from all of theirs."""
    rows = []
    for trace in record["traces"]:
        sets = [features for features in record["feature_sets"] if features["graph"] == trace["graph"]]
        for features, cases in zip(sets, trace["tiers"], strict=True):
            found: dict[tuple[Any, ...], Record] = {}
            for case in cases:
                found[case["share"], case["placement"], case["gpus"], case["cache"]] = case
            for share, placement in dict.fromkeys(key[:2] for key in found):
                if "papers" not in trace["graph"] or share not in _TIER_SHARES:
                    continue
                served = [
                    " -> ".join(
                        f"{found[share, placement, gpus, kind][tier] / trace['accesses']:.0%}"
                        for kind in ("uncompressed", "compressed")
                    )
                    for gpus, tier in ((8, "local"), (8, "peer"), (8, "host"), (64, "host"), (64, "network"))
                ]
                rows.append([features["dtype"], f"{share:.0%}", placement, *served])
    head = ["features", "cache of each GPU", "placement", "own GPU", "other GPUs of the machine"]
    return _table([*head, "8 GPUs: host", "64 GPUs: host", "64 GPUs: network"], rows)


def versions(record: Record) -> list[str]:
    times = [value for name, value in record["ratio"].items() if not name.startswith("host time")]
    host = [value for name, value in record["ratio"].items() if name.startswith("host time")]
    return [
        f"The last comparison was {record['before']} with {record['after']} on an {record['gpu']}. A gather takes "
        f"{min(times):.2f} to {max(times):.2f} times",
        f"as long after as before, and the host {min(host):.2f} to {max(host):.2f} times.",
    ]


def measured_on(record: Record) -> list[str]:
    """Hardware, versions and commit of a result."""
    hardware, software = record["hardware"], record["versions"]
    machine = f"{hardware['cpu']}, {hardware['cores']} cores"
    if hardware["gpu"]:
        machine = f"{hardware['gpu']}, {machine}"
    parts = [machine, f"torch {software['torch']}"]
    if software.get("dgl"):
        parts.append(f"DGL {software['dgl']}")
    commit = record["commit"]  # none, where the machine had no git
    of_commit = "commit unknown" if commit is None else f"commit {commit[:7]}{_dirty(record)}"
    return [f"Measured on: {', '.join(parts)}, {of_commit}."]


# name: (the result that it is made of, what makes it)
REGIONS: dict[str, tuple[str, Callable[[Record], list[str]]]] = {
    "does_it_pay": ("codec_sizes", does_it_pay),
    "sampling_sentence": ("epoch", sampling_sentence),
    "codec_sizes": ("codec_sizes", codec_sizes),
    "codec_cpu": ("codec_cpu", codec_cpu),
    "codec_gpu": ("codec_gpu", codec_gpu),
    "codec_peers": ("codec_peers", codec_peers),
    "gather": ("gather", gather),
    "gather_cpu": ("gather", gather_cpu),
    "gather_host": ("gather", gather_host),
    "epoch": ("epoch", epoch),
    "epoch_ratios": ("epoch", epoch_ratios),
    "epoch_sampling": ("epoch", epoch_sampling),
    "epoch_gpu_sampling": ("epoch", epoch_gpu_sampling),
    "plan_sentence": ("cache_hit", plan_sentence),
    "cache_rows": ("cache_hit", cache_rows),
    "cache_policies": ("cache_hit", cache_policies),
    "cache_tiers": ("cache_tiers", cache_tiers),
    "sizing": ("codec_sizes", sizing),
    "versions": ("versions", versions),
    "dlrm": ("dlrm", dlrm),
    "dlrm_data": ("dlrm", dlrm_data),
    "precision_accuracy": ("precision", precision_accuracy),
    "precision_sizes": ("precision_sizes", precision_sizes),
    "precision_gathers": ("precision_gathers", precision_gathers),
    "packing_products": ("packing_products", packing_products),
    **{
        f"measured_on:{name}": (name, measured_on)
        for name in (
            "codec_sizes",
            "codec_cpu",
            "codec_gpu",
            "codec_peers",
            "gather",
            "epoch",
            "cache_hit",
            "cache_tiers",
            "packing_products",
            "precision",
            "precision_gathers",
            "dlrm",
        )
    },
}


# --- documents -----------------------------------------------------------------------------------------------------


def rewritten(text: str, results: Path = RESULTS) -> str:
    """The document with its regions as they should be. Raises DocumentError for an unknown or unclosed region."""
    lines, out, at = text.split("\n"), [], 0
    while at < len(lines):
        out.append(lines[at])
        begin = _BEGIN.fullmatch(lines[at])
        at += 1
        if begin is None:
            continue
        name = begin[1]
        if name not in REGIONS:
            raise DocumentError(f"generated region: want one of {sorted(REGIONS)}, got {name!r}")
        while at < len(lines) and lines[at] != _END:
            if _BEGIN.fullmatch(lines[at]):
                break
            at += 1
        if at == len(lines) or lines[at] != _END:
            raise DocumentError(f"generated region {name!r}: want a line {_END!r} after it, got none")
        source, make = REGIONS[name]
        out += make(json.loads((results / f"{source}.json").read_text(encoding="utf-8")))
    return "\n".join(out)


def main(arguments: list[str] | None = None) -> int:
    """Exit status: 0, or 1 with --check if a document is not up to date, or if one cannot be written."""
    parser = argparse.ArgumentParser(description="Writes the tables of the documents from the results.")
    parser.add_argument("documents", nargs="*", type=Path, help="default: those that have tables")
    parser.add_argument("--check", action="store_true", help="change nothing; fail if a table is out of date")
    parser.add_argument("--results", type=Path, default=RESULTS, help="the folder of the JSON files")
    parsed = parser.parse_args(arguments)
    status = 0
    for document in parsed.documents or DOCUMENTS:
        before = document.read_text(encoding="utf-8")
        try:
            after = rewritten(before, parsed.results)
        except DocumentError as error:
            print(f"{document}: {error}", file=sys.stderr)
            status = 1
            continue
        if after == before:
            continue
        if not parsed.check:
            document.write_text(after, encoding="utf-8")
            continue
        changed = next(line for line in _lines_of_both(before, after) if line[0] != line[1])
        message = f"{document}: out of date, run python scripts/make_tables.py; want {changed[1]!r}, got {changed[0]!r}"
        print(message, file=sys.stderr)
        status = 1
    return status


def _lines_of_both(before: str, after: str) -> Iterable[tuple[str, str]]:
    first, second = before.split("\n"), after.split("\n")
    length = max(len(first), len(second))
    return zip(first + [""] * (length - len(first)), second + [""] * (length - len(second)), strict=True)


def _gb(nbytes: float) -> str:
    return f"{nbytes / 1e9:.0f} GB" if nbytes >= 9.95e9 else f"{nbytes / 1e9:.1f} GB"


def _table(head: list[str], rows: list[list[str]]) -> list[str]:
    lines = [head, ["---"] * len(head), *rows]
    return [f"| {' | '.join(cells)} |" for cells in lines]


def _name(one: Record) -> str:
    """Of a data set of bench_codec."""
    kind, _, _ = one["data"].partition("_")
    generated = {"normal": "N(0, 0.1)", "relu": "ReLU of N(0, 1)"}
    return _DATA_NAMES.get(one["data"]) or generated[kind]


def _ms(value: float) -> str:
    """Two digits or more that count."""
    return f"{value:.3f}" if value < 0.1 else f"{value:.2f}"


def _traces(record: Record) -> list[Record]:
    return [trace for trace in record["traces"] if trace["fanouts"] == _FANOUTS]


def _dirty(record: Record) -> str:
    return " with changes that were not committed" if record["commit"].endswith("-dirty") else ""


if __name__ == "__main__":
    sys.exit(main())

"""What the results say about the targets, and whether a dynamic policy is worth having; losses are named."""

from __future__ import annotations

import statistics
from typing import Any

from ibp_gnn.config import to_dict

from .config import Config

TARGETS = {"float32 dense": 1.14, "bfloat16 dense": 1.42, "float16 dense": None, "float32 bag of words": 10.0}
"""Rows that a compressed cache should hold for each row of an uncompressed one of the same bytes."""


def kind_of(features: dict[str, Any]) -> str:
    """The key in TARGETS."""
    return f"{features['dtype']} {'bag of words' if features['rows'] == 'wordnet_bow' else 'dense'}"


def features_of(results: dict[str, Any], trace: dict[str, Any]) -> list[dict[str, Any]]:
    """The feature sets of a trace's graph, in the order of its results."""
    return [features for features in results["feature_sets"] if features["graph"] == trace["graph"]]


def presample_of(settings: dict[str, Any]) -> str:
    """The policy that is compared with the dynamic ones, and that tables and pictures show."""
    return f"presample_{settings['warm_epochs']}"


def summarize(results: dict[str, Any], config: Config) -> dict[str, Any]:
    presample = presample_of(to_dict(config))
    return {
        "effective_rows": _effective_rows(results),
        "compressed_loses": _losses(results, config.shares),
        "dynamic": [_dynamic_gain(trace, presample) for trace in results["traces"] if _dynamic_names(trace)],
    }


def _effective_rows(results: dict[str, Any]) -> dict[str, Any]:
    """By kind of features: how many rows a compressed cache holds for each row of an uncompressed one, over all
    traces, policies and sizes at which it does not hold all rows."""
    ratios: dict[str, list[float]] = {}
    for trace in results["traces"]:
        for curves in trace["by_bytes"].values():
            for features, curve in zip(features_of(results, trace), curves, strict=True):
                pairs = zip(curve["compressed_rows"], features["uncompressed_rows"], strict=True)
                found = [ours / theirs for ours, theirs in pairs if theirs and ours < trace["nodes"]]
                ratios.setdefault(kind_of(features), []).extend(found)
    summary = {}
    for kind, found in ratios.items():
        target = TARGETS.get(kind)
        if found:
            numbers = {"least": min(found), "median": statistics.median(found), "greatest": max(found)}
            summary[kind] = {name: round(number, 4) for name, number in numbers.items()}
            summary[kind] |= {"target": target, "reached": None if target is None else min(found) >= target}
    return summary


def _losses(results: dict[str, Any], shares: tuple[float, ...]) -> list[str]:
    """Where an uncompressed cache of the same bytes hits more often."""
    found: dict[str, list[str]] = {}
    for trace in results["traces"]:
        for policy, curves in trace["by_bytes"].items():
            for features, curve in zip(features_of(results, trace), curves, strict=True):
                for at, share in enumerate(shares):
                    if curve["compressed_hits"][at] < curve["uncompressed_hits"][at]:
                        size = f"{share:.1%} ({features['capacity_bytes'][at]} bytes with the table)"
                        where = f"{trace['graph']}, {features['rows']} {features['dtype']}, {size}"
                        found.setdefault(where, []).append(f"{policy} {trace['fanouts']}")
    return [f"{where}: {', '.join(curves)}" for where, curves in found.items()]


def _dynamic_names(trace: dict[str, Any]) -> list[str]:
    return [name for name in trace["by_rows"]["hits"] if name not in trace["by_bytes"]]


def _dynamic_gain(trace: dict[str, Any], presample: str) -> dict[str, Any]:
    """At each size: the best dynamic policy's hit rate less that of the presample that has seen the same epochs before,
    and less that of the best static policy other than hindsight."""
    hits = trace["by_rows"]["hits"]
    dynamic = {name: hits[name] for name in _dynamic_names(trace)}
    static = {name: hits[name] for name in trace["by_bytes"] if name != "hindsight"}
    best = [max(column) for column in zip(*dynamic.values(), strict=True)]
    gains: dict[str, Any] = {
        "graph": trace["graph"],
        "fanouts": trace["fanouts"],
        "best": [max(dynamic, key=lambda name: dynamic[name][at]) for at in range(len(best))],
    }
    rivals = {
        f"over_{presample}": static[presample],
        "over_best_static": [max(column) for column in zip(*static.values(), strict=True)],
    }
    for name, rival in rivals.items():
        gains[name] = [round((ours - theirs) / trace["accesses"], 5) for ours, theirs in zip(best, rival, strict=True)]
    return gains

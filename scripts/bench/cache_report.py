"""What bench_cache_hit.py measured: targets reached or not, losses, whether a dynamic policy is worth having; Markdown
tables; and a picture."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from typing import Any

from . import cache_plan, picture
from .cache_tiers import TIERS
from .frame import Record
from .table import markdown

TARGETS = {"float32 dense": 1.14, "bfloat16 dense": 1.42, "float16 dense": None, "float32 bag of words": 10.0}
"""Rows that a compressed cache should hold for each row of an uncompressed one of the same bytes."""
_SHOWN_SHARES = (0.05, 0.1, 0.2, 0.4)
_KINDS = ("uncompressed", "compressed")


def kind_of(features: dict[str, Any]) -> str:
    """The key in TARGETS."""
    return f"{features['dtype']} {'bag of words' if features['rows'] == 'wordnet_bow' else 'dense'}"


def features_of(results: dict[str, Any], trace: dict[str, Any]) -> list[dict[str, Any]]:
    """The feature sets of a trace's graph, in the order of its results."""
    return [features for features in results["feature_sets"] if features["graph"] == trace["graph"]]


def presample_of(settings: dict[str, Any]) -> str:
    """The policy that is compared with the dynamic ones, and that tables and pictures show."""
    return f"presample_{settings['warm_epochs']}"


def summarize(results: dict[str, Any], config: dict[str, Any]) -> dict[str, Any]:
    """config: as in a record."""
    presample = presample_of(config)
    plan = cache_plan.compare(results["traces"])
    return {
        "effective_rows": _effective_rows(results),
        "compressed_loses": _losses(results, config["shares"]),
        "dynamic": [_dynamic_gain(trace, presample) for trace in results["traces"] if _dynamic_names(trace)],
        **({"plan": plan} if plan else {}),
    }


def _effective_rows(results: dict[str, Any]) -> dict[str, Any]:
    """By kind of features: how many rows a compressed cache holds for each row of an uncompressed one, over all
    traces, policies and sizes at which it does not hold all rows."""
    ratios: dict[str, list[float]] = {}
    for trace, _, features, curve in _curves(results):
        ratios.setdefault(kind_of(features), []).extend(_row_ratios(features, curve, trace))
    summary = {}
    for kind, found in ratios.items():
        target = TARGETS.get(kind)
        if found:
            numbers = {"least": min(found), "median": statistics.median(found), "greatest": max(found)}
            summary[kind] = {name: round(number, 4) for name, number in numbers.items()}
            summary[kind] |= {"target": target, "reached": None if target is None else min(found) >= target}
    return summary


def _losses(results: dict[str, Any], shares: list[float]) -> list[str]:
    """Where an uncompressed cache of the same bytes hits more often."""
    found: dict[str, list[str]] = {}
    for trace, policy, features, curve in _curves(results):
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


def _row_ratios(features: dict[str, Any], curve: dict[str, Any], trace: dict[str, Any]) -> list[float]:
    """Rows held for each row of an uncompressed cache, at the sizes at which the compressed one does not hold all."""
    pairs = zip(curve["compressed_rows"], features["uncompressed_rows"], strict=True)
    return [ours / theirs for ours, theirs in pairs if theirs and ours < trace["nodes"]]


def text(record: Record) -> str:
    parts = []
    for fanouts in record["config"]["fanouts"]:
        parts += [rows_table(record, fanouts), policies_table(record, fanouts), tiers_table(record, fanouts)]
    parts = [part for part in parts if part]
    return "\n\n".join([*parts, "\n".join(summary_lines(record))])


def rows_table(record: Record, fanouts: str) -> str:
    """Of every feature set: what a row takes, and hit rates without and with compression."""
    lines = []
    for trace, features, curve in _presample_curves(record, fanouts):
        rates = [
            " -> ".join(f"{curve[f'{kind}_hits'][at] / trace['accesses']:.1%}" for kind in _KINDS)
            for at in _shown(record)
        ]
        name = f"{features['rows']}, {features['dtype']}"
        row_bytes = f"{features['row_bytes']} -> {features['slot_bytes']}"
        lines.append((trace["graph"], name, row_bytes, _row_range(features, curve, trace), *rates))
    sizes = [f"hits at {record['config']['shares'][at]:.0%}" for at in _shown(record)]
    return markdown((f"fanouts {fanouts}", "features", "bytes of a row", "effective rows", *sizes), lines)


def policies_table(record: Record, fanouts: str) -> str:
    """Hit rates by policy, all with the same number of rows."""
    traces = _traces(record, fanouts)
    if not traces:
        return ""
    lines = [
        (policy.replace("_", " "), *(_rates(trace["by_rows"]["hits"][policy], trace["accesses"]) for trace in traces))
        for policy in traces[0]["by_rows"]["hits"]
    ]
    shares = ", ".join(f"{share:.0%}" for share in record["config"]["dynamic_shares"])
    return markdown((f"hit rates at {shares} of the rows", *(trace["graph"] for trace in traces)), lines)


def tiers_table(record: Record, fanouts: str) -> str:
    """Shares of the rows that each tier serves; with a cache of uncompressed rows -> of compressed ones."""
    lines = []
    for trace in _traces(record, fanouts):
        for features, cases in zip(features_of(record, trace), trace.get("tiers", []), strict=False):
            by_kind: dict[tuple[Any, ...], dict[str, Any]] = {}
            for case in cases:
                key = case["gpus"], case["share"], case["placement"]
                by_kind.setdefault(key, {})[case["cache"]] = case
            for (gpus, share, placement), pair in by_kind.items():
                shares = [
                    " -> ".join(f"{pair[kind][tier] / trace['accesses']:.1%}" for kind in _KINDS) for tier in TIERS
                ]
                name = f"{features['rows']}, {features['dtype']}"
                lines.append((trace["graph"], name, str(gpus), f"{share:.0%}", placement, *shares))
    return markdown(("graph", "features", "GPUs", "cache of each", "placement", *TIERS), lines) if lines else ""


def summary_lines(record: Record) -> list[str]:
    """Targets reached or not, losses, and what dynamic policies gain, a line each."""
    summary = record["summary"]
    lines = []
    for kind, found in summary["effective_rows"].items():
        target = found["target"]
        verdict = {None: "", True: f"; reaches {target}", False: f"; misses {target}"}[found["reached"]]
        numbers = f"{found['least']:.3f} to {found['greatest']:.3f}, median {found['median']:.3f}"
        lines.append(f"effective rows, {kind}: {numbers}{verdict}")
    losses = summary["compressed_loses"]
    lines.append(f"compressed hits less often than uncompressed of the same bytes: {len(losses)} cases")
    lines += [f"  {loss}" for loss in losses]
    for gain in summary["dynamic"]:
        over = "; ".join(
            f"{name.replace('_', ' ')} by {', '.join(f'{100 * value:+.2f}' for value in gain[name])}"
            for name in gain
            if name.startswith("over_")
        )
        lines.append(
            f"best dynamic policy, {gain['graph']} {gain['fanouts']} ({', '.join(gain['best'])}): {over} points"
        )
    if plan := summary.get("plan"):
        lines.append(
            f"ibp-gnn plan: {plan['compared']} hit rates, {plan['mean_points']:.2f} points from the counted ones on "
            f"average, {plan['most_points']:.2f} at most ({plan['where']}); "
            f"{'reaches' if plan['reached'] else 'misses'} {cache_plan.TARGET_POINTS:g}"
        )
    return lines


def _row_range(features: dict[str, Any], curve: dict[str, Any], trace: dict[str, Any]) -> str:
    ratios = _row_ratios(features, curve, trace)
    if not ratios:
        return "all rows"
    least, greatest = f"{min(ratios):.2f}", f"{max(ratios):.2f}"
    return least if least == greatest else f"{least} to {greatest}"


def draw(record: Record) -> Any:
    """Of the first fanouts: hit rates of all feature sets, compressed and not, a panel for each of some cache sizes."""
    config = record["config"]
    names: list[str] = []
    rates: dict[int, list[list[float]]] = {}  # by place: of each kind, at each size
    for trace, features, curve in _presample_curves(record, config["fanouts"][0]):
        graph = trace["graph"].replace(" x ", " × ")
        if graph not in names:
            names.append(graph)
        rates[len(names)] = [[100 * hits / trace["accesses"] for hits in curve[f"{kind}_hits"]] for kind in _KINDS]
        names.append(f"{features['rows'].replace('_', ' ')}, {features['dtype']}")
    title = "Hit rate of a GPU cache, in %: uncompressed in grey, compressed in blue"
    figure = picture.make_figure(1.2 + 0.19 * len(names), title)
    picture.caption(
        figure,
        record,
        f"Sampled by DGL, fanouts {config['fanouts'][0]}, batches of {config['batch_size']:,}; policy "
        f"{presample_of(config).replace('_', ' ')}.\nBoth caches take the same bytes of GPU memory, a share of the raw "
        "rows'.",
    )
    shown = _shown(record) or list(range(len(config["shares"])))
    panels = figure.subplots(1, max(1, len(shown)), sharey=True, squeeze=False)[0]
    for axes, at in zip(panels, shown, strict=False):
        picture.clean(axes, f"{config['shares'][at]:.0%} of the bytes")
        picture.row_names(axes, names)
        for place, of_kinds in rates.items():
            raw, ours = (of_kind[at] for of_kind in of_kinds)
            axes.plot([raw, ours], [place, place], color=picture.OURS_LIGHT, linewidth=2, zorder=1)
            for rate, colour in ((raw, picture.GREY), (ours, picture.OURS)):
                axes.plot(rate, place, "o", color=colour, markersize=4.5)
            picture.number(axes, f"{raw:.0f}", min(raw, ours), place, picture.GREY, right=False, gap=4)
            picture.number(axes, f"{ours:.0f}", max(raw, ours), place, picture.OURS, gap=4)
        axes.set_xlim(-22, 125)
        axes.set_xticks([])
        axes.spines["bottom"].set_visible(False)
    for place, label in enumerate(panels[0].get_yticklabels()):
        label.set_fontweight("normal" if place in rates else "bold")
    return figure


def _curves(results: dict[str, Any]) -> Iterator[tuple[dict[str, Any], str, dict[str, Any], dict[str, Any]]]:
    """(trace, policy, feature set, its hits by cache size), all of them."""
    for trace in results["traces"]:
        for policy, curves in trace["by_bytes"].items():
            for features, curve in zip(features_of(results, trace), curves, strict=True):
                yield trace, policy, features, curve


def _presample_curves(record: Record, fanouts: str) -> list[tuple[dict[str, Any], dict[str, Any], dict[str, Any]]]:
    """(trace, feature set, its hits by cache size) of the policy that tables and the picture show."""
    shown = presample_of(record["config"])
    return [
        (trace, features, curve)
        for trace, policy, features, curve in _curves(record)
        if policy == shown and trace["fanouts"] == fanouts
    ]


def _shown(record: Record) -> list[int]:
    """Which cache sizes tables and the picture show."""
    return [at for at, share in enumerate(record["config"]["shares"]) if share in _SHOWN_SHARES]


def _rates(hits: list[int], accesses: int) -> str:
    return ", ".join(f"{count / accesses:.1%}" for count in hits)


def _traces(record: Record, fanouts: str) -> list[dict[str, Any]]:
    return [trace for trace in record["traces"] if trace["fanouts"] == fanouts]

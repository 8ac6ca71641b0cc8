"""The results as text: a Markdown table, ratios, and where compressed features lose."""

from __future__ import annotations

from typing import Any

from .methods import LABELS

# (what is compared, with what, in which time)
_RATIOS = {
    "ours_vs_raw": ("ours_prefetch", "raw", "epoch_ms"),
    "ours_vs_raw_with_sampling": ("ours_prefetch", "raw", "with_sampling_ms"),
    "ours_vs_raw_cache": ("ours", "raw_cache", "epoch_ms"),
    "ours_vs_raw_cache_prefetch": ("ours_prefetch", "raw_cache_prefetch", "epoch_ms"),
    "ours_vs_raw_cache_fetch_alone": ("ours", "raw_cache", "fetch_alone_ms"),
    "prefetch_vs_serial": ("ours_prefetch", "ours", "epoch_ms"),
    "lookahead_vs_prefetch": ("ours_lookahead", "ours_prefetch", "epoch_ms"),
    "lookahead_vs_serial_fetch_alone": ("ours_lookahead", "ours", "fetch_alone_ms"),
}


def ratios(methods: list[dict[str, Any]]) -> dict[str, float]:
    """How many times as fast the first of each pair is, where both were measured."""
    by_key = {method["method"]: method for method in methods}
    found = {}
    for name, (ours, other, time) in _RATIOS.items():
        if ours in by_key and other in by_key:
            found[name] = by_key[other][time] / by_key[ours][time]
    return found


def table(record: dict[str, Any]) -> str:
    batches = record["config"]["batches"]
    lines = [
        f"| {batches} batches, ms | method | fetch + train | fetch | train | fetch share | fetch alone "
        "| with sampling |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for part in record["sets"]:
        for method in part["methods"]:
            share = method["fetch_ms"] / method["epoch_ms"]
            live = "-" if method["with_sampling_ms"] is None else f"{method['with_sampling_ms']:.1f}"
            lines.append(
                f"| {part['name']} | {LABELS[method['method']]} | {method['epoch_ms']:.1f} | {method['fetch_ms']:.1f} "
                f"| {method['train_ms']:.1f} | {share:.0%} | {method['fetch_alone_ms']:.1f} | {live} |"
            )
    return "\n".join(lines)


def summary_lines(record: dict[str, Any]) -> list[str]:
    lines = []
    for part in record["sets"]:
        text = ", ".join(f"{name} {value:.2f}x" for name, value in part["ratios"].items())
        lines.append(f"{part['name']}: {text}")
        sampling = part["sampling_ms"]
        fastest = min(method["epoch_ms"] for method in part["methods"])
        if sampling > fastest:
            lines.append(
                f"{part['name']}: sampling dominates: {sampling:.1f} ms an epoch, fetch + train {fastest:.1f} at best"
            )
        lines += [f"{part['name']}: loses: {name} {value:.2f}x" for name, value in part["ratios"].items() if value < 1]
        lines += [
            f"{part['name']}: {name}: {cache['rows']} rows, {cache['bytes'] / 1e6:.1f} MB, {cache['hit_rate']:.1%} hits"
            for name, cache in part["caches"].items()
        ]
    speedups = [part["ratios"]["ours_vs_raw"] for part in record["sets"] if "ours_vs_raw" in part["ratios"]]
    for why in sorted({why for part in record["sets"] for why in part["skipped"].values()}):
        keys = [key for key in LABELS if any(part["skipped"].get(key) == why for part in record["sets"])]
        lines.append(f"not measured, {why}: {'; '.join(LABELS[key] for key in keys)}")
    if speedups:
        lines.append(f"mean of ours_vs_raw over {len(speedups)} feature sets: {sum(speedups) / len(speedups):.2f}x")
    return lines

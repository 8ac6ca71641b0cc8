"""The results as text: a Markdown table, ratios, and where compressed rows lose."""

from __future__ import annotations

from typing import Any

from .methods import LABELS

# (what is compared, with what)
_RATIOS = {
    "ours_vs_cpu": ("ours", "cpu"),
    "ours_vs_raw_unordered": ("ours", "raw_unordered"),
    "ours_vs_raw_ordered": ("ours", "raw_ordered"),
    "ours_vs_wholegraph_host": ("ours", "wholegraph_host"),
    "lookahead_vs_ours": ("ours_lookahead", "ours"),
    "lookahead_vs_raw_lookahead": ("ours_lookahead", "raw_lookahead"),
    "lookahead_vs_wholegraph_host": ("ours_lookahead", "wholegraph_host"),
    "misses_vs_raw_presorted": ("ours_presorted", "raw_presorted"),
    "all_hit_vs_raw_on_gpu": ("all_hit", "raw_on_gpu"),
    "all_hit_vs_wholegraph_device": ("all_hit", "wholegraph_device"),
}
_AT_EQUAL_BYTES = "cache_vs_raw_cache"


def ratios(case: dict[str, Any]) -> list[dict[str, Any]]:
    """By batch size. ratios: how many times as fast the first of each pair is, where both were measured. misses_share:
    of what `misses_vs_raw_presorted` would be if time followed bytes, those of a row over PCIe and those of the
    store."""
    found = []
    for size in dict.fromkeys(row["ids"] for row in case["methods"]):
        rows = {(row["method"], row["share"]): row for row in case["methods"] if row["ids"] == size}
        pairs = {name: ((ours, None), (other, None)) for name, (ours, other) in _RATIOS.items()}
        for share in dict.fromkeys(share for _, share in rows if share is not None):
            pairs[f"{_AT_EQUAL_BYTES}_at_{share:.0%}"] = (("cache", share), ("raw_cache", share))
        speedups = {
            name: rows[other]["ms"] / rows[ours]["ms"]
            for name, (ours, other) in pairs.items()
            if ours in rows and other in rows
        }
        misses, moved = speedups["misses_vs_raw_presorted"], rows["ours_presorted", None]["pcie_bytes_per_row"]
        shares = {
            "pcie_bytes": misses * moved / case["raw_bytes_per_row"],
            "store_bytes": misses * case["store_bytes"] / case["raw_bytes"],
        }
        found.append({"ids": size, "ratios": speedups, "misses_share": shares})
    return found


def table(record: dict[str, Any]) -> str:
    lines = [
        "| rows | ids | method | ms a batch | GB/s of raw rows | hits | bytes over PCIe a miss |",
        "|---|---|---|---|---|---|---|",
    ]
    order = list(LABELS)
    for case in record["cases"]:
        rows = case["methods"]
        for row in sorted(rows, key=lambda row: (row["ids"], row["share"] or 0, order.index(row["method"]))):
            label = LABELS[row["method"]] + ("" if row["share"] is None else f", {row['share']:.0%} of the rows")
            pcie = "-" if row["pcie_bytes_per_row"] is None else f"{row['pcie_bytes_per_row']:.1f}"
            lines.append(
                f"| {case['name']} | {row['ids']} | {label} | {row['ms']:.3f} | {row['output_gb_per_s']:.1f} "
                f"| {row['hits'] / row['rows_read']:.1%} | {pcie} |"
            )
    return "\n".join(lines)


def summary_lines(record: dict[str, Any]) -> list[str]:
    lines = []
    for case in record["cases"]:
        lines.append(
            f"{case['name']}: {case['rows']} rows, {case['codec']}, {case['raw_bytes_per_row']} -> "
            f"{case['slot_bytes']} bytes, {case['savings']:.1%} saved"
        )
        for one in case["ratios"]:
            where = f"{case['name']}, {one['ids']} ids"
            lines.append(f"{where}: " + ", ".join(f"{name} {value:.2f}x" for name, value in one["ratios"].items()))
            shares = one["misses_share"]
            lines.append(
                f"{where}: misses are {one['ratios']['misses_vs_raw_presorted']:.3f}x as fast as raw ones, "
                f"{shares['pcie_bytes']:.1%} of raw / compressed bytes over PCIe, "
                f"{shares['store_bytes']:.1%} of raw / store bytes"
            )
            lines += [f"{where}: loses: {name} {value:.2f}x" for name, value in one["ratios"].items() if value < 1]
        host, more = case["host_us"], case["host_overhead_us"]
        lines.append(
            f"{case['name']}: host time of a call with {record['config']['host_ids']} ids: bare launch "
            f"{host['launch']:.1f} us, store.gather {host['store']:.1f} ({more['store']:+.1f}), cache.gather "
            f"{host['cache']:.1f} ({more['cache']:+.1f})"
        )
        lines += [f"{case['name']}: not measured: {LABELS[key]}: {why}" for key, why in case["skipped"].items()]
    return lines

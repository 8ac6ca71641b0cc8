"""What bench_gather.py measured: Markdown tables, ratios, where compressed rows lose, and a picture."""

from __future__ import annotations

from typing import Any

from . import picture
from .frame import Record
from .table import markdown

LABELS = {
    "cpu": "CPU index_select + H2D",
    "raw_unordered": "raw UVA, unordered",
    "raw_ordered": "raw UVA, ordering included",
    "raw_presorted": "raw UVA, ids sorted beforehand",
    "raw_lookahead": "raw UVA, ordering included, lookahead",
    "wholegraph_host": "WholeGraph, rows in CPU memory",
    "ours": "ours: store.gather, ordering included",
    "ours_presorted": "ours, ids sorted beforehand",
    "ours_lookahead": "ours: store.gather, lookahead",
    "raw_on_gpu": "raw rows in GPU memory",
    "wholegraph_device": "WholeGraph, rows in GPU memory",
    "all_hit": "ours: cache of all rows",
    "raw_cache": "raw cache of the same bytes + ordered UVA",
    "cache": "ours: cache",
}
"""By key, in the order of the tables."""
HOST_LABELS = {
    "launch": "bare launch",
    "plan": "GpuGather.gather",
    "store": "store.gather",
    "cache": "cache.gather",
}
"""Calls whose time on the host is measured."""

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


def text(record: Record) -> str:
    return "\n\n".join([table(record), host_table(record), "\n".join(summary_lines(record))])


def table(record: Record) -> str:
    order, lines = list(LABELS), []
    for case in record["cases"]:
        rows = case["methods"]
        for row in sorted(rows, key=lambda row: (row["ids"], row["share"] or 0, order.index(row["method"]))):
            label = LABELS[row["method"]] + ("" if row["share"] is None else f", {row['share']:.0%} of the rows")
            pcie = "-" if row["pcie_bytes_per_row"] is None else f"{row['pcie_bytes_per_row']:.1f}"
            hits = f"{row['hits'] / row['rows_read']:.1%}"
            times = f"{row['ms']:.3f}", f"{row['output_gb_per_s']:.1f}"
            lines.append((case["name"], row["ids"], label, *times, hits, pcie))
    names = ("rows", "ids", "method", "ms a batch", "GB/s of raw rows", "hits", "bytes over PCIe a miss")
    return markdown(names, lines)


def host_table(record: Record) -> str:
    """How long a call keeps the host, and how much longer than a bare launch."""
    calls = [call for call in HOST_LABELS if any(call in case["host_us"] for case in record["cases"])]
    lines = []
    for case in record["cases"]:
        host, more = case["host_us"], case["host_overhead_us"]
        cells = [f"{host[call]:.1f}" + (f" ({more[call]:+.1f})" if call in more else "") for call in calls]
        lines.append((case["name"], *cells))
    first = f"host time of a call with {record['config']['host_ids']} ids, us"
    return markdown((first, *(HOST_LABELS[call] for call in calls)), lines)


def summary_lines(record: Record) -> list[str]:
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
        lines += [f"{case['name']}: not measured: {LABELS[key]}: {why}" for key, why in case["skipped"].items()]
    return lines


# Which methods the picture shows: where their rows lie, the name at the end of the line ({}: lookahead).
_LINES = {
    "CPU memory": {
        "ours_lookahead": "ours, {} batches at once",
        "ours": "ours",
        "raw_lookahead": "raw, {} batches at once",
        "raw_ordered": "raw, ordered by id",
        "wholegraph_host": "WholeGraph",
        "raw_unordered": "raw, as they come",
        "cpu": "CPU picks rows, copy",
    },
    "GPU memory": {"raw_on_gpu": "raw", "all_hit": "ours", "wholegraph_device": "WholeGraph"},
}
# Colour and line of each baseline in it.
_BASELINES = {
    "raw_lookahead": (picture.GREYS[0], "-"),
    "raw_ordered": (picture.GREYS[1], "-"),
    "wholegraph_host": (picture.GREYS[2], "--"),
    "raw_unordered": (picture.GREYS[1], ":"),
    "cpu": (picture.GREYS[0], ":"),
    "raw_on_gpu": (picture.GREYS[0], "-"),
    "wholegraph_device": (picture.GREYS[2], "--"),
}
# Ratios that it shows, at about so many ids a batch.
_BARS = {
    "ours_vs_raw_ordered": "all in CPU memory",
    f"{_AT_EQUAL_BYTES}_at_50%": "half in a cache",
    "all_hit_vs_raw_on_gpu": "all in GPU memory",
}
_BAR_IDS = 200_000


def draw(record: Record) -> Any:
    """Above: speed by batch size of the case with most of them. Below: ratios of all cases."""
    cases = record["cases"]
    figure = picture.make_figure(4.5 + 0.2 * len(cases), "Gathering rows by random ids to the GPU")
    picture.caption(
        figure,
        record,
        f"Medians of {record['config']['repeats']} gathers, each of new ids; ordering is timed, too. Bars: log scale.\n"
        "Half in a cache: the compressed cache holds half of the rows, the raw one what fits in the same bytes.",
    )
    lines, bars = figure.subfigures(2, 1, height_ratios=[2.6, 1.1 + 0.2 * len(cases)])
    case = max(cases, key=lambda case: len(case["ratios"]))
    picture.headline(lines, f"GB/s of uncompressed bytes that arrive, {_name(case)}")
    for axes, (where, methods) in zip(lines.subplots(1, 2), _LINES.items(), strict=True):
        picture.clean(axes, f"rows in {where}")
        lookahead = record["config"]["lookahead"]
        _draw_speeds(axes, case, {key: name.format(lookahead) for key, name in methods.items()})
    chosen = [min(case["ratios"], key=lambda one: abs(one["ids"] - _BAR_IDS)) for case in cases]
    names = [f"{_name(case)}; {one['ids']:,} ids" for case, one in zip(cases, chosen, strict=True)]
    picture.headline(bars, "Ours, times as fast as raw rows")
    columns = {where: {picture.OURS: [one["ratios"].get(name) for one in chosen]} for name, where in _BARS.items()}
    picture.ratio_panels(bars, names, columns, one="raw")
    return figure


def _name(case: dict[str, Any]) -> str:
    return case["name"].replace(" x ", " × ")


def _draw_speeds(axes: Any, case: dict[str, Any], names: dict[str, str]) -> None:
    ends = []
    for key, name in names.items():
        rows = [row for row in case["methods"] if row["method"] == key and row["share"] is None]
        if rows:
            colour, style = _BASELINES.get(key, (picture.OURS, "-"))
            width = 1.2 if key in _BASELINES else 1.8
            speeds = [row["output_gb_per_s"] for row in rows]
            axes.plot([row["ids"] for row in rows], speeds, style, color=colour, linewidth=width, marker=".")
            ends.append((name, speeds[-1], colour))
    axes.set_xscale("log")
    axes.set_ylim(0)
    axes.set_xlabel("ids of a batch", fontsize=picture.SMALL, color=picture.INK)
    axes.set_ylabel("GB/s", fontsize=picture.SMALL, color=picture.INK)
    picture.label_ends(axes, ends, max(row["ids"] for row in case["methods"]), 0.088)

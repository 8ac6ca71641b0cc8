"""What bench_dlrm.py measured: Markdown tables, ratios, and pictures."""

from __future__ import annotations

from typing import Any

from . import picture
from .frame import Record
from .table import markdown

LABELS = {
    "ours": "ours: one launch for all tables",
    "one_by_one": "ours: a launch for each table",
    "unfused": "ours: gathered, then pooled",
    "raw_unordered": "raw UVA, unordered, then pooled",
    "raw_ordered": "raw UVA, ordering included, then pooled",
    "raw_cache": "raw cache of the same bytes + ordered UVA, then pooled",
    "wholegraph": "WholeGraph, rows in CPU memory, then pooled",
    "cpu": "nn.EmbeddingBag on the CPU, copied",
    "on_gpu": "raw rows in GPU memory, gathered, then pooled",
    "torch_on_gpu": "raw rows in GPU memory, nn.EmbeddingBag",
}
RATIOS = {
    "ours_vs_cpu": ("ours", "cpu"),
    "ours_vs_raw_unordered": ("ours", "raw_unordered"),
    "ours_vs_raw_ordered": ("ours", "raw_ordered"),
    "ours_vs_raw_cache": ("ours", "raw_cache"),
    "ours_vs_wholegraph": ("ours", "wholegraph"),
    "ours_vs_unfused": ("ours", "unfused"),
    "ours_vs_one_by_one": ("ours", "one_by_one"),
    "ours_vs_on_gpu": ("ours", "on_gpu"),
    "ours_vs_torch_on_gpu": ("ours", "torch_on_gpu"),
}


def ratios(case: dict[str, Any]) -> list[dict[str, Any]]:
    """By batch size: how many times as fast the first of each pair is, on the GPU and by the clock."""
    found = []
    for batch in dict.fromkeys(row["batch"] for row in case["methods"]):
        rows = {row["method"]: row for row in case["methods"] if row["batch"] == batch}
        of_batch: dict[str, Any] = {"batch": batch}
        for measure in ("ms", "p50_ms"):
            of_batch[measure] = {
                name: rows[other][measure] / rows[own][measure]
                for name, (own, other) in RATIOS.items()
                if own in rows and other in rows
            }
        found.append(of_batch)
    return found


def text(record: Record) -> str:
    return "\n\n".join(_case_text(case, record) for case in record["cases"])


def _case_text(case: dict[str, Any], record: Record) -> str:
    title = (
        f"## {case['name']} (values of {record['config']['data']}, tiled)\n\n{case['savings']:.1%} saved; cache: "
        f"{case['cache_bytes'] / 1e9:.2f} GB, {case['cached_rows'] / case['rows']:.1%} of the rows"
    )
    rows = [
        (
            f"{row['batch']:,}",
            LABELS[row["method"]],
            f"{row['ms']:.3f}",
            f"{row['p50_ms']:.3f}",
            f"{row['p99_ms']:.3f}",
            f"{row['lookup_gb_per_s']:.0f}",
            f"{row['misses'] / max(1, row['hits'] + row['misses']):.1%}",
            f"{row['pcie_bytes'] / 1e6:.1f}",
            f"{row['max_difference']:.1e}",
        )
        for row in case["methods"]
    ]
    names = ("batch", "method", "ms", "p50 ms", "p99 ms", "GB/s", "misses", "PCIe MB", "max difference")
    pairs = list(RATIOS)
    shown = [
        (f"{one['batch']:,}", *(f"{one['ms'][pair]:.2f}" if pair in one["ms"] else "-" for pair in pairs))
        for one in case["ratios"]
    ]
    by_clock = [
        (f"{one['batch']:,}", *(f"{one['p50_ms'][pair]:.2f}" if pair in one["p50_ms"] else "-" for pair in pairs))
        for one in case["ratios"]
    ]
    skipped = "".join(f"\n{LABELS[name]}: {why}" for name, why in case["skipped"].items())
    parts = [title + skipped, markdown(names, rows), "Times as fast, on the GPU:", markdown(("batch", *pairs), shown)]
    return "\n\n".join([*parts, "By the clock:", markdown(("batch", *pairs), by_clock)])


def draw(record: Record) -> Any:
    """Latency by batch size (p50, p99), and bytes over PCIe."""
    cases = record["cases"]
    figure = picture.make_figure(2.9 * len(cases) + 0.4, "Pooled lookups in 26 embedding tables")
    panels = figure.subplots(len(cases), 2, squeeze=False, width_ratios=(1.1, 1))
    for case, (latency, moved) in zip(cases, panels, strict=True):
        _draw_latency(latency, case)
        _draw_moved(moved, case)
    data = record["config"]["data"]
    picture.caption(
        figure, record, f"Values of {data}, tiled. Lines: p50; thin: p99. Cache: 20 % of the store's bytes."
    )
    return figure


_DRAWN = {
    "ours": ("ours", picture.OURS),
    "unfused": ("ours, unfused", picture.OURS_LIGHT),
    "raw_cache": ("raw cache", picture.GREY),
    "raw_ordered": ("raw ordered", picture.GREY),
    "cpu": ("CPU", picture.GREY),
    "torch_on_gpu": ("all on the GPU", picture.GREY_LIGHT),
}


def _draw_latency(axes: Any, case: dict[str, Any]) -> None:
    picture.clean(axes, f"{case['name']}: ms by batch size")
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    ends = []
    for key, (name, colour) in _DRAWN.items():
        rows = [row for row in case["methods"] if row["method"] == key]
        if not rows:
            continue
        batches = [row["batch"] for row in rows]
        axes.plot(batches, [row["p50_ms"] for row in rows], color=colour, linewidth=1.6)
        axes.plot(batches, [row["p99_ms"] for row in rows], color=colour, linewidth=0.6)
        ends.append((name, rows[-1]["p50_ms"], colour))
    batches = list(dict.fromkeys(row["batch"] for row in case["methods"]))
    axes.set_xticks(batches, [f"{batch:,}" for batch in batches])
    axes.minorticks_off()
    low, high = axes.get_ylim()
    axes.set_ylim(low, high)
    at = picture.spread([_log(value) for _, value, _ in ends], 0.09 * (_log(high) - _log(low)))
    for (name, _, colour), place in zip(ends, at, strict=True):
        axes.annotate(
            name,
            (1.02, (place - _log(low)) / (_log(high) - _log(low))),
            xycoords="axes fraction",
            va="center",
            fontsize=picture.SMALL,
            color=picture.INK if colour != picture.OURS else colour,
        )


def _log(value: float) -> float:
    import math

    return math.log(value)


def _draw_moved(axes: Any, case: dict[str, Any]) -> None:
    last = max(row["batch"] for row in case["methods"])
    rows = {row["method"]: row for row in case["methods"] if row["batch"] == last}
    keys = [key for key in ("ours", "unfused", "raw_cache", "raw_ordered") if key in rows]
    picture.clean(axes, f"MB over PCIe, batch {last:,}")
    picture.row_names(axes, [_DRAWN[key][0] for key in keys])
    for at, key in enumerate(keys):
        megabytes = rows[key]["pcie_bytes"] / 1e6
        axes.barh(at, megabytes, color=_DRAWN[key][1], height=0.6)
        picture.number(axes, f"{megabytes:,.0f}", megabytes, at, _DRAWN[key][1])
    axes.set_xlim(0, 1.2 * max(rows[key]["pcie_bytes"] for key in keys) / 1e6)
    axes.set_xticks([])
    axes.spines["bottom"].set_visible(False)

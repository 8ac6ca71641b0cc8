"""What bench_epoch.py measured: a Markdown table, ratios, where compressed features lose, and a picture."""

from __future__ import annotations

from typing import Any

from . import picture
from .frame import Record
from .table import markdown

LABELS = {
    "raw": "raw: CPU index_select + copy",
    "raw_cache": "raw cache + ordered UVA",
    "raw_cache_prefetch": "raw cache + ordered UVA, prefetch",
    "ours": "ours",
    "ours_ahead": "ours, always ahead",
    "ours_prefetch": "ours, prefetch",
    "ours_lookahead": "ours, prefetch, lookahead",
    "wholegraph": "WholeGraph, rows in CPU memory",
    "wholegraph_cached": "WholeGraph with its cache",
    "on_gpu": "all raw rows on the GPU",
}
"""By key, in the order of the tables."""

# (what is compared, with what, in which time of each)
_RATIOS = {
    "ours_vs_raw": ("ours_prefetch", "raw", "epoch_ms", "epoch_ms"),
    "ours_vs_raw_with_sampling": ("ours_prefetch", "raw", "with_sampling_ms", "with_sampling_ms"),
    "ours_vs_raw_cache": ("ours", "raw_cache", "epoch_ms", "epoch_ms"),
    "ours_vs_raw_cache_prefetch": ("ours_prefetch", "raw_cache_prefetch", "epoch_ms", "epoch_ms"),
    "ours_vs_raw_cache_fetch_alone": ("ours", "raw_cache", "fetch_alone_ms", "fetch_alone_ms"),
    "prefetch_vs_serial": ("ours_prefetch", "ours", "epoch_ms", "epoch_ms"),
    "prefetch_vs_serial_with_sampling": ("ours_prefetch", "ours", "with_sampling_ms", "with_sampling_ms"),
    "ahead_vs_serial": ("ours_ahead", "ours", "epoch_ms", "epoch_ms"),
    "lookahead_vs_prefetch": ("ours_lookahead", "ours_prefetch", "epoch_ms", "epoch_ms"),
    "lookahead_vs_serial_fetch_alone": ("ours_lookahead", "ours", "fetch_alone_ms", "fetch_alone_ms"),
    "gpu_sampling_vs_raw": ("ours", "raw", "with_gpu_sampling_ms", "with_sampling_ms"),
    "gpu_sampling_vs_raw_cache": ("ours", "raw_cache", "with_gpu_sampling_ms", "with_gpu_sampling_ms"),
    "gpu_sampling_vs_wholegraph": ("ours", "wholegraph", "with_gpu_sampling_ms", "with_gpu_sampling_ms"),
    "gpu_sampling_vs_wholegraph_cached": ("ours", "wholegraph_cached", "with_gpu_sampling_ms", "with_gpu_sampling_ms"),
}


def ratios(methods: list[dict[str, Any]]) -> dict[str, float]:
    """How many times as fast the first of each pair is, where both were measured."""
    by_key = {method["method"]: method for method in methods}
    found = {}
    for name, (ours, other, time, time_of_other) in _RATIOS.items():
        mine, theirs = by_key.get(ours, {}).get(time), by_key.get(other, {}).get(time_of_other)
        if mine is not None and theirs is not None:
            found[name] = theirs / mine
    return found


def text(record: Record) -> str:
    return table(record) + "\n\n" + "\n".join(summary_lines(record))


def table(record: Record) -> str:
    names = (
        "method",
        "fetch + train",
        "fetch",
        "train",
        "fetch share",
        "fetch alone",
        "with sampling",
        "with sampling on the GPU",
    )
    lines = []
    for part in record["sets"]:
        for method in part["methods"]:
            times = [f"{method[key]:.1f}" for key in ("epoch_ms", "fetch_ms", "train_ms")]
            share = f"{method['fetch_ms'] / method['epoch_ms']:.0%}"
            live = [
                "-" if method.get(key) is None else f"{method[key]:.1f}"
                for key in ("with_sampling_ms", "with_gpu_sampling_ms")
            ]
            alone = f"{method['fetch_alone_ms']:.1f}"
            lines.append((part["name"], LABELS[method["method"]], *times, share, alone, *live))
    return markdown((f"{record['config']['batches']} batches, ms", *names), lines)


def summary_lines(record: Record) -> list[str]:
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
        with_gpu = [
            part["ratios"]["gpu_sampling_vs_raw"] for part in record["sets"] if "gpu_sampling_vs_raw" in part["ratios"]
        ]
        if with_gpu:
            mean = sum(with_gpu) / len(with_gpu)
            lines.append(f"mean of gpu_sampling_vs_raw over {len(with_gpu)} feature sets: {mean:.2f}x")
        lines.append(f"mean of ours_vs_raw over {len(speedups)} feature sets: {sum(speedups) / len(speedups):.2f}x")
    return lines


_NAMES = {
    "raw": "plain loop",
    "raw_cache": "raw cache",
    "raw_cache_prefetch": "raw cache, prefetch",
    "ours": "ours",
    "ours_ahead": "ours, always ahead",
    "ours_prefetch": "ours, prefetch",
    "ours_lookahead": "ours, {} batches ahead",
    "wholegraph": "WholeGraph",
    "wholegraph_cached": "WholeGraph, cached",
    "on_gpu": "all raw on the GPU",
}
"""By key, short ones for the picture; {}: lookahead."""
_GREYS = {  # of training and of waiting, by how the keys of the methods start
    "raw_cache": (picture.GREY_LIGHT, picture.GREY),
    "raw": ("#b9b9b9", "#6e6e6e"),
    "wholegraph": ("#a5a5a5", "#555555"),
    "on_gpu": ("#e2e2e2", "#a5a5a5"),
}
_COLUMNS = 2


def draw(record: Record) -> Any:
    """A panel for each feature set, a bar for each method: training in a light colour, waiting for features in a dark
    one. The plain loop is longer than the panel."""
    sets, config = record["sets"], record["config"]
    rows = -(-(len(sets) + 1) // _COLUMNS)
    most = max(len(part["methods"]) for part in sets)
    title = f"GraphSAGE: milliseconds (ms) for {config['batches']} batches, by how features are fetched"
    figure = picture.make_figure(1.1 + (0.45 + 0.19 * most) * rows, title)
    picture.caption(
        figure,
        record,
        f"{config['batches']} batches of {config['batch_size']:,} seeds, sampled beforehand; medians of "
        f"{config['epochs']} epochs.\nBoth caches take {config['cache_share']:.0%} of the raw features' bytes. "
        "Plain loop: the CPU picks rows and copies them.\nWith prefetch, fetches run beside training and share the GPU "
        "with it, which makes training longer; the sum counts.",
    )
    panels = figure.subplots(rows, _COLUMNS, squeeze=False).flatten()
    for at, part in enumerate(sets):
        _draw_set(panels[at], part, config["lookahead"])
        if at % _COLUMNS:
            panels[at].set_yticklabels([])
    for axes in panels[len(sets) :]:
        axes.set_axis_off()
    _draw_key(panels[len(sets)])
    return figure


def _draw_set(axes: Any, part: dict[str, Any], lookahead: int) -> None:
    methods = part["methods"]
    picture.clean(axes, part["name"].replace(" x ", " × "))
    picture.row_names(axes, [_NAMES[method["method"]].format(lookahead) for method in methods])
    # The plain loop takes five to ten times as long as the rest: its bar runs into the frame, its time is beside it.
    others = [method["epoch_ms"] for method in methods if method["method"] != "raw"]
    live = any("with_gpu_sampling_ms" in method for method in methods)
    limit = (1.5 if live else 1.3) * max(others)
    axes.set_xlim(0, limit)
    axes.set_xticks([])
    axes.spines["bottom"].set_visible(False)
    for at, method in enumerate(methods):
        light, dark = _colours(method["method"])
        train, total = method["train_ms"], method["epoch_ms"]
        axes.barh(at, train, 0.78, color=light)
        axes.barh(at, total - train, 0.78, left=train, color=dark)
        if total > limit:
            picture.number(axes, f"{total:,.0f} →", limit, at, "white", right=False)
        else:
            sampled = method.get("with_gpu_sampling_ms")
            text = f"{total:,.0f}" + ("" if sampled is None else f" ({sampled:,.0f})")
            picture.number(axes, text, total, at, dark if dark == picture.OURS else picture.INK)


def _draw_key(axes: Any) -> None:
    """How to read the bars, where a panel would be."""
    axes.set_xlim(0, 10)
    axes.set_ylim(0, 10)
    for y, (light, dark) in ((7.6, _colours("ours")), (5.4, _colours("raw_cache"))):
        axes.barh(y, 2.6, 1.6, left=0.3, color=light)
        axes.barh(y, 2.6, 1.6, left=2.9, color=dark)
    for x, name in ((0.3, "training"), (2.9, "waiting for features")):
        axes.text(x, 8.9, name, fontsize=picture.SMALL, color=picture.INK)
    axes.text(5.8, 7.6, "compressed", fontsize=picture.SMALL, va="center", color=picture.OURS)
    axes.text(5.8, 5.4, "uncompressed", fontsize=picture.SMALL, va="center", color=picture.INK)
    note = "numbers: both together, ms\n(in brackets: with sampling on the GPU)\n→ the bar is longer than the panel"
    axes.text(0.3, 3.6, note, fontsize=picture.SMALL, va="top", color=picture.INK)


def _colours(method: str) -> tuple[str, str]:
    """Of training and of waiting."""
    if method.startswith("ours"):
        return picture.OURS_LIGHT, picture.OURS
    return next(greys for start, greys in _GREYS.items() if method.startswith(start))

"""The results as a picture: a column per graph, hit rates against bytes above, policies against rows below."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ibp_gnn.command.plots import require_matplotlib

from .summary import features_of, presample_of

_COLOURS = ("#4c72b0", "#dd8452", "#55a868", "#c44e52", "#8172b3", "#937860")


def plot(record: dict[str, Any], path: str | Path) -> None:
    """Draws the traces of the first fanouts. Raises ImportError without matplotlib."""
    fanouts = record["config"]["fanouts"][0]
    traces = [trace for trace in record["traces"] if trace["fanouts"] == fanouts]
    figure = require_matplotlib()(figsize=(4.6 * max(1, len(traces)), 7.6), layout="constrained")
    figure.suptitle(f"GPU cache hit rate, fanouts {fanouts}, batches of {record['config']['batch_size']}")
    axes = figure.subplots(2, max(1, len(traces)), squeeze=False)
    for column, trace in enumerate(traces):
        _plot_bytes(axes[0][column], record, trace)
        _plot_policies(axes[1][column], trace)
    figure.savefig(path, dpi=72)


def _plot_bytes(axes: Any, record: dict[str, Any], trace: dict[str, Any]) -> None:
    shares = record["config"]["shares"]
    curves = trace["by_bytes"][presample_of(record["config"])]
    for colour, features, curve in zip(_COLOURS, features_of(record, trace), curves, strict=False):
        rates = [100 * hits / trace["accesses"] for hits in curve["compressed_hits"]]
        axes.plot(shares, rates, color=colour, label=f"{features['rows']} {features['dtype']}", linewidth=1.4)
    # A share of all raw bytes buys the same share of the rows, whatever the features.
    rates = [100 * hits / trace["accesses"] for hits in curves[0]["uncompressed_hits"]]
    axes.plot(shares, rates, ":", color="black", label="uncompressed", linewidth=1.6)
    axes.set_title(f"{trace['graph']}\nthe same bytes, compressed and not", fontsize=9)
    axes.set_xlabel("GPU memory, of the raw features")
    axes.set_ylabel("hit rate, %")
    axes.set_ylim(0, 100)
    axes.set_xscale("log")
    axes.set_xticks(shares, [f"{share:.0%}" for share in shares], fontsize=7)
    axes.minorticks_off()
    axes.legend(fontsize=7, loc="lower right")
    axes.grid(alpha=0.3)


def _plot_policies(axes: Any, trace: dict[str, Any]) -> None:
    hits = trace["by_rows"]["hits"]
    names = [name.replace("_", " ") + ("" if name in trace["by_bytes"] else " (dynamic)") for name in hits]
    thickness = 0.8 / len(trace["by_rows"]["rows"])
    for at, (colour, rows) in enumerate(zip(_COLOURS, trace["by_rows"]["rows"], strict=False)):
        rates = [100 * counts[at] / trace["accesses"] for counts in hits.values()]
        places = [line + at * thickness for line in range(len(names))]
        label = f"{rows / trace['nodes']:.0%} of the rows"
        bars = axes.barh(places, rates, thickness, color=colour, label=label)
        axes.bar_label(bars, fmt="%.1f", fontsize=6, padding=2)
    axes.set_yticks([line + 0.4 - thickness / 2 for line in range(len(names))], names, fontsize=7)
    axes.invert_yaxis()
    axes.set_title("the same number of rows, by policy", fontsize=9)
    axes.set_xlabel("hit rate, %")
    axes.set_xlim(0, 100)
    axes.legend(fontsize=7, loc="lower right")

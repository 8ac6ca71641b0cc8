"""The results as a picture: speed against batch size on the left, ratios of all cases on the right."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ibp_gnn.command.plots import require_matplotlib

from .methods import LABELS

_OURS, _RAW, _PEER = "#4c72b0", "#8c8c8c", "#dd8452"
_COLOURS = ("#4c72b0", "#dd8452", "#55a868", "#c44e52", "#8172b3", "#937860", "#da8bc3", "#8c8c8c", "#ccb974")
_MARKERS = "osD^vPX*<>"


def plot(record: dict[str, Any], path: str | Path) -> None:
    """Raises ImportError without matplotlib."""
    names = list(dict.fromkeys(name for case in record["cases"] for one in case["ratios"] for name in one["ratios"]))
    figure = require_matplotlib()(figsize=(14, max(6.5, 2 + 0.4 * len(names))), layout="constrained")
    figure.suptitle(f"Gathering rows by random ids, {record['hardware']['gpu']}")
    speeds, ratios = figure.subplots(1, 2)
    _plot_speeds(speeds, max(record["cases"], key=lambda case: len(case["ratios"])))
    _plot_ratios(ratios, record["cases"], names)
    figure.savefig(path, dpi=90)


def _plot_speeds(axes: Any, case: dict[str, Any]) -> None:
    """Of the case with the most batch sizes. Solid: rows in CPU memory, dashed: in GPU memory."""
    for key, label in LABELS.items():
        rows = [row for row in case["methods"] if row["method"] == key and row["share"] is None]
        if rows:
            colour = _PEER if key.startswith("wholegraph") else _OURS if label.startswith("ours") else _RAW
            axes.plot(
                [row["ids"] for row in rows],
                [row["output_gb_per_s"] for row in rows],
                "--" if rows[0]["hits"] else "-",
                marker=_MARKERS[list(LABELS).index(key) % len(_MARKERS)],
                markersize=4,
                linewidth=1.2,
                color=colour,
                label=label,
            )
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlabel("ids of a batch")
    axes.set_ylabel("GB/s of raw rows that arrive")
    axes.set_title(case["name"], fontsize=10)
    axes.legend(fontsize=7)
    axes.grid(alpha=0.3)


def _plot_ratios(axes: Any, cases: list[dict[str, Any]], names: list[str]) -> None:
    for at, case in enumerate(cases):
        points = [(value, names.index(name)) for one in case["ratios"] for name, value in one["ratios"].items()]
        values, places = zip(*points, strict=True)
        colour, marker = _COLOURS[at % len(_COLOURS)], _MARKERS[at % len(_MARKERS)]
        axes.scatter(values, places, s=18, color=colour, marker=marker, alpha=0.8, label=case["name"])
    axes.axvline(1, color="black", linewidth=0.8)
    axes.set_xscale("log")
    axes.set_yticks(range(len(names)), [name.replace("_", " ") for name in names], fontsize=8)
    axes.invert_yaxis()
    axes.set_xlabel("times as fast (a point for each batch size)")
    axes.set_title("Compressed rows against the others", fontsize=10)
    axes.legend(fontsize=7)
    axes.grid(alpha=0.3, axis="x")

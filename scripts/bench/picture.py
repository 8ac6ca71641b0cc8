"""The look of all pictures: made for the 800 pixels of a README, ours in one colour, the others in greys."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from ibp_gnn.command.plots import require_matplotlib

from .frame import Record

OURS, OURS_LIGHT = "#1f5fa8", "#9dbfe3"
GREY, GREY_LIGHT, INK = "#8a8a8a", "#cfcfcf", "#333333"
GREYS = ("#3d3d3d", "#6e6e6e", "#9a9a9a")
"""Of baselines that are to be told from each other, the nearest rival of ours darkest."""
SMALL = 8  # points: 11 pixels of 800; no text is smaller
_WIDTH_INCHES, _PIXELS_PER_INCH = 8, 150  # more pixels than 800, for screens that have them


def make_figure(height: float, title: str = "") -> Any:
    """height: inches, where the width is 8. Raises ImportError without matplotlib."""
    figure = require_matplotlib()(
        figsize=(_WIDTH_INCHES, height), dpi=_PIXELS_PER_INCH, layout="constrained", facecolor="white"
    )
    if title:
        figure.suptitle(title, x=0.01, ha="left", fontsize=11, fontweight="bold", color=INK)
    return figure


def caption(figure: Any, record: Record, text: str) -> None:
    """Hardware, commit and what else a reader must know, below all panels."""
    machine, commit = record["hardware"], record.get("commit") or "unknown"
    where = machine["gpu"] or f"{machine['cpu'].replace('(R)', '')}, {machine['cores']} cores"
    figure.supxlabel(f"{where}; commit {commit[:7]}. {text}", x=0.01, ha="left", fontsize=SMALL, color=INK)


def headline(figure: Any, text: str) -> None:
    """Of a part of the picture."""
    figure.suptitle(text, x=0.01, ha="left", fontsize=9, fontweight="bold", color=INK)


def clean(axes: Any, title: str) -> None:
    axes.set_title(title, fontsize=9, loc="left", color=INK)
    axes.tick_params(labelsize=SMALL, colors=INK, length=2)
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(GREY_LIGHT)


def row_names(axes: Any, names: Sequence[str]) -> None:
    """Names the places 0, 1, ... of the y axis, the first on top."""
    axes.set_yticks(range(len(names)), names)
    axes.set_ylim(len(names) - 0.4, -0.6)
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)


def ratio_panels(
    figure: Any, names: Sequence[str], columns: Mapping[str, Mapping[str, Sequence[float | None]]], *, one: str
) -> None:
    """A row of bars for each name, a panel for each column; in it, by colour, the ratio of each name, or None. Bars
    begin at 1, on a log scale: to the right what is faster, to the left what is slower; all panels have one scale.
    one: what has the ratio 1."""
    shown = [[1.0, *(x for ratios in series.values() for x in ratios if x is not None)] for series in columns.values()]
    limits = [(min(ratios), max(ratios)) for ratios in shown]
    room = max(high / low for low, high in limits) ** 0.25  # for the numbers beside the bars
    limits = [(low / (room if low < 1 else 1.02), high * (room if high > 1 else 1.02)) for low, high in limits]
    panels = figure.subplots(
        1, len(columns), sharey=True, squeeze=False, width_ratios=[math.log(high / low) for low, high in limits]
    )[0]
    for axes, (title, series), limit in zip(panels, columns.items(), limits, strict=True):
        clean(axes, title)
        row_names(axes, names)
        axes.set_xscale("log")
        axes.set_xlim(limit)
        height = 0.78 / len(series)
        for series_at, (colour, ratios) in enumerate(series.items()):
            for at, ratio in enumerate(ratios):
                if ratio is not None:
                    place = at + (series_at + 0.5) * height - 0.39
                    axes.barh(place, ratio - 1, height, left=1, color=colour)
                    number(axes, f"{ratio:.2f}", ratio, place, colour, right=ratio >= 1)
        axes.axvline(1, color=INK, linewidth=0.8)
        axes.spines["bottom"].set_visible(False)
        axes.set_xticks([1], [f"1 = {one}"])
        axes.minorticks_off()
        axes.tick_params(axis="x", length=0)


def number(axes: Any, text: str, x: float, y: float, colour: str, *, right: bool = True, gap: float = 3) -> None:
    """Beside the end of a bar or a dot, to its right or left. gap: in points."""
    axes.annotate(
        text,
        (x, y),
        (gap if right else -gap, 0),
        textcoords="offset points",
        ha="left" if right else "right",
        va="center",
        fontsize=SMALL,
        color=INK if colour in (GREY, *GREYS) else colour,
    )


def spread(values: Sequence[float], gap: float) -> list[float]:
    """Where to put labels of these values: the highest where it is, each other one at least `gap` below the last."""
    places, lowest = list(values), math.inf
    for at in sorted(range(len(values)), key=lambda at: -values[at]):
        places[at] = lowest = min(values[at], lowest - gap)
    return places


def label_ends(axes: Any, ends: Sequence[tuple[str, float, str]], x: float, gap: float) -> None:
    """Names of lines, whose right ends are at x. ends: (name, y, colour). gap: between names, of the axes' height."""
    low, high = axes.get_ylim()
    places = spread([(y - low) / (high - low) for _, y, _ in ends], gap)
    for (name, y, colour), place in zip(ends, places, strict=True):
        axes.annotate(
            name,
            (x, y),
            (1.03, place),
            textcoords=axes.transAxes,
            va="center",
            fontsize=SMALL,
            color=colour,
            annotation_clip=False,
            arrowprops={
                "arrowstyle": "-",
                "color": GREY_LIGHT,
                "linewidth": 0.7,
                "relpos": (0, 0.5),
                "shrinkA": 0,
                "shrinkB": 2,
            },
        )

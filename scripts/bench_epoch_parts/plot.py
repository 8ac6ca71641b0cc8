"""The results as a picture: a panel for each feature set, a bar for each method, its parts stacked."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ibp_gnn.command.plots import require_matplotlib

from .methods import LABELS

_TRAIN, _FETCH = "#4c72b0", "#dd8452"


def plot(record: dict[str, Any], path: str | Path) -> None:
    """Raises ImportError without matplotlib."""
    sets = record["sets"]
    figure = require_matplotlib()(figsize=(10, 1.1 + 1.9 * max(1, len(sets))), layout="constrained")
    where = record["hardware"]["gpu"] or "CPU"
    figure.suptitle(f"GraphSAGE, {record['config']['batches']} sampled batches, {where}")
    for axes, part in zip(figure.subplots(max(1, len(sets)), 1, squeeze=False)[:, 0], sets, strict=False):
        names = [LABELS[method["method"]] for method in part["methods"]]
        train = [method["train_ms"] for method in part["methods"]]
        fetch = [method["epoch_ms"] - method["train_ms"] for method in part["methods"]]
        axes.barh(names, train, color=_TRAIN, label="train")
        bars = axes.barh(names, fetch, left=train, color=_FETCH, label="fetch that training does not hide")
        axes.bar_label(bars, [f"{method['epoch_ms']:.0f} ms" for method in part["methods"]], fontsize=7, padding=2)
        axes.set_title(f"{part['name']} (sampling apart: {part['sampling_ms']:.0f} ms)", fontsize=9)
        axes.tick_params(labelsize=7)
        axes.margins(x=0.1)
        axes.invert_yaxis()
    handles, names = figure.axes[0].get_legend_handles_labels()
    figure.legend(handles, names, loc="outside lower center", ncols=2, fontsize=8)
    figure.savefig(path, dpi=90)

"""What bench_packing.py measured: Markdown tables, and accuracy against bytes as a picture."""

from __future__ import annotations

from typing import Any

from . import picture
from .frame import Record
from .table import markdown


def text(record: Record) -> str:
    parts = []
    if record["accuracy"]:
        parts.append(_accuracy(record["accuracy"]))
    if record["sizes"]:
        parts += [_sizes(one) for one in record["sizes"]]
    if record["products"]:
        parts.append(_products(record["products"]))
    if record["gathers"]:
        parts.append(_gathers(record["gathers"]))
    return "\n\n".join(parts)


def name_of(precision: str | None) -> str:
    return "lossless" if precision is None else precision


def _accuracy(results: list[dict[str, Any]]) -> str:
    rows = [
        (
            name_of(one["precision"]),
            f"{32 * one['store_bytes'] / one['raw_bytes']:.1f}",
            f"{one['store_bytes'] / one['raw_bytes']:.1%}",
            f"{one['mean']:.2%}",
            "" if one["deviation"] is None else f"{one['deviation']:.2%}",
        )
        for one in results
    ]
    count = min(len(one["test"]) for one in results)
    head = f"WordNet, GraphSAGE, {count} seeds"
    return f"{head}\n\n" + markdown(("store", "bits a value", "of raw", "test accuracy", "standard deviation"), rows)


def _sizes(one: dict[str, Any]) -> str:
    rows = [
        (
            name_of(of["precision"]),
            f"{of['bits_per_value']:.2f}",
            *(f"{of[key]:.2g}" if key in of else "0" for key in ("max_error", "mean_error", "relative_error")),
        )
        for of in one["precisions"]
    ]
    shape = ", ".join(map(str, one["rows"]))
    columns = ("store", "bits a value", "largest error", "mean error", "relative error")
    return f"{one['data']} [{shape}]\n\n" + markdown(columns, rows)


def _products(results: list[dict[str, Any]]) -> str:
    names = list(dict.fromkeys(name for one in results for name in one["us"]))
    rows = [
        (f"{one['size']}, {one['batch']}", *(_times(one["vs_float32"].get(name)) for name in names)) for one in results
    ]
    return "times as fast as torch's float32\n\n" + markdown(("size, vectors", *names), rows)


def _gathers(results: list[dict[str, Any]]) -> str:
    rows = [
        (
            one["dim"],
            one["ids"],
            name_of(one["precision"]),
            one["slot_bytes"],
            f"{one['vs_raw_ordered']:.2f}x",
            f"{one['output_gb_per_s']['store']:.0f}",
        )
        for one in results
    ]
    columns = ("values a row", "rows", "store", "slot bytes", "of ordered raw float32 rows", "GB/s of float32 out")
    return markdown(columns, rows)


def _times(ratio: float | None) -> str:
    return "" if ratio is None else f"{ratio:.2f}x"


def draw(record: Record) -> Any:
    """Raises ValueError for a record without accuracies."""
    if not record["accuracy"]:
        raise ValueError("accuracy: want results to draw, got none")
    figure = picture.make_figure(3.2, "WordNet, GraphSAGE: test accuracy against the bytes of the features")
    axes = figure.subplots()
    leftmost = min(one["store_bytes"] / one["raw_bytes"] for one in record["accuracy"])
    for one in record["accuracy"]:
        share, is_lossless = one["store_bytes"] / one["raw_bytes"], one["precision"] is None
        color = picture.OURS if is_lossless else picture.GREY
        axes.errorbar(share, one["mean"], yerr=one["deviation"] or 0, fmt="o", color=color, capsize=3)
        left = share == leftmost  # where there is room
        axes.annotate(
            name_of(one["precision"]),
            (share, one["mean"]),
            textcoords="offset points",
            xytext=(-8, -3) if left else (8, 6),
            ha="right" if left else "left",
            fontsize=picture.SMALL,
        )
    axes.set_xlim(0, 1)
    axes.set_xlabel("bytes of the store, of raw float32", fontsize=picture.SMALL)
    picture.clean(axes, f"mean and standard deviation over {len(record['accuracy'][0]['test'])} seeds")
    picture.caption(figure, record, "")
    return figure

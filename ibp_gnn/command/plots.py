"""Pictures of an analysis. Needs matplotlib, which is imported only when a picture is made."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ..codec.fit_dict import EXPONENT_BITS
from .analysis import Analysis

_SIGN, _EXPONENT, _MANTISSA = "#c44e52", "#dd8452", "#4c72b0"


def require_matplotlib() -> Any:
    """Returns matplotlib's Figure class. Raises ImportError with the pip command if it is missing."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError(
            "plots need a package that is missing; install it with: pip install matplotlib (or 'ibp-gnn[plot]')",
            name="matplotlib",
        ) from error
    return Figure


def plot_analysis(analysis: Analysis, path: str | Path, title: str = "") -> None:
    """Writes two charts into one picture, in the format that the name's suffix says: how many rows agree on each bit,
    and what each codec makes of a value, against the entropy bound."""
    figure = require_matplotlib()(figsize=(11, 4.2), layout="constrained")
    shape = "".join(f" x {size}" for size in analysis.row_shape)
    dtype = str(analysis.dtype).removeprefix("torch.")
    figure.suptitle(f"{title + ': ' if title else ''}{analysis.num_rows:,} rows{shape}, {dtype}")
    bits_axes, sizes_axes = figure.subplots(1, 2, width_ratios=[1.7, 1])
    _plot_bits(bits_axes, analysis)
    _plot_sizes(sizes_axes, analysis)
    figure.savefig(path, dpi=120)


def _plot_bits(axes: Any, analysis: Analysis) -> None:
    value_bits = len(analysis.bit_agreement)
    exponent_width = EXPONENT_BITS.get(analysis.dtype)
    parts: list[tuple[str, str, range]] = [("bits", _MANTISSA, range(value_bits))]
    if exponent_width is not None:
        mantissa_width = value_bits - 1 - exponent_width
        parts = [
            ("sign", _SIGN, range(value_bits - 1, value_bits)),
            ("exponent", _EXPONENT, range(mantissa_width, value_bits - 1)),
            ("mantissa", _MANTISSA, range(mantissa_width)),
        ]
    for name, colour, bits in parts:
        axes.bar(list(bits), [analysis.bit_agreement[bit] for bit in bits], width=0.85, color=colour, label=name)
    axes.axhline(0.5, color="black", linewidth=0.8, linestyle=":")
    axes.set_xlim(value_bits - 0.4, -0.6)  # the most significant bit first, as numbers are written
    axes.set_ylim(0.45, 1.01)
    axes.set_xlabel("bit of a value (most significant first)")
    axes.set_ylabel("share of rows that agree")
    axes.set_title("Invariance of each bit, mean over columns\n(0.5 = noise, 1 = the same in all rows)", fontsize=10)
    if exponent_width is not None:
        axes.legend(loc="upper right", fontsize=9)


def _plot_sizes(axes: Any, analysis: Analysis) -> None:
    value_bits = len(analysis.bit_agreement)
    sizes = {"raw": float(value_bits), **{report.codec: report.bits_per_value for report in analysis.reports}}
    names = ["raw", *sorted((name for name in sizes if name != "raw"), key=lambda name: -sizes[name])]
    colours = ["#999999" if name == "raw" else _MANTISSA for name in names]
    bars = axes.bar(names, [sizes[name] for name in names], width=0.6, color=colours)
    labels = [f"{sizes[name]:.2f}\n{sizes[name] / value_bits - 1:+.1%}" for name in names]
    labels[0] = f"{value_bits}"
    axes.bar_label(bars, labels, padding=3, fontsize=9)
    bound = analysis.bound.bits_per_value
    axes.axhline(bound, color=_SIGN, linewidth=1.5, linestyle="--", label=f"entropy bound {bound:.2f}")
    axes.set_ylim(0, value_bits * 1.3)
    axes.set_ylabel("bits per value")
    axes.set_title("Size per codec, metadata included", fontsize=10)
    axes.legend(loc="upper right", fontsize=9)

"""Pictures of an analysis and of a plan. Needs matplotlib, which is imported only when a picture is made."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from .._install import install_command
from ..codec.fit_dict import EXPONENT_BITS
from .analysis import Analysis

if TYPE_CHECKING:
    from .plan.estimate import Plan

_OURS, _OURS_LIGHT = "#1f5fa8", "#9dbfe3"
_GREY, _GREY_LIGHT, _INK = "#8a8a8a", "#cfcfcf", "#333333"
_SMALL = 8  # points: 11 pixels of 800; no text is smaller
_WIDTH_INCHES, _PIXELS_PER_INCH = 8, 150


def require_matplotlib() -> Any:
    """Returns matplotlib's Figure class. Raises ImportError with the pip command if it is missing."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError(
            "plots need a package that is missing; install it with: pip install matplotlib, or "
            f"{install_command('plot')}",
            name="matplotlib",
        ) from error
    return Figure


def plot_analysis(analysis: Analysis, path: str | Path, title: str = "") -> None:
    """Writes two charts into one picture, in the format that the name's suffix says: what each codec saves, and how
    many rows agree on each bit."""
    shape = "".join(f" x {size}" for size in analysis.row_shape)
    dtype = str(analysis.dtype).removeprefix("torch.")
    figure = _figure(3.6, f"{title + ': ' if title else ''}{analysis.total_rows:,} rows{shape}, {dtype}")
    savings_axes, bits_axes = figure.subplots(1, 2, width_ratios=[1, 1.15])
    _plot_savings(savings_axes, analysis)
    _plot_bits(bits_axes, analysis)
    figure.supxlabel(
        f"Of {analysis.num_rows:,} rows, metadata included. Entropy: of signs, exponents and mantissas, about what any "
        "codec needs.",
        x=0.01,
        ha="left",
        fontsize=_SMALL,
        color=_INK,
    )
    figure.savefig(path)


def plot_plan(plan: Plan, path: str | Path, title: str = "") -> None:
    """Writes hit rates by the bytes of a cache into one picture, raw and compressed, in the format that the name's
    suffix says."""
    figure = _figure(3.8, f"{title + ': ' if title else ''}hit rate by bytes of the GPU cache")
    axes = figure.subplots()
    unit, name = (10**9, "GB") if plan.curve[-1][0] >= 10**9 else (10**6, "MB")
    sizes = [size / unit for size, _, _ in plan.curve]
    raw, ours = ([100 * point[at] for point in plan.curve] for at in (1, 2))
    axes.fill_between(sizes, raw, ours, color=_OURS_LIGHT, alpha=0.35, linewidth=0)
    axes.plot(sizes, raw, color=_GREY, linewidth=1.8)
    axes.plot(sizes, ours, color=_OURS, linewidth=1.8)
    at = len(sizes) // 3
    _beside(axes, "compressed", sizes[at], ours[at], _OURS, (-6, 5), "right")
    _beside(axes, "raw", sizes[at], raw[at], _GREY, (6, -12), "left")
    _clean(axes, "")
    axes.set_ylim(0, 103)
    axes.set_xlim(0, sizes[-1])
    axes.set_xlabel(f"bytes of the cache, {name}; at the right end all raw rows fit", fontsize=_SMALL, color=_INK)
    axes.set_ylabel("hits, % of the rows read", fontsize=_SMALL, color=_INK)
    if plan.capacity / unit <= sizes[-1]:
        axes.axvline(plan.capacity / unit, color=_INK, linewidth=0.8, linestyle=":")
        right = plan.capacity / unit < 0.7 * sizes[-1]
        _beside(
            axes, "--gpu-memory", plan.capacity / unit, 3, _INK, (4 if right else -4, 0), "left" if right else "right"
        )
    figure.supxlabel(
        f"Estimate, best of the policies {', '.join(plan.raw.hit_rates).replace('_', ' ')}; "
        f"{plan.sampled_share:.0%} of an epoch sampled.",
        x=0.01,
        ha="left",
        fontsize=_SMALL,
        color=_INK,
    )
    figure.savefig(path)


def _plot_savings(axes: Any, analysis: Analysis) -> None:
    """Two bars a codec: bytes of a gather, bytes of a compact store; and what the entropy would allow."""
    reports = sorted(analysis.reports, key=lambda report: -report.savings)
    bound = 1 - analysis.bound.bits_per_value / (8 * analysis.dtype.itemsize)
    bars = [("entropy", bound, _GREY_LIGHT)]
    for report in reports:
        bars += [
            (f"{report.codec}: a gather", report.savings, _OURS),
            (f"{report.codec}: a store", report.compact_savings, _OURS_LIGHT),
        ]
    _clean(axes, "Savings by codec, % of the raw bytes")
    for at, (_, share, colour) in enumerate(bars):
        axes.barh(at, 100 * share, 0.72, color=colour)
        ink = _INK if colour in (_GREY_LIGHT, _OURS_LIGHT) else colour
        _beside(axes, f"{100 * share:.1f}", 100 * max(share, 0), at, ink, (3, 0), "left")
    axes.set_yticks(range(len(bars)), [name for name, _, _ in bars])
    axes.set_ylim(len(bars) - 0.4, -0.6)
    axes.tick_params(axis="y", length=0)
    shares = [100 * share for _, share, _ in bars]
    axes.set_xlim(min(0, max(min(shares), -60)), 1.2 * max(5, *shares))
    axes.set_xticks([0])
    axes.axvline(0, color=_INK, linewidth=0.8)
    axes.spines[["left", "bottom"]].set_visible(False)


def _plot_bits(axes: Any, analysis: Analysis) -> None:
    value_bits = len(analysis.bit_agreement)
    exponent_width = EXPONENT_BITS.get(analysis.dtype)
    parts: list[tuple[str, str, range]] = [("", _OURS, range(value_bits))]
    if exponent_width is not None:
        mantissa_width = value_bits - 1 - exponent_width
        parts = [
            ("sign", _GREY, range(value_bits - 1, value_bits)),
            ("exponent", _OURS, range(mantissa_width, value_bits - 1)),
            ("mantissa", _OURS_LIGHT, range(mantissa_width)),
        ]
    _clean(axes, "Rows that agree on a bit, %, mean over columns")
    for name, colour, bits in parts:
        axes.bar(list(bits), [100 * analysis.bit_agreement[bit] for bit in bits], width=0.85, color=colour)
        middle = (bits[0] + bits[-1]) / 2
        if name == "sign":  # one bar, narrower than its name
            _beside(axes, name, middle + 0.5, 104, _INK, (0, 0), "left")
        elif name:
            _beside(axes, name, middle, 104, _INK, (0, 0), "center")
    axes.axhline(50, color=_INK, linewidth=0.8, linestyle=":")
    axes.set_xlim(value_bits - 0.4, -0.6)  # the most significant bit first, as numbers are written
    axes.set_ylim(0, 110)
    axes.set_yticks([0, 50, 100], ["0", "50: noise", "100: all"])
    axes.set_xlabel("bit of a value, the most significant first", fontsize=_SMALL, color=_INK)


def _figure(height: float, title: str) -> Any:
    figure = require_matplotlib()(
        figsize=(_WIDTH_INCHES, height), dpi=_PIXELS_PER_INCH, layout="constrained", facecolor="white"
    )
    figure.suptitle(title, x=0.01, ha="left", fontsize=11, fontweight="bold", color=_INK)
    return figure


def _clean(axes: Any, title: str) -> None:
    axes.set_title(title, fontsize=9, loc="left", color=_INK)
    axes.tick_params(labelsize=_SMALL, colors=_INK, length=2)
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(_GREY_LIGHT)


def _beside(axes: Any, text: str, x: float, y: float, colour: str, offset: tuple[float, float], align: str) -> None:
    axes.annotate(
        text,
        (x, y),
        offset,
        textcoords="offset points",
        ha=align,
        va="center",
        fontsize=_SMALL,
        color=colour,
        annotation_clip=False,
    )

"""What bench_codec.py measured of many widths and of whole matrices: lines for a terminal, a part of the picture."""

from __future__ import annotations

from typing import Any

from . import picture

Results = list[dict[str, Any]]
_KINDS = {"normal": "N(0, 0.1)", "relu": "ReLU of N(0, 1)", "words": "bag of words"}


def sweep(results: Results) -> list[str]:
    """A line for each case, then the lowest and the highest ratio of each kind."""
    counts = list(dict.fromkeys(count for one in results for count in one["small_to_best"]))
    lines = [
        f"{'GPU memory, sweep':<18} {'dtype':<9} {'width':>5} {'codec':<5} {'size':>6} {'GB/s':>6} {'random':>7} "
        f"{'all':>6} "
        + "".join(f"{f'{int(count):,} ids':>12}" for count in counts)
        + "   (random: times as fast as the faster of a copy and index_select; ids: time, divided by theirs)"
    ]
    of_kind: dict[str, Results] = {}
    for one in results:
        of_kind.setdefault(f"{one['kind']:<18} {one['dtype']:<9}", []).append(one)
        small = "".join(f"{one['small_to_best'][count]:>12.2f}" for count in counts if count in one["small_to_best"])
        lines.append(
            f"{one['kind']:<18} {one['dtype']:<9} {one['width']:>5} {one['codec']:<5} {one['size_to_raw']:>6.3f} "
            f"{one['gb_per_s']:>6.0f} {one['to_best']:>7.3f} {one['all_to_copy']:>6.3f} {small}"
        )
    for name, of_name in of_kind.items():
        low = min(of_name, key=lambda one: one["to_best"])
        high = max(of_name, key=lambda one: one["to_best"])
        lines.append(
            f"{name} lowest {low['to_best']:.3f} ({low['width']} wide), highest {high['to_best']:.3f} ({high['width']})"
        )
    return lines


def matrices(results: Results) -> list[str]:
    lines = [f"{'bfloat16 matrices':<18} {'method':<6} {'size':>6} {'whole':>6} {'rows':>6}   (GB/s of raw bytes)"]
    for one in results:
        sizes = {"copy": 1.0, "ours": one["size_to_raw"], "nwc": one.get("nwc_to_raw")}
        shape = "x".join(map(str, one["shape"]))
        for method, whole in one["all_gb_per_s"].items():
            lines.append(
                f"{shape:<18} {method:<6} {sizes[method]:>6.3f} {whole:>6.0f} {one['rows_gb_per_s'][method]:>6.0f}"
            )
        lines.append(f"{shape:<18} nwc {one['nwc']}")
    return lines


def draw_sweep(part: Any, groups: dict[str, Results]) -> str:
    """A panel for each kind of rows, a line for each dtype. Returns the caption."""
    picture.headline(part, "Random rows in GPU memory, times as fast as the faster of a copy and index_select")
    colours = {"float32": picture.OURS, "bfloat16": picture.GREYS[0], "float16": picture.GREYS[2]}
    panels = part.subplots(1, len(groups), sharey=True, squeeze=False)[0]
    for axes, (kind, results) in zip(panels, groups.items(), strict=True):
        picture.clean(axes, _KINDS[kind])
        for dtype, colour in colours.items():
            of_dtype = [one for one in results if one["dtype"] == dtype]
            if of_dtype:
                widths, ratios = [one["width"] for one in of_dtype], [one["to_best"] for one in of_dtype]
                axes.plot(widths, ratios, "o-", color=colour, markersize=3, linewidth=1, label=dtype)
        axes.axhline(1, color=picture.INK, linewidth=0.8)
        axes.set_xscale("log", base=2)
        axes.xaxis.set_major_formatter("{x:g}")
        axes.set_ylim(bottom=0)
        axes.legend(frameon=False, fontsize=picture.SMALL, loc="lower right")
    return "Values of a row, log scale."

"""A picture of the results, one chart for each section that has some."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ibp_gnn.command.plots import require_matplotlib

_COLOURS = {"entropy bound": "#c44e52", "auto": "#4c72b0", "dict": "#4c72b0", "ibp": "#999999"}
_INCHES_PER_BAR = 0.16


def plot(results: dict[str, Any], path: Path) -> None:
    """Writes the picture in the format that the name's suffix says."""
    charts = {"sizes": _sizes, "cpu": _cpu, "gpu": _gpu, "peers": _peers}
    shown = [name for name in charts if results[name]]
    if not shown:
        raise ValueError("plot: want results of at least one section, got none")
    rows = max(3 * len(results["sizes"]), len(results["cpu"]), 2 * len(results["gpu"]), 30)
    figure = require_matplotlib()(figsize=(6.5 * len(shown), 2 + _INCHES_PER_BAR * rows), layout="constrained")
    for name, axes in zip(shown, figure.subplots(1, len(shown), squeeze=False)[0], strict=True):
        charts[name](axes, results[name])
    figure.savefig(path, dpi=110)


def _sizes(axes: Any, results: list[dict[str, Any]]) -> None:
    bars: dict[str, list[float]] = {"entropy bound": [], "auto": [], "ibp": []}
    for result in results:
        value_bits = 32 if result["dtype"] == "float32" else 16
        bits = result["bits_per_value"]
        bars["entropy bound"].append(result["entropy_bound"]["bits_per_value"] / value_bits)
        bars["auto"].append(bits["auto"] / value_bits)
        bars["ibp"].append(bits["ibp_best"] / value_bits)
    _draw(axes, [f"{result['data']} {result['dtype']}" for result in results], bars)
    axes.set_title("Size, metadata included, as a share of raw (smaller is better)", fontsize=10)


def _cpu(axes: Any, results: list[dict[str, Any]]) -> None:
    labels = [f"{one['data']} {one['dtype']}, {one['threads']} threads" for one in results]
    _draw(axes, *_by_codec(labels, results, {"": "decode_to_index_select"}))
    axes.axvline(1, color="black", linewidth=0.8)
    axes.set_title("CPU: decoding random rows, speed relative to torch.index_select", fontsize=10)


def _gpu(axes: Any, results: list[dict[str, Any]]) -> None:
    labels = [f"{one['data']} {one['dtype']}" for one in results]
    _draw(axes, *_by_codec(labels, results, {"": "hbm_decode_to_copy", ", pinned": "pinned_decode_to_copy"}))
    axes.axvline(1, color="black", linewidth=0.8)
    axes.set_title("GPU: decoding, speed relative to copying the raw rows\n(random ids; pinned: ordered)", fontsize=10)


def _peers(axes: Any, results: list[dict[str, Any]]) -> None:
    """A point per method and length of its chunks, averaged over data."""
    points: dict[str, list[tuple[float, float]]] = {}
    for one in results:
        if "failed" not in one:
            chunk = (
                "" if one["method"].startswith("ibp_gnn") else ", rows" if one["rows_per_chunk"] == 1 else ", chunks"
            )
            name = "ibp_gnn " + one["method"].split("(")[1].strip(")") if not chunk else one["method"] + chunk
            points.setdefault(name, []).append((one["size_to_raw"], one["random_rows_gb_per_s"]))
    for name, of_method in points.items():
        sizes, speeds = zip(*of_method, strict=True)
        own = name.startswith("ibp_gnn")
        axes.scatter(sizes, speeds, s=40 if own else 16, marker="D" if own else "o", label=name)
    axes.set_yscale("log")
    axes.set_xlabel("size as a share of raw")
    axes.set_ylabel("random rows, GB/s of raw bytes")
    axes.legend(fontsize=7)
    axes.set_title("Other compressors on the same rows, a point for each data set", fontsize=10)


def _by_codec(
    labels: list[str], results: list[dict[str, Any]], keys: dict[str, str]
) -> tuple[list[str], dict[str, list[float]]]:
    """One group for each label, in it a bar for each codec and key; 0 where there is none."""
    groups = list(dict.fromkeys(labels))
    bars: dict[str, list[float]] = {}
    for label, result in zip(labels, results, strict=True):
        for suffix, key in keys.items():
            bar = bars.setdefault(result["codec"] + suffix, [0.0] * len(groups))
            bar[groups.index(label)] = result.get(key, 0.0)
    return groups, bars


def _draw(axes: Any, labels: list[str], bars: dict[str, list[float]]) -> None:
    """Horizontal bars, the first label on top."""
    height = 0.8 / len(bars)
    for at, (name, values) in enumerate(bars.items()):
        codec = name.partition(",")[0]
        places = [row + (at + 0.5) * height - 0.4 for row in range(len(labels))]
        axes.barh(places, values, height, label=name, color=_COLOURS[codec], alpha=0.55 if "," in name else 1)
    axes.set_yticks(range(len(labels)), labels, fontsize=8)
    axes.invert_yaxis()
    axes.set_ylim(len(labels) - 0.5, -0.5)
    axes.legend(fontsize=8, loc="lower right")

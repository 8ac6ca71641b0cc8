"""What bench_codec.py measured: lines for a terminal, and a picture, a part of each for each section with results."""

from __future__ import annotations

import statistics
from typing import Any

from . import picture
from .codec_sweep_report import draw_sweep, matrices, sweep
from .frame import Record


def text(record: Record) -> str:
    makers = {"sizes": _sizes, "cpu": _cpu, "gpu": _gpu, "sweep": sweep, "matrices": matrices}
    makers |= {"layouts": _layouts, "peers": _peers}
    return "\n\n".join("\n".join(make(record[name])) for name, make in makers.items() if record.get(name))


def _sizes(results: list[dict[str, Any]]) -> list[str]:
    lines = [
        f"{'bits per value':<18} {'dtype':<9} {'bound':>6} {'ibp 32':>7} {'ibp 64':>7} {'ibp':>6} {'dict':>6} "
        f"{'auto':>6} {'takes':>6} {'savings':>8}   {'store':>6} {'takes':>6} {'bits':>6} {'escapes':>8}"
    ]
    for result in results:
        bits = result["bits_per_value"]
        lines.append(
            f"{_name(result)} {result['entropy_bound']['bits_per_value']:>6.2f} "
            f"{bits['ibp_32']:>7.2f} {bits['ibp_64']:>7.2f} {bits['ibp_best']:>6.2f} {bits['dict']:>6.2f} "
            f"{bits['auto']:>6.2f} {result['auto_takes']['auto']:>6} {result['savings']['auto']:>8.1%}   "
            f"{result['compact_store_share']['auto_slots']:>6.3f} {result['auto_takes']['auto_slots']:>6} "
            f"{bits['auto_slots']:>6.2f} {_percent(result['escape_share']['auto_slots']):>8}"
        )
    return lines


def _layouts(results: list[dict[str, Any]]) -> list[str]:
    lines = [
        f"{'layouts':<18} {'dtype':<9} {'layout':<7} {'payload':>8} {'store':>8} {'above':>7} {'effective':>9} "
        f"{'part':>6} {'PCIe B':>7} {'hits':>6} {'of slots':>8} {'misses':>6} {'of slots':>8}"
        "   (bytes a row; ratios to copying raw rows, and to the compact layout)"
    ]
    for result in results:
        line = (
            f"{_name(result)} {result['layout']:<7} {result['payload_bytes_per_row']:>8.1f} "
            f"{result['store_bytes_per_row']:>8.1f} {result['above_payloads']:>7.2%} {result['effective_rows']:>9.3f}"
        )
        if "hit_ms" in result:
            line += (
                f" {result['effective_rows_of_part']:>6.2f} {result['pcie_bytes_per_miss']:>7.1f}"
                f" {result['hits_to_copy']:>6.3f} {result['hits_to_compact']:>8.3f}"
                f" {result['misses_to_copy']:>6.3f} {result['misses_to_compact']:>8.3f}"
            )
        lines.append(line)
    return lines


def _cpu(results: list[dict[str, Any]]) -> list[str]:
    lines = [
        f"{'CPU':<18} {'dtype':<9} {'width':>5} {'codec':<5} {'fit s':>6} {'compress':>9} {'threads':>7} {'select':>7} "
        f"{'decode':>7} {'ratio':>6} {'load':>5}   (GB/s of raw rows)"
    ]
    for result in results:
        lines.append(
            f"{_name(result)} {result['width']:>5} {result['codec']:<5} {result['fit_s']:>6.2f} "
            f"{result['compress_gb_per_s']:>9.2f} {result['threads']:>7} {result['index_select_gb_per_s']:>7.2f} "
            f"{result['decode_gb_per_s']:>7.2f} {result['decode_to_index_select']:>6.2f} {result['load_average']:>5.1f}"
        )
    return lines


def _gpu(results: list[dict[str, Any]]) -> list[str]:
    lines = [
        f"{'GPU':<18} {'dtype':<9} {'width':>5} {'codec':<5} {'copy':>6} {'decode':>6} {'ratio':>6} {'cache':>6} "
        f"{'pinned':>7} {'ideal':>6} {'PCIe B':>7} {'fit s':>6} {'s/GB':>6}   (GB/s; ratios to copying raw rows)"
    ]
    for result in results:
        pinned = "pinned_decode_to_copy" in result
        lines.append(
            f"{_name(result)} {result['width']:>5} {result['codec']:<5} {result['hbm_copy_gb_per_s']:>6.0f} "
            f"{result['hbm_decode_gb_per_s']:>6.0f} {result['hbm_decode_to_copy']:>6.3f} "
            + (
                f"{result['cache_decode_to_copy']:>6.3f} {result['pinned_decode_to_copy']:>7.3f} "
                f"{result['pinned_raw_to_pcie_bytes']:>6.3f} {result['pinned_pcie_bytes_per_row']:>7.1f} "
                if pinned
                else f"{'-':>6} {'-':>7} {'-':>6} {'-':>7} "
            )
            + f"{result['fit_s']:>6.2f} {result['compress_s_per_gb']:>6.3f}"
        )
    return lines


def _peers(results: list[dict[str, Any]]) -> list[str]:
    lines = [
        f"{'other compressors':<18} {'dtype':<9} {'method':<32} {'chunk':>6} {'size':>7} {'compress':>9} {'all':>7} "
        f"{'random':>7}   (share of raw; GB/s of raw rows)"
    ]
    for result in results:
        chunk = f"{result['chunk_bytes']}" if result["chunk_bytes"] < 1 << 14 else f"{result['chunk_bytes'] >> 10}K"
        if "failed" in result:
            lines.append(f"{_name(result)} {result['method']:<32} {chunk:>6} failed: {result['failed']}")
            continue
        lines.append(
            f"{_name(result)} {result['method']:<32} {chunk:>6} {result['size_to_raw']:>7.3f} "
            f"{result['compress_gb_per_s']:>9.3f} {result['decode_gb_per_s']:>7.3f} "
            f"{result['random_rows_gb_per_s']:>7.3f}"
        )
    return lines


def _name(result: dict[str, Any]) -> str:
    return f"{result['data'][-18:]:<18} {result['dtype']:<9}"


def _percent(share: float | None) -> str:
    return "" if share is None else f"{share:.2%}"


def draw(record: Record) -> Any:
    """One section below the other. Raises ValueError if none has results."""
    makers = {
        "sizes": _draw_sizes,
        "cpu": _draw_cpu,
        "gpu": _draw_gpu,
        "sweep": draw_sweep,
        "peers": _draw_peers,
    }
    shown = [name for name in makers if record.get(name)]
    if not shown:
        raise ValueError("plot: want results of at least one section, got none")
    groups = {name: _groups(name, record[name]) for name in shown}
    of_group = {"cpu": 0.3, "gpu": 0.3, "sweep": 1.0}
    heights = [0.8 + of_group.get(name, 0.2) * len(groups[name]) for name in shown]
    figure = picture.make_figure(0.5 + sum(heights))
    parts = figure.subfigures(len(shown), 1, height_ratios=heights, squeeze=False)[:, 0]
    captions = [makers[name](part, groups[name]) for name, part in zip(shown, parts, strict=True)]
    picture.caption(figure, record, "\n".join(captions))
    return figure


_REAL_NAMES = {
    "wordnet_glove": "WordNet glove",
    "wordnet_bow": "WordNet bag of words",
    "wordnet_relu_1": "hidden layer 1",
    "wordnet_relu_2": "hidden layer 2",
    "glove": "GloVe vectors",
    "minilm_embeddings": "MiniLM embeddings",
    "minilm_weights": "MiniLM weights",
    "wordllama": "wordllama",
}
_Groups = dict[str, list[dict[str, Any]]]


def _groups(section: str, results: list[dict[str, Any]]) -> _Groups:
    """The results by the row of the picture that they belong to: what is compressed, or of `peers` the method."""
    groups: _Groups = {}
    for one in results:
        if section == "sweep":
            name = one["kind"]
        elif section == "peers":
            if "failed" in one:
                continue
            chunk = "a row" if one["rows_per_chunk"] == 1 else "chunks"
            own = one["method"].startswith("ibp_gnn")
            name = f"ours ({one['method'].partition('(')[2]}" if own else f"{one['method'].partition(' (')[0]}, {chunk}"
            name += "" if own or "GPU" not in one["method"] else ", GPU"
        else:
            kind, _, width = one["data"].partition("_")
            names = {"normal": f"N(0, 0.1), {width} wide", "relu": f"ReLU of N(0, 1), {width} wide"}
            name = _REAL_NAMES.get(one["data"]) or names.get(kind) or one["data"][-18:]
            name += "" if section == "sizes" else f", {one['dtype']}"
        groups.setdefault(name, []).append(one)
    return groups


def _draw_sizes(part: Any, groups: _Groups) -> str:
    """A panel for each dtype. Returns the caption."""
    picture.headline(part, "Size as a share of the raw bytes, all metadata counted: codec auto, and ibp in grey")
    dtypes = list(dict.fromkeys(one["dtype"] for of_name in groups.values() for one in of_name))
    for axes, dtype in zip(part.subplots(1, len(dtypes), sharey=True, squeeze=False)[0], dtypes, strict=True):
        picture.clean(axes, dtype)
        picture.row_names(axes, list(groups))
        for at, of_name in enumerate(groups.values()):
            for one in of_name:
                if one["dtype"] == dtype:
                    value_bits = 32 if dtype == "float32" else 16
                    auto, ibp = (one["bits_per_value"][form] / value_bits for form in ("auto", "ibp_best"))
                    bound = one["entropy_bound"]["bits_per_value"] / value_bits
                    axes.barh(at, ibp, 0.78, color=picture.GREY_LIGHT)
                    axes.barh(at, auto, 0.5, color=picture.OURS)
                    axes.plot([bound, bound], [at - 0.39, at + 0.39], color=picture.INK, linewidth=1.2)
                    picture.number(axes, f"{auto:.2f}", max(auto, ibp), at, picture.OURS)
        axes.set_xlim(0, 1.2)
        axes.set_xticks([0, 0.5, 1])
    return "Black line: entropy of signs, exponents and mantissas."


def _draw_cpu(part: Any, groups: _Groups) -> str:
    picture.headline(
        part, "Decoding random rows on the CPU, times as fast as index_select of raw rows: auto, and ibp in grey"
    )
    threads = list(dict.fromkeys(one["threads"] for of_name in groups.values() for one in of_name))
    columns = {
        f"{count} thread{'s' * (count > 1)}": _by_codec(groups, "decode_to_index_select", threads=count)
        for count in threads
    }
    picture.ratio_panels(part, list(groups), columns, one="index_select")
    return "Medians; log scale."


def _draw_gpu(part: Any, groups: _Groups) -> str:
    picture.headline(part, "Decoding rows on the GPU, times as fast as copying raw rows: auto, and ibp in grey")
    columns = {
        "rows in GPU memory, random ids": _by_codec(groups, "hbm_decode_to_copy"),
        "in CPU memory, ordered ids": _by_codec(groups, "pinned_decode_to_copy"),
    }
    picture.ratio_panels(part, list(groups), columns, one="copy")
    return "Medians; log scale. CPU memory is page-locked."


def _by_codec(groups: _Groups, key: str, **wanted: Any) -> dict[str, list[float | None]]:
    """The ratios of `auto` (or `dict`) and of `ibp`, by their colours, of the results that have what is wanted."""
    found: dict[str, list[float | None]] = {picture.OURS: [], picture.GREY: []}
    for of_name in groups.values():
        chosen = [one for one in of_name if all(one[name] == value for name, value in wanted.items())]
        ratios = {picture.GREY if one["codec"] == "ibp" else picture.OURS: one.get(key) for one in chosen}
        for colour, column in found.items():
            column.append(ratios.get(colour))
    return found


def _draw_peers(part: Any, groups: _Groups) -> str:
    """A row for each method, in it a dot for each data set, and the median as a line and a number."""
    picture.headline(part, "Other compressors on the same rows")
    columns = {
        "size_to_raw": "size as a share of raw",
        "random_rows_gb_per_s": "random rows, GB/s of raw bytes (log scale)",
    }
    for axes, (key, title) in zip(part.subplots(1, 2, sharey=True), columns.items(), strict=True):
        picture.clean(axes, title)
        picture.row_names(axes, list(groups))
        for at, (name, of_name) in enumerate(groups.items()):
            baseline = picture.GREYS[0] if name.endswith("a row") else picture.GREYS[2]
            colour = picture.OURS if name.startswith("ours") else baseline
            values = [one[key] for one in of_name]
            middle = statistics.median(values)
            axes.plot(values, [at] * len(values), "o", color=colour, markersize=4, alpha=0.7, markeredgewidth=0)
            axes.plot([middle, middle], [at - 0.35, at + 0.35], color=colour, linewidth=1.6)
            picture.number(
                axes, f"{middle:.2f}" if key == "size_to_raw" else f"{middle:.2g}", max(values), at, colour, gap=4
            )
        axes.grid(axis="x", color=picture.GREY_LIGHT, linewidth=0.5)
        if key == "random_rows_gb_per_s":
            axes.set_xscale("log")
            axes.minorticks_off()
            axes.xaxis.set_major_formatter("{x:g}")
        axes.margins(x=0.12)
    datasets = len({(one["data"], one["dtype"]) for of_name in groups.values() for one in of_name})
    return f"A dot for each of {datasets} data sets; line and number: median. Light: chunks of rows."

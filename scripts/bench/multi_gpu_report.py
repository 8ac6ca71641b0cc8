"""What bench_multi_gpu.py measured: Markdown tables, where compressed rows lose, and a picture."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from typing import Any

from . import picture
from .frame import Record
from .table import markdown

_LABELS = {"cuda": "GPU memory", "cpu": "CPU memory"}


def text(record: Record) -> str:
    parts = [hits_table(record), placements_table(record), misses_table(record), machines_table(record)]
    if any(run["training"] for run in record["runs"]):
        parts.append(training_table(record))
    return "\n\n".join([*parts, "\n".join(summary_lines(record))])


def hits_table(record: Record) -> str:
    """All rows in the GPUs' memory."""
    rows = []
    for size, case in _cases(record):
        for hits in case["hits"]:
            share = f"{hits['local_share']:.0%}"
            rows.append((size, case["name"], share, *_speeds(hits["methods"], "ours", "wholegraph")))
    names = ("GPUs", "hits: rows", "in own memory", "ours, GB/s a GPU", "WholeGraph, uncompressed", "ratio")
    return markdown(names, rows)


def placements_table(record: Record) -> str:
    rows = []
    for size, case in _cases(record):
        for one in case["placements"]:
            read = sum(one["tiers"].values())
            tiers = (f"{one['tiers'][tier] / read:.0%}" for tier in ("local", "peer", "host"))
            held = f"{one['rows'] / case['rows']:.1%}"
            split = f"{one['replicated']:,} + {one['sharded']:,}"
            rows.append((size, case["name"], one["placement"], split, held, *tiers, _speed(one["methods"]["ours"])))
    names = ("GPUs", "caches: rows", "placement", "replicated + sharded", "of all rows", "own GPU", "peers", "host")
    return markdown((*names, "GB/s a GPU"), rows)


def misses_table(record: Record) -> str:
    """All rows in CPU memory; the last column says whether the GPUs slow each other."""
    alone = {case["name"]: case["misses"]["ours"]["gb_per_s"] for size, case in _cases(record) if size == 1}
    rows = []
    for size, case in _cases(record):
        speeds = _speeds(case["misses"], "ours", "wholegraph")
        one = alone.get(case["name"])
        to_one = "-" if one is None else f"{case['misses']['ours']['gb_per_s'] / one:.2f}"
        rows.append((size, case["name"], *speeds, to_one))
    names = ("GPUs", "misses: rows", "ours, GB/s a GPU", "WholeGraph, uncompressed", "ratio", "to one GPU alone")
    return markdown(names, rows)


def machines_table(record: Record) -> str:
    rows = []
    for size, case in _cases(record):
        for one in case["machines"]:
            moved = one["bytes_per_row"]
            moves = f"{moved['raw']:.0f} -> {moved['ours']:.0f}"
            where = _LABELS[one["location"]]
            rows.append((size, case["name"], where, moves, *_speeds(one["methods"], "ours", "raw")))
    names = ("GPUs, each a machine", "NCCL: rows", "in", "bytes of a row", "ours, GB/s a GPU", "raw rows", "ratio")
    return markdown(names, rows)


def training_table(record: Record) -> str:
    rows = []
    for kind, size, one, speedup in scaling(record):
        to_one = "-" if speedup is None else f"{speedup:.2f} ({speedup / size:.2f} x {size})"
        miss_rate = f"{one['miss_rate']:.1%}"
        rows.append((size, kind, one["batch_size"], f"{epoch_seconds(one):.3f}", to_one, miss_rate))
    return markdown(("GPUs", "scaling", "seeds of a step", "s an epoch", "times one GPU", "misses"), rows)


def scaling(record: Record) -> Iterator[tuple[str, int, dict[str, Any], float | None]]:
    """Of each number of GPUs: strong or weak scaling, the number, what was measured, and how many times as fast as with
    one GPU; None where that was not measured."""
    for kind in ("strong", "weak"):
        alone = None
        for run in record["runs"]:
            for one in run["training"]:
                if kind in one["scaling"]:
                    alone = epoch_seconds(one) if run["gpus"] == 1 else alone
                    yield kind, run["gpus"], one, None if alone is None else alone / epoch_seconds(one)


def epoch_seconds(trained: dict[str, Any]) -> float:
    """Median without the first epoch, if there are others."""
    return statistics.median(trained["epoch_seconds"][1:] or trained["epoch_seconds"])


def gpus(size: int) -> str:
    return "1 GPU" if size == 1 else f"{size} GPUs"


def summary_lines(record: Record) -> list[str]:
    lines = []
    for size, case in _cases(record):
        where = f"{gpus(size)}, {case['name']}"
        held = {one["placement"]: one["rows"] for one in case["placements"]}
        lines.append(
            f"{where}: {case['rows']} rows, {case['codec']}, {case['raw_bytes_per_row']} -> {case['slot_bytes']} "
            f"bytes; shard holds {held['shard'] / held['replicate']:.2f} times the rows of replicate"
        )
        parts = {f"hits, {one['local_share']:.0%} in own memory": one["methods"] for one in case["hits"]}
        parts["misses"] = case["misses"]
        sent = " (one GPU sends nothing)" if size == 1 else ""
        parts |= {f"NCCL, {_LABELS[one['location']]}{sent}": one["methods"] for one in case["machines"]}
        for name, methods in parts.items():
            ratio = _ratio(methods)
            if ratio < 1:
                lines.append(f"{where}: loses: {name} {ratio:.2f}x")
    return lines + [f"not measured: {size} GPUs: {why}" for size, why in record["left_out"].items()]


def draw(record: Record) -> Any:
    """Left: hits of a sharded cache by the number of GPUs, ids uniform. Right: epochs."""
    config, sizes = record["config"], [run["gpus"] for run in record["runs"]]
    figure = picture.make_figure(3.4, "Several GPUs of one host")
    picture.caption(
        figure,
        record,
        f"All GPUs gather at once, {config['ids']:,} uniform ids each; all rows in their memory, shared out.",
    )
    left, right = figure.subplots(1, 2)
    picture.clean(left, "GB/s of uncompressed bytes a GPU")
    ends = []
    for number, case in enumerate(config["cases"]):
        found = [(run["gpus"], _uniform(run["cases"][number])) for run in record["runs"] if len(run["cases"]) > number]
        for method, colour in (("ours", picture.OURS), ("wholegraph", picture.GREYS[0])):
            speeds = [methods[method]["gb_per_s"] for _, methods in found]
            if speeds:
                left.plot([size for size, _ in found], speeds, "-:"[number % 2], color=colour, marker=".")
                name = "ours" if method == "ours" else "WholeGraph"
                ends.append((f"{name}, {case['dim']} × {case['dtype']}", speeds[-1], colour))
    left.set_ylim(0)
    picture.label_ends(left, ends, max(sizes, default=1), 0.09)
    picture.clean(right, "epochs, times as fast as one GPU")
    ends = []
    for kind, colour in (("strong", picture.OURS), ("weak", picture.OURS_LIGHT)):
        points = [(size, speedup) for one, size, _, speedup in scaling(record) if one == kind and speedup is not None]
        if points:
            right.plot(*zip(*points, strict=True), color=colour, marker=".")
            ends.append((f"{kind} scaling", points[-1][1], colour))
    right.plot(sizes, sizes, ":", color=picture.GREY_LIGHT)
    right.set_ylim(0)
    picture.label_ends(right, ends, max(sizes, default=1), 0.09)
    for axes in (left, right):
        axes.set_xticks(sizes)
        axes.set_xlabel("GPUs", fontsize=picture.SMALL, color=picture.INK)
    return figure


def _cases(record: Record) -> Iterator[tuple[int, dict[str, Any]]]:
    for run in record["runs"]:
        for case in run["cases"]:
            yield run["gpus"], case


def _uniform(case: dict[str, Any]) -> dict[str, Any]:
    """The hits whose ids are uniform: each GPU has as many of the rows."""
    return min(case["hits"], key=lambda one: abs(one["local_share"] - 1 / len(one["methods"]["ours"]["ms"])))["methods"]


def _speeds(methods: dict[str, Any], ours: str, other: str) -> tuple[str, str, str]:
    return _speed(methods[ours]), _speed(methods[other]), f"{_ratio(methods):.2f}"


def _speed(measured: dict[str, Any]) -> str:
    return f"{measured['gb_per_s']:.1f}"


def _ratio(methods: dict[str, Any]) -> float:
    """Ours to the other one."""
    (other,) = (name for name in methods if name != "ours")
    return methods["ours"]["gb_per_s"] / methods[other]["gb_per_s"]

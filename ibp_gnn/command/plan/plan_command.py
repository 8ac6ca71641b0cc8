"""`ibp-gnn plan`: its options, its files, its table."""

from __future__ import annotations

import argparse
import dataclasses
import json
import re
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..analyze_command import seed
from ..command_error import CommandError
from ..messages import check_outputs, check_plot, explained, write_text

if TYPE_CHECKING:
    import torch

    from .estimate import CachePlan, Plan
    from .measured_gathers import Measured

_UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}
_UNITS |= {f"{unit}i": 2 ** (10 * power) for power, unit in enumerate("KMGT", start=1)}
MODEL = """\
How it estimates: it samples two epochs of this graph, uniformly and without
replacement, one to presample and one to count hits. Rows cost what a sample of
them takes in a compact store (codec auto). Seconds are bytes over PCIe divided
by --link: what is fetched one after the other. Sampling and training take
their own time, and a prefetcher hides the shorter of them."""


def add_to(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "plan",
        help="what would a training with a GPU cache gain?",
        description="From features and their graph: rows cached, hit rates, bytes over PCIe and\nseconds of fetching "
        "an epoch, raw beside compressed. Needs no GPU.",
        epilog=MODEL,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("features", type=Path, metavar="FEATURES", help=".npy, .npz, .pt or .safetensors")
    parser.add_argument("--key", metavar="NAME", help="which array, if FEATURES holds several")
    parser.add_argument(
        "--graph",
        type=Path,
        metavar="GRAPH.npz",
        required=True,
        help="edge_index [2, edges], integers: sources, destinations; train [n], ids to train on (default: all nodes)",
    )
    parser.add_argument(
        "--fanouts",
        type=_fanouts,
        metavar="15,10,5",
        required=True,
        help="neighbours of a node, one number a layer, input layer first; -1: all",
    )
    parser.add_argument(
        "--gpu-memory", type=_size, metavar="24GB", required=True, help="for the cache: bytes, or 512MiB, 24GB"
    )
    parser.add_argument(
        "--link",
        type=_speed,
        metavar="25GB/s",
        default=25 * 10**9,
        help="how fast rows come over PCIe (default: 25GB/s, PCIe 4 x16; PCIe 5 x16: 50GB/s)",
    )
    parser.add_argument("--batch-size", type=_positive, metavar="N", default=1024, help="seeds of a batch (1024)")
    parser.add_argument(
        "--batches", type=_positive, metavar="N", default=500, help="sample at most so many of an epoch (500)"
    )
    parser.add_argument("--seed", type=seed, metavar="N", default=0, help="of all samples (default: 0)")
    parser.add_argument("--measure", action="store_true", help="also time gathers of these features on this machine")
    parser.add_argument(
        "--device", choices=("auto", "cpu", "cuda"), default="auto", help="of --measure (auto: CUDA if it works)"
    )
    parser.add_argument("--json", type=Path, metavar="OUT", help="write all figures there")
    parser.add_argument(
        "--plot", type=Path, metavar="OUT.png", help="draw hit rates by the cache's bytes (needs matplotlib)"
    )
    parser.set_defaults(run=_run_plan)


def _run_plan(arguments: argparse.Namespace) -> None:
    check_outputs(json=arguments.json, plot=arguments.plot)
    check_plot(arguments.plot)
    import torch

    from ...codec.codec import sample_rows
    from ...datasets.array_files import load_rows
    from ..analysis import analyze
    from .estimate import make_plan, sample_graph
    from .measured_gathers import measure_gathers

    device = torch.device("cuda" if torch.cuda.is_available() and arguments.device != "cpu" else "cpu")
    if arguments.device == "cuda" and device.type != "cuda":
        raise CommandError("--device: want cuda, but torch sees no usable CUDA device; --device cpu measures without")
    with explained("reading features", arguments.features, {"rows": "FEATURES"}):
        rows = load_rows(arguments.features, arguments.key)
    with explained("reading --graph", arguments.graph):
        src, dst, train_ids = _load_graph(arguments.graph, len(rows))
    with explained("analyzing features", arguments.features, {"rows": "FEATURES"}):
        analysis = analyze(rows, seed=arguments.seed)
    print(f"sampling two epochs of {len(train_ids)} seeds, at most {arguments.batches} batches each ...", flush=True)
    sampled = sample_graph(
        src,
        dst,
        len(rows),
        train_ids,
        arguments.fanouts,
        batch_size=arguments.batch_size,
        batches=arguments.batches,
        seed=arguments.seed,
    )
    sample = sample_rows(rows, None, arguments.seed)
    plan = make_plan(analysis, sample, sampled, arguments.gpu_memory, arguments.link)
    measured = None
    if arguments.measure:
        from ...datasets.as_tensors import share_memory

        tensor = rows if isinstance(rows, torch.Tensor) else share_memory(rows)
        measured = measure_gathers(tensor, device, arguments.seed)
    print(describe(plan, measured))
    if arguments.json is not None:
        record = {"file": arguments.features.name, "graph": arguments.graph.name, "fanouts": list(arguments.fanouts)}
        record |= {"batch_size": arguments.batch_size, **plan.to_dict()}
        record["measured"] = None if measured is None else dataclasses.asdict(measured)
        write_text("json", arguments.json, json.dumps(record, indent=1) + "\n")
    if arguments.plot is not None:
        from ..plots import plot_plan

        with explained("writing --plot", arguments.plot):
            plot_plan(plan, arguments.plot, arguments.features.name)


def _load_graph(path: Path, num_nodes: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Sources, destinations, ids to train on; int64. Raises CommandError."""
    import numpy as np
    import torch

    from ...datasets.as_tensors import edge_tensors

    try:
        opened = np.load(path, allow_pickle=False)
        if not isinstance(opened, np.lib.npyio.NpzFile):
            raise CommandError(f"--graph: want a .npz archive, got another file: {path}")
        with opened as arrays:
            if "edge_index" not in arrays.files:
                raise CommandError(f"--graph: want an array edge_index in {path}, got only {sorted(arrays.files)}")
            edges = arrays["edge_index"]
            train = arrays["train"] if "train" in arrays.files else None
    except (ValueError, EOFError, zipfile.BadZipFile) as error:
        raise CommandError(f"--graph: want a .npz archive of plain arrays, got {path}, which is none") from error
    try:
        src, dst = edge_tensors("edge_index", edges)
    except ValueError as error:
        raise CommandError(f"--graph: {error} in {path}") from error
    if train is None:
        train = np.arange(num_nodes)
    elif train.dtype == np.bool_ and train.shape == (num_nodes,):
        train = np.flatnonzero(train)
    if train.ndim != 1 or train.dtype.kind not in "iu" or len(train) == 0:
        raise CommandError(f"--graph: train: want [n] node ids, n >= 1, got {list(train.shape)} {train.dtype}")
    train_ids = torch.from_numpy(np.unique(train).astype(np.int64))
    for name, ids in (("edge_index", src), ("edge_index", dst), ("train", train_ids)):
        if len(ids) and (int(ids.min()) < 0 or int(ids.max()) >= num_nodes):
            bad = int(ids.min()) if int(ids.min()) < 0 else int(ids.max())
            raise CommandError(
                f"--graph: {name}: want 0 <= id < {num_nodes}, the number of rows of FEATURES, got {bad}"
            )
    return src, dst, train_ids


def describe(plan: Plan, measured: Measured | None = None) -> str:
    """The plan as text: raw and compressed rows beside each other, hit rates by policy, and the verdict."""
    from .estimate import seconds_text

    lines = [
        f"{plan.num_rows} rows of {plan.row_bytes} bytes, codec {plan.codec!r}, savings {plan.savings:.1%} of a "
        f"gather's bytes",
        f"an epoch reads {plan.accesses} rows ({plan.sampled_share:.0%} of one was sampled)",
        "",
        f"{'GPU cache of ' + _bytes_text(plan.capacity):<32} {'raw':>14} {'compressed':>14}",
    ]
    pairs = [
        ("store in CPU memory", lambda each: _bytes_text(each.store_bytes)),
        ("rows cached", lambda each: f"{each.cached_rows}"),
        ("share of the rows", lambda each: f"{each.cached_rows / plan.num_rows:.1%}"),
        *(
            (f"hit rate, {policy.replace('_', ' ')}", lambda each, policy=policy: f"{each.hit_rates[policy]:.1%}")
            for policy in plan.raw.hit_rates
        ),
        ("over PCIe an epoch", lambda each: _bytes_text(each.pcie_bytes)),
        (f"fetching an epoch at {_bytes_text(plan.link_bytes_per_s)}/s", lambda each: seconds_text(each.fetch_seconds)),
    ]
    lines += [f"{name:<32} {show(plan.raw):>14} {show(plan.compressed):>14}" for name, show in pairs]
    if measured is not None:
        lines += ["", *_measured_lines(plan, measured)]
    return "\n".join([*lines, "", plan.verdict])


def _measured_lines(plan: Plan, measured: Measured) -> list[str]:
    """What this machine does, and what that makes of an epoch: of misses on a GPU, of all rows on the CPU."""
    from .estimate import seconds_text

    def seconds(cache: CachePlan, speed: float) -> str:
        misses = 1.0 if measured.device == "cpu" else 1 - cache.hit_rates[cache.policy]
        return seconds_text(plan.accesses * misses * plan.row_bytes / speed / 1e9)

    raw, ours = measured.raw_gb_per_s, measured.compressed_gb_per_s
    where = "CPU, no cache" if measured.device == "cpu" else "GPU, rows in page-locked memory"
    head = f"measured, {where}"
    speed = "GB/s of raw rows"
    lines = [
        f"{head:<32} {'raw':>14} {'compressed':>14}",
        f"{speed:<32} {raw:>14.2f} {ours:>14.2f}",
        f"{'fetching an epoch':<32} {seconds(plan.raw, raw):>14} {seconds(plan.compressed, ours):>14}",
    ]
    if measured.plain_loop_gb_per_s is not None:
        lines.append(f"index_select and a copy: {measured.plain_loop_gb_per_s:.2f} GB/s")
    return lines


def _bytes_text(count: float) -> str:
    for unit, name in ((10**12, "TB"), (10**9, "GB"), (10**6, "MB"), (10**3, "kB")):
        if count >= unit:
            return f"{count / unit:.4g} {name}"
    return f"{count:.0f} B"


def _fanouts(text: str) -> tuple[int, ...]:
    parts = text.split(",")
    if not all(re.fullmatch(r"-1|[1-9][0-9]*", part.strip()) for part in parts):
        raise argparse.ArgumentTypeError(f"want numbers with commas between them, like 15,10,5, got {text!r}")
    return tuple(int(part) for part in parts)


def _size(text: str) -> int:
    match = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)\s*([KMGT]?i?)B?", text.strip(), re.IGNORECASE)
    unit = None if match is None else _UNITS.get(match[2].capitalize())
    if match is None or unit is None or float(match[1]) == 0:
        raise argparse.ArgumentTypeError(f"want bytes, like 24GB or 512MiB, got {text!r}")
    return int(float(match[1]) * unit)


def _speed(text: str) -> int:
    try:
        return _size(re.sub(r"/s$", "", text.strip()))
    except argparse.ArgumentTypeError as error:
        raise argparse.ArgumentTypeError(f"want bytes a second, like 25GB/s, got {text!r}") from error


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"want a number from 1 on, got {text!r}")
    return int(text)

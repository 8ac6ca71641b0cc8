"""The command `ibp-gnn`. Each subcommand is a function that adds its parser and one that runs it.

What needs torch is imported by the function that runs, so that `ibp-gnn doctor` works without torch.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import doctor, store_commands
from .command_error import CommandError

if TYPE_CHECKING:
    from .analysis import Analysis


def main(arguments: Sequence[str] | None = None) -> int:
    """arguments: None means those of the process. Returns the exit status: 0, or 1 after an error, which is one line on
    stderr; `doctor` has its own. As usual with argparse, wrong usage raises SystemExit(2)."""
    parser = argparse.ArgumentParser(prog="ibp-gnn", description="Losslessly compressed GNN features.")
    subparsers = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    _add_analyze(subparsers)
    store_commands.add_to(subparsers)
    _add_doctor(subparsers)
    parsed = parser.parse_args(arguments)
    try:
        return parsed.run(parsed) or 0
    except (CommandError, ImportError, OSError) as error:
        return _fail(error)
    except ValueError as error:
        from ..datasets.array_files import ArrayFileError

        if not isinstance(error, ArrayFileError):
            raise
        return _fail(error)


def _fail(error: Exception) -> int:
    print(f"ibp-gnn: error: {error}", file=sys.stderr)
    return 1


def _add_analyze(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "analyze",
        help="is it worth compressing the features in a file?",
        description="Reads an array [rows, columns, ...]; says what each codec makes of it, and if that pays.",
    )
    parser.add_argument("file", type=Path, metavar="FILE", help=".npy, .npz, .pt or .safetensors")
    parser.add_argument("--key", metavar="NAME", help="which array, if the file holds several")
    parser.add_argument(
        "--sample", type=_sample, metavar="N", help="rows to look at, or 'all' (default: as many as fitting looks at)"
    )
    parser.add_argument("--seed", type=int, default=0, help="which rows to sample (default: 0)")
    parser.add_argument("--json", type=Path, metavar="OUT", help="write all figures there, those of each column too")
    parser.add_argument("--plot", type=Path, metavar="OUT.png", help="write charts there (needs matplotlib)")
    parser.set_defaults(run=_run_analyze)


def _run_analyze(arguments: argparse.Namespace) -> None:
    from ..datasets.array_files import load_rows
    from .analysis import analyze
    from .plots import plot_analysis, require_matplotlib

    # What would fail after the work fails before it.
    if arguments.plot is not None:
        require_matplotlib()
    for option in ("json", "plot"):
        path = getattr(arguments, option)
        if path is not None and (path.is_dir() or not path.parent.is_dir()):
            raise CommandError(f"--{option}: want a file in an existing folder, got {path}")
    if arguments.plot is not None and arguments.plot.suffix.lower() not in (".png", ".svg", ".pdf"):
        raise CommandError(f"--plot: want a name ending in .png, .svg or .pdf, got {arguments.plot}")
    rows = load_rows(arguments.file, arguments.key)
    max_rows = len(rows) if arguments.sample == "all" else arguments.sample
    analysis = analyze(rows, max_rows=max_rows, seed=arguments.seed)
    print(describe(analysis))
    if arguments.json is not None:
        record = {"file": arguments.file.name, "key": arguments.key, **analysis.to_dict()}
        arguments.json.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    if arguments.plot is not None:
        plot_analysis(analysis, arguments.plot, arguments.file.name)


def describe(analysis: Analysis) -> str:
    """The analysis as text: a table of the codecs, the bound, and the verdict."""
    shape = ", ".join(str(size) for size in (analysis.total_rows, *analysis.row_shape))
    dtype = str(analysis.dtype).removeprefix("torch.")
    bound, parts = analysis.bound, analysis.bound.to_dict(columns=False)
    lines = [
        f"[{shape}] {dtype}, {analysis.num_rows} rows looked at",
        "",
        f"{'codec':<6} {'bits/value':>10} {'savings':>8} {'compressed':>11} {'escapes':>8} {'compact store':>14} "
        f"{'slot':>6} {'overflow':>9}",
    ]
    for report in analysis.reports:
        escapes = "-" if report.escape_share is None else f"{report.escape_share:.2%}"
        slot = f"{report.compact_slot_bytes}B"
        lines.append(
            f"{report.codec:<6} {report.bits_per_value:>10.2f} {report.savings:>8.1%} {report.compressed_share:>11.1%} "
            f"{escapes:>8} {report.compact_savings:>14.1%} {slot:>6} {report.overflow_share:>9.2%}"
        )
    lines += [
        f"{'bound':<6} {bound.bits_per_value:>10.2f} {1 - bound.bits_per_value / (8 * analysis.dtype.itemsize):>8.1%}"
        f"   entropy: exponent {parts['exponent_bits']:.2f}, sign {parts['sign_bits']:.2f}, "
        f"mantissa {parts['mantissa_bits']:.2f}; too low by about {bound.bias_bits:.3f} (sample)",
        "",
        "savings: of the bytes of a gather; compact store: of memory, overflow rows and all metadata included",
        f"auto takes: {analysis.recommendation}",
        analysis.verdict,
    ]
    return "\n".join(lines)


def _add_doctor(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "doctor",
        help="what works here, what does not, and how to fix it?",
        description="Looks at Python, torch, CUDA, the compiled extensions, DGL, PyG and the machine; says what works, "
        "and how to fix what does not.",
        epilog="Exit status: 0 if all is well but for notes (parts that are optional and not there); 1 with warnings "
        "(something that is there does not work as it should); 2 with errors (ibp_gnn itself cannot work).",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of text")
    parser.set_defaults(run=_run_doctor)


def _run_doctor(arguments: argparse.Namespace) -> int:
    checks = doctor.diagnose()
    print(doctor.as_json(checks) if arguments.json else doctor.as_text(checks))
    return doctor.exit_status(checks)


def _sample(text: str) -> int | str:
    if text == "all":
        return text
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"want a number of rows or 'all', got {text!r}")
    return int(text)


if __name__ == "__main__":
    sys.exit(main())

"""`ibp-gnn analyze`: its options, its table, and what it says of a file."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .messages import check_outputs, check_plot, explained, write_text

if TYPE_CHECKING:
    from .analysis import Analysis

COLUMNS = """\
columns of the table:
  bits/value     bits that a value takes, codec metadata included
  savings        share of the bytes of a gather that is saved; gathers read
                 payloads, each of its own length
  compressed     share of rows that get smaller at all
  escapes        share of values that have no short code (codec dict)
  compact store  share of memory that a store saves: slots of one length,
                 overflow rows and all metadata
  slot           length of a slot in a compact store
  overflow       share of rows that are too long for a slot
  bound          entropy of the values' parts: about what any codec needs

The table is of the rows looked at. The line "store file" is of all rows."""


def add_to(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "analyze",
        help="is it worth compressing the features in a file?",
        description="Reads an array [rows, columns, ...]; says what each codec makes of it,\nand if that pays "
        "in bytes. Seconds, hit rates: `ibp-gnn plan`.",
        epilog=COLUMNS,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("file", type=Path, metavar="FILE", help=".npy, .npz, .pt or .safetensors")
    parser.add_argument("--key", metavar="NAME", help="which array, if the file holds several")
    parser.add_argument(
        "--sample", type=_sample, metavar="N", help="rows to look at, or 'all' (default: as many as fitting looks at)"
    )
    parser.add_argument("--seed", type=seed, default=0, metavar="N", help="which rows to sample (default: 0)")
    parser.add_argument("--json", type=Path, metavar="OUT", help="write all figures there, those of each column too")
    parser.add_argument("--plot", type=Path, metavar="OUT.png", help="write charts there (needs matplotlib)")
    parser.set_defaults(run=_run_analyze)


def seed(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"want a number from 0 on, got {text!r}")
    return int(text)


def _sample(text: str) -> int | str:
    if text == "all":
        return text
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"want a number of rows or 'all', got {text!r}")
    return int(text)


def _run_analyze(arguments: argparse.Namespace) -> None:
    # What would fail after the work fails before it.
    check_outputs(json=arguments.json, plot=arguments.plot)
    check_plot(arguments.plot)
    from ..datasets.array_files import load_rows
    from .analysis import analyze

    with explained("reading features", arguments.file):
        rows = load_rows(arguments.file, arguments.key)
        max_rows = len(rows) if arguments.sample == "all" else arguments.sample
        analysis = analyze(rows, max_rows=max_rows, seed=arguments.seed)
    print(describe(analysis))
    if arguments.json is not None:
        record = {"file": arguments.file.name, "key": arguments.key, **analysis.to_dict()}
        write_text("json", arguments.json, json.dumps(record, indent=1) + "\n")
    if arguments.plot is not None:
        from .plots import plot_analysis

        with explained("writing --plot", arguments.plot):
            plot_analysis(analysis, arguments.plot, arguments.file.name)


def describe(analysis: Analysis) -> str:
    """The analysis as text: a table of the codecs, the bound, and the verdict."""
    shape = ", ".join(str(size) for size in (analysis.total_rows, *analysis.row_shape))
    dtype = str(analysis.dtype).removeprefix("torch.")
    bound, parts = analysis.bound, analysis.bound.to_dict(columns=False)
    takes = "not worth it, no codec makes a store smaller" if analysis.enlarges else analysis.recommendation
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
        f"store file of all {analysis.total_rows} rows: about {analysis.file_bytes} bytes, savings "
        f"{analysis.file_savings:.1%}: metadata is there once, not in the sample's share; a header, checksums and "
        "sections of whole 4096 bytes come on top",
        f"auto takes: {takes}",
    ]
    if analysis.narrower_dtype is not None:
        name = str(analysis.narrower_dtype).removeprefix("torch.")
        lines.append(
            f"All values looked at fit in {name} as they are: rows of {name} take "
            f"{analysis.narrower_dtype.itemsize / analysis.dtype.itemsize:.0%} of the bytes before any codec."
        )
    lines += _lossy_lines(analysis)
    return "\n".join([*lines, analysis.verdict, "Of bytes alone. Hit rates and seconds an epoch: ibp-gnn plan."])


def _lossy_lines(analysis: Analysis) -> list[str]:
    if not analysis.precisions:
        return []
    head = f"{'LOSSY':<8} {'bits/value':>10} {'compact store':>14} {'max error':>10} {'mean error':>11} {'relative':>9}"
    lines = ["", "with store.precision, which auto never takes:", head]
    for report in analysis.precisions:
        lost = f", {report.not_finite} values not finite any more" if report.not_finite else ""
        lines.append(
            f"{report.precision:<8} {report.bits_per_value:>10.2f} {report.compact_savings:>14.1%} "
            f"{report.max_error:>10.2g} {report.mean_error:>11.2g} {report.relative_error:>9.2%}{lost}"
        )
    return [*lines, ""]

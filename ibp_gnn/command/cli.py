"""The command `ibp-gnn`. Each subcommand is a function that adds its parser and one that runs it.

What needs torch is imported by the function that runs, so that `ibp-gnn doctor` works without torch.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import Any

from ..concurrency.exit_status import exit_status
from . import analyze_command, doctor, store_commands
from .command_error import CommandError
from .messages import os_error_text
from .plan import plan_command


def main(arguments: Sequence[str] | None = None) -> int:
    """arguments: None means those of the process. Returns the exit status: 0, or 1 after an error, which is one line on
    stderr; 130 after Ctrl-C; `doctor` has its own. As usual with argparse, wrong usage raises SystemExit(2)."""
    return exit_status(lambda: _run(arguments), _say)


def _run(arguments: Sequence[str] | None) -> int | None:
    parsed = make_parser().parse_args(arguments)
    try:
        return parsed.run(parsed)
    except BrokenPipeError:
        raise
    except (CommandError, ImportError) as error:
        _say(f"error: {error}")
    except OSError as error:
        _say(f"error: {os_error_text(error, parsed.command)}")
    return 1


def make_parser() -> argparse.ArgumentParser:
    from .. import __version__

    parser = argparse.ArgumentParser(prog="ibp-gnn", description="Losslessly compressed GNN features.")
    parser.add_argument("--version", action="version", version=f"ibp-gnn {__version__}")
    subparsers = parser.add_subparsers(title="commands", metavar="COMMAND", required=True, dest="command")
    analyze_command.add_to(subparsers)
    plan_command.add_to(subparsers)
    store_commands.add_to(subparsers)
    _add_doctor(subparsers)
    return parser


def _say(line: str) -> None:
    print(f"ibp-gnn: {line}", file=sys.stderr)


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


if __name__ == "__main__":
    sys.exit(main())

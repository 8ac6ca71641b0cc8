"""What the scripts that train and infer have in common: their arguments, their errors, their last line."""

from __future__ import annotations

import argparse
import json
import logging
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from ..config import ConfigError, load
from . import record
from .distributed import is_first_process, leave

Config = TypeVar("Config")


def run_script(
    script: str,
    description: str,
    example: str,
    config_type: type[Config],
    run: Callable[..., dict[str, Any]],
    summarize: Callable[[Config, dict[str, Any]], dict[str, Any]],
) -> int:
    """script: its `__file__`. example: settings to show in --help. run(config, commit=...) returns the record, of which
    `summarize` picks what is printed as one line of JSON. Returns the exit status: 0, or 2 with the error on stderr;
    2 with the help on stderr without arguments, which would be a long run that nobody asked for."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--config", metavar="FILE", help="YAML settings; without it: the defaults")
    parser.add_argument(
        "--set",
        metavar="a.b=c",
        nargs="+",
        action="extend",
        default=[],
        dest="overrides",
        help=f"settings that win over the file's, e.g. {example}",
    )
    parser.add_argument("--json", metavar="OUT", help="write the record there; short for --set log.json=OUT")
    if len(sys.argv) == 1:
        parser.print_help(sys.stderr)
        return 2
    arguments = parser.parse_args()
    if arguments.json is not None:
        arguments.overrides.append(f"log.json={json.dumps(arguments.json)}")
    # Advice about packages that DGL chose, and about a tuning of DGL's that nobody here can act on.
    warnings.filterwarnings("ignore", message=r"\s*#+\s*WARNING!\s*The 'datapipes'")
    warnings.filterwarnings("ignore", message="Dataloader CPU affinity opt is not enabled")
    _show_log()
    try:
        config = load(config_type, arguments.config, arguments.overrides)
        result = run(config, commit=record.git_commit(Path(script).resolve().parent))
    except (ConfigError, ImportError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    finally:
        leave()  # also where it failed
    if is_first_process():
        print(json.dumps(summarize(config, result)))
    return 0


def _show_log() -> None:
    """What the library logs goes to stdout, a line each, before the JSON."""
    logger = logging.getLogger("ibp_gnn")
    handler = logging.StreamHandler(sys.stdout)
    handler.setFormatter(logging.Formatter("%(message)s"))
    logger.handlers[:] = [handler]  # once, however often a process runs scripts
    logger.setLevel(logging.INFO)

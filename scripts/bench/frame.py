"""What the command of every benchmark does: read its config, measure, write JSON, print tables, draw."""

from __future__ import annotations

import argparse
import dataclasses
import functools
import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from ibp_gnn import config as config_module
from ibp_gnn.command.plots import require_matplotlib
from ibp_gnn.concurrency.exit_status import exit_status
from ibp_gnn.training import record as record_module

Record = dict[str, Any]
_NUMBERS = re.compile(r"\[\n[^][{}\"]*\]")  # a list of numbers, as json.dumps indents it


class CannotRun(Exception):
    """This machine cannot run the benchmark; the message says what is missing."""


@dataclasses.dataclass(frozen=True)
class Benchmark:
    """config: the dataclass with the settings. prepare: before all else; returns the device that is measured, or raises
    CannotRun. measure: takes the config, the record and a call that writes the record so far; puts the results in the
    record. report: a module, whose text(record) has the tables, and draw(record) is a figure of matplotlib."""

    name: str
    description: str
    config: type
    prepare: Callable[[Any], torch.device]
    measure: Callable[[Any, Record, Callable[[], None]], None]
    report: Any


def main(benchmark: Benchmark, arguments: list[str] | None = None) -> None:
    """Raises ConfigError for settings and files that cannot be used, ImportError where a picture needs matplotlib."""
    parser = argparse.ArgumentParser(
        description=benchmark.description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    where = benchmark.config.__module__.replace(".", "/")
    parser.add_argument("--config", type=Path, help=f"YAML file; its settings: class Config in {where}.py")
    parser.add_argument("--set", dest="overrides", nargs="*", default=[], metavar="KEY=VALUE", help="override settings")
    parser.add_argument("--json", type=Path, help="where to write the results, after every part of them")
    parser.add_argument("--plot", type=Path, help="where to draw them (needs matplotlib)")
    parser.add_argument("--from-json", type=Path, help="show and draw results that --json wrote; nothing is measured")
    parsed = parser.parse_args(arguments)
    if parsed.plot:
        require_matplotlib()  # before the work, not after it
    if parsed.from_json:
        if parsed.config or parsed.overrides or parsed.json:
            parser.error("--from-json measures nothing: want no --config, --set and --json beside it")
        record = read(parsed.from_json, benchmark.name)
    else:
        config: Any = config_module.load(benchmark.config, parsed.config, parsed.overrides)
        path = record_module.prepare(parsed.json, "--json") if parsed.json else None
        try:
            device = benchmark.prepare(config)
        except CannotRun as error:
            parser.error(str(error))
        record = head(benchmark.name, config, device)
        benchmark.measure(config, record, functools.partial(write, path, record))
    print(benchmark.report.text(record), flush=True)
    if parsed.plot:
        benchmark.report.draw(record).savefig(parsed.plot)


def run_as_script(script: Callable[[], None]) -> None:
    """script: `main` of a benchmark. Ends the process: errors of settings, files and packages are one line, and so is
    Ctrl-C."""

    def run() -> int:
        try:
            script()
        except (config_module.ConfigError, ImportError) as error:
            print(f"error: {error}", file=sys.stderr)
            return 2
        return 0

    sys.exit(exit_status(run, lambda line: print(line, file=sys.stderr)))


def head(name: str, config: Any, device: torch.device) -> Record:
    """What a record says of how its results were measured."""
    return {
        "benchmark": name,
        "config": config_module.to_dict(config),
        "hardware": record_module.hardware(device),
        "versions": record_module.versions(),
        "commit": record_module.git_commit(Path(__file__).parent),
    }


def read(path: Path, name: str) -> Record:
    """Raises ConfigError if the file does not have a record of this benchmark."""
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise config_module.ConfigError(f"--from-json: cannot read {path}: {error}") from error
    got = record.get("benchmark") if isinstance(record, dict) else None
    if got != name:
        raise config_module.ConfigError(f"--from-json: want results of the benchmark {name!r}, got {got!r} in {path}")
    return record


def write(path: Path | None, record: Record) -> None:
    """Indented, but with every list of numbers on one line. A reader never sees half of the file. None: nowhere."""
    if path is None:
        return
    text = _NUMBERS.sub(lambda match: " ".join(match[0].split()), json.dumps(record, indent=1))
    record_module.make_folder(path)
    partial = path.with_name(path.name + ".partial")
    partial.write_text(text + "\n", encoding="utf-8")
    partial.replace(path)

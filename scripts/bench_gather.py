#!/usr/bin/env python
"""Gathers rows by id to the GPU: compressed and uncompressed, from page-locked CPU memory and from GPU memory.

Methods fetch random ids of the same rows, in the same process, in turns, new ids each time, so that no method finds in
a cache what another has just read; the bits of the result are checked before anything is timed. Times are medians of
CUDA events, launches being queued beforehand; GB/s counts uncompressed bytes that arrive. Also: how long a call keeps
the host.

python scripts/bench_gather.py --config configs/bench_gather.yaml --json out.json --plot out.png
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import torch
from bench_gather_parts.cases import run
from bench_gather_parts.config import Config
from bench_gather_parts.plot import plot
from bench_gather_parts.tables import summary_lines, table
from bench_gather_parts.wholegraph import WholeGraph, version

from ibp_gnn import _native
from ibp_gnn import config as config_module
from ibp_gnn.command.plots import require_matplotlib
from ibp_gnn.config import to_dict
from ibp_gnn.training import record as record_module


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", type=Path, help="YAML file; its settings: bench_gather_parts/config.py")
    parser.add_argument("--set", dest="overrides", nargs="*", default=[], metavar="KEY=VALUE", help="override settings")
    parser.add_argument("--json", type=Path, help="where to write the results, after every case")
    parser.add_argument("--plot", type=Path, help="where to draw them")
    parsed = parser.parse_args(arguments)
    config = config_module.load(Config, parsed.config, parsed.overrides)
    if not torch.cuda.is_available():
        parser.error("this benchmark needs a CUDA device")
    _native.cuda()  # before the work, not after it
    if parsed.plot:
        require_matplotlib()
    path = record_module.prepare(parsed.json, "--json") if parsed.json else None
    record: dict[str, Any] = {
        "benchmark": "gather",
        "config": to_dict(config),
        "hardware": record_module.hardware(torch.device("cuda")),
        "versions": record_module.versions() | {"pylibwholegraph": version()},
        "commit": record_module.git_commit(Path(__file__).parent),
        "cases": [],
    }
    wholegraph = WholeGraph()
    try:
        for case in config.cases:
            record["cases"].append(run(case, config, wholegraph))
            print(f"{case.name}: {record['cases'][-1]['seconds']:.1f} s")
            if path is not None:
                record_module.write(path, record)
    finally:
        wholegraph.close()
    print(table(record), "\n".join(summary_lines(record)), sep="\n\n")
    if parsed.plot:
        plot(record, parsed.plot)


if __name__ == "__main__":
    main()

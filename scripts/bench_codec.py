#!/usr/bin/env python
"""Sizes and speed of the codecs, on real and on synthetic features, beside raw copies and other compressors.

sizes: bits per value, every byte of metadata counted, of the best `ibp` there is, of `dict` and of `auto`, against the
entropy bound; and what a compact store takes. cpu: fit, compress, decode by random ids, against torch.index_select.
gpu, where there is one: decode from GPU memory by random ids, and from page-locked CPU memory by ordered ids, against
copying the same raw rows. peers: zstd, Blosc2 and nvCOMP, where they are installed.

The config says which of these to measure, and on which data. bench_gather.py measures gathers in more depth.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

# Before torch is loaded: else its threads go on spinning after torch.index_select, on the cores of what is timed next.
os.environ["OMP_WAIT_POLICY"] = os.environ.get("OMP_WAIT_POLICY", "passive")

import torch
from bench_codec_parts.config import Config
from bench_codec_parts.cpu import measure_cpu
from bench_codec_parts.data import make_rows
from bench_codec_parts.gpu import measure_gpu
from bench_codec_parts.peers import measure_peers, missing_peers
from bench_codec_parts.plot import plot
from bench_codec_parts.sizes import measure_sizes
from bench_codec_parts.tables import tables
from tqdm import tqdm

from ibp_gnn.codec.values import dtype_from_name
from ibp_gnn.command.plots import require_matplotlib
from ibp_gnn.config import load, to_dict
from ibp_gnn.training import record as record_module
from ibp_gnn.training.record import git_commit, hardware, versions

Measure = Callable[[str, torch.Tensor], list[dict[str, Any]]]


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", type=Path, help="YAML file; its settings are in bench_codec_parts/config.py")
    parser.add_argument("--set", dest="overrides", nargs="*", default=[], metavar="KEY=VALUE", help="override settings")
    parser.add_argument("--json", type=Path, help="where to write the results, after every data set")
    parser.add_argument("--plot", type=Path, help="where to write a picture of the results (needs matplotlib)")
    parsed = parser.parse_args(arguments)
    config = load(Config, parsed.config, parsed.overrides)
    if parsed.plot:
        require_matplotlib()  # before hours are spent
    head = {
        "benchmark": "codec",
        "config": to_dict(config),
        "hardware": hardware(torch.device("cuda" if torch.cuda.is_available() else "cpu")),
        "versions": versions(),
        "commit": git_commit(Path(__file__).parent),
    }
    load_before = os.getloadavg()

    def save(results: dict[str, Any]) -> None:
        record = {**head, "load_average": {"before": load_before, "after": os.getloadavg()}, **results}
        if parsed.json:
            record_module.write(parsed.json, record)

    results = run(config, save)
    if parsed.plot:
        plot(results, parsed.plot)
    print(tables(results))


def run(config: Config, save: Callable[[dict[str, Any]], None]) -> dict[str, Any]:
    """Results by section, and what was left out and why; handed to `save` after every data set, too."""
    sections: dict[str, tuple[list[tuple[str, str]], Measure]] = {
        "sizes": (config.sizes.data.cases(), lambda name, rows: [measure_sizes(name, rows, config.sizes)]),
        "cpu": (config.cpu.data.cases(), lambda name, rows: measure_cpu(name, rows, config.cpu, config.seed)),
        "gpu": (config.gpu.data.cases(), lambda name, rows: measure_gpu(name, rows, config.gpu, config.seed)),
        "peers": (config.peers.data.cases(), lambda name, rows: measure_peers(name, rows, config.peers, config.seed)),
    }
    skipped: dict[str, str] = missing_peers() if config.peers.data.cases() else {}
    if config.gpu.data.cases() and not torch.cuda.is_available():
        skipped["gpu"] = "want a CUDA device, got none"
        del sections["gpu"]
    results: dict[str, list[dict[str, Any]]] = {name: [] for name in ("sizes", "cpu", "gpu", "peers")}
    names = dict.fromkeys(name for cases, _ in sections.values() for name, _ in cases)
    for name in (bar := tqdm(names, leave=False)):
        bar.set_description(name)
        try:
            rows = make_rows(name, config)
        except ImportError as error:
            if name not in config.optional:
                raise
            skipped[name] = str(error)
            continue
        for section, (cases, measure) in sections.items():
            for dtype in [dtype for data, dtype in cases if data == name]:
                bar.set_description(f"{name} {dtype} {section}")
                results[section] += measure(name, rows.to(dtype_from_name(dtype)))
        save({**results, "skipped": skipped})
    for what, reason in skipped.items():
        tqdm.write(f"left out: {what}: {reason}")
    save({**results, "skipped": skipped})
    return {**results, "skipped": skipped}


if __name__ == "__main__":
    main()

#!/usr/bin/env python
"""Sizes and speed of the codecs, on real and on synthetic features, beside raw copies and other compressors.

sizes: bits per value, every byte of metadata counted, of the best `ibp` there is, of `dict` and of `auto`, against the
entropy bound; and what a compact store takes. cpu: fit, compress, decode by random ids, against torch.index_select.
gpu, where there is one: decode from GPU memory by random ids, and from page-locked CPU memory by ordered ids, against
copying the same raw rows. sweep, where there is a GPU: many widths there, small batches, all rows in order, and whole
matrices. peers: zstd, Blosc2 and nvCOMP, where they are installed.

The config says which of these to measure, and on which data; all of it takes about ten minutes. bench_gather.py
measures gathers in more depth.

python scripts/bench_codec.py --config configs/bench_codec.yaml --json out.json --plot out.png
python scripts/bench_codec.py --from-json scripts/results/codec_gpu.json --plot out.png
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable
from typing import Any

# Before torch is loaded: else its threads go on spinning after torch.index_select, on the cores of what is timed next.
os.environ["OMP_WAIT_POLICY"] = os.environ.get("OMP_WAIT_POLICY", "passive")

import torch
from bench import codec_report, frame
from bench.codec_cpu import Cpu, measure_cpu
from bench.codec_gpu import Gpu, measure_gpu
from bench.codec_layouts import Layouts, measure_layouts
from bench.codec_peers import Peers, measure_peers, missing_peers
from bench.codec_sizes import Sizes, measure_sizes
from bench.codec_sweep import Sweep, measure_matrices, measure_sweep
from bench.rows import RowsConfig, make_rows
from tqdm import tqdm

from ibp_gnn.codec.values import dtype_from_name

Measure = Callable[[str, torch.Tensor], list[dict[str, Any]]]


@dataclasses.dataclass(frozen=True)
class Config(RowsConfig):
    """A section without data is left out. optional: data to leave out, with a message, if the package that has it is
    missing."""

    sizes: Sizes = dataclasses.field(default_factory=Sizes)
    cpu: Cpu = dataclasses.field(default_factory=Cpu)
    gpu: Gpu = dataclasses.field(default_factory=Gpu)
    sweep: Sweep = dataclasses.field(default_factory=Sweep)
    layouts: Layouts = dataclasses.field(default_factory=Layouts)
    peers: Peers = dataclasses.field(default_factory=Peers)
    optional: tuple[str, ...] = ()


def main(arguments: list[str] | None = None) -> None:
    frame.main(frame.Benchmark("codec", __doc__ or "", Config, prepare, measure, codec_report), arguments)


def prepare(config: Config) -> torch.device:
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def measure(config: Config, record: frame.Record, save: Callable[[], None]) -> None:
    """Results by section, and what was left out and why; saved after every data set."""
    load_before = os.getloadavg()
    sections: dict[str, tuple[list[tuple[str, str]], Measure]] = {
        "sizes": (config.sizes.data.cases(), lambda name, rows: [measure_sizes(name, rows, config.sizes)]),
        "cpu": (config.cpu.data.cases(), lambda name, rows: measure_cpu(name, rows, config.cpu, config.seed)),
        "gpu": (config.gpu.data.cases(), lambda name, rows: measure_gpu(name, rows, config.gpu, config.seed)),
        "layouts": (
            config.layouts.data.cases(),
            lambda name, rows: measure_layouts(name, rows, config.layouts, config.seed),
        ),
        "peers": (config.peers.data.cases(), lambda name, rows: measure_peers(name, rows, config.peers, config.seed)),
    }
    skipped: dict[str, str] = missing_peers() if config.peers.data.cases() else {}
    record |= {"load_average": {}, **{section: [] for section in sections}, "sweep": [], "matrices": []}
    record["skipped"] = skipped
    for section, is_wanted in (
        ("gpu", config.gpu.data.cases()),
        ("sweep", config.sweep.cases() or config.sweep.matrices),
    ):
        if is_wanted and not torch.cuda.is_available():
            skipped[section] = "want a CUDA device, got none"
    if "gpu" in skipped:
        del sections["gpu"]
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
        for section, (cases, measure_section) in sections.items():
            for dtype in [dtype for data, dtype in cases if data == name]:
                bar.set_description(f"{name} {dtype} {section}")
                record[section] += measure_section(name, rows.to(dtype_from_name(dtype)))
        record["load_average"] = {"before": load_before, "after": os.getloadavg()}
        save()
    if "sweep" not in skipped:
        for result in measure_sweep(config.sweep, config.seed):
            record["sweep"].append(result)
            save()
        record["matrices"] += measure_matrices(config.sweep, config.seed)
    for what, reason in skipped.items():
        tqdm.write(f"left out: {what}: {reason}")
    record["load_average"] = {"before": load_before, "after": os.getloadavg()}
    save()


if __name__ == "__main__":
    frame.run_as_script(main)

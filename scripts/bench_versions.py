#!/usr/bin/env python
"""Gathers of two versions of this project against each other: did a change make anything slower?

Each version runs in a process of its own, in turns, several times, on the same rows and ids; bits are checked before
anything is timed. A time is the median of CUDA events behind each other; the ratio is that of the versions' best turns,
since what disturbs a turn only ever makes it slower. Also: how long a call keeps the host.

The extensions are built in place in both trees. python scripts/bench_versions.py --before OLD_TREE --json out.json
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch

# dtype, width, share of zeros, layout
CASES = [
    ("float32", 64, 0, "compact"),
    ("float32", 128, 0, "compact"),
    ("float32", 128, 0, "inplace"),
    ("float32", 256, 0, "compact"),
    ("float32", 768, 0, "compact"),
    ("float32", 1024, 0, "compact"),
    ("float32", 128, 0.5, "compact"),
    ("bfloat16", 128, 0, "compact"),
    ("bfloat16", 768, 0, "compact"),
    ("float16", 768, 0, "compact"),
    ("int32", 64, 0, "compact"),  # the general kernel
]
_HIT_IDS, _MISS_IDS, _HOST_IDS, _HOST_CALLS = 200_000, 100_000, 1000, 400
_LAUNCHES = 20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--before", type=Path, help="the source tree to compare with")
    parser.add_argument("--after", type=Path, default=Path("."), help="the source tree to judge (default: this folder)")
    parser.add_argument("--turns", type=int, default=3, help="of each version (default: 3)")
    parser.add_argument("--json", type=Path, help="where to write the results")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        print(json.dumps(measure()))
        return
    if arguments.before is None:
        parser.error("--before: want a source tree, got none")
    turns: dict[str, list[dict[str, float]]] = {"before": [], "after": []}
    for turn in range(arguments.turns):
        for name in ("before", "after") if turn % 2 == 0 else ("after", "before"):
            turns[name].append(run_version(getattr(arguments, name)))
    record: dict[str, Any] = {"benchmark": "versions", "gpu": torch.cuda.get_device_name(), "unit": "microseconds"}
    record |= {name: commit_of(getattr(arguments, name)) for name in turns}
    record |= {"ratio": {}, "turns": turns}
    print(f"{'case':40} {'before':>10} {'after':>10}  after / before")
    for case in turns["before"][0]:
        best = {name: min(turn[case] for turn in turns[name]) for name in turns}
        record["ratio"][case] = best["after"] / best["before"]
        print(f"{case:40} {best['before']:10.1f} {best['after']:10.1f}  {record['ratio'][case]:.3f}")
    if arguments.json:
        arguments.json.write_text(json.dumps(record, indent=1) + "\n")


def commit_of(tree: Path) -> str:
    """ "unknown" where the tree is no git checkout."""
    run = subprocess.run(["git", "-C", str(tree), "rev-parse", "--short", "HEAD"], capture_output=True, text=True)
    return run.stdout.strip() or "unknown"


def run_version(tree: Path) -> dict[str, float]:
    """Microseconds by case."""
    command = [sys.executable, os.path.abspath(__file__), "--child"]
    environment = {**os.environ, "PYTHONPATH": f"{tree.absolute()}:{os.environ.get('PYTHONPATH', '')}"}
    run = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    times: dict[str, float] = json.loads(run.stdout.splitlines()[-1])
    return times


def measure() -> dict[str, float]:
    """All cases with the ibp_gnn that is imported."""
    from bench.timing import check_rows, host_us

    from ibp_gnn import CompressedFeatureStore, CompressedGPUCache

    times: dict[str, float] = {}
    for dtype_name, width, zeros, layout in CASES:
        dtype = getattr(torch, dtype_name)
        num_rows = (1 << 29) // (width * dtype.itemsize)
        generator = torch.Generator(device="cuda").manual_seed(width)
        rows = torch.randn(num_rows, width, device="cuda", generator=generator) * 0.1
        rows[rows < rows.flatten()[:100_000].quantile(zeros)] = 0
        rows = (rows * 1000).to(dtype).cpu() if dtype_name == "int32" else rows.to(dtype).cpu()
        name = f"{dtype_name} {width}{' zeros' if zeros else ''} {layout}"
        with CompressedFeatureStore.build(rows, "dict", layout=layout, progress=False) as store:
            for kind, num_ids in (("hits", _HIT_IDS), ("misses", _MISS_IDS)):
                source = CompressedGPUCache(store, f"{num_rows} rows") if kind == "hits" else store
                ids = [
                    torch.randint(0, num_rows, (num_ids,), device="cuda", generator=generator) for _ in range(_LAUNCHES)
                ]
                out = torch.empty(num_ids, width, dtype=dtype, device="cuda")
                check_rows(f"{kind} {name}", functools.partial(gather, source, ids[0]), out, rows[ids[0].cpu()])
                source.check()
                times[f"{kind} {name}"] = median_of_launches(source, ids, out)
                if width == 128 and not zeros:
                    few, small = ids[0][:_HOST_IDS], out[:_HOST_IDS]
                    host = host_us({kind: functools.partial(source.gather, few, out=small)}, _HOST_CALLS)
                    times[f"host time of a call, {kind} {name}"] = host[kind]
                del source
    return times


def gather(source: Any, ids: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
    return source.gather(ids, out=out)


def median_of_launches(source: Any, ids: list[torch.Tensor], out: torch.Tensor) -> float:
    events = [torch.cuda.Event(enable_timing=True) for _ in range(len(ids) + 1)]
    torch.cuda._sleep(20_000_000)  # so that all launches are queued before the first one runs
    events[0].record()
    for one, event in zip(ids, events[1:], strict=True):
        source.gather(one, out=out)
        event.record()
    torch.cuda.synchronize()
    return statistics.median(1000 * a.elapsed_time(b) for a, b in zip(events, events[1:], strict=False))


if __name__ == "__main__":
    main()

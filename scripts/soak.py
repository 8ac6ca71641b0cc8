#!/usr/bin/env python
"""A long random mix of all that can be done to a store, compared with a plain tensor, bit for bit.

Each round makes a store at random. Threads gather from it, on the CPU and on side streams of a GPU, while one thread
updates it. Meanwhile it is saved, loaded, copied, forked, sent to a spawned process, cached on a GPU, and closed or
dropped under running kernels. Some allocations fail, and some processes have little memory. Every row that comes back
must be that of one version of the tensor that was current during the call. After each round, memory, page-locks, GPU
memory, open files and shared mappings must not have grown.

The first difference, growth, error or hang ends it with status 1, and says how to run the same round again. Threads
take turns as the system lets them, so that a round may have to be run again several times.

python scripts/soak.py --minutes 30 --processes 4 --json out.json
python scripts/soak.py --seed 123 --round 45
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import random
import subprocess
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

os.environ["OMP_WAIT_POLICY"] = os.environ.get("OMP_WAIT_POLICY", "passive")

import torch
from soaks import failures
from soaks.ceilings import Ceilings, give_memory_back
from soaks.readers import SpawnedReader
from soaks.rounds import Round
from tqdm import tqdm

from ibp_gnn.concurrency.exit_status import exit_status


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=1.0, help="how long (default: 1)")
    parser.add_argument("--seed", type=int, help="of all rounds (default: a new one, which is printed)")
    parser.add_argument("--round", type=int, help="run this round alone")
    parser.add_argument("--threads", type=int, default=3, help="that gather, beside the one that updates (default: 3)")
    parser.add_argument("--processes", type=int, default=1, help="so many at once, with seeds one after the other")
    parser.add_argument("--device", choices=["cpu", "cuda"], help="default: cuda where there is a GPU")
    parser.add_argument("--json", type=Path, help="where to write what was done")
    parsed = parser.parse_args(arguments)
    for name in ("threads", "processes"):
        if getattr(parsed, name) < 1:
            parser.error(f"--{name}: want at least 1, got {getattr(parsed, name)}")
    if parsed.device == "cuda" and not torch.cuda.is_available():
        parser.error("--device cuda: want a GPU that torch can use, got none")
    if parsed.seed is None:
        parsed.seed = random.SystemRandom().randrange(1 << 32)
    parsed.device = parsed.device or ("cuda" if torch.cuda.is_available() else "cpu")
    record = _run_processes(parsed) if parsed.processes > 1 else _run(parsed)
    text = json.dumps(record, indent=2)
    print(text)
    if parsed.json:
        parsed.json.write_text(text + "\n")
    return 1 if record["failures"] else 0


def _run(parsed: argparse.Namespace) -> dict[str, Any]:
    print(f"seed {parsed.seed}", flush=True)
    warnings.filterwarnings("ignore")
    failures.install()
    give_memory_back()
    torch.set_num_threads(2)
    counts: Counter[str] = Counter()
    # CUDA loads kernels when they are first needed.
    ceilings = Ceilings(most_rss=(256 if parsed.device == "cuda" else 64) << 20)
    values, rounds, failed = 0, 0, []
    begin = time.monotonic()
    bar = tqdm(total=round(parsed.minutes * 60), unit="s", disable=None)
    spawned = SpawnedReader()
    index = parsed.round or 0
    while not failed and (rounds == 0 or (parsed.round is None and time.monotonic() - begin < parsed.minutes * 60)):
        one = Round(parsed.seed, index, parsed.threads, parsed.device, spawned)
        try:
            one.run()
            counts += one.counts
            values += one.values
            del one
            ceilings.check()
        except Exception:
            traceback.print_exc()
            again = f"python scripts/soak.py --seed {parsed.seed} --round {index} --threads {parsed.threads}"
            failed.append(f"{traceback.format_exc().splitlines()[-1]}: again with {again} --device {parsed.device}")
            print(failed[-1], file=sys.stderr, flush=True)
        rounds, index = rounds + 1, index + 1
        bar.update(min(bar.total, int(time.monotonic() - begin)) - bar.n)
        bar.set_postfix(rounds=rounds, values=f"{values:.3g}")
    bar.close()
    if not failed:
        spawned.close()
    gpu = torch.cuda.get_device_name() if parsed.device == "cuda" else None
    return {
        "seed": parsed.seed,
        "device": parsed.device,
        "gpu": gpu,
        "threads": parsed.threads,
        "seconds": round(time.monotonic() - begin, 1),
        "rounds": rounds,
        "values_compared": values,
        "counts": dict(sorted(counts.items())),
        "held_first": ceilings.first,
        "held_most": ceilings.most,
        "failures": failed,
    }


def _run_processes(parsed: argparse.Namespace) -> dict[str, Any]:
    """Each process is one of these scripts."""
    with tempfile.TemporaryDirectory() as folder:
        started = []
        for n in range(parsed.processes):
            options = ["--minutes", parsed.minutes, "--seed", parsed.seed + n, "--threads", parsed.threads]
            options += ["--device", parsed.device, "--json", Path(folder) / f"{n}.json"]
            command = [sys.executable, __file__, *map(str, options)]
            started.append(subprocess.Popen(command, stdout=subprocess.DEVNULL))
        print(f"seeds {parsed.seed} to {parsed.seed + parsed.processes - 1}", flush=True)
        records, ended = [], [process.wait() for process in started]
        for n, status in enumerate(ended):
            path = Path(folder) / f"{n}.json"
            if path.exists():
                records.append(json.loads(path.read_text()))
            else:
                records.append({"failures": [f"the process of seed {parsed.seed + n} ended with {status}"]})
    return {
        "rounds": sum(record.get("rounds", 0) for record in records),
        "values_compared": sum(record.get("values_compared", 0) for record in records),
        "failures": [failure for record in records for failure in record["failures"]],
        "processes": records,
    }


if __name__ == "__main__":
    logging.basicConfig(level=logging.WARNING)
    sys.exit(exit_status(main, lambda line: print(line, file=sys.stderr)))

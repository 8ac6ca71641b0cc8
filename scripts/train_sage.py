#!/usr/bin/env python3
"""Train GraphSAGE on mini-batches, its features read from a compressed store (or raw, to compare).

python scripts/train_sage.py --config configs/wordnet_sage.yaml --set features=raw log.json=runs/raw.json

The last line of standard output is one JSON object with the results.
"""

from __future__ import annotations

import os
import sys

# Before torch is loaded. By default OpenMP's threads spin while they wait for each other, which stalls all of them
# where other processes (sampling workers, a second run) want the same cores: two runs at once on 2 cores took 18 s an
# epoch like this, and had not finished one after 100 s without. A run that is alone does not notice.
os.environ["OMP_WAIT_POLICY"] = os.environ.get("OMP_WAIT_POLICY", "passive")

from ibp_gnn.concurrency.exit_status import exit_status

SUMMARY = (
    "dataset",
    "synthetic",
    "test_accuracy",
    "val_accuracy",
    "savings",
    "store_bytes",
    "raw_bytes",
    "device",
    "aggregation",
    "seconds",
)


def main() -> int:
    return exit_status(_run, lambda line: print(line, file=sys.stderr))


def _run() -> int:
    # Here, since torch takes seconds, in which Ctrl-C may come.
    from ibp_gnn.training.config import TrainingConfig
    from ibp_gnn.training.loop import run
    from ibp_gnn.training.script import run_script

    return run_script(
        __file__,
        "Train GraphSAGE through a compressed feature store.",
        "features=raw train.epochs=2",
        TrainingConfig,
        run,
        lambda config, result: {
            "features": config.features,
            "loop": config.loop,
            **{key: result[key] for key in SUMMARY},
        },
    )


if __name__ == "__main__":
    sys.exit(main())

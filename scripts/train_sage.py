#!/usr/bin/env python3
"""Train GraphSAGE on mini-batches, its features read from a compressed store (or raw, to compare).

python scripts/train_sage.py --config configs/wordnet_sage.yaml --set features=raw log.json=runs/raw.json

The last line of standard output is one JSON object with the results.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import warnings
from pathlib import Path

# Before torch is loaded. By default OpenMP's threads spin while they wait for each other, which stalls all of them
# where other processes (sampling workers, a second run) want the same cores: two runs at once on 2 cores took 18 s an
# epoch like this, and had not finished one after 100 s without. A run that is alone does not notice.
os.environ["OMP_WAIT_POLICY"] = os.environ.get("OMP_WAIT_POLICY", "passive")

from ibp_gnn.config import ConfigError, load
from ibp_gnn.training import record
from ibp_gnn.training.config import TrainingConfig
from ibp_gnn.training.loop import run

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
    parser = argparse.ArgumentParser(description="Train GraphSAGE through a compressed feature store.")
    parser.add_argument("--config", metavar="FILE", help="YAML settings; without it: the defaults")
    parser.add_argument(
        "--set",
        metavar="a.b=c",
        nargs="+",
        action="extend",
        default=[],
        dest="overrides",
        help="settings that win over the file's, e.g. features=raw train.epochs=2",
    )
    arguments = parser.parse_args()
    # Advice about packages that DGL chose, and about a tuning of DGL's that nobody here can act on.
    warnings.filterwarnings("ignore", message=r"\s*#+\s*WARNING!\s*The 'datapipes'")
    warnings.filterwarnings("ignore", message="Dataloader CPU affinity opt is not enabled")
    try:
        config = load(TrainingConfig, arguments.config, arguments.overrides)
        result = run(config, commit=record.git_commit(Path(__file__).resolve().parent))
    except (ConfigError, ImportError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(json.dumps({"features": config.features, "loop": config.loop, **{key: result[key] for key in SUMMARY}}))
    return 0


if __name__ == "__main__":
    sys.exit(main())

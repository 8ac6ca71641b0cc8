#!/usr/bin/env python3
"""Train GraphSAGE on mini-batches, its features read from a compressed store (or raw, to compare).

python scripts/train_sage.py --config configs/wordnet_sage.yaml --set features=raw log.json=runs/raw.json

The last line of standard output is one JSON object with the results.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from ibp_gnn.config import ConfigError, load
from ibp_gnn.training import record
from ibp_gnn.training.config import TrainingConfig
from ibp_gnn.training.loop import run

SUMMARY = (
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
    try:
        config = load(TrainingConfig, arguments.config, arguments.overrides)
        result = run(config, commit=record.git_commit(Path(__file__).resolve().parent))
    except ConfigError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(json.dumps({"features": config.features, **{key: result[key] for key in SUMMARY}}))
    return 0


if __name__ == "__main__":
    sys.exit(main())

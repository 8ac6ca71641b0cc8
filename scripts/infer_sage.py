#!/usr/bin/env python3
"""Infer the classes of all nodes with a GraphSAGE that train_sage.py has saved, layer by layer.

python scripts/train_sage.py --config configs/wordnet_sage.yaml --set log.checkpoint=runs/sage.pt
python scripts/infer_sage.py --config configs/wordnet_infer.yaml --set checkpoint=runs/sage.pt

The outputs of the layers are kept compressed; `embeddings: raw` keeps them as they are, and gives the same logits, bit
for bit. The last line of standard output is one JSON object with the results.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import warnings
from pathlib import Path

# Before torch is loaded; see train_sage.py.
os.environ["OMP_WAIT_POLICY"] = os.environ.get("OMP_WAIT_POLICY", "passive")

from ibp_gnn.config import ConfigError, load
from ibp_gnn.training import record
from ibp_gnn.training.inference import run
from ibp_gnn.training.inference_config import InferenceConfig

SUMMARY = (
    "dataset",
    "synthetic",
    "test_accuracy",
    "val_accuracy",
    "embedding_savings",
    "embedding_bytes",
    "raw_embedding_bytes",
    "bytes_held",
    "raw_bytes_held",
    "peak_rss_bytes",
    "logits_sha256",
    "device",
    "seconds",
)


def main() -> int:
    parser = argparse.ArgumentParser(description="Layer-wise GraphSAGE inference with compressed embeddings.")
    parser.add_argument("--config", metavar="FILE", help="YAML settings; without it: the defaults")
    parser.add_argument(
        "--set",
        metavar="a.b=c",
        nargs="+",
        action="extend",
        default=[],
        dest="overrides",
        help="settings that win over the file's, e.g. embeddings=raw batch_size=1024",
    )
    parser.add_argument("--json", metavar="OUT", help="write the record there; short for --set log.json=OUT")
    arguments = parser.parse_args()
    if arguments.json is not None:
        arguments.overrides.append(f"log.json={json.dumps(arguments.json)}")
    # Advice about packages that DGL chose, and about a tuning of DGL's that nobody here can act on.
    warnings.filterwarnings("ignore", message=r"\s*#+\s*WARNING!\s*The 'datapipes'")
    warnings.filterwarnings("ignore", message="Dataloader CPU affinity opt is not enabled")
    try:
        config = load(InferenceConfig, arguments.config, arguments.overrides)
        result = run(config, commit=record.git_commit(Path(__file__).resolve().parent))
    except (ConfigError, ImportError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(json.dumps({"embeddings": config.embeddings, **{key: result[key] for key in SUMMARY}}))
    return 0


if __name__ == "__main__":
    sys.exit(main())

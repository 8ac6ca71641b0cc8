#!/usr/bin/env python3
"""Infer the classes of all nodes with a GraphSAGE that train_sage.py has saved, layer by layer.

python scripts/train_sage.py --config configs/wordnet_sage.yaml --set log.checkpoint=runs/sage.pt
python scripts/infer_sage.py --config configs/wordnet_infer.yaml --set checkpoint=runs/sage.pt

The outputs of the layers are kept compressed; `embeddings: raw` keeps them as they are, and gives the same logits, bit
for bit. The last line of standard output is one JSON object with the results.
"""

from __future__ import annotations

import os
import sys

# Before torch is loaded; see train_sage.py.
os.environ["OMP_WAIT_POLICY"] = os.environ.get("OMP_WAIT_POLICY", "passive")

from ibp_gnn.concurrency.exit_status import exit_status

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
    return exit_status(_run, lambda line: print(line, file=sys.stderr))


def _run() -> int:
    # Here, since torch takes seconds, in which Ctrl-C may come.
    from ibp_gnn.training.inference import run
    from ibp_gnn.training.inference_config import InferenceConfig
    from ibp_gnn.training.script import run_script

    return run_script(
        __file__,
        "Layer-wise GraphSAGE inference with compressed embeddings.",
        "embeddings=raw batch_size=1024",
        InferenceConfig,
        run,
        lambda config, result: {"embeddings": config.embeddings, **{key: result[key] for key in SUMMARY}},
    )


if __name__ == "__main__":
    sys.exit(main())

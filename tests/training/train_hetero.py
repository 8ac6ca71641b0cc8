"""A program that trains on a small heterograph, as test_distributed.py runs it alone and as ranks. Arguments: settings.
Prints what it has in the end. The last batch has one seed, so that one of two ranks has none of its own."""

from __future__ import annotations

import hashlib
import json
import sys

import torch
from hetero_cases import CITES, SMALL, WRITES, dataset

from ibp_gnn.config import load
from ibp_gnn.training import loop
from ibp_gnn.training.config import TrainingConfig


def main() -> None:
    # Papers from 60 on have no authors, and cite each other alone: there are batches without an embedding's gradient.
    edges = dataset().edges
    (authors, written), (citing, cited) = edges[WRITES], edges[CITES]
    alone = (citing >= 60) == (cited >= 60)
    edges = {WRITES: (authors[written < 60], written[written < 60]), CITES: (citing[alone], cited[alone])}
    data = dataset(train_ids=torch.arange(99), edges=edges).with_reverse_edges()
    loop.load_dataset = lambda **settings: data  # type: ignore[assignment]
    job = loop.Run(load(TrainingConfig, None, [*SMALL, "train.batch_size=14", *sys.argv[1:]]))
    step_losses: list[float] = []
    for epoch in (1, 2):
        numbers, losses = job.train_epoch(epoch)
        step_losses += losses
    weights = hashlib.sha256()
    for name, tensor in job.model.state_dict().items():
        if "num_batches" not in name:
            weights.update(tensor.cpu().numpy().tobytes())
    print(json.dumps({"step_losses": step_losses, "numbers": numbers, "weights": weights.hexdigest()}))
    job.ranks.close()


main()

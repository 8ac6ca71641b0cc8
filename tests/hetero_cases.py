"""A small heterograph."""

from __future__ import annotations

from typing import Any

import torch

from ibp_gnn.datasets import HeteroNodeDataset

CPU = torch.device("cpu")
SMALL = ["device=cpu", "model.hidden=8", "train.fanouts=[3, 3]", "train.batch_size=64", "log.progress=false"]
WRITES, CITES = ("author", "writes", "paper"), ("paper", "cites", "paper")
BACK = ("paper", "rev_writes", "author")


def dataset(**changed: Any) -> HeteroNodeDataset:
    generator = torch.Generator().manual_seed(0)

    def ids(end: int, count: int) -> torch.Tensor:
        return torch.randint(end, (count,), generator=generator)

    members: dict[str, Any] = dict(
        name="small",
        num_classes=4,
        num_nodes_of={"author": 90, "paper": 200},
        edges={WRITES: (ids(90, 500), ids(200, 500)), CITES: (ids(200, 900), ids(200, 900))},
        features={"paper": torch.randn(200, 6, generator=generator)},
        target="paper",
        labels=ids(4, 200),
        train_ids=torch.arange(100),
        val_ids=torch.arange(100, 150),
        test_ids=torch.arange(150, 200),
    )
    return HeteroNodeDataset(**(members | changed))

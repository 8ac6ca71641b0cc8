"""The tensors of a heterogeneous data set fit together."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hetero_cases import WRITES, dataset


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        (dict(target="field"), r"target: want one of the node types \['author', 'paper'\], got 'field'"),
        (dict(features={}), "features: want those of at least one node type, got none"),
        (dict(features={"paper": torch.zeros(3, 2)}), r"features of 'paper': want \[200, d\], got \[3, 2\]"),
        (dict(edges={("a", "to", "paper"): (torch.zeros(1).long(),) * 2}), "want edges between .*got .'a', 'to', "),
        (dict(edges={WRITES: (torch.tensor([90]), torch.tensor([0]))}), r"src: want values in \[0, 90\), got 90"),
        (dict(labels=torch.zeros(3).long()), r"labels: want \[200\], got \[3\]"),
        (dict(train_ids=torch.tensor([200])), r"train_ids: want values in \[0, 200\), got 200"),
        (dict(num_classes=2), r"labels of train_ids: want values in \[0, 2\), got 3"),
    ],
)
def test_a_dataset_refuses_wrong_tensors(changed: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        dataset(**changed)

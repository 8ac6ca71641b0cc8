"""A data set as gb.OnDiskDataset reads it."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import Any

import numpy as np
import torch


def write_dataset(folder: Path, graph: Any, features: dict[str, torch.Tensor]) -> None:
    """Writes the structure of a homogeneous DGLGraph, node features ([n, d], the first not loaded into memory, of the
    unit "m") and a node classification task whose training set is every fifth node."""
    (folder / "data").mkdir()
    np.savetxt(folder / "data" / "edges.csv", torch.stack(graph.edges(), 1).numpy(), fmt="%d", delimiter=",")
    ids = torch.arange(0, graph.num_nodes(), 5)
    arrays = {**features, "ids": ids, "labels": ids % 5}
    for name, rows in arrays.items():
        np.save(folder / "data" / f"{name}.npy", rows.numpy())
    described = [
        f"{{domain: node, type: null, name: {name}, unit: m, "
        f"format: numpy, path: data/{name}.npy, in_memory: {str(number > 0).lower()}}}"
        for number, name in enumerate(features)
    ]
    metadata = f"""
        dataset_name: test
        graph:
          nodes: [{{num: {graph.num_nodes()}}}]
          edges: [{{format: csv, path: data/edges.csv}}]
        feature_data: [{", ".join(described)}]
        tasks:
          - name: node_classification
            num_classes: 5
            train_set:
              - data:
                  - {{name: seed_nodes, format: numpy, in_memory: true, path: data/ids.npy}}
                  - {{name: labels, format: numpy, in_memory: true, path: data/labels.npy}}
    """
    (folder / "metadata.yaml").write_text(textwrap.dedent(metadata))

"""What data sets of ogb_folders hold."""

from __future__ import annotations

import numpy as np
import ogb_folders as folders
import torch

from ibp_gnn.datasets import HeteroNodeDataset, NodeDataset


def check_homogeneous(dataset: NodeDataset | HeteroNodeDataset, name: str) -> None:
    assert isinstance(dataset, NodeDataset) and not dataset.synthetic
    assert (dataset.name, dataset.num_nodes) == (name, folders.NUM_NODES)
    np.testing.assert_array_equal(dataset.features.numpy().view(np.uint32), folders.rows().view(np.uint32))
    np.testing.assert_array_equal(torch.stack([dataset.src, dataset.dst]).numpy(), folders.edge_index())
    check_targets(dataset)


def check_hetero(dataset: NodeDataset | HeteroNodeDataset, name: str) -> None:
    assert isinstance(dataset, HeteroNodeDataset)
    assert (dataset.name, dataset.target, dict(dataset.num_nodes_of)) == (name, "paper", folders.NUM_NODES_OF)
    assert list(dataset.features) == ["paper"]
    np.testing.assert_array_equal(dataset.features["paper"].numpy().view(np.uint32), folders.rows().view(np.uint32))
    assert dataset.edges.keys() == folders.HETERO_EDGES.keys()
    for edge_type, edges in folders.HETERO_EDGES.items():
        np.testing.assert_array_equal(torch.stack(dataset.edges[edge_type]).numpy(), edges)
    check_targets(dataset)


def check_targets(dataset: NodeDataset | HeteroNodeDataset) -> None:
    np.testing.assert_array_equal(dataset.labels.numpy(), folders.labels()[:, 0])
    ids = (dataset.train_ids, dataset.val_ids, dataset.test_ids)
    for found, wanted in zip(ids, folders.split().values(), strict=True):
        np.testing.assert_array_equal(found.numpy(), wanted)

"""Graphs, and GraphBolt's features and stores of them."""

from __future__ import annotations

from typing import Any

import dgl
import pytest
import torch
from adapter_cases import rows_of

from ibp_gnn import CompressedFeatureStore, GraphBoltFeatureStore
from ibp_gnn.graphbolt import CompressedFeature
from ibp_gnn.integrations.dgl_compat import graphbolt_is_native

native = pytest.mark.skipif(not graphbolt_is_native(), reason="GraphBolt's native library needs torch 2.0.0 to 2.2.1")

NUM_NODES, NUM_EDGES, BATCH = 3000, 12000, 64
FEAT, LABEL = ("node", None, "feat"), ("node", None, "label")
IDS = {
    "some": torch.tensor([5, 0, 77, 199]),
    "empty": torch.tensor([], dtype=torch.int64),
    "repeated": torch.tensor([9, 9, 0, 9, 0]),
    "int32": torch.tensor([3, 198, 3], dtype=torch.int32),
    "all": torch.arange(200),
}


def feature_of(rows: torch.Tensor, **options: Any) -> CompressedFeature:
    return CompressedFeature(CompressedFeatureStore.build(rows, progress=False), **options)


def compressed(features: Any, **options: Any) -> GraphBoltFeatureStore:
    return GraphBoltFeatureStore(features, progress=False, **options)


def graph(num_features: int = 8) -> dgl.DGLGraph:
    generator = torch.Generator().manual_seed(1)
    src, dst = torch.randint(0, NUM_NODES, (2, NUM_EDGES), generator=generator)
    g = dgl.graph((src, dst), num_nodes=NUM_NODES)
    g.ndata["feat"] = rows_of(torch.float32, NUM_NODES, num_features)
    g.ndata["label"] = torch.arange(NUM_NODES) % 5
    g.edata["weight"] = rows_of(torch.float16, NUM_EDGES, 2, seed=2)
    return g


def hetero_graph(with_features: bool = True) -> dgl.DGLGraph:
    generator = torch.Generator().manual_seed(2)
    user, item = torch.randint(0, 200, (2, 3000), generator=generator)
    g = dgl.heterograph(
        {("user", "buys", "item"): (user, item), ("item", "sold", "user"): (item, user)},
        num_nodes_dict={"user": 400, "item": 200},
    )
    if not with_features:  # gb.from_dglgraph wants features of one name to be of one shape
        return g
    g.nodes["user"].data["feat"] = rows_of(torch.bfloat16, 400, 6)
    g.nodes["item"].data["feat"] = rows_of(torch.float32, 200, 4)
    g.edges["buys"].data["price"] = rows_of(torch.float32, 3000, 1)
    return g

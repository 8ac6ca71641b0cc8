"""Graphs of PyG, feature stores for them, and the loaders that read both."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch_geometric.typing
from adapter_cases import rows_of
from torch_geometric.data import Data, HeteroData
from torch_geometric.loader import NeighborLoader, NodeLoader
from torch_geometric.sampler import NodeSamplerInput

from ibp_gnn.pyg import NeighborSampler, PyGFeatureStore

HAS_NEIGHBOR_LOADER = torch_geometric.typing.WITH_PYG_LIB or torch_geometric.typing.WITH_TORCH_SPARSE

NUM_NODES, NUM_EDGES, BATCH = 2000, 8000, 64


def compressed(features: Any = None, **options: Any) -> PyGFeatureStore:
    return PyGFeatureStore(features, progress=False, **options)


def plain_data() -> Data:
    generator = torch.Generator().manual_seed(1)
    edges = torch.randint(0, NUM_NODES - 5, (2, NUM_EDGES), generator=generator)  # the last 5 have no edges
    train = torch.rand(NUM_NODES, generator=generator) < 0.2
    return Data(
        x=rows_of(torch.float32, NUM_NODES, 16),
        half=rows_of(torch.bfloat16, NUM_NODES, 3, 4),
        y=torch.arange(NUM_NODES) % 5,
        train_mask=train,
        edge_index=edges,
    )


def structure(data: Data) -> Data:
    graph = Data(num_nodes=data.num_nodes)
    # With `edge_index=` in place of this, NeighborLoader cannot tell the number of nodes.
    graph.put_edge_index(data.edge_index, layout="coo", size=(data.num_nodes, data.num_nodes))
    return graph


def plain_hetero_data() -> HeteroData:
    generator = torch.Generator().manual_seed(2)
    paper, author = torch.randint(0, 300, (2, 2000), generator=generator)
    data = HeteroData()
    data["paper"].x = rows_of(torch.float32, 300, 8)
    data["paper"].y = torch.arange(300) % 4
    data["author"].x = rows_of(torch.bfloat16, 400, 6, seed=1)
    data["author", "writes", "paper"].edge_index = torch.stack([author, paper])
    data["paper", "written_by", "author"].edge_index = torch.stack([paper, author])
    data["paper", "cites", "paper"].edge_index = torch.stack([paper, paper.flip(0)])
    return data


def hetero_structure(data: HeteroData) -> HeteroData:
    graph = HeteroData()
    for name in data.node_types:
        graph[name].num_nodes = data[name].num_nodes
    for edge_type in data.edge_types:
        graph[edge_type].edge_index = data[edge_type].edge_index
    return graph


# How a loader is made of data, a structure and a number of workers.
MakeLoader = Callable[..., Any]


def node_loader(data: Any, graph: Any, hops: Any, **options: Any) -> Any:
    return NodeLoader(data, NeighborSampler(graph, hops), **options)


def neighbor_loader(data: Any, graph: Any, hops: Any, **options: Any) -> Any:
    return NeighborLoader(data, hops, **options)


LOADERS = [
    pytest.param(node_loader, id="NodeLoader"),
    pytest.param(
        neighbor_loader,
        id="NeighborLoader",
        marks=pytest.mark.skipif(not HAS_NEIGHBOR_LOADER, reason="NeighborLoader needs pyg-lib or torch-sparse"),
    ),
]


def sample(sampler: NeighborSampler, seeds: list[int], seed: int = 0, name: str | None = None) -> Any:
    torch.manual_seed(seed)
    nodes = torch.tensor(seeds)
    return sampler.sample_from_nodes(NodeSamplerInput(input_id=None, node=nodes, input_type=name))

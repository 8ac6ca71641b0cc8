"""Mistakes with PyG's loaders: the error says what to do."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("torch_geometric")

from pyg_cases import compressed  # noqa: E402
from torch_geometric.data import Data, HeteroData  # noqa: E402
from torch_geometric.loader import NeighborLoader  # noqa: E402

import ibp_gnn  # noqa: E402
from ibp_gnn.integrations.pyg_errors import check_has_sizes  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore:Using 'NeighborSampler' without a 'pyg-lib'")

ROWS = torch.randn(40, 3)
EDGES = torch.randint(0, 40, (2, 90))


@pytest.mark.parametrize("size", [None, (None, 40)])
def test_a_neighbor_loader_without_a_size(size: tuple[int | None, int] | None) -> None:
    graph = Data()
    graph.put_edge_index(EDGES, layout="coo", size=size)
    with pytest.raises(ValueError, match=r"NeighborLoader: want the size of the graph's edges, got ") as error:
        NeighborLoader((compressed({"x": ROWS}), graph), [2], input_nodes=torch.arange(4))
    assert 'put_edge_index(edge_index, layout="coo", size=(num_nodes, num_nodes))' in str(error.value)
    assert "ibp_gnn.pyg.NeighborSampler(graph, ...)" in str(error.value)


def test_a_size_is_enough() -> None:
    graph = Data()
    graph.put_edge_index(EDGES, layout="coo", size=(40, 40))
    check_has_sizes(graph)
    hetero = HeteroData()
    hetero["paper", "cites", "paper"].edge_index = EDGES
    check_has_sizes(hetero)  # PyG takes the numbers of nodes from the feature store there


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_gpu_that_is_not_there() -> None:
    with pytest.raises(
        RuntimeError, match="device: want one that torch can use, got cuda.*Without a GPU: device='cpu'"
    ):
        ibp_gnn.pyg.PyGFeatureStore({"x": ROWS}, device="cuda")

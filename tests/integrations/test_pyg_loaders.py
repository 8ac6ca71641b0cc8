"""PyG's own loaders read the rows of the tensor, and training gives the same losses.

NeighborLoader is tested where pyg-lib or torch-sparse is.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch

pytest.importorskip("torch_geometric")

from adapter_cases import rows_of  # noqa: E402
from pyg_cases import (  # noqa: E402
    BATCH,
    LOADERS,
    NUM_EDGES,
    MakeLoader,
    compressed,
    hetero_structure,
    neighbor_loader,
    node_loader,
    plain_data,
    plain_hetero_data,
    structure,
)
from torch_geometric.data import Data  # noqa: E402
from torch_geometric.nn import SAGEConv  # noqa: E402
from torch_geometric.utils import trim_to_layer  # noqa: E402

import ibp_gnn  # noqa: E402
from ibp_gnn.testing import assert_bitwise_equal  # noqa: E402

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork.*:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:.*without a 'pyg-lib' installation.*"),
]


# PyG's loaders


def same_batches(make: MakeLoader, graph: Any, data: Any, others: list[Any], **options: Any) -> list[Any]:
    """The batches of `data`, after comparing those of all others with them."""
    runs = []
    for source in [data, *others]:
        torch.manual_seed(3)
        runs.append(list(make(source, graph, [5, 5], batch_size=BATCH, shuffle=True, **options)))
    for run in runs[1:]:
        assert len(run) == len(runs[0])
    return list(zip(*runs, strict=True))


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("make", LOADERS)
def test_homogeneous_batches(make: MakeLoader, workers: int) -> None:
    data = plain_data()
    graph, features = structure(data), compressed(data)
    options = {"input_nodes": data.train_mask.nonzero().view(-1), "num_workers": workers}
    others = [(features, graph)] if make is neighbor_loader else [(features, graph), (features, data)]
    batches = same_batches(make, graph, data, others, **options)
    assert len(batches) > 3
    for plain, *ours in batches:
        assert_bitwise_equal(plain.x, data.x[plain.n_id])
        for batch in ours:
            assert torch.equal(batch.n_id, plain.n_id) and torch.equal(batch.edge_index, plain.edge_index)
            assert batch.batch_size == plain.batch_size
            for name in ("x", "half", "y", "train_mask"):
                assert_bitwise_equal(batch[name], plain[name])


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("make", LOADERS)
def test_heterogeneous_batches(make: MakeLoader, workers: int) -> None:
    data = plain_hetero_data()
    graph, features = hetero_structure(data), compressed(data)
    options = {"input_nodes": ("paper", torch.arange(0, 300, 2)), "num_workers": workers}
    for plain, ours in same_batches(make, graph, data, [(features, graph)], **options):
        for name in ("paper", "author"):
            assert torch.equal(ours[name].n_id, plain[name].n_id)
            assert_bitwise_equal(ours[name].x, data[name].x[ours[name].n_id])
            assert_bitwise_equal(ours[name].x, plain[name].x)
        assert_bitwise_equal(ours["paper"].y, plain["paper"].y)
        for edge_type in data.edge_types:
            assert torch.equal(ours[edge_type].edge_index, plain[edge_type].edge_index)


@pytest.mark.parametrize("options", [{"filter_per_worker": False}, {"multiprocessing_context": "spawn"}], ids=str)
def test_other_workers(options: dict[str, Any]) -> None:
    data = plain_data()
    graph, features = structure(data), compressed(data)
    loader = node_loader(
        (features, graph), graph, [5], input_nodes=torch.arange(150), batch_size=BATCH, num_workers=2, **options
    )
    for batch in loader:
        assert_bitwise_equal(batch.x, data.x[batch.n_id])


@pytest.mark.cuda
def test_rows_on_the_gpu() -> None:
    data = plain_data()
    graph, features = structure(data), compressed(data, device="cuda")
    options = {"batch_size": BATCH, "num_workers": 2, "filter_per_worker": False}
    for batch in node_loader((features, graph), graph, [5], input_nodes=torch.arange(150), **options):
        assert batch.x.is_cuda
        assert_bitwise_equal(batch.x, data.x[batch.n_id])


# Features of edges


class WithEdges:
    """What the error of an edge feature says to do, as a `transform` of the loader."""

    def __init__(self, stores: dict[Any, ibp_gnn.CompressedFeatureStore]) -> None:
        self.stores = stores

    def __call__(self, batch: Any) -> Any:
        for edge_type, store in self.stores.items():
            part = batch if edge_type is None else batch[edge_type]
            part.edge_attr = store.gather(part.e_id)
        return batch


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("make", LOADERS)
def test_features_of_edges_beside_the_store(make: MakeLoader, workers: int) -> None:
    data = plain_data()
    data.edge_attr = rows_of(torch.float32, NUM_EDGES, 2, seed=5)
    features = compressed({"x": data.x})
    edges = ibp_gnn.CompressedFeatureStore.build(data.edge_attr, progress=False)
    options = {"input_nodes": torch.arange(200), "batch_size": BATCH, "num_workers": workers}
    for batch in make((features, structure(data)), structure(data), [5], transform=WithEdges({None: edges}), **options):
        ends = batch.n_id[batch.edge_index]
        assert torch.equal(data.edge_index[:, batch.e_id], ends) and len(ends[0]) > 0
        assert_bitwise_equal(batch.edge_attr, data.edge_attr[batch.e_id])


@pytest.mark.parametrize("make", LOADERS)
def test_features_of_edges_beside_the_store_in_a_heterograph(make: MakeLoader) -> None:
    data = plain_hetero_data()
    stores = {}
    for seed, edge_type in enumerate(data.edge_types):
        data[edge_type].edge_attr = rows_of(torch.float32, data[edge_type].num_edges, 2, seed=seed)
        stores[edge_type] = ibp_gnn.CompressedFeatureStore.build(data[edge_type].edge_attr, progress=False)
    features, graph = compressed(data), hetero_structure(data)
    assert {group for group, _ in features._features} == {"paper", "author"}  # those of nodes
    options = {"input_nodes": ("paper", torch.arange(100)), "batch_size": BATCH}
    for batch in make((features, graph), graph, [4, 4], transform=WithEdges(stores), **options):
        for edge_type in data.edge_types:
            assert len(batch[edge_type].e_id) > 0
            assert_bitwise_equal(batch[edge_type].edge_attr, data[edge_type].edge_attr[batch[edge_type].e_id])


# Training


class SAGE(torch.nn.Module):
    def __init__(self, in_size: int, out_size: int) -> None:
        super().__init__()
        self.convs = torch.nn.ModuleList([SAGEConv(in_size, 16), SAGEConv(16, out_size)])

    def forward(self, batch: Data) -> torch.Tensor:
        x, edges = batch.x, batch.edge_index
        for layer, conv in enumerate(self.convs):
            if "num_sampled_nodes" in batch:  # not from torch-sparse
                x, edges, _ = trim_to_layer(layer, batch.num_sampled_nodes, batch.num_sampled_edges, x, edges)
            x = conv(torch.relu(x), edges)
        return x[: batch.batch_size]


def train(make: MakeLoader, data: Any, graph: Data, workers: int) -> list[float]:
    torch.manual_seed(0)
    model = SAGE(16, 5)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    loader = make(
        data, graph, [5, 5], input_nodes=torch.arange(600), batch_size=BATCH, shuffle=True, num_workers=workers
    )
    losses = []
    for _ in range(2):
        for batch in loader:
            loss = torch.nn.functional.cross_entropy(model(batch), batch.y[: batch.batch_size])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    return losses


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("make", LOADERS)
def test_the_same_losses(make: MakeLoader, workers: int) -> None:
    data = plain_data()
    graph = structure(data)
    plain = train(make, data, graph, workers)
    assert len(plain) == 20
    assert train(make, (compressed(data), graph), graph, workers) == plain  # every bit of every loss

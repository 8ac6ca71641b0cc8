"""GraphBolt's own data pipes: the rows of the tensor, the same losses, layer-wise inference."""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from adapter_cases import rows_of
from cpu_cache import CpuCache
from exact_sources import CountingSource, TensorSource

pytest.importorskip("dgl")
pytest.importorskip("torchdata")

import dgl  # noqa: E402
from dgl import graphbolt as gb  # noqa: E402
from graphbolt_cases import BATCH, FEAT, NUM_EDGES, NUM_NODES, compressed, graph, hetero_graph, native  # noqa: E402
from on_disk_dataset import write_dataset  # noqa: E402

import ibp_gnn  # noqa: E402
from ibp_gnn import CompressedFeatureStore, GraphBoltFeatureStore  # noqa: E402
from ibp_gnn.graphbolt import CompressedFeature  # noqa: E402
from ibp_gnn.testing import assert_bitwise_equal  # noqa: E402

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*CPU affinity.*"),
    pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork.*:DeprecationWarning"),
]


# GraphBolt's own pipes


def items(num_nodes: int = NUM_NODES) -> gb.ItemSet:
    ids = torch.arange(0, num_nodes, 5)
    return gb.ItemSet((ids, ids % 5), names=("seed_nodes", "labels"))


@native
@pytest.mark.parametrize("workers", [0, 2])
def test_homogeneous_pipe(workers: int) -> None:
    g = graph()
    pipe = gb.ItemSampler(items(), batch_size=BATCH, shuffle=True)
    pipe = pipe.sample_neighbor(gb.from_dglgraph(g, is_homogeneous=True, include_original_edge_id=True), [5, 5])
    pipe = pipe.fetch_feature(compressed(g), node_feature_keys=["feat", "label"], edge_feature_keys=["weight"])
    batches = list(gb.DataLoader(pipe, num_workers=workers))
    assert len(batches) == 10
    for batch in batches:
        assert_bitwise_equal(batch.node_features["feat"], g.ndata["feat"][batch.input_nodes])
        assert_bitwise_equal(batch.node_features["label"], g.ndata["label"][batch.input_nodes])
        for layer in range(2):
            edges = batch.edge_ids(layer)
            assert_bitwise_equal(batch.edge_features[layer]["weight"], g.edata["weight"][edges])


@native
@pytest.mark.parametrize("workers", [0, 2])
def test_heterogeneous_pipe(workers: int) -> None:
    g = hetero_graph()
    seeds = gb.ItemSetDict({"item": gb.ItemSet(torch.arange(200), names="seed_nodes")})
    pipe = gb.ItemSampler(seeds, batch_size=BATCH)
    pipe = pipe.sample_neighbor(gb.from_dglgraph(hetero_graph(False), include_original_edge_id=True), [4, 4])
    keys = {"user": ["feat"], "item": ["feat"]}
    pipe = pipe.fetch_feature(compressed(g), node_feature_keys=keys, edge_feature_keys={"user:buys:item": ["price"]})
    batches = list(gb.DataLoader(pipe, num_workers=workers))
    assert len(batches) == 4
    for batch in batches:
        for ntype in keys:
            want = g.nodes[ntype].data["feat"][batch.input_nodes[ntype]]
            assert_bitwise_equal(batch.node_features[ntype, "feat"], want)
        edges = batch.edge_ids(0)["user:buys:item"]
        want = g.edges["buys"].data["price"][edges]
        assert_bitwise_equal(batch.edge_features[0]["user:buys:item", "price"], want)


@native
def test_walking_the_pipe_does_not_pickle_the_rows() -> None:
    rows = rows_of(torch.float32, NUM_NODES, 4)
    source = CountingSource(TensorSource(rows), picklable=False)  # raises if pickled
    pipe = gb.ItemSampler(items(), batch_size=BATCH)
    pipe = pipe.sample_neighbor(gb.from_dglgraph(graph(), is_homogeneous=True), [5])
    pipe = pipe.fetch_feature(compressed({FEAT: source}), node_feature_keys=["feat"])
    for batch in gb.DataLoader(pipe, num_workers=2):
        assert_bitwise_equal(batch.node_features["feat"], rows[batch.input_nodes])


@native
def test_a_store_from_an_on_disk_dataset(tmp_path: Path) -> None:
    g = graph()
    features = {"feat": g.ndata["feat"], "extra": rows_of(torch.float16, NUM_NODES, 4)}
    write_dataset(tmp_path, g, features)
    dataset = gb.OnDiskDataset(str(tmp_path)).load()
    store = compressed(dataset.feature)
    assert isinstance(store[FEAT], CompressedFeature)
    assert store.metadata(*FEAT)["unit"] == "m"  # what the data set says stays
    pipe = gb.ItemSampler(dataset.tasks[0].train_set, batch_size=BATCH, shuffle=True)
    pipe = pipe.sample_neighbor(dataset.graph, [5, 5])
    pipe = pipe.fetch_feature(store, node_feature_keys=["feat", "extra"])
    for batch in gb.DataLoader(pipe):
        for name in ("feat", "extra"):
            assert_bitwise_equal(batch.node_features[name], features[name][batch.input_nodes])


# DGL's GraphBolt flow for node classification, as a user has it.
FLOW = """
features = gb.BasicFeatureStore({("node", None, "feat"): gb.TorchBasedFeature(node_features)})

datapipe = gb.ItemSampler(train_set, batch_size=64, shuffle=False)
datapipe = datapipe.sample_neighbor(graph, [5, 5])
datapipe = datapipe.fetch_feature(features, node_feature_keys=["feat"])
dataloader = gb.DataLoader(datapipe, num_workers=num_workers)

model = SAGE(node_features.shape[1], 16, 5)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
for epoch in range(2):
    for minibatch in dataloader:
        logits = model(minibatch.blocks, minibatch.node_features["feat"])
        loss = torch.nn.functional.cross_entropy(logits, minibatch.labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
"""
ONE_LINE = 'features = ibp_gnn.GraphBoltFeatureStore({("node", None, "feat"): gb.TorchBasedFeature(node_features)})'


class SAGE(torch.nn.Module):
    def __init__(self, in_size: int, hidden_size: int, out_size: int, num_layers: int = 2) -> None:
        super().__init__()
        sizes = [in_size, *[hidden_size] * (num_layers - 1), out_size]
        self.layers = torch.nn.ModuleList(dgl.nn.SAGEConv(i, o, "mean") for i, o in zip(sizes, sizes[1:], strict=False))

    def forward(self, blocks: list, x: torch.Tensor) -> torch.Tensor:
        for layer, block in zip(self.layers, blocks, strict=True):
            x = layer(block, torch.relu(x))
        return x


def run_flow(source: str, num_workers: int) -> tuple[list[float], Any]:
    g = graph(32)
    torch.manual_seed(0)
    gb.seed(0)
    scope = {
        "gb": gb,
        "torch": torch,
        "ibp_gnn": ibp_gnn,
        "SAGE": SAGE,
        "graph": gb.from_dglgraph(g, is_homogeneous=True),
        "node_features": g.ndata["feat"],
        "train_set": items(),
        "num_workers": num_workers,
        "losses": [],
    }
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # GraphBolt's threads race for its random numbers
    try:
        exec(source, scope)
    finally:
        torch.set_num_threads(threads)
    return scope["losses"], scope["features"]


@native
@pytest.mark.parametrize("workers", [0, 2])
def test_one_line_changes_in_the_node_classification_flow(workers: int) -> None:
    line = next(line for line in FLOW.splitlines() if "gb.BasicFeatureStore" in line)
    changed = FLOW.replace(line, ONE_LINE)
    changes = [d for d in difflib.ndiff(FLOW.splitlines(), changed.splitlines()) if d[0] in "+-"]
    assert changes == [f"- {line}", f"+ {ONE_LINE}"]

    losses, plain = run_flow(FLOW, workers)
    with_ours, ours = run_flow(changed, workers)
    assert type(plain) is gb.BasicFeatureStore and type(ours) is GraphBoltFeatureStore
    assert isinstance(ours[FEAT], CompressedFeature)
    assert len(losses) == 20
    assert with_ours == losses  # every bit of every loss


# Layer-wise inference: each layer's output takes the place of the features, of another width.


def all_nodes() -> gb.ItemSet:
    return gb.ItemSet(torch.arange(NUM_NODES), names="seed_nodes")


def infer(model: SAGE, graph: Any, features: Any, num_workers: int) -> torch.Tensor:
    """All nodes' outputs, through the features."""
    pipe = gb.ItemSampler(all_nodes(), batch_size=4 * BATCH)
    pipe = pipe.sample_neighbor(graph, [-1]).fetch_feature(features, node_feature_keys=["feat"])
    loader = gb.DataLoader(pipe, num_workers=num_workers)  # one for all layers
    with torch.no_grad():
        for number, layer in enumerate(model.layers):
            is_last = number == len(model.layers) - 1
            y = torch.empty(graph.total_num_nodes, layer._out_feats)
            for batch in loader:
                hidden = layer(batch.blocks[0], batch.node_features["feat"])
                y[batch.seed_nodes[0] : batch.seed_nodes[-1] + 1] = hidden if is_last else torch.relu(hidden)
            if not is_last:
                features.update("node", None, "feat", y)
    return y


@pytest.fixture
def one_thread() -> Iterator[None]:
    """GraphBolt's threads race for its random numbers."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def plain_and_ours(g: dgl.DGLGraph) -> list[Any]:
    rows = g.ndata["feat"]
    plain = gb.BasicFeatureStore({FEAT: gb.TorchBasedFeature(rows)})
    cache = CpuCache(CompressedFeatureStore.build(rows, progress=False))
    return [plain, compressed({FEAT: rows}), compressed({FEAT: cache})]


@native
@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("workers", [0, 2])
def test_layerwise_inference_of_node_classification(workers: int) -> None:
    g = graph(32)
    sampling = gb.from_dglgraph(g, is_homogeneous=True)
    outputs = []
    for features in plain_and_ours(g):
        torch.manual_seed(0)
        model = SAGE(32, 16, 5, num_layers=3)  # the first update is of another width, the second of the same
        outputs.append(infer(model, sampling, features, workers))
        assert features.size(*FEAT) == (16,)
    for output in outputs[1:]:
        assert_bitwise_equal(output, outputs[0])


@native
@pytest.mark.usefixtures("one_thread")
def test_layerwise_inference_of_link_prediction() -> None:
    g = graph(32)
    sampling = gb.from_dglgraph(g, is_homogeneous=True)
    pairs = torch.stack(g.edges(), dim=1)[:: NUM_EDGES // 300]
    scores, losses = [], []
    for features in plain_and_ours(g):
        torch.manual_seed(0)
        gb.seed(0)
        model = SAGE(32, 16, 16)
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
        pipe = gb.ItemSampler(gb.ItemSet(pairs, names="node_pairs"), batch_size=BATCH)
        pipe = pipe.sample_uniform_negative(sampling, 1).sample_neighbor(sampling, [5, 5])
        pipe = pipe.fetch_feature(features, node_feature_keys=["feat"])
        losses.append([])
        for batch in gb.DataLoader(pipe):
            y = model(batch.blocks, batch.node_features["feat"])
            (src, dst), labels = batch.node_pairs_with_labels
            loss = torch.nn.functional.binary_cross_entropy_with_logits((y[src] * y[dst]).sum(1), labels.float())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses[-1].append(loss.item())
        y = infer(model, sampling, features, 0)
        scores.append((y[pairs[:, 0]] * y[pairs[:, 1]]).sum(1))
    assert len(losses[0]) == 5
    for loss, score in zip(losses[1:], scores[1:], strict=True):
        assert loss == losses[0]
        assert_bitwise_equal(score, scores[0])

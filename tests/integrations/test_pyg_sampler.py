"""The sampler that stands in for pyg-lib."""

from __future__ import annotations

import numpy as np
import pytest
import torch

pytest.importorskip("torch_geometric")

from adapter_cases import rows_of  # noqa: E402
from pyg_cases import (  # noqa: E402
    NUM_NODES,
    compressed,
    hetero_structure,
    node_loader,
    plain_data,
    plain_hetero_data,
    sample,
    structure,
)
from torch_geometric.data import Data, HeteroData  # noqa: E402
from torch_geometric.sampler import NodeSamplerInput  # noqa: E402

from ibp_gnn.pyg import NeighborSampler  # noqa: E402
from ibp_gnn.testing import assert_bitwise_equal  # noqa: E402

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork.*:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:.*without a 'pyg-lib' installation.*"),
]


def test_sampler_takes_the_right_neighbors() -> None:
    data = plain_data()
    src, dst = data.edge_index
    degree = torch.bincount(dst, minlength=NUM_NODES)
    seeds = [3, 1999, 17, 0]
    out = sample(NeighborSampler(structure(data), [3, 2]), seeds)
    assert out.node[:4].tolist() == seeds
    assert len(out.node.unique()) == len(out.node) == sum(out.num_sampled_nodes)
    assert out.num_sampled_nodes[0] == 4 and len(out.num_sampled_nodes) == 3
    assert sum(out.num_sampled_edges) == len(out.edge) and len(out.num_sampled_edges) == 2

    # Every edge is one of the graph's, and none is taken twice.
    edge = NeighborSampler(structure(data), [3, 2]).edge_permutation[out.edge]
    assert torch.equal(src[edge], out.node[out.row]) and torch.equal(dst[edge], out.node[out.col])
    assert len(edge.unique()) == len(edge)

    # Each node is expanded once, in the hop after the one that reached it, to as many neighbours as there are.
    per_node = torch.bincount(out.col, minlength=len(out.node))
    first, second, _ = np.cumsum(out.num_sampled_nodes)
    assert torch.equal(per_node[:first], degree[out.node[:first]].clamp(max=3))
    assert torch.equal(per_node[first:second], degree[out.node[first:second]].clamp(max=2))
    assert int(per_node[second:].sum()) == 0
    assert int(out.col[: out.num_sampled_edges[0]].max()) < first
    assert int(out.row[: out.num_sampled_edges[0]].max()) < second


def test_sampler_takes_all_neighbors() -> None:
    data = plain_data()
    out = sample(NeighborSampler(data, [-1]), [8])
    wanted = data.edge_index[0][data.edge_index[1] == 8]
    assert sorted(out.node[out.row].tolist()) == sorted(wanted.tolist())


def test_sampler_takes_every_neighbor_equally_often() -> None:
    star = Data(edge_index=torch.stack([torch.arange(1, 11), torch.zeros(10, dtype=torch.int64)]), num_nodes=11)
    sampler = NeighborSampler(star, [4])
    counts = torch.zeros(11)
    torch.manual_seed(0)
    for _ in range(2000):
        out = sampler.sample_from_nodes(NodeSamplerInput(input_id=None, node=torch.tensor([0])))
        assert len(out.node.unique()) == 5
        counts[out.node[1:]] += 1
    # 800 each are expected, with a standard deviation of 22.
    assert 700 < int(counts[1:].min()) and int(counts.max()) < 900


def test_sampler_repeats_with_its_seed() -> None:
    sampler = NeighborSampler(plain_data(), [2, 2])
    first, again, other = (sample(sampler, [1, 2, 3], seed) for seed in (0, 0, 1))
    assert torch.equal(first.node, again.node) and torch.equal(first.edge, again.edge)
    assert not torch.equal(first.edge, other.edge)


def test_sampler_with_repeated_seeds() -> None:
    sampler = NeighborSampler(plain_data(), [-1])
    out = sample(sampler, [5, 9, 5])
    assert out.node[:3].tolist() == [5, 9, 5] and out.num_sampled_nodes[0] == 3
    assert set(out.col.tolist()) == {0, 1}  # edges go to the first of the two
    assert len(sample(sampler, [9]).node.unique()) == len(sample(sampler, [9]).node)  # nothing is left behind


def test_sampler_in_a_heterograph() -> None:
    data = plain_hetero_data()
    hops = {edge_type: [2, 1] for edge_type in data.edge_types}
    hops["paper", "cites", "paper"] = [0, 3]
    sampler = NeighborSampler(hetero_structure(data), hops)
    out = sample(sampler, [4, 0], name="paper")
    assert out.node["paper"][:2].tolist() == [4, 0]
    assert out.num_sampled_nodes["author"][0] == 0 < out.num_sampled_nodes["author"][1]
    assert out.num_sampled_edges["paper", "cites", "paper"][0] == 0
    assert out.num_sampled_edges["paper", "written_by", "author"][0] == 0  # no author to start from
    for edge_type in data.edge_types:
        source, _, target = edge_type
        edge = sampler.edge_permutation[edge_type][out.edge[edge_type]]
        wanted = data[edge_type].edge_index[:, edge]
        ends = [out.node[source][out.row[edge_type]], out.node[target][out.col[edge_type]]]
        assert torch.equal(wanted, torch.stack(ends))


def graph_with_gaps(sized: bool) -> HeteroData:
    """Types without nodes, relations without edges, and nodes whose only trace is their number."""
    graph = HeteroData()
    counts = {"paper": 5, "author": 7, "venue": 0, "lonely": 3}
    for name, count in counts.items():
        graph[name].num_nodes = count
    edges = {
        ("author", "writes", "paper"): [[0, 1], [0, 1]],
        ("paper", "in", "venue"): [[], []],
        ("venue", "has", "paper"): [[], []],
    }
    for edge_type, ends in edges.items():
        edge_index = torch.tensor(ends, dtype=torch.int64)
        if sized:
            size = (counts[edge_type[0]], counts[edge_type[2]])
            graph.put_edge_index(edge_index, edge_type=edge_type, layout="coo", size=size)
        else:
            graph[edge_type].edge_index = edge_index
    return graph


@pytest.mark.parametrize("sized", [False, True])
def test_batches_of_types_without_nodes_or_edges(sized: bool) -> None:
    graph = graph_with_gaps(sized)
    rows = {name: rows_of(torch.float32, graph[name].num_nodes, 4) for name in ("paper", "author", "lonely")}
    rows["venue"] = torch.empty(0, 4)
    features = compressed({(name, "x"): part for name, part in rows.items()})
    for name in ("paper", "author", "lonely"):
        seeds = torch.arange(len(rows[name]))
        (batch,) = node_loader((features, graph), graph, [2, 2], input_nodes=(name, seeds), batch_size=100)
        assert batch[name].n_id[: len(seeds)].tolist() == seeds.tolist()
        for other, part in rows.items():
            assert_bitwise_equal(batch[other].x, part[batch[other].n_id])
        assert batch["paper", "in", "venue"].edge_index.shape == (2, 0)
    with pytest.raises(IndexError, match="input_nodes: want 0 <= id < 7, got 7"):
        sample(NeighborSampler(graph, [1]), [7], name="author")


def test_batches_of_a_graph_without_edges() -> None:
    graph, rows = Data(num_nodes=6, edge_index=torch.empty(2, 0, dtype=torch.int64)), rows_of(torch.float32, 6, 4)
    (batch,) = node_loader((compressed({"x": rows}), graph), graph, [2], input_nodes=torch.arange(6), batch_size=6)
    assert_bitwise_equal(batch.x, rows)
    assert batch.edge_index.shape == (2, 0)


def test_the_number_of_nodes_is_that_of_the_graph() -> None:
    edges = torch.tensor([[0, 9], [1, 2]])  # node 9 has no incoming edge, nodes 10 and 11 have none at all
    for graph in (Data(edge_index=edges, num_nodes=12), Data(edge_index=edges, x=torch.ones(12, 1)), Data()):
        if not graph.keys():
            graph.put_edge_index(edges, layout="coo", size=(12, 12))
        assert sample(NeighborSampler(graph, [1]), [11]).node.tolist() == [11]
        with pytest.raises(IndexError, match="input_nodes: want 0 <= id < 12, got 12"):
            sample(NeighborSampler(graph, [1]), [12])


def test_what_the_sampler_refuses() -> None:
    data, hetero = plain_data(), plain_hetero_data()
    with pytest.raises(TypeError, match="want a GraphStore, such as Data or HeteroData, got Tensor"):
        NeighborSampler(data.edge_index, [1])
    with pytest.raises(ValueError, match="want one number >= -1 a hop"):
        NeighborSampler(data, [])
    with pytest.raises(ValueError, match="want one number >= -1 a hop"):
        NeighborSampler(data, [3, -2])
    with pytest.raises(ValueError, match="num_neighbors: want .*cites.*got"):
        NeighborSampler(hetero, {("paper", "cites", "paper"): [1]})
    with pytest.raises(IndexError, match="input_nodes: want 0 <= id < 2000, got 2000"):
        sample(NeighborSampler(data, [1]), [3, 2000])
    with pytest.raises(ValueError, match="want a node type among .*'paper'.*got 'venue'"):
        sample(NeighborSampler(hetero, [1]), [0], name="venue")
    sampler = NeighborSampler(data, [1])
    with pytest.raises(NotImplementedError, match="temporal sampling"):
        sampler.sample_from_nodes(NodeSamplerInput(None, torch.tensor([0]), time=torch.tensor([0])))
    with pytest.raises(NotImplementedError, match="LinkNeighborLoader"):
        sampler.sample_from_edges(None)


@pytest.mark.parametrize(
    ("fanouts", "message"),
    [
        (10, r"such as \[10, 10\], got int 10; for one hop: \[10\]"),
        ("10", "got str '10'"),
        (None, "got NoneType None"),
        ({10, 5}, "got set"),
        ([10, "5"], "got str '5' in it"),
        ([2.5], "got float 2.5 in it"),
        ([[10], [5]], r"got list \[10\] in it"),
        ([True], "got bool True in it"),
        (torch.ones(2), "got float 1.0 in it"),
    ],
)
def test_fanouts_of_a_wrong_type(fanouts: object, message: str) -> None:
    with pytest.raises(TypeError, match=f"num_neighbors: want a list of whole numbers, one for each hop.*{message}"):
        NeighborSampler(plain_data(), fanouts)


@pytest.mark.parametrize("fanouts", [(2, 2), torch.tensor([2, 2]), np.array([2, 2]), [np.int64(2), 2]])
def test_fanouts_of_other_kinds(fanouts: object) -> None:
    outputs = []
    for given in (fanouts, [2, 2]):
        torch.manual_seed(0)
        outputs.append(sample(NeighborSampler(plain_data(), given), [3, 7]))
    assert torch.equal(outputs[0].node, outputs[1].node)

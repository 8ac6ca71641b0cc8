"""ibp_gnn/integrations/dgl_hotness.py: the same scores from a DGLGraph as from its edges."""

from __future__ import annotations

import pytest
import torch

from ibp_gnn.gpu import hotness
from ibp_gnn.integrations.dgl_compat import import_dgl

dgl = import_dgl()

from ibp_gnn.integrations.dgl_hotness import graph_hotness  # noqa: E402

SRC, DST = torch.tensor([0, 0, 1, 2, 3, 0]), torch.tensor([1, 2, 2, 0, 0, 3])


def test_graph() -> None:
    graph = dgl.graph((SRC, DST), num_nodes=5)
    assert torch.equal(graph_hotness(graph, "degree"), torch.tensor([3, 1, 1, 1, 0]))
    train = torch.tensor([2])
    wanted = hotness.reverse_pagerank(SRC, DST, 5, train)
    assert torch.equal(graph_hotness(graph, "reverse_pagerank", train), wanted)


def test_heterograph_is_the_graph_of_all_its_nodes() -> None:
    users, items = torch.tensor([0, 1, 1, 2]), torch.tensor([0, 0, 1, 1])
    graph = dgl.heterograph(
        {("user", "buys", "item"): (users, items), ("item", "by", "user"): (items, users)},
        num_nodes_dict={"user": 3, "item": 2},
    )
    degrees = graph_hotness(graph, "degree")
    assert {name: scores.tolist() for name, scores in degrees.items()} == {"user": [1, 2, 1], "item": [2, 2]}
    offset = {"item": 0, "user": 2}  # in the order of graph.ntypes
    assert graph.ntypes == ["item", "user"]
    src = torch.cat([users + offset["user"], items])
    dst = torch.cat([items, users + offset["user"]])
    wanted = hotness.reverse_pagerank(src, dst, 5, torch.tensor([2, 4]))
    scores = graph_hotness(graph, "reverse_pagerank", {"user": torch.tensor([0, 2])})
    torch.testing.assert_close(torch.cat([scores["item"], scores["user"]]), wanted)


def test_presample_takes_the_loader() -> None:
    graph = dgl.graph((SRC, DST), num_nodes=5)
    loader = dgl.dataloading.DataLoader(
        graph, torch.tensor([1, 2]), dgl.dataloading.NeighborSampler([-1]), batch_size=1, shuffle=True
    )
    assert hotness.presample(loader, 5, epochs=2).tolist() == [4, 4, 2, 0, 0]


@pytest.mark.parametrize(
    ("policy", "train", "error", "message"),
    [
        ("presample", None, ValueError, "want 'degree' or 'reverse_pagerank', got 'presample'"),
        ("reverse_pagerank", torch.tensor([0]), ValueError, "want a dict by node type"),
        ("reverse_pagerank", {"shop": torch.tensor([0])}, KeyError, "want node types among"),
        ("reverse_pagerank", {"user": torch.tensor([2])}, IndexError, r"\['user'\]: want 0 <= id < 2, got 2 to 2"),
    ],
)
def test_bad_arguments(policy, train, error, message) -> None:
    graph = dgl.heterograph({("user", "buys", "item"): ([0, 1], [0, 0])})
    with pytest.raises(error, match=message):
        graph_hotness(graph, policy, train)

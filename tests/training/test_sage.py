"""The CSC aggregation against DGL's own layers, on the CPU."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from ibp_gnn.integrations.csc_block import CscBlock
from ibp_gnn.integrations.dgl_compat import import_dgl
from ibp_gnn.training.sage import CscSageConv, GraphSAGE, choose_aggregation, mean_of_neighbors, to_csc

CPU = torch.device("cpu")
# The two aggregations add in different orders; nothing else may differ.
TOLERANCE = {"rtol": 1e-5, "atol": 1e-5}


@pytest.fixture
def dgl() -> Any:
    return import_dgl()


def make_blocks(dgl: Any, layers: int, idtype: torch.dtype = torch.int64) -> list[Any]:
    """Blocks sampled from a random graph of 300 nodes, of which the last 60 have no in-edges."""
    generator = torch.Generator().manual_seed(1)
    src = torch.randint(0, 300, (1500,), generator=generator)
    dst = torch.randint(0, 240, (1500,), generator=generator)
    graph = dgl.graph((src.to(idtype), dst.to(idtype)), num_nodes=300)
    sampler = dgl.dataloading.NeighborSampler([4] * layers)
    return sampler.sample(graph, torch.arange(0, 300, 3, dtype=idtype))[2]


@pytest.mark.parametrize("idtype", [torch.int64, torch.int32])
@pytest.mark.parametrize(("in_feats", "out_feats"), [(7, 16), (16, 7), (1, 1)])
def test_conv_equals_dgl(dgl: Any, in_feats: int, out_feats: int, idtype: torch.dtype) -> None:
    (block,) = make_blocks(dgl, 1, idtype)
    torch.manual_seed(0)
    theirs = dgl.nn.SAGEConv(in_feats, out_feats, "mean")
    torch.manual_seed(0)
    ours = CscSageConv(in_feats, out_feats)
    assert_same_state(ours, theirs)

    x = torch.randn(block.num_src_nodes(), in_feats)
    x_ours, x_theirs = x.clone().requires_grad_(), x.clone().requires_grad_()
    y_ours, y_theirs = ours(to_csc(block, CPU), x_ours), theirs(block, x_theirs)
    torch.testing.assert_close(y_ours, y_theirs, **TOLERANCE)
    weights = torch.randn_like(y_ours)
    (y_ours * weights).sum().backward()
    (y_theirs * weights).sum().backward()
    torch.testing.assert_close(x_ours.grad, x_theirs.grad, **TOLERANCE)
    for mine, other in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, other.grad, rtol=1e-4, atol=1e-4)


def test_model_equals_dgl_and_exchanges_checkpoints(dgl: Any) -> None:
    blocks = make_blocks(dgl, 3)
    shape = {"hidden": 32, "layers": 3, "dropout": 0.5, "input_norm": True}
    models = []
    for aggregation in ("dgl", "csc"):
        torch.manual_seed(0)
        models.append(GraphSAGE(20, 5, aggregation=aggregation, **shape).eval())
    theirs, ours = models
    assert_same_state(ours, theirs)

    x = torch.randn(blocks[0].num_src_nodes(), 20)
    csc = [to_csc(block, CPU) for block in blocks]
    torch.testing.assert_close(ours(csc, x), theirs(blocks, x), **TOLERANCE)
    with torch.no_grad():
        for parameter in theirs.parameters():
            parameter.add_(0.1)
    ours.load_state_dict(theirs.state_dict())
    torch.testing.assert_close(ours(csc, x), theirs(blocks, x), **TOLERANCE)


def test_half_precision_features_are_widened() -> None:
    model = GraphSAGE(3, 2, hidden=4, layers=1, dropout=0, input_norm=False, aggregation="csc").eval()
    block = CscBlock(torch.tensor([0, 2]), torch.tensor([1, 2]))
    x = torch.tensor([[1.0, 2, 3], [4, 5, 6], [7, 8, 9]], dtype=torch.bfloat16)
    assert torch.equal(model([block], x), model([block], x.float()))


def test_mean_by_hand_with_isolated_nodes() -> None:
    x = torch.tensor([[1.0], [10.0], [100.0]], requires_grad=True)
    block = CscBlock(torch.tensor([0, 0, 2, 2, 5, 5]), torch.tensor([0, 1, 2, 2, 0]))
    mean = mean_of_neighbors(block, x)
    assert mean.tolist() == [[0.0], [5.5], [0.0], [67.0], [0.0]]
    mean.sum().backward()
    expected = torch.tensor([[1 / 2 + 1 / 3], [1 / 2], [2 / 3]])
    torch.testing.assert_close(x.grad, expected)


@pytest.mark.parametrize("num_dst", [0, 3])
def test_block_without_edges(num_dst: int) -> None:
    block = CscBlock(torch.zeros(num_dst + 1, dtype=torch.int64), torch.empty(0, dtype=torch.int64))
    x = torch.randn(num_dst, 6)
    assert torch.equal(mean_of_neighbors(block, x), torch.zeros(num_dst, 6))
    conv = CscSageConv(6, 4)
    assert torch.equal(conv(block, x), conv.fc_self(x))


def test_csc_of_a_block_without_edges(dgl: Any) -> None:
    (block,) = dgl.dataloading.NeighborSampler([2]).sample(dgl.graph(([], []), num_nodes=4), torch.arange(3))[2]
    csc = to_csc(block, CPU)
    assert csc.num_dst == 3 and csc.indices.numel() == 0


def test_aggregation_on_the_cpu_is_dgls() -> None:
    assert choose_aggregation(CPU) == "dgl"


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_csc_on_cuda_is_deterministic_and_equals_the_cpu(dgl: Any) -> None:
    blocks = make_blocks(dgl, 2)
    x = torch.randn(blocks[0].num_src_nodes(), 24)
    shape = {"hidden": 32, "layers": 2, "dropout": 0.0, "input_norm": True, "aggregation": "csc"}
    torch.manual_seed(0)
    model = GraphSAGE(24, 5, **shape)
    expected = model([to_csc(block, CPU) for block in blocks], x)
    device = torch.device("cuda")
    model.to(device)
    was = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True)
    try:
        runs = []
        for _ in range(5):
            model.zero_grad(set_to_none=True)
            logits = model([to_csc(block, device) for block in blocks], x.to(device))
            logits.square().sum().backward()
            runs.append([logits.detach(), *[p.grad.clone() for p in model.parameters()]])
    finally:
        torch.use_deterministic_algorithms(was)
    torch.testing.assert_close(runs[0][0].cpu(), expected, rtol=1e-4, atol=1e-4)
    for other in runs[1:]:
        assert all(torch.equal(a, b) for a, b in zip(runs[0], other, strict=True))


def assert_same_state(ours: torch.nn.Module, theirs: torch.nn.Module) -> None:
    mine, other = ours.state_dict(), theirs.state_dict()
    assert mine.keys() == other.keys()
    assert all(torch.equal(mine[name], other[name]) for name in mine)

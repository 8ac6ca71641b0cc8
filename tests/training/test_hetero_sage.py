"""GraphSAGE on heterographs: sums over relations."""

from __future__ import annotations

import importlib.util

import pytest
import torch

if importlib.util.find_spec("dgl") is None:
    pytest.skip("DGL is not installed", allow_module_level=True)

from hetero_cases import BACK, CITES, CPU, WRITES, dataset

from ibp_gnn.integrations.csc_block import CscBlock
from ibp_gnn.training.hetero_sage import (
    HeteroBlock,
    HeteroGraphSAGE,
    HeteroSageConv,
    to_hetero_csc,
)
from ibp_gnn.training.sage import InputNorm


def test_conv_is_the_sum_over_relations() -> None:
    torch.manual_seed(0)
    widths = {"author": 3, "paper": 5}
    conv = HeteroSageConv(widths, 2, [WRITES, CITES, BACK], ["paper"])
    assert len(conv.fc_self) == 1 and len(conv.fc_neigh) == 2
    x = {"author": torch.randn(4, 3), "paper": torch.randn(6, 5)}
    relations = {
        WRITES: CscBlock(torch.tensor([0, 2, 2]), torch.tensor([3, 1])),
        CITES: CscBlock(torch.tensor([0, 1, 4]), torch.tensor([5, 0, 1, 2])),
        BACK: CscBlock(torch.tensor([0]), torch.tensor([], dtype=torch.int64)),
    }
    out = conv(HeteroBlock(relations, {"author": 0, "paper": 2}), x)
    writes, cites = conv.fc_neigh[0].weight, conv.fc_neigh[1].weight
    first = conv.fc_self[0](x["paper"][0]) + writes @ x["author"][[3, 1]].mean(0) + cites @ x["paper"][5]
    second = conv.fc_self[0](x["paper"][1]) + cites @ x["paper"][:3].mean(0)
    assert list(out) == ["paper"]
    torch.testing.assert_close(out["paper"], torch.stack([first, second]))


def test_types_without_nodes_in_a_batch() -> None:
    model = HeteroGraphSAGE(
        {"paper": 5, "book.new": 3}, {"author": 7}, [WRITES, ("book.new", "in", "paper")], "paper", 2,
        hidden=4, layers=1, dropout=0.0, input_norm=True,
    )  # fmt: skip
    empty = CscBlock(torch.tensor([0, 0]), torch.tensor([], dtype=torch.int64))
    block = HeteroBlock({WRITES: empty, ("book.new", "in", "paper"): empty}, {"paper": 1})
    x = {"paper": torch.randn(1, 5), "book.new": torch.randn(0, 3), "author": torch.tensor([], dtype=torch.int64)}
    logits = model([block], x)
    assert logits.shape == (1, 2)
    logits.sum().backward()
    norm = InputNorm(5)
    assert torch.equal(norm(x["paper"]), x["paper"] / (1 + norm.eps) ** 0.5)


def test_to_hetero_csc() -> None:
    from ibp_gnn.integrations.dgl_compat import import_dgl

    graph = dataset().to_dgl()
    block = import_dgl().to_block(graph, {"paper": torch.arange(200), "author": torch.arange(90)})
    csc = to_hetero_csc(block, CPU)
    assert csc.num_dst == {"author": 90, "paper": 200}
    src, dst = dataset().edges[WRITES]
    assert torch.equal(csc.relations[WRITES].indptr.diff(), torch.bincount(dst, minlength=200))
    assert csc.relations[WRITES].num_dst == 200

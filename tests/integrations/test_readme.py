"""README's code runs as it is written, and gives the bits that it promises; each section where its library is."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from typing import Any

import pytest
import torch

import ibp_gnn
from ibp_gnn.integrations.dgl_compat import graphbolt_is_native, import_dgl
from ibp_gnn.testing import assert_bitwise_equal

README = Path(__file__).parents[2] / "README.md"
NUM_NODES, NUM_EDGES = 4000, 20000

HAS_DGL = importlib.util.find_spec("dgl") is not None
needs_dgl = pytest.mark.skipif(not HAS_DGL, reason="DGL is not installed")
needs_graphbolt = pytest.mark.skipif(
    not (HAS_DGL and graphbolt_is_native()), reason="GraphBolt's native library needs torch 2.0.0 to 2.2.1"
)
needs_pyg = pytest.mark.skipif(importlib.util.find_spec("torch_geometric") is None, reason="PyG is not installed")
pytestmark = pytest.mark.filterwarnings(
    "ignore:.*multi-threaded, use of fork.*:DeprecationWarning",
    "ignore:.*CPU affinity.*",
)


def code_of(section: str) -> str:
    """The one Python block of a section; at most ten lines, blank ones not counted."""
    text = README.read_text(encoding="utf-8").split(f"## {section}\n", 1)[1].split("\n## ", 1)[0]
    (code,) = re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL)
    assert len([line for line in code.splitlines() if line.strip()]) <= 10
    return code


def features() -> torch.Tensor:
    return torch.randn(NUM_NODES, 16, generator=torch.Generator().manual_seed(0)) * 100


def edges() -> torch.Tensor:
    return torch.randint(0, NUM_NODES, (2, NUM_EDGES), generator=torch.Generator().manual_seed(1))


def run(section: str, **names: Any) -> dict[str, Any]:
    """The names that are there after the section's code."""
    exec(compile(code_of(section), f"README.md, {section}", "exec"), names)
    return names


@needs_dgl
def test_dgl() -> None:
    graph = import_dgl().graph(tuple(edges()), num_nodes=NUM_NODES)
    names = run("In a DGL loop", features=features(), graph=graph, train_ids=torch.arange(1500))
    assert_bitwise_equal(names["x"], features()[names["input_nodes"]])
    assert isinstance(names["store"], ibp_gnn.CompressedFeatureStore)


@needs_graphbolt
def test_graphbolt(tmp_path: Path) -> None:
    from on_disk_dataset import write_dataset

    graph = import_dgl().graph(tuple(edges()), num_nodes=NUM_NODES)
    write_dataset(tmp_path, graph, {"feat": features()})
    names = run("In a GraphBolt loop", path=str(tmp_path))
    assert_bitwise_equal(names["x"], features()[names["batch"].input_nodes])
    assert isinstance(names["features"]["node", None, "feat"], ibp_gnn.graphbolt.CompressedFeature)


@needs_pyg
def test_pyg() -> None:
    names = {"x": features(), "y": torch.arange(NUM_NODES) % 5, "edge_index": edges()}
    names |= {"train_ids": torch.arange(1500), "model": lambda x, edge_index: x}
    names = run("In a PyG loop", **names)
    assert_bitwise_equal(names["out"], features()[names["batch"].n_id])
    assert torch.equal(names["batch"].y, names["batch"].n_id % 5)


@pytest.mark.cuda
@needs_dgl
def test_gpu() -> None:
    graph = import_dgl().graph(tuple(edges()), num_nodes=NUM_NODES)
    store = ibp_gnn.CompressedFeatureStore.build(features(), progress=False)
    ids = torch.arange(0, NUM_NODES, 3)
    names = run("With a GPU", ibp_gnn=ibp_gnn, store=store, graph=graph, input_nodes=ids)
    assert names["x"].is_cuda
    assert_bitwise_equal(names["x"], features()[ids])

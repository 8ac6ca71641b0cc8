"""A store that is assigned in the place of a tensor: the error says what to do, whichever library is imported first."""

from __future__ import annotations

import importlib
import importlib.util
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from exact_sources import TensorSource

import ibp_gnn
from ibp_gnn.integrations import refused_stores

needs_dgl = pytest.mark.skipif(importlib.util.find_spec("dgl") is None, reason="DGL is not installed")
needs_pyg = pytest.mark.skipif(importlib.util.find_spec("torch_geometric") is None, reason="PyG is not installed")
ROWS = torch.randn(40, 3)
SOURCES = {
    "CompressedFeatureStore": lambda: ibp_gnn.CompressedFeatureStore.build(ROWS, pin=False, progress=False),
    "TensorSource": lambda: TensorSource(ROWS),
}
VIEWS: dict[str, Callable[[Any], Any]] = {
    "ndata": lambda g: g.ndata,
    "edata": lambda g: g.edata,
    "nodes": lambda g: g.nodes["_N"].data,
    "srcdata": lambda g: g.srcdata,
}


@needs_dgl
@pytest.mark.parametrize("view", VIEWS.values(), ids=VIEWS)
@pytest.mark.parametrize("kind", SOURCES)
def test_a_feature_of_dgl(kind: str, view: Callable[[Any], Any]) -> None:
    dgl = importlib.import_module("dgl")
    g = dgl.graph((torch.arange(40), torch.arange(40)))
    with pytest.raises(TypeError, match=rf"want a tensor, got a {kind}. ibp_gnn.attach\(graph, 'feat', store\)"):
        view(g)["feat"] = SOURCES[kind]()
    assert "feat" not in view(g)
    view(g)["feat"] = ROWS
    assert view(g)["feat"] is ROWS
    hetero = dgl.heterograph({("a", "to", "b"): ([0], [0])})
    with pytest.raises(TypeError, match="ibp_gnn.attach"):
        hetero.ndata["feat"] = {"a": SOURCES[kind]()}


@needs_pyg
@pytest.mark.parametrize("kind", SOURCES)
def test_a_feature_of_pyg(kind: str) -> None:
    data = importlib.import_module("torch_geometric.data")
    source = SOURCES[kind]()
    graph, hetero = data.Data(edge_index=torch.zeros(2, 1, dtype=torch.int64)), data.HeteroData()
    message = rf'data.x: want a tensor, got a {kind}. .*ibp_gnn.pyg.PyGFeatureStore\(\{{"x": store\}}\)'
    for assign in (
        lambda: setattr(graph, "x", source),
        lambda: graph.__setitem__("x", source),
        lambda: data.Data(x=source),
        lambda: setattr(hetero["paper"], "x", source),
    ):
        with pytest.raises(TypeError, match=message):
            assign()
    assert "x" not in graph
    with pytest.raises(TypeError, match=r"data.edge_attr: .*rows of edges: store.gather\(batch.e_id\)"):
        graph.edge_attr = source
    graph.x = ROWS
    graph.mine = source  # whatever PyG does not read
    assert graph.x is ROWS and graph.mine is source


@pytest.mark.parametrize(
    ("library", "module", "name"),
    [
        pytest.param("dgl", "dgl.view", "HeteroNodeDataView", marks=needs_dgl),
        pytest.param("torch_geometric", "torch_geometric.data.storage", "BaseStorage", marks=needs_pyg),
    ],
)
@pytest.mark.parametrize("first", ["ibp_gnn", "library"])
def test_either_may_be_imported_first(library: str, module: str, name: str, first: str, tmp_path: Path) -> None:
    code = f"""
import importlib, sys
if "{first}" == "ibp_gnn": import ibp_gnn
else:
    from ibp_gnn.integrations import dgl_compat, refused_stores  # DGL needs its hook; ours goes
    sys.meta_path[:] = [one for one in sys.meta_path if type(one) is not refused_stores._Finder]
module = importlib.import_module("{library}") and importlib.import_module("{module}")
before = hasattr(module.{name}.__setitem__, "_ibp_gnn_checks")
from ibp_gnn.integrations import refused_stores
refused_stores.install()
refused_stores.install()
print(before, hasattr(module.{name}.__setitem__, "_ibp_gnn_checks"),
      hasattr(module.{name}.__setitem__.__wrapped__, "_ibp_gnn_checks"), type(module.__loader__).__name__)
"""
    environment = {**os.environ, "PYTHONPATH": str(Path(ibp_gnn.__file__).parents[1])}
    command = [sys.executable, "-W", "ignore", "-c", code]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120)
    assert done.stdout == f"{first == 'ibp_gnn'} True False SourceFileLoader\n", done.stderr


def test_it_is_installed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    before = len(sys.meta_path)
    refused_stores.install()
    assert len(sys.meta_path) == before
    assert sum(type(one) is refused_stores._Finder for one in sys.meta_path) == 1

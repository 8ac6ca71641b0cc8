"""Docstrings of the public names: their examples run, and they say what each argument is, what comes back and what is
raised."""

from __future__ import annotations

import doctest
import importlib
import importlib.util
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import ibp_gnn
from ibp_gnn.integrations.dgl_compat import import_dgl

HAS_DGL = importlib.util.find_spec("dgl") is not None
HAS_PYG = importlib.util.find_spec("torch_geometric") is not None
needs_gpu = pytest.mark.cuda
needs_transformers = pytest.mark.skipif(
    importlib.util.find_spec("transformers") is None, reason="transformers is not installed; the extra `llm` has it"
)
needs_dgl = pytest.mark.skipif(not HAS_DGL, reason="DGL is not installed")
HAS_WHOLEGRAPH = importlib.util.find_spec("pylibwholegraph") is not None
needs_uint32 = pytest.mark.skipif(not hasattr(torch, "uint32"), reason="torch has no uint32")
needs_pyg = pytest.mark.skipif(not HAS_PYG, reason="PyG is not installed")
needs_wholegraph = pytest.mark.skipif(
    not (HAS_WHOLEGRAPH and torch.cuda.is_available()), reason="WholeGraph is not installed, or no CUDA device"
)

NEEDS = {
    "CompressedGPUCache": needs_gpu,
    "PinError": needs_gpu,
    "share_budget": needs_gpu,
    "GraphBoltFeatureStore": needs_dgl,
    "attach": needs_dgl,
    "detach": needs_dgl,
    "fetch": needs_dgl,
    "distdgl": needs_dgl,
    "graphbolt": needs_dgl,
    "offload": needs_transformers,
    "packing": needs_uint32,
    "pyg": needs_pyg,
    "wholegraph": needs_wholegraph,
}
NEEDED_TO_RUN = (needs_gpu, needs_wholegraph)  # what can be imported without it
PUBLIC = [
    *ibp_gnn.__all__,
    "graphbolt.CompressedFeature",
    "graphbolt.require_native",
    "distdgl.CompressedDistTensor",
    "distdgl.DistCache",
    "distdgl.PullStats",
    "distdgl.attach",
    "distdgl.compress_partitions",
    "hotness.degree",
    "hotness.presample",
    "hotness.reverse_pagerank",
    "offload.CompressedOffloadedCache",
    "offload.CompressedPages",
    "offload.CompressedWeights",
    "offload.Offload",
    "offload.OffloadReport",
    "offload.PageReport",
    "offload.load_checkpoint",
    "offload.offload",
    "offload.save_checkpoint",
    "packing.PackedLinear",
    "packing.PackedTensor",
    "packing.pack_fp16",
    "packing.pack_fp8",
    "packing.pack_model",
    "packing.packed_gemv",
    "packing.unpack",
    "pyg.PyGFeatureStore",
    "pyg.NeighborSampler",
    "wholegraph.Batch",
    "wholegraph.CscBlock",
    "wholegraph.DistributedFeatureStore",
    "wholegraph.Graph",
    "wholegraph.NeighborLoader",
    "wholegraph.Sampled",
    "wholegraph.ShardedGPUCache",
    "wholegraph.Split",
    "wholegraph.Tiers",
]
# What a store and its caches, and pages and a KV cache, ask of each other.
INTERNAL = {
    "CompressedFeatureStore": {
        "gather_on",
        "gather_to_kept",
        "mapped_rows",
        "add_cache",
        "remove_cache",
        "to_slots",
        "copy_of",
        "overflows",
    },
    "Graph": {"sample_checked"},
    "ShardedGPUCache": {"prepare_update", "prepare_move", "release"},
    "CompressedPages": {"places_of", "read", "start_read"},
    "CompressedGPUCache": {"gather_on", "gather_to_kept", "prepare_update", "prepare_move", "commit_update", "release"},
}


def each(names: list[str], runs: bool) -> list[Any]:
    """runs: whether the test runs their code, and so needs what that needs; else what importing them needs."""
    params = []
    for name in names:
        mark = NEEDS.get(name.split(".")[0])
        params.append(
            pytest.param(name, marks=[mark] if mark is not None and (runs or mark not in NEEDED_TO_RUN) else [])
        )
    return params


def named(name: str) -> Any:
    found: Any = ibp_gnn
    for part in name.split("."):
        found = getattr(found, part)
    return found


@pytest.fixture
def names() -> dict[str, Any]:
    """What examples find already made."""
    features = torch.randn(1000, 16, generator=torch.Generator().manual_seed(0))
    store = ibp_gnn.CompressedFeatureStore.build(features, progress=False)
    found = {"ibp_gnn": ibp_gnn, "torch": torch, "features": features, "store": store}
    if HAS_DGL:
        found["dgl"] = import_dgl()
    if HAS_WHOLEGRAPH and torch.cuda.is_available():
        src, dst = torch.randint(0, 1000, (2, 20_000), generator=torch.Generator().manual_seed(0))
        found |= {"src": src, "dst": dst, "num_nodes": 1000, "train_ids": torch.tensor([1, 7, 500])}
        found["graph"] = ibp_gnn.wholegraph.Graph.from_edges(src, dst, 1000)
    if HAS_PYG:
        found["Data"] = importlib.import_module("torch_geometric.data").Data
        found["NodeLoader"] = importlib.import_module("torch_geometric.loader").NodeLoader
    return found


def dist_graph(folder: Path, features: torch.Tensor, name: str) -> Any:
    """What the example of `name` finds: partitions in the folder "parts", compressed and attached before."""
    distdgl_parts = importlib.import_module("distdgl_parts")  # imports DGL
    path = distdgl_parts.partition(folder / "parts", features, name="papers")
    if name == "compress_partitions":
        return None
    config = ibp_gnn.distdgl.compress_partitions(path, ["feat"], progress=False)
    graph = distdgl_parts.PartGraph(config)
    return graph if name == "attach" else ibp_gnn.distdgl.attach(graph, config)


def test_all_public_modules_are_here() -> None:
    modules = {name.split(".")[0] for name in PUBLIC if "." in name}
    assert modules == set(ibp_gnn._LAZY_MODULES)
    assert {f"hotness.{name}" for name in ibp_gnn.hotness.__all__} <= set(PUBLIC)
    assert {f"offload.{name}" for name in ibp_gnn.offload.__all__} <= set(PUBLIC)
    assert {f"packing.{name}" for name in ibp_gnn.packing.__all__} <= set(PUBLIC)
    for module, is_here in (("distdgl", HAS_DGL), ("graphbolt", HAS_DGL), ("pyg", HAS_PYG), ("wholegraph", True)):
        if is_here:  # GraphBoltFeatureStore is ibp_gnn.GraphBoltFeatureStore
            exported = {f"{module}.{name}" for name in named(module).__all__} - {"graphbolt.GraphBoltFeatureStore"}
            assert exported <= set(PUBLIC)


@pytest.mark.parametrize("name", each(PUBLIC, runs=True))
def test_example(
    name: str,
    names: dict[str, Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    if name.startswith("distdgl."):
        names["dist_graph"] = dist_graph(tmp_path, names["features"], name.split(".")[1])
    example = doctest.DocTestParser().get_doctest(inspect.getdoc(named(name)) or "", names, name, None, None)
    assert example.examples, f"{name}: want an example, got none"
    assert sum(one.source.count("\n") for one in example.examples) <= 4, f"{name}: want a short example"
    said: list[str] = []
    result = doctest.DocTestRunner().run(example, out=said.append)
    assert result.failed == 0, "".join(said)


def functions_of(public: Any) -> Iterator[tuple[str, Any]]:
    """A function itself; of a class its constructor and its own methods."""
    if not inspect.isclass(public):
        yield public.__name__, public
        return
    for name, member in vars(public).items():
        function = member.__func__ if isinstance(member, (classmethod, staticmethod)) else member
        is_public = not name.startswith("_") or name == "__init__"
        if inspect.isfunction(function) and is_public and name not in INTERNAL.get(public.__name__, ()):
            yield f"{public.__name__}.{name}", function


def properties_of(public: Any) -> dict[str, property]:
    """A class's own ones, by name; those of a base class of ours among them."""
    classes = [cls for cls in getattr(public, "__mro__", ()) if cls.__module__.startswith("ibp_gnn")]
    return {
        name: member
        for cls in reversed(classes)
        for name, member in vars(cls).items()
        if isinstance(member, property)
        and not name.startswith("_")
        and name not in INTERNAL.get(public.__name__, set()) | getattr(public, "_INTERNAL", set())
    }


@pytest.mark.parametrize("name", each(PUBLIC, runs=False))
def test_every_property_is_described(name: str) -> None:
    public = named(name)
    bare = [label for label, member in properties_of(public).items() if not inspect.getdoc(member)]
    assert bare == [], f"{name}: want a docstring of each property"
    for label, member in properties_of(public).items():
        assert inspect.signature(member.fget).return_annotation is not inspect.Signature.empty, label  # type: ignore[arg-type]


def test_properties_are_found() -> None:
    assert {"shape", "dtype", "ndim", "layout", "savings", "nbytes"} <= set(
        properties_of(ibp_gnn.CompressedFeatureStore)
    )
    assert "plan" not in properties_of(ibp_gnn.CompressedGPUCache)


def sections_of(function: Any) -> dict[str, str]:
    """By title; "" is what comes before the first."""
    doc = inspect.getdoc(function) or ""
    parts = re.split(r"^(Args|Returns|Raises|Example):\n", doc, flags=re.MULTILINE)
    return {"": parts[0], **dict(zip(parts[1::2], parts[2::2], strict=True))}


@pytest.mark.parametrize("name", each(PUBLIC, runs=False))
def test_arguments_and_results_are_described(name: str) -> None:
    public = named(name)
    assert inspect.getdoc(public)
    made_by_dataclass = {
        "CodecReport.__init__",
        "CompressedRows.__init__",
        "GatherStats.__init__",
        "OffloadReport.__init__",
        "PackedTensor.__init__",
        "PageReport.__init__",
        "PullStats.__init__",
        "RowSource.__init__",
    }
    for label, function in functions_of(public):
        signature = inspect.signature(function)
        parameters = [one for one in signature.parameters if one not in ("self", "cls")]
        if label in made_by_dataclass:
            continue
        sections = sections_of(function)
        described = re.findall(r"^    (\w+): ", sections.get("Args", ""), flags=re.MULTILINE)
        assert described == parameters, f"{label}: want {parameters} in Args, got {described}"
        if parameters and str(signature.return_annotation) not in ("None", "<class 'NoneType'>"):
            assert sections.get("Returns", "").strip(), f"{label}: want what it returns, got nothing"
        for title in ("Args", "Returns", "Raises"):
            assert title not in sections or sections[title].startswith("    "), f"{label}: {title} is not indented"

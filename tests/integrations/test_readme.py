"""The code of README.md and docs/*.md runs as it is written, and gives the bits that it promises.

A line `<!-- example: NAME -->` before each Python block names its entry in EXAMPLES. That says what the block finds
already made, what must be true after it, and which library or GPU it needs: it is skipped where that is missing.
"""

from __future__ import annotations

import copy
import dataclasses
import importlib.util
import re
import shlex
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import ibp_gnn
from ibp_gnn.command import cli
from ibp_gnn.integrations.dgl_compat import graphbolt_is_native, import_dgl
from ibp_gnn.testing import assert_bitwise_equal

REPOSITORY = Path(__file__).parents[2]
README = REPOSITORY / "README.md"
DOCUMENTS = [README, *sorted((REPOSITORY / "docs").glob("*.md"))]
NUM_NODES, NUM_EDGES = 4000, 20000

HAS_DGL = importlib.util.find_spec("dgl") is not None
needs_dgl = pytest.mark.skipif(not HAS_DGL, reason="DGL is not installed")
needs_graphbolt = pytest.mark.skipif(
    not (HAS_DGL and graphbolt_is_native()), reason="GraphBolt's native library needs torch 2.0.0 to 2.2.1"
)
needs_pyg = pytest.mark.skipif(importlib.util.find_spec("torch_geometric") is None, reason="PyG is not installed")
needs_wholegraph = pytest.mark.skipif(
    importlib.util.find_spec("pylibwholegraph") is None, reason="WholeGraph is not installed"
)
needs_llm = pytest.mark.skipif(
    not all(importlib.util.find_spec(name) for name in ("transformers", "accelerate")),
    reason="the extra `llm` is not here",
)
needs_compile = pytest.mark.skipif(
    not hasattr(torch.compiler, "is_compiling"), reason="torch.compile breaks the graph at a gather before torch 2.3"
)
needs_gpu = pytest.mark.cuda
needs_uint32 = pytest.mark.skipif(not hasattr(torch, "uint32"), reason="torch has no uint32")
ignores_capacity = pytest.mark.filterwarnings("ignore:capacity '1GB':UserWarning")
pytestmark = pytest.mark.filterwarnings(
    "ignore:.*multi-threaded, use of fork.*:DeprecationWarning",
    "ignore:.*CPU affinity.*",
    "ignore:capacity '.*GB':UserWarning",  # more than these small stores need
    "ignore:`past_key_values` is deprecated",
)

Names = dict[str, Any]
TRAIN_IDS = torch.arange(1500)
IDS = torch.arange(0, NUM_NODES, 3)


def features() -> torch.Tensor:
    return torch.randn(NUM_NODES, 16, generator=torch.Generator().manual_seed(0)) * 100


def edges() -> torch.Tensor:
    return torch.randint(0, NUM_NODES, (2, NUM_EDGES), generator=torch.Generator().manual_seed(1))


def store() -> ibp_gnn.CompressedFeatureStore:
    return ibp_gnn.CompressedFeatureStore.build(features(), progress=False)


def dgl_graph() -> Any:
    return import_dgl().graph(tuple(edges()), num_nodes=NUM_NODES)


# --- what the examples find, and what must be true after them ---------------------------------------------------------


def dgl_names(folder: Path) -> Names:
    return {"features": features(), "graph": dgl_graph(), "train_ids": TRAIN_IDS, "ids": IDS}


def check_dgl_loop(names: Names) -> None:
    assert_bitwise_equal(names["x"], features()[names["input_nodes"]])
    assert isinstance(names["store"], ibp_gnn.CompressedFeatureStore)


def check_dgl_rows(names: Names) -> None:
    assert_bitwise_equal(names["rows"], features()[IDS])
    assert_bitwise_equal(names["store"].gather(IDS), 2 * features()[IDS])


def graphbolt_names(folder: Path) -> Names:
    from on_disk_dataset import write_dataset

    write_dataset(folder, dgl_graph(), {"feat": features()})
    return {"path": str(folder)}


def check_graphbolt(names: Names) -> None:
    batch = names["batch"]
    assert_bitwise_equal(batch.node_features["feat"], features()[batch.input_nodes])
    assert isinstance(names["features"]["node", None, "feat"], ibp_gnn.graphbolt.CompressedFeature)


def pyg_names(folder: Path) -> Names:
    names = {"x": features(), "y": torch.arange(NUM_NODES) % 5, "edge_index": edges(), "train_ids": TRAIN_IDS}
    return {**names, "model": lambda x, edge_index: x}


def pyg_imported(folder: Path) -> Names:
    from torch_geometric.data import Data
    from torch_geometric.loader import NodeLoader

    return {**pyg_names(folder), "ibp_gnn": ibp_gnn, "Data": Data, "NodeLoader": NodeLoader}


def check_pyg(names: Names) -> None:
    batch = names["batch"] if "batch" in names else next(iter(names["loader"]))
    assert_bitwise_equal(batch.x, features()[batch.n_id])
    assert torch.equal(batch.y, batch.n_id % 5)
    if "out" in names:
        assert_bitwise_equal(names["out"], batch.x)


def store_names(folder: Path) -> Names:
    return {"np": np, "store": store(), "ids": IDS}


def compile_names(folder: Path) -> Names:
    return {"torch": torch, "store": store()}


def check_compiled(names: Names) -> None:
    torch._dynamo.reset()
    out = names["forward"](IDS)
    torch.testing.assert_close(out, names["layer"](features()[IDS]))  # of a layer, whose sums may be ordered anew


def check_store(names: Names) -> None:
    assert_bitwise_equal(names["rows"], features()[IDS])
    assert_bitwise_equal(names["array"], features().numpy())


def edge_names(folder: Path) -> Names:
    edge_attr = torch.arange(NUM_EDGES).to(torch.float32)[:, None]
    return {"ibp_gnn": ibp_gnn, "edge_attr": edge_attr, "batch": types.SimpleNamespace(e_id=IDS)}


def check_edges(names: Names) -> None:
    assert_bitwise_equal(names["batch"].edge_attr, names["edge_attr"][IDS])


def gpu_names(folder: Path) -> Names:
    return {"ibp_gnn": ibp_gnn, "store": store(), "graph": dgl_graph(), "input_nodes": IDS}


def check_gpu(names: Names) -> None:
    assert names["x"].is_cuda
    assert_bitwise_equal(names["x"], features()[IDS])
    assert names["cache"].stats().hits == len(IDS)


def hotness_names(folder: Path) -> Names:
    src, dst = edges()
    return {"src": src, "dst": dst, "num_nodes": NUM_NODES, "train_ids": TRAIN_IDS, "loader": [TRAIN_IDS, IDS]}


def check_hotness(names: Names) -> None:
    assert torch.equal(names["by_degree"], torch.bincount(names["src"], minlength=NUM_NODES))
    assert int(names["by_count"].sum()) == 3 * (len(TRAIN_IDS) + len(IDS)) and int(names["by_count"][0]) == 6
    assert names["by_walks"].shape == (NUM_NODES,) and float(names["by_walks"].min()) >= 0


def order_names(folder: Path) -> Names:
    return {"ibp_gnn": ibp_gnn, "torch": torch, "features": features(), "scores": IDS.new_tensor(range(NUM_NODES))}


def check_order(names: Names) -> None:
    assert names["ids_hottest_first"][0] == NUM_NODES - 1
    assert int(names["store"].slot_of[NUM_NODES - 1]) == 0
    assert_bitwise_equal(names["store"].gather(IDS), features()[IDS])


def budget_names(folder: Path) -> Names:
    scores = torch.arange(NUM_NODES)
    return {"ibp_gnn": ibp_gnn, "papers": store(), "authors": store(), "p": scores, "a": scores}


def check_budget(names: Names) -> None:
    for source in names["sources"].values():
        assert isinstance(source, ibp_gnn.CompressedGPUCache)
        assert_bitwise_equal(source.gather(IDS, device="cuda"), features()[IDS])


def prefetch_names(folder: Path) -> Names:
    cache = ibp_gnn.CompressedGPUCache(store(), "1000 rows")
    loader = [(ids, ids, ()) for ids in (TRAIN_IDS, IDS)]
    return {"ibp_gnn": ibp_gnn, "cache": cache, "loader": loader, "model": lambda blocks, x: x}


def check_prefetch(names: Names) -> None:
    assert names["x"].is_cuda and names["input_nodes"] is IDS
    assert_bitwise_equal(names["out"], features()[IDS])


def file_names(folder: Path) -> Names:
    """A store; its file is in `folder`, too, which the examples run in."""
    made = store()
    made.save(folder / "features.ibp")
    return {"ibp_gnn": ibp_gnn, "store": made}


def check_file(names: Names) -> None:
    opened = [names[name] for name in ("store", "private", "shared") if name in names]
    for one in opened:
        assert_bitwise_equal(one.gather(IDS), features()[IDS])
        one.close()


def check_decoder(names: Names) -> None:
    """The decoder of format.md reads what we write: both codecs, both layouts, with and without an order."""
    assert b"".join(names["rows"]) == features().numpy().tobytes()
    generator = torch.Generator().manual_seed(2)
    values = torch.randn(70, 9, generator=generator)
    values[::3] = 0
    values[5] *= 1e30
    order = torch.randperm(70, generator=generator)
    trimmed = values.to(torch.bfloat16).float()  # its lowest 16 bits are 0
    others = trimmed, values.to(torch.bfloat16), values.half(), (values * 50).to(torch.int16), values > 0
    for rows in (values, *others):
        for codec in ("ibp", "dict"):
            for layout in ("compact", "inplace", "packed"):
                made = ibp_gnn.CompressedFeatureStore.build(
                    rows, codec, layout=layout, order=order, progress=False, pin=False
                )
                made.save("other.ibp")
                assert codec == "ibp" or rows is not trimmed or made.codec.form.trim_bits == 16
                expected = rows.contiguous().view(torch.uint8).reshape(70, -1).numpy()
                assert b"".join(names["read_store"]("other.ibp")) == expected.tobytes(), (rows.dtype, codec, layout)
    # The odd parts of codec "dict": a dictionary per column, a zero code, symbols of two bytes that are written out.
    from ibp_gnn.codec.dict import DictForm
    from ibp_gnn.testing import oracle_dict

    wide = torch.randint(-(2**60), 2**60, (70, 9), generator=generator)
    wide[:, 4:] = 0
    wide[9] = 2**62 - 8
    data = wide.view(torch.uint8).numpy()
    for symbol_bits, per_column in ((8, True), (13, False)):
        cut = oracle_dict.Cut(symbol_bits, False)
        form = oracle_dict.make_form(data, 64, cut, 2, zero_code=True, per_column=per_column, trim_bits=0)
        assert isinstance(form, DictForm)
        codec = ibp_gnn.Codec(torch.int64, (9,), form)
        made = ibp_gnn.CompressedFeatureStore.build(wide, codec, layout="inplace", progress=False, pin=False)
        assert made.rows.is_compressed().any()
        made.save("other.ibp")
        assert b"".join(names["read_store"]("other.ibp")) == data.tobytes(), (symbol_bits, per_column)


def bag_names(folder: Path) -> Names:
    module = torch.nn.EmbeddingBag.from_pretrained(features(), mode="sum")
    names = {"ibp_gnn": ibp_gnn, "device": "cpu", "module": module}
    return {**names, "ids": IDS[:50], "offsets": torch.tensor([0, 10, 10, 30])}


def check_bag(names: Names) -> None:
    expected = names["module"](names["ids"], names["offsets"])
    assert torch.allclose(names["pooled"], expected, rtol=1e-5, atol=1e-3)
    assert_bitwise_equal(names["rows"], features()[names["ids"]])


def collection_names(folder: Path) -> Names:
    names = {"ibp_gnn": ibp_gnn, "torch": torch, "device": "cpu", "users": features(), "items": features()[:100]}
    ids = {"user_ids": IDS[:6].view(2, 3), "bought_ids": torch.tensor([[1], [2]])}
    return {**names, **ids, "clicked_ids": torch.arange(5), "clicked_offsets": torch.tensor([0, 5])}


def check_collection(names: Names) -> None:
    clicked = features()[:5].sum(0)
    expected = torch.cat([features()[names["user_ids"]].sum(1), torch.stack([clicked, 0 * clicked])], dim=1)
    assert torch.allclose(names["x"][:, :32], expected, rtol=1e-5, atol=1e-3)
    assert_bitwise_equal(names["x"][:, 32:].contiguous(), features()[[1, 2]])


def serving_names(folder: Path) -> Names:
    tables = {"user": features(), "item": features() + 1}
    batches = [{name: torch.randint(0, NUM_NODES, (900, 5)) for name in tables} for _ in range(3)]
    counts = {name: torch.arange(NUM_NODES) for name in tables}
    new = {"new_ids": torch.arange(7), "new_rows": features()[20:27]}
    return {"ibp_gnn": ibp_gnn, "tables": tables, "counts": counts, "batches": batches, **new}


def check_serving(names: Names) -> None:
    user = ibp_gnn.CompressedEmbeddingBag.from_pretrained(features(), mode="sum", progress=False)
    assert_bitwise_equal(names["pooled"]["user"].contiguous(), user(names["batches"][-1]["user"]))
    assert_bitwise_equal(names["bags"].to_dense()["item"][:7], names["new_rows"])


@dataclasses.dataclass(frozen=True)
class Example:
    names: Callable[[Path], Names]
    check: Callable[[Names], None]
    marks: tuple[Any, ...] = ()


def wholegraph_names(folder: Path) -> Names:
    src, dst = edges()
    cache = ibp_gnn.CompressedGPUCache(store(), "1000 rows")
    return {"ibp_gnn": ibp_gnn, "src": src, "dst": dst, "num_nodes": NUM_NODES, "train_ids": TRAIN_IDS, "cache": cache}


def check_wholegraph(names: Names) -> None:
    assert_bitwise_equal(names["x"].cpu(), features()[names["batch"].input_nodes.long().cpu()])
    assert names["edge_index"].shape[0] == 2 and int(names["edge_index"].max()) < len(names["x"])


def partition_names(folder: Path) -> Names:
    graph = dgl_graph()
    graph.ndata["feat"], graph.ndata["id"] = features(), torch.arange(NUM_NODES)
    return {"ibp_gnn": ibp_gnn, "dgl": import_dgl(), "graph": graph}


def check_partitions(names: Names) -> None:
    assert names["config"] == Path("parts/papers.ibp.json")
    check_part_graph(ibp_gnn.distdgl.attach(part_graph(names["config"]), names["config"]))


def part_graph(config: Path) -> Any:
    from distdgl_parts import PartGraph

    return PartGraph(config)


def check_part_graph(graph: Any) -> None:
    assert_bitwise_equal(graph.ndata["feat"][IDS], features()[graph.ndata["id"][IDS]])


def client_names(folder: Path) -> Names:
    """Without servers: the partitions' tensors are read from their files."""
    names = partition_names(folder)
    names["dgl"].distributed.partition_graph(names["graph"], "papers", 2, str(folder / "parts"))
    config = ibp_gnn.distdgl.compress_partitions(folder / "parts/papers.json", ["feat"], progress=False)
    distributed = types.SimpleNamespace(initialize=lambda path: None, DistGraph=lambda name: part_graph(config))
    return {"ibp_gnn": ibp_gnn, "dgl": types.SimpleNamespace(distributed=distributed), "loader": [(IDS, IDS, [])]}


def check_client(names: Names) -> None:
    check_part_graph(names["g"])
    assert len(names["x"]) == len(IDS) and names["g"].ndata["feat"].stats().savings > 0.1


def distributed_names(folder: Path) -> Names:
    """A store, and its file in the folder that the example runs in."""
    store().save(folder / "features.ibp")
    return {"ibp_gnn": ibp_gnn, "store": store(), "scores": torch.rand(NUM_NODES), "input_nodes": IDS}


def check_distributed(names: Names) -> None:
    assert_bitwise_equal(names["x"].cpu(), features()[IDS])
    (names["cache"] if "cache" in names else names["rows"]).close()


def llm_names(folder: Path) -> Names:
    """A small model of transformers; the device is a GPU if there is one."""
    from offload_models import llama, some_ids

    model = llama()
    ids = some_ids() % 900 + 1
    names = {"model": model, "config": model.config, "torch": torch, "kv": torch.randn(4, 64, 8, 128).bfloat16()}
    device = "cuda" if torch.cuda.is_available() else "cpu"
    inputs = {"input_ids": ids.to(device), "attention_mask": torch.ones_like(ids).to(device)}
    with torch.inference_mode():
        want = copy.deepcopy(model).to(device).generate(**inputs, max_new_tokens=20)
    return names | {"inputs": inputs, "device": device, "want": want, "kv": names["kv"].to(device)}


def llm_names_on_device(folder: Path) -> Names:
    names = llm_names(folder)
    return names | {"model": names["model"].to(names["device"])}


def llm_names_with_accelerate(folder: Path) -> Names:
    from transformers import AutoModelForCausalLM

    return {**llm_names(folder), "AutoModelForCausalLM": AutoModelForCausalLM}


def check_tokens(names: Names) -> None:
    assert torch.equal(names["ids"], names["want"])


def check_model(names: Names) -> None:
    with torch.inference_mode():
        ids = names.get("empty", names["model"]).generate(**names["inputs"], max_new_tokens=20)
    assert torch.equal(ids, names["want"])


def check_pages(names: Names) -> None:
    kv = names["kv"]
    assert_bitwise_equal(names["whole"], kv[[2, 0]])
    assert_bitwise_equal(names["some"], kv.flatten(0, 1)[[3, 70, 200]])


def lossy_names(folder: Path) -> Names:
    return {"ibp_gnn": ibp_gnn, "torch": torch, "features": features(), "ids": IDS}


def check_lossy(names: Names) -> None:
    assert_bitwise_equal(names["x"], names["again"][names["ids"]])
    assert_bitwise_equal(names["half"][:], features().bfloat16())
    assert 0 < float((names["x"] - features()[IDS]).norm() / features()[IDS].norm()) < 0.05


def weight_names(folder: Path) -> Names:
    return {"torch": torch, "weight": torch.randn(64, 48, generator=torch.Generator().manual_seed(0))}


def check_packed(names: Names) -> None:
    assert_bitwise_equal(names["h"].unpack(), names["weight"].half().float())
    assert_bitwise_equal(names["values"], names["w"].unpack().half())


def packed_names(folder: Path) -> Names:
    packing, model = ibp_gnn.packing, torch.nn.Sequential(torch.nn.Linear(48, 64), torch.nn.ReLU()).eval()
    w = packing.pack_fp8(weight_names(folder)["weight"], "e4m3", scale="row")
    return {"packing": packing, "w": w, "x": torch.ones(48), "model": model}


def check_products(names: Names) -> None:
    assert torch.allclose(names["y"], names["w"].unpack().sum(1), atol=1e-4)
    assert isinstance(names["model"][0], ibp_gnn.packing.PackedLinear)


EXAMPLES = {
    "readme-dgl": Example(dgl_names, check_dgl_loop, (needs_dgl,)),
    "readme-pyg": Example(pyg_imported, check_pyg, (needs_pyg,)),
    "readme-gpu": Example(gpu_names, check_gpu, (needs_gpu, needs_dgl)),
    "readme-file": Example(file_names, check_file),
    "adapters-store": Example(store_names, check_store),
    "adapters-compile": Example(compile_names, check_compiled, (needs_compile,)),
    "adapters-dgl": Example(dgl_names, check_dgl_rows, (needs_dgl,)),
    "adapters-graphbolt": Example(graphbolt_names, check_graphbolt, (needs_graphbolt,)),
    "adapters-pyg": Example(pyg_names, check_pyg, (needs_pyg,)),
    "adapters-pyg-edges": Example(edge_names, check_edges),
    "gpu-cache": Example(gpu_names, check_gpu, (needs_gpu, needs_dgl)),
    "gpu-hotness": Example(hotness_names, check_hotness),
    "gpu-order": Example(order_names, check_order),
    "gpu-budget": Example(budget_names, check_budget, (needs_gpu,)),
    "distributed-sharded": Example(distributed_names, check_distributed, (needs_gpu, needs_wholegraph)),
    "distributed-rows": Example(distributed_names, check_distributed, (needs_gpu, needs_wholegraph)),
    "training-wholegraph": Example(wholegraph_names, check_wholegraph, (needs_gpu, needs_wholegraph)),
    "gpu-prefetch": Example(prefetch_names, check_prefetch, (needs_gpu,)),
    "distributed-partitions": Example(partition_names, check_partitions, (needs_dgl,)),
    "distributed-client": Example(client_names, check_client, (needs_dgl,)),
    "dlrm-bag": Example(bag_names, check_bag),
    "dlrm-collection": Example(collection_names, check_collection),
    "dlrm-serving": Example(serving_names, check_serving, (needs_gpu, ignores_capacity)),
    "precision-store": Example(lossy_names, check_lossy),
    "precision-pack": Example(weight_names, check_packed, (needs_uint32,)),
    "precision-linear": Example(packed_names, check_products, (needs_uint32,)),
    "store-files": Example(file_names, check_file),
    "llm-weights": Example(llm_names, check_tokens, (needs_llm,)),
    "llm-checkpoint": Example(llm_names_with_accelerate, check_model, (needs_llm,)),
    "llm-accelerate": Example(llm_names, check_model, (needs_llm,)),
    "llm-kv-cache": Example(llm_names_on_device, check_tokens, (needs_llm,)),
    "llm-pages": Example(llm_names, check_pages),
    "format-decoder": Example(file_names, check_decoder),
}


# --- the documents ----------------------------------------------------------------------------------------------------


def blocks_of(document: Path) -> list[tuple[str, str]]:
    """Name and code of each Python block; "" for a block without a name."""
    found = re.findall(
        r"(?:<!-- example: (\S+) -->\n)?```python\n(.*?)```", document.read_text(encoding="utf-8"), flags=re.DOTALL
    )
    return [(name, code) for name, code in found]


def commands_of(document: Path) -> list[str]:
    blocks = re.findall(r"```bash\n(.*?)```", document.read_text(encoding="utf-8"), flags=re.DOTALL)
    return [line for block in blocks for line in block.splitlines()]


@pytest.mark.parametrize("name", [pytest.param(name, marks=one.marks) for name, one in EXAMPLES.items()])
def test_example(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (code,) = [code for document in DOCUMENTS for found, code in blocks_of(document) if found == name]
    names = EXAMPLES[name].names(tmp_path)
    monkeypatch.chdir(tmp_path)
    exec(compile(code, f"example {name}", "exec"), names)
    EXAMPLES[name].check(names)


def test_every_python_block_is_an_example() -> None:
    found = [(document.name, name) for document in DOCUMENTS for name, _ in blocks_of(document)]
    assert ["" for _, name in found if name not in EXAMPLES] == [], found
    assert sorted(name for _, name in found) == sorted(EXAMPLES)


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_commands(document: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of `ibp-gnn` run, one after the other, on small files of the names that they have there."""
    monkeypatch.chdir(tmp_path)
    np.save("features.npy", features().numpy())
    np.save("hotness.npy", np.arange(NUM_NODES))
    np.save("ids.npy", IDS.numpy())
    np.savez("graph.npz", edge_index=edges().numpy(), train=TRAIN_IDS.numpy())
    for line in commands_of(document):
        command, *arguments = shlex.split(line, comments=True)
        if command == "ibp-gnn":
            assert cli.main(arguments) == 0, line
    if Path("back.npy").exists():
        assert np.load("back.npy").tobytes() == features()[IDS].numpy().tobytes()


def test_readme_is_short_and_has_the_two_commands() -> None:
    assert len(README.read_text(encoding="utf-8").splitlines()) <= 140
    assert [line.split("#")[0].strip() for line in commands_of(README) if line.startswith("bash ")] == [
        "bash scripts/quickstart.sh",
        "bash scripts/test.sh",
    ]
    for name, code in blocks_of(README):
        assert len([line for line in code.splitlines() if line.strip()]) <= 10, name


def anchors_of(document: Path) -> set[str]:
    headings = re.findall(r"^#+ (.*)$", document.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_links_and_paths_lead_somewhere(document: Path) -> None:
    text = document.read_text(encoding="utf-8")
    for link in re.findall(r"\]\(([^)]+)\)", text):
        if link.startswith("https://"):
            continue
        path, _, anchor = link.partition("#")
        target = document.parent / path if path else document
        assert target.exists(), link
        assert not anchor or anchor in anchors_of(target), link
    for path in re.findall(r"\b(?:csrc|ibp_gnn|scripts|configs|tests|docs)/[\w./-]*\w", text):
        assert any(REPOSITORY.glob(path.replace("NAME", "*"))), path
    for config in re.findall(r"`(\w+_sage)`", text):
        assert (REPOSITORY / "configs" / f"{config}.yaml").exists(), config

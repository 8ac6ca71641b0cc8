"""Layer-wise inference: compressed embeddings give the bits of raw ones; the store that is written in parts; files."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sage_models
import torch
from sage_models import CLASSES, FEATURES, NODES, SETTINGS

import ibp_gnn
from ibp_gnn.config import ConfigError, load
from ibp_gnn.datasets import NodeDataset
from ibp_gnn.integrations.dgl_compat import import_dgl
from ibp_gnn.testing import assert_bitwise_equal
from ibp_gnn.training import checkpoint, inference
from ibp_gnn.training.inference_config import InferenceConfig
from ibp_gnn.training.sage import GraphSAGE
from ibp_gnn.training.sampling import make_full_loader

model = sage_models.model

REPOSITORY = Path(__file__).resolve().parents[2]
NOTHING = torch.empty(0, dtype=torch.int64)


@pytest.fixture(autouse=True)
def data(monkeypatch: pytest.MonkeyPatch) -> NodeDataset:
    """What `load_dataset` gives: a graph with a hub, nodes without edges and repeated edges; no test nodes."""
    generator = torch.Generator().manual_seed(2)
    src = torch.randint(0, NODES, (9000,), generator=generator)
    dst = torch.randint(0, NODES - 100, (9000,), generator=generator)
    dst[:1400] = 5
    order = torch.randperm(NODES, generator=generator)
    made = NodeDataset(
        name="random",
        num_classes=CLASSES,
        src=src,
        dst=dst,
        features=torch.randn(NODES, FEATURES, generator=generator),
        labels=torch.randint(0, CLASSES, (NODES,), generator=generator),
        train_ids=order[:1000],
        val_ids=order[1000:],
        test_ids=NOTHING,
    )
    monkeypatch.setattr(inference, "load_dataset", lambda **settings: made)
    return made


def infer(folder: Path, *overrides: str) -> tuple[dict[str, Any], torch.Tensor]:
    """Returns the record and the logits."""
    logits = folder / "logits.npy"
    base = [f"checkpoint={folder / 'model.pt'}", f"output.logits={logits}", "log.progress=false"]
    base += ["device=cpu", "batch_size=333", "sample_nodes=200"]
    result = inference.run(load(InferenceConfig, None, [*base, *overrides]), log=lambda line: None)
    return result, torch.from_numpy(np.load(logits))


def test_compressed_embeddings_give_the_bits_of_raw_ones(tmp_path: Path, model: GraphSAGE, data: NodeDataset) -> None:
    raw, raw_logits = infer(tmp_path, "features=raw", "embeddings=raw")
    result, logits = infer(tmp_path, f"output.predictions={tmp_path / 'predictions.npy'}")
    assert_bitwise_equal(logits, raw_logits)
    assert result["logits_sha256"] == raw["logits_sha256"]
    predictions = np.load(tmp_path / "predictions.npy")
    assert np.array_equal(predictions, logits.argmax(1).numpy())
    right = torch.from_numpy(predictions) == data.labels
    assert result["val_accuracy"] == pytest.approx(right[data.val_ids].double().mean().item())
    assert result["test_accuracy"] is None and raw["val_accuracy"] == result["val_accuracy"]

    first, second, last = result["layers"]
    assert [layer["width"] for layer in result["layers"]] == [32, 32, CLASSES]
    assert last["bytes"] == last["raw_bytes"] == 0
    assert 0 < first["bytes"] < 0.7 * first["raw_bytes"] and first["raw_bytes"] == NODES * 32 * 4
    assert second["bytes_held"] == first["bytes"] + second["bytes"] and second["read_bytes"] == first["bytes"]
    assert second["raw_bytes_held"] == 2 * NODES * 32 * 4
    assert result["embedding_bytes"] == first["bytes"] + second["bytes"]
    assert 0.3 < result["embedding_savings"] < 1 and raw["embedding_savings"] == 0
    assert result["bytes_held"] < result["raw_bytes_held"] == raw["bytes_held"]
    assert result["peak_rss_bytes"] > 0


def test_layers_equal_the_model_on_the_whole_graph(tmp_path: Path, model: GraphSAGE, data: NodeDataset) -> None:
    _, logits = infer(tmp_path)
    everything = torch.arange(NODES)
    block = import_dgl().to_block(data.to_dgl(), everything)
    with torch.inference_mode():
        torch.testing.assert_close(logits, model([block] * 3, data.features), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("override", ["workers=2", "embedding_store.codec=ibp", "embedding_store.layout=inplace"])
def test_settings_that_do_not_change_the_bits(tmp_path: Path, model: GraphSAGE, override: str) -> None:
    _, logits = infer(tmp_path)
    _, other = infer(tmp_path, override)
    assert_bitwise_equal(other, logits)


@pytest.mark.cuda
def test_on_a_gpu(tmp_path: Path, model: GraphSAGE) -> None:
    on_cpu, logits_of_cpu = infer(tmp_path)
    raw, raw_logits = infer(tmp_path, "device=cuda", "features=raw", "embeddings=raw")
    compressed, logits = infer(tmp_path, "device=cuda")
    assert_bitwise_equal(logits, raw_logits)
    assert compressed["logits_sha256"] == raw["logits_sha256"]
    assert compressed["peak_gpu_bytes"] > 0 and on_cpu["peak_gpu_bytes"] is None
    torch.testing.assert_close(logits, logits_of_cpu, rtol=1e-4, atol=1e-4)


def test_batches_are_in_order_and_complete(data: NodeDataset) -> None:
    ids = torch.tensor([7, 5, 3, 1400, 1499])
    graph = data.to_dgl().formats("csc")
    batches = list(make_full_loader(graph, ids, batch_size=2, workers=0))
    assert torch.equal(torch.cat([output for _, output, _ in batches]), ids)
    for inputs, outputs, block in batches:
        assert torch.equal(inputs[: len(outputs)], outputs)
        indptr, indices, _ = block.adj_tensors("csc")
        for i, node in enumerate(outputs):
            sources = inputs[indices[indptr[i] : indptr[i + 1]]]
            assert torch.equal(sources.sort().values, data.src[data.dst == node].sort().values)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"settings": None}, "does not describe a GraphSAGE"),
        ({"settings": {**SETTINGS, "hidden": 16}}, "does not describe a GraphSAGE"),
        ({"state": {}}, "does not describe a GraphSAGE"),
        ({"aggregation": "pyg"}, "want a model of `loop: dgl` or `loop: graphbolt`, got one of `loop: pyg`"),
        ({"more": 1}, r"want a file of train_sage.py with \['settings', 'aggregation', 'state'\], got"),
    ],
)
def test_checkpoints_that_are_none(tmp_path: Path, model: GraphSAGE, change: dict[str, Any], message: str) -> None:
    content = torch.load(tmp_path / "model.pt", weights_only=True)
    torch.save(content | change, tmp_path / "model.pt")
    with pytest.raises(ConfigError, match=f"checkpoint: .*{message}"):
        infer(tmp_path)


def test_files_that_cannot_be_read_or_written(tmp_path: Path, model: GraphSAGE) -> None:
    with pytest.raises(ConfigError, match=r"output.logits: want a file, got the folder"):
        infer(tmp_path, f"output.logits={tmp_path}")
    (tmp_path / "model.pt").write_bytes(b"no model")
    with pytest.raises(ConfigError, match="checkpoint: cannot read .*model.pt"):
        infer(tmp_path)
    with pytest.raises(ConfigError, match="checkpoint: cannot read .*absent.pt"):
        infer(tmp_path, f"checkpoint={tmp_path / 'absent.pt'}")
    with pytest.raises(ConfigError, match="missing setting 'checkpoint'"):
        load(InferenceConfig)


def test_a_model_of_another_data_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoint.save(tmp_path / "model.pt", GraphSAGE(**{**SETTINGS, "in_feats": 21}, aggregation="dgl"))
    with pytest.raises(ConfigError, match="checkpoint: a model with in_feats=21, but random has 20"):
        infer(tmp_path)


def test_bad_embedding_store(tmp_path: Path, model: GraphSAGE) -> None:
    with pytest.raises(ConfigError, match=r"^embedding_store\.codec: want one of"):
        infer(tmp_path, "embedding_store.codec=zip")


def call(folder: Path, script: str, *arguments: str) -> dict[str, Any]:
    """Runs a script there; returns the summary on its last line."""
    paths = [str(Path(ibp_gnn.__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
    command = [sys.executable, str(REPOSITORY / "scripts" / script), *arguments]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_from_training_to_inference(tmp_path: Path) -> None:
    small = ["device=cpu", "model.hidden=16", "model.layers=2", "train.fanouts=[3, 3]", "train.epochs=1"]
    train_config = str(REPOSITORY / "configs/wordnet_sage.yaml")
    trained = call(
        tmp_path, "train_sage.py", "--config", train_config, "--set", *small, "log.checkpoint=runs/wordnet.pt"
    )
    config = ["--config", str(REPOSITORY / "configs/wordnet_infer.yaml")]
    summary = call(tmp_path, "infer_sage.py", *config, "--json", "runs/out.json", "--set", "device=cpu")
    raw = call(tmp_path, "infer_sage.py", *config, "--set", "device=cpu", "features=raw", "embeddings=raw")
    assert summary["logits_sha256"] == raw["logits_sha256"]
    # All neighbours instead of 3 of them: about as good.
    assert summary["test_accuracy"] == raw["test_accuracy"] == pytest.approx(trained["test_accuracy"], abs=0.1)
    assert summary["embedding_savings"] > 0.2
    record = json.loads((tmp_path / "runs/out.json").read_text())
    assert record["layers"][0]["raw_bytes"] == record["num_nodes"] * 16 * 4
    assert record["config"]["checkpoint"] == "runs/wordnet.pt" and "commit" in record

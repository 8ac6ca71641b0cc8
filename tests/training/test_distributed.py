"""Training under torchrun: several processes train as one would, and end if one of them does."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import rank_processes
import torch

from ibp_gnn import CompressedFeatureStore
from ibp_gnn.config import ConfigError
from ibp_gnn.integrations.dgl_compat import graphbolt_is_native
from ibp_gnn.training.distributed import Ranks, is_first_process

SCRIPT = str(rank_processes.TESTS.parent / "scripts" / "train_sage.py")
HETERO = str(Path(__file__).parent / "train_hetero.py")
HAS_DGL = importlib.util.find_spec("dgl") is not None
HAS_PYG = importlib.util.find_spec("torch_geometric") is not None
LOOPS = [
    pytest.param("dgl", marks=pytest.mark.skipif(not HAS_DGL, reason="DGL is not installed")),
    pytest.param(
        "graphbolt",
        marks=pytest.mark.skipif(
            not HAS_DGL or not graphbolt_is_native(), reason="GraphBolt's native library needs torch 2.2.1"
        ),
    ),
    pytest.param("pyg", marks=pytest.mark.skipif(not HAS_PYG, reason="PyG is not installed")),
]
A_LOOP = "dgl" if HAS_DGL else "pyg"
# What several processes do alike only in expectation is left out: sampling, dropout, statistics of a batch.
EQUAL = ["model.dropout=0", "model.input_norm=false", "train.fanouts=[-1, -1]"]


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A folder of arrays. 611 training nodes: with batches of 100 the last one has 11 seeds."""
    rng = np.random.default_rng(0)
    features = rng.normal(size=(1000, 24)).astype(np.float32)
    np.save(tmp_path / "features.npy", features)
    edges = rng.integers(0, 1000, (2, 6000))
    split = {"train": np.arange(611), "val": np.arange(611, 800), "test": np.arange(800, 1000)}
    labels = (features[:, 0] > 0).astype(np.int64) + 2 * (features[:, 1] > 0)
    np.savez(tmp_path / "graph.npz", edge_index=edges, labels=labels, **split)
    return tmp_path


def arguments(data: Path, *overrides: str) -> list[str]:
    small = ["device=cpu", "model.hidden=16", "model.layers=2", "train.fanouts=[3, 3]", "train.epochs=2"]
    settings = [*small, "train.batch_size=100", "dataset.name=arrays", f"dataset.root={data}", "log.progress=false"]
    return [SCRIPT, "--set", *settings, *overrides]


def train_alone(data: Path, *overrides: str) -> dict[str, Any]:
    command = [sys.executable, *arguments(data, *overrides, "log.json=alone.json")]
    environment = rank_processes.environment_of_package()
    done = subprocess.run(command, cwd=data, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return json.loads((data / "alone.json").read_text())


def train(data: Path, count: int, *overrides: str, machines: int = 1) -> tuple[dict[str, Any], list[str]]:
    """Returns the record, and what each rank printed."""
    programs = [arguments(data, *overrides, "log.json=ranks.json")] * count
    done = rank_processes.run(programs, data, machines=machines)
    assert [status for status, *_ in done] == [0] * count, done
    return json.loads((data / "ranks.json").read_text()), [output for _, output, _ in done]


TWO_GPUS = [
    pytest.mark.cuda,
    pytest.mark.skipif(torch.cuda.device_count() < 2, reason="there is no second GPU"),
]
# A cache of each rank's own, in front of the one store that both read in place.
ON_GPU = ["device=cuda", "train.deterministic=true", "cache.capacity=0.4"]


@pytest.mark.parametrize("place", [pytest.param([], id="cpu"), pytest.param(ON_GPU, id="cuda", marks=TWO_GPUS)])
@pytest.mark.parametrize("loop", LOOPS)
def test_two_ranks_train_like_one_process(data: Path, loop: str, place: list[str]) -> None:
    overrides = [*EQUAL, f"loop={loop}", *place]
    alone = train_alone(data, *overrides)
    record, (said, nothing) = train(data, 2, *overrides, "log.checkpoint=model.pt")
    assert len(alone["step_losses"]) == len(record["step_losses"]) == 14
    assert record["step_losses"] == pytest.approx(alone["step_losses"], rel=1e-5)
    for key in ("test_accuracy", "val_accuracy"):
        assert record[key] == pytest.approx(alone[key], abs=0.011)
    assert alone["step_losses"][-1] < 0.99 * alone["step_losses"][0]
    assert nothing == "" and "processes: 2, 2 here" in said
    assert json.loads(said.splitlines()[-1])["test_accuracy"] == record["test_accuracy"]
    assert [rank["rank"] for rank in record["ranks"]] == [0, 1]
    assert len({rank["device"] for rank in record["ranks"]}) == (2 if place else 1)
    for epoch, before in zip(record["epochs"], alone["epochs"], strict=True):
        ranks = epoch["ranks"]
        assert [rank["seeds"] for rank in ranks] == [306, 305]
        assert epoch["rows"] == sum(rank["rows"] for rank in ranks) > before["rows"]
        assert before["ranks"][0]["seeds"] == 611
        assert epoch["loss"] == pytest.approx(before["loss"], rel=1e-5)
        assert epoch["train_accuracy"] == pytest.approx(before["train_accuracy"], abs=0.011)
    state = torch.load(data / "model.pt", weights_only=True)["state"]
    assert not any(name.startswith("module.") for name in state)


@pytest.mark.parametrize("place", [pytest.param([], id="cpu"), pytest.param(ON_GPU, id="cuda", marks=pytest.mark.cuda)])
@pytest.mark.parametrize("loop", LOOPS)
def test_one_rank_is_one_process_bit_for_bit(data: Path, loop: str, place: list[str]) -> None:
    """By torchrun itself; with sampling, dropout and batch normalisation, and with workers."""
    overrides = [f"loop={loop}", "train.workers=2", *place]
    alone = train_alone(data, *overrides)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=1"]
    done = subprocess.run(
        [*command, *arguments(data, *overrides, "log.json=one.json")],
        cwd=data,
        env=rank_processes.environment_of_package(),
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    one = json.loads((data / "one.json").read_text())
    assert one["step_losses_hex"] == alone["step_losses_hex"] and len(one["step_losses"]) == 14
    assert (one["test_accuracy"], one["val_accuracy"]) == (alone["test_accuracy"], alone["val_accuracy"])
    assert "processes: 1, 1 here" in done.stdout


@pytest.mark.skipif(not HAS_DGL, reason="DGL is not installed")
@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=TWO_GPUS)])
def test_embeddings_and_a_rank_without_seeds(tmp_path: Path, device: str) -> None:
    environment = rank_processes.environment_of_package()
    command = [sys.executable, HETERO, *EQUAL, f"device={device}"]
    done = subprocess.run(command, cwd=tmp_path, env=environment, check=True, text=True, stdout=subprocess.PIPE)
    alone = json.loads(done.stdout)
    first, second = train_hetero(tmp_path, *EQUAL, f"device={device}")
    assert len(alone["step_losses"]) == 16
    assert first["step_losses"] == pytest.approx(alone["step_losses"], rel=1e-4)
    assert [rank["seeds"] for rank in first["numbers"]["ranks"]] == [50, 49]
    assert first["numbers"]["by_type"]["paper"]["rows"] == first["numbers"]["rows"]
    assert first["weights"] == second["weights"]


@pytest.mark.skipif(not HAS_DGL, reason="DGL is not installed")
def test_ranks_that_sample_differently_have_one_model(tmp_path: Path) -> None:
    """With running statistics, and batches without authors."""
    first, second = train_hetero(tmp_path, "train.batch_size=2")
    assert first["weights"] == second["weights"]
    assert [first["step_losses"], first["numbers"]] == [second["step_losses"], second["numbers"]]


def test_ranks_whose_last_seed_has_no_neighbours(data: Path) -> None:
    """The last batch has two seeds: one row for each rank, which has no statistics for `model.input_norm`."""
    graph = dict(np.load(data / "graph.npz"))
    graph["edge_index"][1] = graph["edge_index"][1] % 300 + 700
    np.savez(data / "graph.npz", **{**graph, "train": np.arange(602)})
    record, _ = train(data, 2, f"loop={A_LOOP}")
    assert len(record["step_losses"]) == 14 and np.isfinite(record["step_losses"]).all()
    assert [rank["seeds"] for rank in record["epochs"][0]["ranks"]] == [301, 301]


def train_hetero(folder: Path, *overrides: str) -> list[dict[str, Any]]:
    """What each of two ranks has in the end."""
    done = rank_processes.run([[HETERO, *overrides]] * 2, folder)
    assert [status for status, *_ in done] == [0, 0], done
    return [json.loads(output) for _, output, _ in done]


def test_two_machines_with_the_same_store(data: Path) -> None:
    with CompressedFeatureStore.build(np.load(data / "features.npy"), progress=False) as store:
        store.save(data / "x.ibp")
    record, (said, _) = train(data, 2, f"loop={A_LOOP}", "store.path=x.ibp", machines=2)
    assert len(record["step_losses"]) == 14
    assert "processes: 2, 1 here" in said


def test_ranks_that_differ_are_refused(data: Path) -> None:
    for name, scale in (("a.ibp", 1), ("b.ibp", 2)):
        with CompressedFeatureStore.build(scale * np.load(data / "features.npy"), progress=False) as store:
            store.save(data / name)
    loop = f"loop={A_LOOP}"
    for what, programs, machines in (
        (
            "config: want the same on all ranks, got ranks [0]: ...",
            [arguments(data, loop), arguments(data, loop, "train.lr=0.1")],
            1,
        ),
        ("store", [arguments(data, loop, f"store.path={name}.ibp") for name in "ab"], 2),
        ("train.batch_size: want a multiple of 2", [arguments(data, loop, "train.batch_size=99")] * 2, 1),
    ):
        for status, _, errors in rank_processes.run(programs, data, machines=machines):
            assert status == 2, errors
            assert f"error: {'features: ' * (what == 'store')}{what}" in errors and "Traceback" not in errors
            assert what[:6] != "config" or ('"lr": 0.003' in errors and '"lr": 0.1' in errors), "the difference"


def test_one_machine_without_its_store_ends_all(data: Path) -> None:
    with CompressedFeatureStore.build(np.load(data / "features.npy"), progress=False) as store:
        store.save(data / "x.ibp")
    programs = [
        arguments(data, f"loop={A_LOOP}", f"store.path={name}.ibp", "train.batch_size=99")
        for name in ("x", "none", "none")
    ]
    done = rank_processes.run(programs, data, machines=[1, 2])
    assert [status for status, *_ in done] == [2, 2, 2], done
    for (_, _, errors), which in zip(done, ("rank 1: ", "", ""), strict=True):
        assert f"error: features: {which}store.path: " in errors and "No such file" in errors
        assert "Traceback" not in errors


def test_a_rank_that_dies_ends_the_others(data: Path) -> None:
    """Without workers: killed while it makes their queues, glibc leaves an empty file for a semaphore."""
    shared_memory = set(os.listdir("/dev/shm"))
    overrides = [f"loop={A_LOOP}", "train.epochs=100000", "train.rank_timeout=30"]
    first, second = rank_processes.start([arguments(data, *overrides)] * 2, data, seconds=200)
    assert first.stdout is not None
    while "epoch 1/" not in first.stdout.readline():
        assert first.poll() is None
    for child in _children(second.pid):  # `timeout` is its parent
        os.kill(child, signal.SIGKILL)
    killed = time.monotonic()
    _, errors = first.communicate()
    second.communicate()
    assert time.monotonic() - killed < 90  # on a busy machine, too
    assert first.returncode == 1 and "RuntimeError" in errors, errors
    assert rank_processes.left_in_shared_memory(shared_memory) == set()


def _children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


@pytest.mark.parametrize("size", [1, 2, 3, 8])
@pytest.mark.parametrize("count", [1, 5, 24, 25, 26, 47, 48])
def test_shares_are_all_seeds_once(size: int, count: int) -> None:
    ids = torch.randperm(1000)[:count]
    shares = [Ranks(rank, size).share(ids, 24) for rank in range(size)]
    batches = ids.split(24)
    for share in shares:
        assert share.totals == [len(batch) for batch in batches]
        assert sum(share.counted) <= len(share.ids)
    for step, batch in enumerate(batches):
        parts = []
        for share in shares:
            part = share.ids.split(24 // size)[step]  # as a loop takes them
            assert len(part) == max(1, share.counted[step])
            parts.append(part[: share.counted[step]])
        assert torch.equal(torch.cat(parts), batch)
        assert sum(share.weight(step) for share in shares) == pytest.approx(1)


def test_alone() -> None:
    ranks = Ranks.start("cpu", 1.0)
    model = torch.nn.BatchNorm1d(3)
    assert ranks == Ranks() and is_first_process()
    assert ranks.averaged(model, may_skip_parameters=True) is model
    assert ranks.gather("x") == ["x"] and ranks.batch_size(7) == 7
    ranks.close()
    with pytest.raises(ConfigError, match="train.batch_size: want a multiple of 3, the number of processes, got 7"):
        Ranks(size=3).batch_size(7)


def test_a_rank_of_something_else_is_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """It logs and writes."""
    monkeypatch.setenv("RANK", "1")
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    assert Ranks.start("cpu", 1.0) == Ranks() and is_first_process()


def test_more_processes_than_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"RANK": "0", "WORLD_SIZE": "4", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "4"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    with pytest.raises(ConfigError, match="--nproc-per-node: want at most one process for each GPU, 2, got 4"):
        Ranks.start("cuda", 1.0)

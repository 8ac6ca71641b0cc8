"""One training run from config to record: GraphSAGE on sampled mini-batches."""

from __future__ import annotations

import importlib
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional
from tqdm import tqdm

from ibp_gnn.config import ConfigError, to_dict
from ibp_gnn.datasets import NodeDataset, load_dataset
from ibp_gnn.training import record
from ibp_gnn.training.config import TrainingConfig
from ibp_gnn.training.features import CompressedFeatures, RawFeatures
from ibp_gnn.training.sage import Aggregation, GraphSAGE, choose_aggregation
from ibp_gnn.training.seeding import seed_everything, use_deterministic_algorithms
from ibp_gnn.training.step import Loop
from ibp_gnn.training.timing import PhaseTimer

# Independent random streams of one seed. Every epoch starts its own, so what happens in between (evaluation,
# building the store) cannot change the training.
_INIT, _TRAIN, _EVALUATE = range(3)


# By `loop` of the config; imported when it is asked for, since each needs another library.
_LOOPS = {
    "dgl": ("dgl_loop", "DGLLoop"),
    "graphbolt": ("graphbolt_loop", "GraphBoltLoop"),
    "pyg": ("pyg_loop", "PyGLoop"),
}


class Run:
    """The parts of a run, made once: graph, features, model, optimiser."""

    def __init__(self, config: TrainingConfig, log: Callable[[str], None] = print) -> None:
        """Loads the data and builds the store. Raises ConfigError if the config asks for what is not here, ImportError
        if its loop needs what is not installed."""
        self.config, self.log = config, log
        if config.train.deterministic:
            use_deterministic_algorithms()
        self.device = _pick_device(config.device)
        make_loop = _import_loop(config.loop)
        self.aggregation: Aggregation = "pyg" if config.loop == "pyg" else choose_aggregation(self.device)
        self.show_progress = config.log.progress and sys.stderr.isatty()

        try:
            data = load_dataset(config.dataset.name, config.dataset.features)
        except ValueError as error:
            raise ConfigError(f"dataset: {error}") from error
        # Not the data set itself: a run with compressed features must not keep the raw ones.
        self.name, self.num_nodes, self.num_edges = data.name, data.num_nodes, len(data.src)
        self.train_ids, self.val_ids, self.test_ids = data.train_ids, data.val_ids, data.test_ids
        try:
            self.features = self._make_features(data)
        except ValueError as error:
            raise ConfigError(f"features: {error}") from error
        self.loop: Loop = make_loop(data, self.features, config.train, self.device, self.aggregation)

        seed_everything(config.train.seed, _INIT)
        self.model = GraphSAGE(
            data.features.shape[1],
            data.num_classes,
            hidden=config.model.hidden,
            layers=config.model.layers,
            dropout=config.model.dropout,
            input_norm=config.model.input_norm,
            aggregation=self.aggregation,
        ).to(self.device)
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=config.train.lr)

    def describe(self) -> list[str]:
        """What is about to run, in lines for a person."""
        how = {
            "dgl": "dgl.nn.SAGEConv",
            "csc": "block CSC tensors in torch (this DGL has no CUDA; it samples on the CPU)",
            "pyg": "torch_geometric.nn.SAGEConv",
        }
        return [
            f"graph: {self.name}, {self.num_nodes} nodes, {self.num_edges} edges",
            f"features: {self.features.description}",
            f"device: {self.device}, loop: {self.config.loop}, aggregation: {how[self.aggregation]}",
        ]

    def train_epoch(self, epoch: int) -> tuple[dict[str, Any], list[float]]:
        """One pass over the training nodes. Returns the epoch's numbers and the loss of every step.

        The host waits for a GPU only at the end: losses and counts stay on the device until then.
        """
        seed_everything(self.config.train.seed, _TRAIN, epoch)
        self.model.train()
        losses, correct, seen = [], [], 0
        self.features.traffic()
        timer = PhaseTimer(self.device)
        with self._progress(f"epoch {epoch}", self.train_ids) as bar:
            for step in self.loop.steps(self.train_ids, shuffle=True, mark=timer.mark):
                logits = self.model(step.blocks, step.x)
                loss = functional.cross_entropy(logits, step.labels)
                self.optimizer.zero_grad(set_to_none=True)
                loss.backward()
                self.optimizer.step()
                losses.append(loss.detach())
                correct.append((logits.argmax(1) == step.labels).sum())
                seen += len(step.labels)
                timer.mark("compute")
                bar.update()
        seconds = timer.seconds()
        traffic = self.features.traffic()
        # float32 to Python float is exact, so equal lists mean equal bits.
        step_losses = torch.stack(losses).float().tolist()
        numbers = {
            "epoch": epoch,
            "loss": sum(step_losses) / len(step_losses),
            "train_accuracy": torch.stack(correct).sum().item() / seen,
            "sample_seconds": seconds["sample"],
            "fetch_seconds": seconds["fetch"],
            "compute_seconds": seconds["compute"],
            "rows": traffic.rows,
            "miss_rate": traffic.miss_rate,
            "moved_bytes": traffic.moved_bytes,
            "saved_bytes": traffic.saved_bytes,
        }
        return numbers, step_losses

    def evaluate(self, ids: torch.Tensor, name: str) -> float:
        """Accuracy on `ids`, with neighbours sampled by a fixed seed: always the same, raw or compressed."""
        seed_everything(self.config.train.seed, _EVALUATE)
        self.model.eval()
        correct, seen = [], 0
        with torch.inference_mode(), self._progress(name, ids) as bar:
            for step in self.loop.steps(ids, shuffle=False, mark=lambda phase: None):
                correct.append((self.model(step.blocks, step.x).argmax(1) == step.labels).sum())
                seen += len(step.labels)
                bar.update()
        return torch.stack(correct).sum().item() / seen

    def _make_features(self, data: NodeDataset) -> RawFeatures | CompressedFeatures:
        config, cache = self.config, self.config.cache
        if cache.capacity is not None and (config.features == "raw" or self.device.type != "cuda"):
            self.log(
                "no cache: cache.capacity is for features=compressed on cuda, "
                f"not features={config.features} on {self.device}"
            )
            cache = type(cache)()
        if config.features == "raw":
            return RawFeatures(data.features)
        # A node is sampled through its out-edges, so its out-degree predicts how often it is read.
        degrees = torch.bincount(data.src, minlength=data.num_nodes)
        return CompressedFeatures(
            data.features, self.device, config.store, cache, hotness=degrees, progress=self.show_progress
        )

    def _progress(self, name: str, ids: torch.Tensor) -> tqdm:
        steps = -(-len(ids) // self.config.train.batch_size)
        return tqdm(total=steps, desc=name, unit="step", leave=False, disable=not self.show_progress)


def run(config: TrainingConfig, *, commit: str | None = None, log: Callable[[str], None] = print) -> dict[str, Any]:
    """Train, evaluate, write the record to `config.log.json` if set, and return it."""
    path = record.prepare(config.log.json) if config.log.json else None
    begin = time.perf_counter()
    job = Run(config, log)
    for line in job.describe():
        log(line)
    epochs: list[dict[str, Any]] = []
    step_losses: list[float] = []
    for epoch in range(1, config.train.epochs + 1):
        numbers, losses = job.train_epoch(epoch)
        numbers["val_accuracy"] = job.evaluate(job.val_ids, "val")
        epochs.append(numbers)
        step_losses += losses
        log(_epoch_line(numbers, config.train.epochs))
    test_accuracy = job.evaluate(job.test_ids, "test")
    result = {
        "config": to_dict(config),
        "versions": record.versions(),
        "hardware": record.hardware(job.device),
        "commit": commit,
        "device": str(job.device),
        "aggregation": job.aggregation,
        "num_nodes": job.num_nodes,
        "num_edges": job.num_edges,
        "store_bytes": job.features.store_bytes,
        "raw_bytes": job.features.raw_bytes,
        "savings": job.features.savings,
        "val_accuracy": epochs[-1]["val_accuracy"],
        "test_accuracy": test_accuracy,
        "seconds": time.perf_counter() - begin,
        "epochs": epochs,
        "step_losses": step_losses,
        "step_losses_hex": [loss.hex() for loss in step_losses],
    }
    job.features.close()
    if path is not None:
        record.write(path, result)
    return result


def _import_loop(name: str) -> Callable[..., Loop]:
    module, cls = _LOOPS[name]
    return getattr(importlib.import_module(f"ibp_gnn.training.{module}"), cls)


def _epoch_line(numbers: dict[str, Any], epochs: int) -> str:
    phases = [(phase, numbers[f"{phase}_seconds"]) for phase in ("sample", "fetch", "compute")]
    split = " + ".join(f"{phase} {seconds:.2f}" for phase, seconds in phases)
    return (
        f"epoch {numbers['epoch']}/{epochs}  loss {numbers['loss']:.4f}  "
        f"train {numbers['train_accuracy']:.4f}  val {numbers['val_accuracy']:.4f}  "
        f"{sum(seconds for _, seconds in phases):.2f} s = {split}  miss rate {numbers['miss_rate']:.1%}  "
        f"moved {numbers['moved_bytes'] / 1e6:.1f} MB, saved {numbers['saved_bytes'] / 1e6:.1f} MB"
    )


def _pick_device(wanted: str) -> torch.device:
    if wanted == "cpu" or (wanted == "auto" and not torch.cuda.is_available()):
        return torch.device("cpu")
    if not torch.cuda.is_available():
        raise ConfigError(f"device: want {wanted}, but torch {torch.__version__} sees no usable CUDA device")
    return torch.device("cuda", torch.cuda.current_device())

"""One training run from config to record: GraphSAGE on sampled mini-batches."""

from __future__ import annotations

import importlib
import json
import logging
import socket
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch.nn import functional
from tqdm import tqdm

from ..config import ConfigError, to_dict
from ..datasets import HeteroNodeDataset, NodeDataset, load_dataset
from ..gpu import hotness
from . import checkpoint, record
from .config import CacheConfig, LogConfig, TrainingConfig
from .distributed import Ranks, is_first_process
from .features import CompressedFeatures, FeaturesByType, RawFeatures, Traffic, cache_together
from .hetero_sage import HeteroGraphSAGE
from .sage import Aggregation, GraphSAGE, choose_aggregation
from .seeding import seed_everything, use_deterministic_algorithms
from .step import Loop
from .timing import PhaseTimer

_logger = logging.getLogger(__name__)

# Independent random streams of one seed. Every epoch starts its own, so what happens in between (evaluation,
# building the store) cannot change the training. _TRAIN and _EVALUATE are further ones in each process.
_INIT, _TRAIN, _EVALUATE, _PRESAMPLE, _ORDER = range(5)


# By `loop` of the config; imported when it is asked for, since each needs another library.
_LOOPS = {
    "dgl": ("dgl_loop", "DGLLoop"),
    "graphbolt": ("graphbolt_loop", "GraphBoltLoop"),
    "pyg": ("pyg_loop", "PyGLoop"),
    "wholegraph": ("wholegraph_loop", "WholeGraphLoop"),
}
# `loop: dgl` on a heterograph.
_HETERO_LOOP = ("hetero_loop", "HeteroDGLLoop")


class Run:
    """The parts of a run, made once: graph, features, model, optimiser."""

    def __init__(self, config: TrainingConfig, log: Callable[[str], None] = _logger.info) -> None:
        """Joins the other processes under torchrun, loads the data and builds the store. Raises ConfigError if the
        config asks for what is not here, ImportError if its loop needs what is not installed."""
        if config.train.deterministic:
            use_deterministic_algorithms()
        device = pick_device(config.device)
        if config.loop == "wholegraph" and device.type != "cuda":
            raise ConfigError(f"loop: want another one than wholegraph on {device}: it samples on a GPU")
        self.ranks = Ranks.start(device.type, config.train.rank_timeout)
        if (
            not self.ranks.joined
        ):  # several say it together, when the store is opened: none may leave the others waiting
            config.store.check_path()
        self.device = pick_device(config.device)  # the current one of this process now
        self.config, self.log = config, log if is_first_process() else _say_nothing
        self.ranks.require_same(_comparable(config), "config")
        # What the loops see: the batches of this process.
        self._train_config = replace(config.train, batch_size=self.ranks.batch_size(config.train.batch_size))
        make_loop = _import_loop(*_LOOPS[config.loop])
        self.aggregation: Aggregation = _choose_aggregation(config.loop, self.device)
        self.show_progress = config.log.progress and sys.stderr.isatty() and is_first_process()

        try:
            data = load_dataset(**to_dict(config.dataset))
        except ValueError as error:
            raise ConfigError(f"dataset: {error}") from error
        self.is_hetero = isinstance(data, HeteroNodeDataset)
        if self.is_hetero:
            if config.loop != "dgl":
                raise ConfigError(f"loop: want dgl for {data.name}, which has several node types, got {config.loop}")
            if config.train.prefetch:
                raise ConfigError(f"train.prefetch: want false for {data.name}, which has several node types, got true")
            make_loop, self.aggregation = _import_loop(*_HETERO_LOOP), "csc"
        # Not the data set itself: a run with compressed features must not keep the raw ones.
        self.name, self.synthetic = data.name, data.synthetic
        self.num_nodes, self.num_edges = data.num_nodes, data.num_edges
        self.train_ids, self.val_ids, self.test_ids = data.train_ids, data.val_ids, data.test_ids
        sizes = [self.num_nodes, self.num_edges, len(self.train_ids), len(self.val_ids), len(self.test_ids)]
        self.ranks.require_same(f"{self.name} {sizes}", "dataset")
        try:
            self.features = (
                self._make_features_by_type(data)
                if isinstance(data, HeteroNodeDataset)
                else self._make_features(data, make_loop)
            )
        except ValueError as error:
            raise ConfigError(f"features: {error}") from error
        if config.log.unique_rows and not self.features.count_unique():
            self.log(
                "no unique_rows: log.unique_rows is for features=compressed on cuda, in page-locked memory, "
                f"not features={config.features} on {self.device}"
            )
        self.loop: Loop = make_loop(data, self.features, self._train_config, self.device, self.aggregation)

        seed_everything(config.train.seed, _INIT)
        self.model = self._make_model(data).to(self.device)
        self._averaged = self.ranks.averaged(self.model, may_skip_parameters=self.is_hetero)
        self.optimizers = _make_optimizers(self.model, config.train.lr)

    def describe(self) -> list[str]:
        """What is about to run, in lines for a person."""
        how = {
            "dgl": "dgl.nn.SAGEConv",
            "csc": "block CSC tensors in torch"
            + (", by relation" if self.is_hetero else "")
            + ("" if self.is_hetero or self.config.loop == "wholegraph" else " (DGL without CUDA samples on the CPU)"),
            "pyg": "torch_geometric.nn.SAGEConv",
        }
        name = self.name + (", generated" if self.synthetic else "")
        cache = self.features.cache
        return [
            f"graph: {name}, {self.num_nodes} nodes, {self.num_edges} edges",
            f"features: {self.features.description}",
            *([] if cache is None else [f"cache: {_cache_text(cache)}"]),
            f"device: {self.device}, loop: {self.config.loop}, aggregation: {how[self.aggregation]}",
            *([f"processes: {self.ranks.size}, {self.ranks.local_size} here"] if self.ranks.joined else []),
        ]

    def train_epoch(self, epoch: int) -> tuple[dict[str, Any], list[float]]:
        """One pass over the training nodes. Returns the epoch's numbers and the loss of every step, of all processes
        together; `ranks` among the numbers has those of each.

        The host waits for a GPU only at the end: losses and counts stay on the device until then.
        """
        seed, ranks = self.config.train.seed, self.ranks
        seed_everything(seed, _ORDER, epoch)
        ids = self.train_ids[torch.randperm(len(self.train_ids), device="cpu")]
        share = ranks.share(ids, self.config.train.batch_size)
        seed_everything(seed, _TRAIN, epoch, ranks.rank)
        self.model.train()
        losses, correct = [], []
        self.features.traffic()
        timer = PhaseTimer(self.device)
        with self._progress(f"epoch {epoch}", self.train_ids) as bar:
            for number, step in enumerate(self.loop.steps(share.ids, mark=timer.mark)):
                logits = self._averaged(step.blocks, step.x)
                loss = functional.cross_entropy(logits, step.labels)
                self.model.zero_grad(set_to_none=True)
                # The mean over processes, of means over their seeds, is then the mean over all seeds.
                (loss * (share.weight(number) * ranks.size)).backward()
                ranks.average_sparse(self.model)
                for optimizer in self.optimizers:
                    optimizer.step()
                losses.append(loss.detach())
                correct.append((logits.argmax(1) == step.labels)[: share.counted[number]].sum())
                timer.mark("compute")
                bar.update()
        seconds = timer.seconds()
        # float32 to Python float is exact, so equal lists mean equal bits.
        own_losses = torch.stack(losses).float().tolist()
        weighted = [loss * share.weight(number) for number, loss in enumerate(own_losses)]
        of_all = ranks.gather(
            (weighted, int(torch.stack(correct).sum()), sum(share.counted), seconds, self.features.traffic())
        )
        ranks.average_buffers(self.model)
        step_losses = [sum(parts) for parts in zip(*(part for part, *_ in of_all), strict=True)]
        traffic = Traffic.total([part for *_, part in of_all])
        numbers = {
            "epoch": epoch,
            "loss": sum(step_losses) / len(step_losses),
            "train_accuracy": sum(part[1] for part in of_all) / len(ids),
            **_seconds_of({phase: max(part[3][phase] for part in of_all) for phase in seconds}),
            **traffic.to_record(),
            "by_type": {name: part.to_record() for name, part in traffic.by_type.items()},
            "ranks": [
                {"rank": rank, "seeds": counted, **_seconds_of(spent), **read.to_record()}
                for rank, (_, _, counted, spent, read) in enumerate(of_all)
            ],
        }
        return numbers, step_losses

    def evaluate(self, ids: torch.Tensor, name: str) -> float:
        """Accuracy on `ids`, at least one, with neighbours sampled by a fixed seed: always the same, raw or
        compressed."""
        seed_everything(self.config.train.seed, _EVALUATE, self.ranks.rank)
        self.model.eval()
        share, correct = self.ranks.share(ids, self.config.train.batch_size), []
        with torch.inference_mode(), self._progress(name, ids) as bar:
            for number, step in enumerate(self.loop.steps(share.ids, mark=lambda phase: None)):
                right = self.model(step.blocks, step.x).argmax(1) == step.labels
                correct.append(right[: share.counted[number]].sum())
                bar.update()
        return sum(self.ranks.gather(int(torch.stack(correct).sum()))) / len(ids)

    def _make_model(self, data: NodeDataset | HeteroNodeDataset) -> GraphSAGE | HeteroGraphSAGE:
        config = self.config.model
        options: dict[str, Any] = dict(
            hidden=config.hidden, layers=config.layers, dropout=config.dropout, input_norm=config.input_norm
        )
        if isinstance(data, NodeDataset):
            return GraphSAGE(data.features.shape[1], data.num_classes, aggregation=self.aggregation, **options)
        in_feats = {name: rows.shape[1] for name, rows in data.features.items()}
        without = {name: count for name, count in data.num_nodes_of.items() if name not in in_feats}
        return HeteroGraphSAGE(in_feats, without, data.edges, data.target, data.num_classes, **options)

    def _cache_config(self) -> CacheConfig:
        """`config.cache`, or none where there can be none."""
        config, cache = self.config, self.config.cache
        if cache.capacity is not None and (config.features == "raw" or self.device.type != "cuda"):
            self.log(
                "no cache: cache.capacity is for features=compressed on cuda, "
                f"not features={config.features} on {self.device}"
            )
            return CacheConfig()
        return cache

    def _make_features(self, data: NodeDataset, make_loop: Callable[..., Loop]) -> RawFeatures | CompressedFeatures:
        config, cache = self.config, self._cache_config()
        if config.features == "raw":
            return RawFeatures(data.features)
        scores = self._hotness(data, make_loop) if cache.capacity is not None else None
        return CompressedFeatures(
            data.features, self.device, config.store, cache, scores, progress=self.show_progress, ranks=self.ranks
        )

    def _make_features_by_type(self, data: HeteroNodeDataset) -> FeaturesByType:
        config, cache = self.config, self._cache_config()
        if config.features == "raw":
            return FeaturesByType({name: RawFeatures(rows) for name, rows in data.features.items()})
        scores: dict[str, torch.Tensor] | None = None
        if cache.capacity is not None and cache.hotness is not None:
            if cache.hotness != "degree":
                raise ConfigError(f"cache.hotness: want degree or null for {data.name}, got {cache.hotness}")
            scores = {name: _degree_by_type(data, name) for name in data.features}
        by_type = {
            name: CompressedFeatures(
                rows,
                self.device,
                config.store,
                CacheConfig(),
                scores[name] if scores else None,
                progress=self.show_progress,
                ranks=self.ranks,
            )
            for name, rows in data.features.items()
        }
        if cache.capacity is not None:
            cache_together(by_type, cache.capacity, scores, self.device)
        return FeaturesByType(by_type)

    def _hotness(self, data: NodeDataset, make_loop: Callable[..., Loop]) -> torch.Tensor | None:
        """[num_nodes], as `cache.hotness` says."""
        policy = self.config.cache.hotness
        if policy == "degree":
            return hotness.degree(data.src, data.num_nodes)
        if policy == "reverse_pagerank":
            return hotness.reverse_pagerank(data.src, data.dst, data.num_nodes, data.train_ids)
        if policy is None:
            return None
        # Each library samples as it will in training; with the id as the only feature, x says which nodes were read.
        ids = RawFeatures(torch.arange(data.num_nodes, device="cpu").unsqueeze(1))
        loop = make_loop(data, ids, self._train_config, self.device, self.aggregation)
        seed_everything(self.config.train.seed, _PRESAMPLE)
        seeds = data.train_ids[torch.randperm(len(data.train_ids), device="cpu")]
        steps = loop.steps(seeds, mark=lambda phase: None)
        return hotness.presample((step.x.flatten() for step in steps), data.num_nodes)

    def _progress(self, name: str, ids: torch.Tensor) -> tqdm:
        steps = -(-len(ids) // self.config.train.batch_size)
        return tqdm(total=steps, desc=name, unit="step", leave=False, delay=1, disable=not self.show_progress)


def run(
    config: TrainingConfig, *, commit: str | None = None, log: Callable[[str], None] = _logger.info
) -> dict[str, Any]:
    """Train, evaluate, write the record to `config.log.json` if set, and return it. Under torchrun each process calls
    it, all get the same record, and the first one writes."""
    writes = is_first_process()
    path = record.prepare(config.log.json) if config.log.json and writes else None
    if config.log.checkpoint and writes:
        record.prepare(config.log.checkpoint, "log.checkpoint")
    begin = time.perf_counter()
    job = Run(config, log)
    log = job.log
    model_path = checkpoint.prepare(config.log.checkpoint, job.model) if config.log.checkpoint and writes else None
    for line in job.describe():
        log(line)
    epochs: list[dict[str, Any]] = []
    step_losses: list[float] = []
    for epoch in range(1, config.train.epochs + 1):
        numbers, losses = job.train_epoch(epoch)
        numbers["val_accuracy"] = job.evaluate(job.val_ids, "val")
        epochs.append(numbers)
        step_losses += losses
        on_gpu = job.device.type == "cuda"
        log(_epoch_line(numbers, config.train.epochs, on_gpu))
        for node_type, part in numbers["by_type"].items():
            log(f"  {node_type}: {_traffic_text(part, on_gpu)}")
    # None: the labels of the test nodes are not public.
    test_accuracy = job.evaluate(job.test_ids, "test") if len(job.test_ids) else None
    result = {
        "config": to_dict(config),
        "versions": record.versions(),
        "hardware": record.hardware(job.device),
        "commit": commit,
        "device": str(job.device),
        "aggregation": job.aggregation,
        "dataset": job.name,
        "synthetic": job.synthetic,
        "num_nodes": job.num_nodes,
        "num_edges": job.num_edges,
        "store_bytes": job.features.store_bytes,
        "raw_bytes": job.features.raw_bytes,
        "savings": job.features.savings,
        "lossy": job.features.precision,
        "cache": job.features.cache,
        "ranks": job.ranks.gather(
            {"rank": job.ranks.rank, "host": socket.gethostname(), "device": str(job.device)}
            | {"hardware": record.hardware(job.device), "cache": job.features.cache}
        ),
        "val_accuracy": epochs[-1]["val_accuracy"],
        "test_accuracy": test_accuracy,
        "seconds": time.perf_counter() - begin,
        "epochs": epochs,
        "step_losses": step_losses,
        "step_losses_hex": [loss.hex() for loss in step_losses],
    }
    job.features.close()
    job.ranks.close()
    if path is not None:
        record.write(path, result)
    if model_path is not None:
        checkpoint.save(model_path, job.model)
    return result


def _say_nothing(line: str) -> None:
    """The log of all processes but the first."""


def _comparable(config: TrainingConfig) -> str:
    """Of a config what has to be the same in all processes: where files lie may differ from machine to machine."""
    same = replace(
        config,
        store=replace(config.store, path=None),
        log=LogConfig(unique_rows=config.log.unique_rows),
    )
    settings = to_dict(same)
    settings["dataset"]["root"] = None
    return json.dumps(settings)


def _seconds_of(phases: dict[str, float]) -> dict[str, float]:
    return {f"{phase}_seconds": phases[phase] for phase in ("sample", "fetch", "compute")}


def _import_loop(module: str, cls: str) -> Callable[..., Loop]:
    return getattr(importlib.import_module(f"ibp_gnn.training.{module}"), cls)


def _choose_aggregation(loop: str, device: torch.device) -> Aggregation:
    if loop == "pyg":
        return "pyg"
    return "csc" if loop == "wholegraph" else choose_aggregation(device)


def _make_optimizers(model: torch.nn.Module, lr: float) -> list[torch.optim.Optimizer]:
    """Adam, and its sparse form for embeddings."""
    embeddings = [part.weight for part in model.modules() if isinstance(part, torch.nn.Embedding)]
    sparse = {id(weight) for weight in embeddings}
    dense = [weight for weight in model.parameters() if id(weight) not in sparse]
    optimizers: list[torch.optim.Optimizer] = [torch.optim.Adam(dense, lr=lr)]
    if embeddings:
        optimizers.append(torch.optim.SparseAdam(embeddings, lr=lr))
    return optimizers


def _degree_by_type(data: HeteroNodeDataset, node_type: str) -> torch.Tensor:
    """Out-edges of all relations: a sampler reads a node through each of them. int64 [num_nodes of the type]."""
    num_nodes = data.num_nodes_of[node_type]
    degrees = torch.zeros(num_nodes, dtype=torch.int64, device="cpu")
    for (src_type, _, _), (src, _) in data.edges.items():
        if src_type == node_type:
            degrees += hotness.degree(src, num_nodes)
    return degrees


def _cache_text(cache: dict[str, Any] | None) -> str:
    """cache: `Features.cache`."""
    if cache is None:
        return "no rows"
    by_type = "".join(f"; {name}: {_cache_text(part)}" for name, part in cache.get("by_type", {}).items())
    megabytes, effective = cache["bytes"] / 1e6, cache["effective_rows"]
    return f"{cache['rows']} rows, {megabytes:.1f} MB, effective rows {effective:.2f}{by_type}"


def _epoch_line(numbers: dict[str, Any], epochs: int, on_gpu: bool) -> str:
    phases = [(phase, numbers[f"{phase}_seconds"]) for phase in ("sample", "fetch", "compute")]
    split = " + ".join(f"{phase} {seconds:.2f}" for phase, seconds in phases)
    return (
        f"epoch {numbers['epoch']}/{epochs}  loss {numbers['loss']:.4f}  "
        f"train {numbers['train_accuracy']:.4f}  val {numbers['val_accuracy']:.4f}  "
        f"{sum(seconds for _, seconds in phases):.2f} s = {split}  {_traffic_text(numbers, on_gpu)}"
    )


def _traffic_text(numbers: dict[str, Any], on_gpu: bool) -> str:
    """numbers: `Traffic.to_record`. On the CPU there is no cache to miss, and nothing moves."""
    raw, moved, saved = (f"{numbers[f'{name}_bytes'] / 1e6:.1f} MB" for name in ("raw", "moved", "saved"))
    if not on_gpu:
        return f"read {numbers['rows']} rows: {moved} instead of {raw} raw, saved {saved}"
    unique = f", unique rows {numbers['unique_rows']}" if "unique_rows" in numbers else ""
    return (
        f"hits {numbers['hits']}, misses {numbers['misses']} (miss rate {numbers['miss_rate']:.1%}){unique}  "
        f"moved {moved} instead of {raw} raw, saved {saved}"
    )


def pick_device(wanted: str) -> torch.device:
    if wanted == "cpu" or (wanted == "auto" and not torch.cuda.is_available()):
        return torch.device("cpu")
    if not torch.cuda.is_available():
        raise ConfigError(
            f"device: want {wanted}, but torch {torch.__version__} sees no usable CUDA device; device=cpu needs none"
        )
    return torch.device("cuda", torch.cuda.current_device())

"""Layer-wise inference of all nodes: one layer of every node, then the next, the outputs between them compressed.

Mini-batch inference would compute a node's hidden rows again for each of its neighbours. Layer by layer they are
computed once, but all of them have to be kept; that is what limits the size of the graph.
"""

from __future__ import annotations

import hashlib
import logging
import resource
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any, Protocol

import numpy as np
import torch
from tqdm import tqdm

from .. import RowSource
from ..config import ConfigError, to_dict
from ..datasets import NodeDataset, load_dataset
from ..store.tensor_source import TensorSource
from . import checkpoint, record
from .config import CacheConfig, StoreConfig
from .dgl_loop import to_device
from .features import CompressedFeatures, RawFeatures
from .inference_config import InferenceConfig
from .loop import pick_device
from .sage import choose_aggregation, copy_async
from .sampling import make_full_loader
from .store_builder import StoreBuilder
from .timing import PhaseTimer

_logger = logging.getLogger(__name__)


class LayerInput(Protocol):
    """The rows that a layer reads: the input features or another layer's output."""

    source: RowSource
    stored_bytes: int
    raw_bytes: int

    def close(self) -> None:
        """Free them."""


class InputFeatures:
    """The data set's features, as the training run holds them."""

    def __init__(self, features: RawFeatures | CompressedFeatures) -> None:
        self.source: RowSource = TensorSource(features.rows) if isinstance(features, RawFeatures) else features.source
        self.stored_bytes, self.raw_bytes, self._features = features.store_bytes, features.raw_bytes, features

    def close(self) -> None:
        del self.source
        self._features.close()


class CompressedOutput:
    """A layer's output in a compressed store, written batch by batch."""

    def __init__(self, num_nodes: int, sample: torch.Tensor, config: StoreConfig) -> None:
        """sample: [n, width], outputs of some nodes."""
        try:
            self._writer = StoreBuilder(num_nodes, sample, codec=config.codec, layout=config.layout, pin=config.pin)
        except ValueError as error:
            raise ConfigError(f"embedding_store: {error}") from error

    def append(self, rows: torch.Tensor) -> None:
        self._writer.append(rows)

    def finish(self) -> None:
        self._store = self._writer.finish()
        self.source: RowSource = self._store
        self.stored_bytes, self.raw_bytes = self._store.nbytes, self._store.raw_nbytes

    def close(self) -> None:
        self._store.close()


class RawOutput:
    """The same, uncompressed."""

    def __init__(self, num_nodes: int, sample: torch.Tensor, config: StoreConfig) -> None:
        del config
        self._rows = torch.empty((num_nodes, *sample.shape[1:]), dtype=sample.dtype, device="cpu")
        self._written = 0

    def append(self, rows: torch.Tensor) -> None:
        self._rows[self._written : self._written + len(rows)] = rows
        self._written += len(rows)

    def finish(self) -> None:
        self.source: RowSource = TensorSource(self._rows)
        self.stored_bytes = self.raw_bytes = self._rows.nbytes

    def close(self) -> None:
        del self.source, self._rows


class Outputs:
    """The logits of all nodes, as they come: predictions are kept, the logits themselves go to a file if asked for."""

    def __init__(self, num_nodes: int, num_classes: int, config: InferenceConfig) -> None:
        self.predictions = _array(config.output.predictions, (num_nodes,), np.int64)
        self._logits = None
        if config.output.logits:
            self._logits = _array(config.output.logits, (num_nodes, num_classes), np.float32)
        self._digest = hashlib.sha256()
        self._written = 0

    def append(self, logits: torch.Tensor) -> None:
        """logits: [n, num_classes], of the next nodes."""
        logits = logits.float().cpu().contiguous()
        here = slice(self._written, self._written + len(logits))
        self.predictions[here] = logits.argmax(1).numpy()
        if self._logits is not None:
            self._logits[here] = logits.numpy()
        self._digest.update(logits.numpy().data)
        self._written += len(logits)

    def finish(self) -> str:
        """Writes the files out. Returns the SHA-256 of all logits: equal ones mean equal bits."""
        for array in (self.predictions, self._logits):
            if isinstance(array, np.memmap):
                array.flush()
        return self._digest.hexdigest()


class Inference:
    """The parts of an inference, made once: graph, model, input rows."""

    def __init__(self, config: InferenceConfig) -> None:
        """Raises ConfigError if the config asks for what is not here, ImportError without DGL."""
        config.store.check_path()
        self.config = config
        self.device = pick_device(config.device)
        self.aggregation = choose_aggregation(self.device)
        self.show_progress = config.log.progress and sys.stderr.isatty()
        model = checkpoint.load(config.checkpoint, self.aggregation)
        try:
            data = load_dataset(**to_dict(config.dataset))
        except ValueError as error:
            raise ConfigError(f"dataset: {error}") from error
        if not isinstance(data, NodeDataset):
            raise ConfigError(f"dataset: want one with one node type, got {data.name}, which has several")
        _check_model(model.settings, data)
        self.model = model.to(self.device)
        self.name, self.num_nodes, self.num_edges = data.name, data.num_nodes, data.num_edges
        self.labels = data.labels
        self.splits = {"train": data.train_ids, "val": data.val_ids, "test": data.test_ids}
        self.synthetic = data.synthetic
        self.graph = data.to_dgl().formats("csc")
        try:
            self.input = InputFeatures(self._features(data.features))
        except ValueError as error:
            raise ConfigError(f"features: {error}") from error

    @property
    def num_layers(self) -> int:
        return len(self.model.convs)

    def _features(self, rows: torch.Tensor) -> RawFeatures | CompressedFeatures:
        if self.config.features == "raw":
            return RawFeatures(rows)
        no_cache = CacheConfig()
        return CompressedFeatures(rows, self.device, self.config.store, no_cache, None, self.show_progress)

    def layer(
        self, number: int, source: RowSource, ids: torch.Tensor, mark: Callable[[str], None] = lambda phase: None
    ) -> Iterator[torch.Tensor]:
        """Layer `number` of the nodes `ids` ([n] int64, CPU), each from all of its neighbours' rows in `source`. Yields
        its output on the device, [batch, width], in the order of ids; mark is told when a phase ends."""
        config = self.config
        loader = make_full_loader(self.graph, ids, batch_size=config.batch_size, workers=config.workers)
        name = f"layer {number + 1}/{self.num_layers}"
        options = {"unit": "node", "unit_scale": True, "delay": 1, "disable": not self.show_progress}
        with tqdm(total=len(ids), desc=name, **options) as bar:
            for input_nodes, output_nodes, block in loader:
                mark("sample")
                x = source.gather(copy_async(input_nodes, self.device), device=self.device)
                (block,) = to_device([block], self.device, self.aggregation)
                mark("fetch")
                with torch.inference_mode():
                    rows = self.model.layer(number, block, x)
                mark("compute")
                yield rows
                bar.update(len(output_nodes))

    def sample(self, number: int, source: RowSource) -> torch.Tensor:
        """The same of some nodes, drawn at random: [sample_nodes, width] on the CPU."""
        count = min(self.config.sample_nodes, self.num_nodes)
        picked = np.random.default_rng(self.config.seed).choice(self.num_nodes, count, replace=False)
        ids = torch.from_numpy(np.sort(picked))
        return torch.cat([rows.cpu() for rows in self.layer(number, source, ids)])

    def run(self, outputs: Outputs, log: Callable[[str], None]) -> list[dict[str, Any]]:
        """All layers of all nodes. Returns what each cost; `bytes` is what is kept of its output."""
        everything, layers = torch.arange(self.num_nodes, device="cpu"), []
        rows: LayerInput = self.input
        for number in range(self.num_layers):
            begin = time.perf_counter()
            is_last = number + 1 == self.num_layers
            kept = None
            if not is_last:
                make = RawOutput if self.config.embeddings == "raw" else CompressedOutput
                kept = make(self.num_nodes, self.sample(number, rows.source), self.config.embedding_store)
            timer = PhaseTimer(self.device)
            width = 0
            for part in self.layer(number, rows.source, everything, timer.mark):
                width = part.shape[1]
                (outputs if kept is None else kept).append(part)
                timer.mark("store")
            layer: dict[str, Any] = {
                "layer": number + 1,
                "width": width,
                "read_bytes": rows.stored_bytes,
                "raw_bytes": 0,
                "bytes": 0,
            }
            raw_held, held = rows.raw_bytes, rows.stored_bytes
            if kept is not None:
                kept.finish()
                layer |= {"raw_bytes": kept.raw_bytes, "bytes": kept.stored_bytes}
                raw_held, held = raw_held + kept.raw_bytes, held + kept.stored_bytes
            layer |= {"raw_bytes_held": raw_held, "bytes_held": held, "seconds": time.perf_counter() - begin}
            layer |= {f"{phase}_seconds": seconds for phase, seconds in timer.seconds().items()}
            layers.append(layer)
            log(_line(layer, self.num_layers))
            rows.close()
            if kept is not None:
                rows = kept
        return layers

    def accuracies(self, predictions: np.ndarray) -> dict[str, float | None]:
        """Of each split; None where it is empty."""
        right = torch.from_numpy(np.asarray(predictions)) == self.labels
        return {
            f"{split}_accuracy": right[ids].double().mean().item() if len(ids) else None
            for split, ids in self.splits.items()
        }


def run(
    config: InferenceConfig, *, commit: str | None = None, log: Callable[[str], None] = _logger.info
) -> dict[str, Any]:
    """Infer all nodes, write the outputs and the record (`config.log.json`) if asked for, and return the latter."""
    path = record.prepare(config.log.json) if config.log.json else None
    for name in ("predictions", "logits"):
        if file := getattr(config.output, name):
            record.prepare(file, f"output.{name}")
    begin = time.perf_counter()
    job = Inference(config)
    log(f"graph: {job.name}, {job.num_nodes} nodes, {job.num_edges} edges; device: {job.device}")
    source, raw, kept = config.features, job.input.raw_bytes, job.input.stored_bytes
    log(f"features: {source}, {kept / 1e6:.1f} MB instead of {raw / 1e6:.1f} MB; embeddings: {config.embeddings}")
    outputs = Outputs(job.num_nodes, int(job.model.settings["num_classes"]), config)
    layers = job.run(outputs, log)
    raw_bytes, stored = sum(layer["raw_bytes"] for layer in layers), sum(layer["bytes"] for layer in layers)
    result = {
        "config": to_dict(config),
        "versions": record.versions(),
        "hardware": record.hardware(job.device),
        "commit": commit,
        "dataset": job.name,
        "synthetic": job.synthetic,
        "device": str(job.device),
        "aggregation": job.aggregation,
        "num_nodes": job.num_nodes,
        "num_edges": job.num_edges,
        "feature_bytes": kept,
        "raw_feature_bytes": raw,
        "embedding_bytes": stored,
        "raw_embedding_bytes": raw_bytes,
        "embedding_savings": 1 - stored / raw_bytes if raw_bytes else None,
        # Rows read and rows written at once, the most of all layers.
        "bytes_held": max(layer["bytes_held"] for layer in layers),
        "raw_bytes_held": max(layer["raw_bytes_held"] for layer in layers),
        "peak_rss_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        "peak_gpu_bytes": torch.cuda.max_memory_allocated(job.device) if job.device.type == "cuda" else None,
        **job.accuracies(outputs.predictions),
        "logits_sha256": outputs.finish(),
        "seconds": time.perf_counter() - begin,
        "layers": layers,
    }
    if path is not None:
        record.write(path, result)
    return result


def _check_model(settings: dict[str, int | float], data: NodeDataset) -> None:
    for name, got in (("in_feats", data.features.shape[1]), ("num_classes", data.num_classes)):
        if settings[name] != got:
            raise ConfigError(f"checkpoint: a model with {name}={settings[name]}, but {data.name} has {got}")


def _array(path: str | None, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    if path is None:
        return np.empty(shape, dtype)
    record.make_folder(path)
    return np.lib.format.open_memmap(path, mode="w+", dtype=dtype, shape=shape)


def _line(layer: dict[str, Any], layers: int) -> str:
    kept = f"{layer['bytes'] / 1e6:.1f} MB kept instead of {layer['raw_bytes'] / 1e6:.1f} MB"
    phases = " + ".join(f"{phase} {layer[f'{phase}_seconds']:.2f}" for phase in ("sample", "fetch", "compute", "store"))
    return f"layer {layer['layer']}/{layers}  {kept}  {layer['seconds']:.2f} s, of these {phases}"

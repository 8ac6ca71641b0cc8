"""What bench_epoch.py measures: its config, graphs, features and mini-batches."""

from __future__ import annotations

import dataclasses
import itertools
import time
from collections.abc import Iterator
from typing import Any, Literal, NamedTuple

import torch

from ibp_gnn import RowSource, hotness
from ibp_gnn.codec.values import dtype_from_name
from ibp_gnn.config import ConfigError, setting
from ibp_gnn.datasets.synthetic import SHAPES, power_law_edges
from ibp_gnn.datasets.wordnet import load_wordnet
from ibp_gnn.integrations.csc_block import CscBlock
from ibp_gnn.integrations.dgl_compat import import_dgl
from ibp_gnn.store.order import hottest_first
from ibp_gnn.training.sage import copy_async, to_csc
from ibp_gnn.training.seeding import seed_everything
from ibp_gnn.wholegraph import Graph, NeighborLoader

_DISTINCT_ROWS = 1 << 16  # of generated features; node v has row v % _DISTINCT_ROWS
_FEATURES, _LABELS, _SAMPLING = range(3)  # random streams


@dataclasses.dataclass(frozen=True)
class FeatureSet:
    """A graph with features.

    graph: "wordnet" with its own bag of words, or one generated in the shape of that OGB data set
    (ibp_gnn/datasets/synthetic.py: the power law of its degrees, its direction, its classes) with so many nodes and
    edges, and features [nodes, width] of N(0, 0.1), the same statistics as dense learned ones."""

    graph: Literal["wordnet", "products", "papers"] = setting()
    nodes: int | None = setting(None, ge=2)
    edges: int | None = setting(None, ge=1)
    """Of an undirected graph each is there both ways."""
    width: int | None = setting(None, ge=1)
    dtype: Literal["float32", "float16", "bfloat16"] = "float32"

    def __post_init__(self) -> None:
        given = {"nodes": self.nodes, "edges": self.edges, "width": self.width}
        for name, value in given.items():
            if (value is None) != (self.graph == "wordnet"):
                wanted = "none (it is what it is)" if self.graph == "wordnet" else "a number"
                raise ConfigError(f"sets: {name} of {self.graph}: want {wanted}, got {value}")

    @property
    def name(self) -> str:
        if self.graph == "wordnet":
            return f"wordnet bow, {self.dtype}"
        return f"synthetic {self.graph}, {self.width} x {self.dtype}"


@dataclasses.dataclass(frozen=True)
class Config:
    """cache_share: bytes on the GPU, of the raw features' bytes, for either cache. batches: mini-batches that are
    sampled once and make up an epoch. verify_batches: of these, compared before anything is timed. epochs: timed ones,
    after one to warm up. live_batches: for the time with sampling. lookahead: for the method that has one."""

    sets: tuple[FeatureSet, ...] = ()
    codec: str = "auto"
    cache_share: float = setting(0.2, gt=0, le=1)
    batches: int = setting(16, ge=1)
    batch_size: int = setting(1024, ge=1)
    fanouts: tuple[int, ...] = setting((5, 10, 15), ge=1)
    hidden: int = setting(128, ge=1)
    epochs: int = setting(3, ge=1)
    verify_batches: int = setting(3, ge=1)
    live_batches: int = setting(8, ge=1)
    lookahead: int = setting(4, ge=2)
    seed: int = setting(0, ge=0)
    device: Literal["auto", "cpu", "cuda"] = "auto"

    def __post_init__(self) -> None:
        if self.verify_batches > self.batches:
            raise ConfigError(f"verify_batches: want at most batches = {self.batches}, got {self.verify_batches}")


class Data(NamedTuple):
    """rows: [num_nodes, d], labels: int64 [num_nodes], both on the CPU; graph: a DGLGraph."""

    rows: torch.Tensor
    labels: torch.Tensor
    num_classes: int
    graph: Any
    train_ids: torch.Tensor


class Batch(NamedTuple):
    """ids: int64 [n] on the CPU (pinned where batches are kept for a GPU), or those of a GPU's sampler, there; the rest
    on the training device."""

    ids: torch.Tensor
    labels: torch.Tensor
    blocks: list[CscBlock]


def load(part: FeatureSet, config: Config) -> Data:
    """The nodes are numbered by falling degree, so that the hottest rows come first for every method."""
    dtype = dtype_from_name(part.dtype)
    if part.graph == "wordnet":
        wordnet = load_wordnet("bow")
        order, src, dst = _number_by_degree(wordnet.src, wordnet.dst, wordnet.num_nodes)
        rows, labels, num_classes = wordnet.features[order].to(dtype), wordnet.labels[order], wordnet.num_classes
        train_ids = torch.argsort(order)[wordnet.train_ids]
    else:
        shape, num_nodes = SHAPES[part.graph], part.nodes or 0
        src, dst = power_law_edges(
            num_nodes, part.edges or 0, exponent=shape.exponent, undirected=shape.undirected, seed=config.seed
        )
        _, src, dst = _number_by_degree(src, dst, num_nodes)
        rows, num_classes = _normal_rows(num_nodes, part.width or 0, dtype, config.seed), shape.num_classes
        draw = torch.Generator().manual_seed(config.seed + _LABELS)
        labels = torch.randint(0, num_classes, (num_nodes,), generator=draw)
        train_ids = torch.randperm(num_nodes, generator=draw)[: config.batches * config.batch_size]
    graph = import_dgl().graph((src, dst), num_nodes=len(rows)).formats("csc")
    graph.create_formats_()
    return Data(rows, labels, num_classes, graph, train_ids)


def _number_by_degree(
    src: torch.Tensor, dst: torch.Tensor, num_nodes: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Returns the old ids, from the highest degree to the lowest, and the edges between new ids."""
    order = hottest_first(hotness.degree(src, num_nodes), num_nodes)
    new_id = torch.empty_like(order)
    new_id[order] = torch.arange(num_nodes)
    return order, new_id[src], new_id[dst]


def _normal_rows(num_rows: int, width: int, dtype: torch.dtype, seed: int) -> torch.Tensor:
    draw = torch.Generator().manual_seed(seed + _FEATURES)
    distinct = (torch.randn(min(num_rows, _DISTINCT_ROWS), width, generator=draw) * 0.1).to(dtype)
    rows = torch.empty(num_rows, width, dtype=dtype)
    for part in rows.split(len(distinct)):
        part.copy_(distinct[: len(part)])
    return rows


def live_batches(data: Data, config: Config, device: torch.device, count: int) -> Iterator[Batch]:
    """`count` batches of random training nodes, sampled by DGL on all its threads as they are asked for. (So no two
    runs sample the same: DGL's sampler repeats itself on one thread only.)"""
    seed_everything(config.seed, _SAMPLING)
    sampler = import_dgl().dataloading.NeighborSampler(list(config.fanouts))
    for seeds in itertools.islice(_seeds(data.train_ids, config.batch_size), count):
        ids, output_nodes, blocks = sampler.sample(data.graph, seeds)
        yield Batch(ids, copy_async(data.labels[output_nodes], device), [to_csc(block, device) for block in blocks])


def gpu_graph(data: Data) -> Graph:
    """For sampling on the GPU. Raises ImportError without WholeGraph."""
    indptr, indices, _ = data.graph.adj_tensors("csc")
    return Graph(indptr, indices)


class SampledOnGpu:
    """Epochs of batches with their features, sampled on the GPU; the same for the same seed of torch."""

    def __init__(self, graph: Graph, data: Data, source: RowSource, config: Config, device: torch.device) -> None:
        ids = data.train_ids[: config.batches * config.batch_size]
        self._loader = NeighborLoader(
            graph, ids, config.fanouts, batch_size=config.batch_size, features=source, shuffle=True
        )
        self._labels = data.labels.to(device)

    def batches(self) -> Iterator[tuple[Batch, torch.Tensor]]:
        for made in self._loader:
            yield Batch(made.input_nodes, self._labels[made.output_nodes], made.blocks), made.x


def _seeds(train_ids: torch.Tensor, size: int) -> Iterator[torch.Tensor]:
    """Without end, as many epochs as it takes; distinct within a batch."""
    while True:
        yield from train_ids[torch.randperm(len(train_ids))].split(size)


def keep(data: Data, config: Config, device: torch.device) -> tuple[list[Batch], float]:
    """Returns the batches of an epoch and the seconds that it took to sample them."""
    begin = time.perf_counter()
    batches = list(live_batches(data, config, device, config.batches))
    seconds = time.perf_counter() - begin
    if device.type == "cuda":
        batches = [batch._replace(ids=batch.ids.pin_memory()) for batch in batches]
    return batches, seconds

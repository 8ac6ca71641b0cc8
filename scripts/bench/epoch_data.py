"""Graphs, features and mini-batches."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch

from ibp_gnn.codec.values import dtype_from_name
from ibp_gnn.datasets.synthetic import SHAPES, power_law_edges
from ibp_gnn.datasets.wordnet import load_wordnet
from ibp_gnn.gpu import hotness
from ibp_gnn.integrations.dgl_compat import import_dgl
from ibp_gnn.store.order import hottest_first
from ibp_gnn.training.sage import CscBlock, copy_async, to_csc
from ibp_gnn.training.seeding import seed_everything

from .config import Config, FeatureSet

_DISTINCT_ROWS = 1 << 16  # of generated features; node v has row v % _DISTINCT_ROWS
_FEATURES, _LABELS, _SAMPLING = range(3)  # random streams


class Data(NamedTuple):
    """rows: [num_nodes, d], labels: int64 [num_nodes], both on the CPU; graph: a DGLGraph."""

    rows: torch.Tensor
    labels: torch.Tensor
    num_classes: int
    graph: Any
    train_ids: torch.Tensor


class Batch(NamedTuple):
    """ids: int64 [n] on the CPU (pinned where batches are kept for a GPU), the rest on the training device."""

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

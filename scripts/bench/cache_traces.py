"""Graphs, and which rows training on them reads: the input nodes of every mini-batch of a few epochs. How hot static
policies take rows to be, and what a cache of the hottest then hits."""

from __future__ import annotations

import dataclasses
from typing import Literal

import numpy as np
import torch
from tqdm import tqdm

from ibp_gnn import hotness
from ibp_gnn.config import ConfigError, setting
from ibp_gnn.datasets import load_dataset
from ibp_gnn.datasets.synthetic import SHAPES, power_law_edges
from ibp_gnn.integrations.dgl_compat import import_dgl
from ibp_gnn.training.sampling import make_loader
from ibp_gnn.training.seeding import seed_everything

from .cache_bytes import Features

_TRAIN_IDS = 1  # the random stream of generated graphs beside that of their edges

Epoch = list[np.ndarray]
"""Of every batch the distinct nodes whose features it reads, int32 [n], in the order in which it reads them."""


@dataclasses.dataclass(frozen=True)
class Graph:
    """name: "wordnet", or the OGB data set whose shape a generated graph has (ibp_gnn/datasets/synthetic.py). scale:
    nodes and edges of a generated graph, as a share of that data set's."""

    name: Literal["wordnet", "products", "papers"] = setting()
    features: tuple[Features, ...] = setting()
    scale: float = setting(1.0, gt=0, le=1)

    def __post_init__(self) -> None:
        if self.name == "wordnet" and self.scale != 1:
            raise ConfigError(f"graphs: want scale 1 for wordnet, got {self.scale}")


@dataclasses.dataclass(frozen=True)
class Structure:
    """A graph without features. src, dst: int64 [num_edges]; train_ids: int64 [n]."""

    name: str
    num_nodes: int
    src: torch.Tensor
    dst: torch.Tensor
    train_ids: torch.Tensor


def load_structure(graph: Graph, seed: int) -> Structure:
    """WordNet, or a generated graph; the name of the latter says that it is."""
    if graph.name == "wordnet":
        data = load_dataset("wordnet", "glove")
        return Structure("wordnet", data.num_nodes, data.src, data.dst, data.train_ids)
    shape = SHAPES[graph.name]
    num_nodes, num_edges, num_train = (
        max(2, round(count * graph.scale)) for count in (shape.num_nodes, shape.num_edges, shape.num_train)
    )
    src, dst = power_law_edges(num_nodes, num_edges, exponent=shape.exponent, undirected=shape.undirected, seed=seed)
    train_ids = np.random.default_rng([seed, _TRAIN_IDS]).permutation(num_nodes)[:num_train]
    name = f"synthetic {graph.name}" + ("" if graph.scale == 1 else f" x {graph.scale:g}")
    return Structure(name, num_nodes, src, dst, torch.from_numpy(train_ids))


@dataclasses.dataclass(frozen=True)
class Trace:
    """What a training run reads."""

    warm: list[Epoch]
    """Epochs before those that are measured."""
    measured: list[Epoch]

    def warm_batches(self, epochs: int) -> Epoch:
        """Of the last so many epochs before those that are measured."""
        return [batch for epoch in self.warm[-epochs:] for batch in epoch]

    def measured_batches(self) -> Epoch:
        return [batch for epoch in self.measured for batch in epoch]


def sample_trace(
    graph: Structure, fanouts: list[int], *, batch_size: int, warm_epochs: int, measured_epochs: int, seed: int
) -> Trace:
    """Epochs of training nodes in random order, sampled by DGL on one thread: the same seed gives the same trace."""
    dgl_graph = import_dgl().graph((graph.src, graph.dst), num_nodes=graph.num_nodes).formats("csc")
    epochs: list[Epoch] = []
    for epoch in range(warm_epochs + measured_epochs):
        seed_everything(seed, epoch)
        ids = graph.train_ids[torch.randperm(len(graph.train_ids), device="cpu")]
        loader = make_loader(dgl_graph, ids, fanouts, batch_size=batch_size, workers=0)
        batches = tqdm(loader, desc=f"{graph.name} {fanouts}, epoch {epoch}", leave=False)
        epochs.append([input_nodes.numpy().astype(np.int32) for input_nodes, _, _ in batches])
    return Trace(epochs[:warm_epochs], epochs[warm_epochs:])


def hotness_of(policy: str, graph: Structure, trace: Trace) -> torch.Tensor:
    """[num_nodes]: scores of "degree", "reverse_pagerank", "presample_<epochs>" or "hindsight"."""
    if policy == "degree":
        return hotness.degree(graph.src, graph.num_nodes)
    if policy == "reverse_pagerank":
        return hotness.reverse_pagerank(graph.src, graph.dst, graph.num_nodes, graph.train_ids)
    if policy == "hindsight":
        batches = trace.measured_batches()
    else:
        batches = trace.warm_batches(int(policy.removeprefix("presample_")))
    return hotness.presample([torch.from_numpy(batch) for batch in batches], graph.num_nodes)


def hits_of_first(order: torch.Tensor, accesses: torch.Tensor) -> torch.Tensor:
    """order: int64 [n], accesses: int64 [n]. Returns int64 [n + 1]: the hits if the first k rows of the order are
    cached, for every k."""
    return torch.cat([torch.zeros(1, dtype=torch.int64), torch.cumsum(accesses[order], 0)])

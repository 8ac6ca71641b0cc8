"""Mini-batches of sampled blocks that are the same in every run with the same seed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ibp_gnn.integrations.dgl_compat import import_dgl
from ibp_gnn.training.seeding import one_dgl_thread, seed_worker


def make_loader(
    graph: Any, ids: torch.Tensor, fanouts: Sequence[int], *, batch_size: int, shuffle: bool, workers: int
) -> Any:
    """DGL's DataLoader over `ids` ([n] int64, CPU): yields (input_nodes, output_nodes, blocks) there.

    The same seeds (`seed_everything`) give the same batches for one number of workers; another number gives
    other batches, since every worker has its own seed.
    """
    dgl = import_dgl()
    return dgl.dataloading.DataLoader(
        graph,
        ids,
        OneThreadSampler(dgl.dataloading.NeighborSampler(list(fanouts))),
        batch_size=batch_size,
        shuffle=shuffle,
        num_workers=workers,
        worker_init_fn=seed_worker,
    )


class OneThreadSampler:
    """A DGL sampler that runs on one thread.

    DGL's threads race for parts of the seed nodes, and each has its own random generator: with two or more of
    them, every run with the same seed picks other neighbours (seen with DGL 2.1.0). The loader's workers use
    one thread each as well, so `workers` is the way to sample in parallel.
    """

    def __init__(self, sampler: Any) -> None:
        self._sampler = sampler

    def sample(self, graph: Any, ids: torch.Tensor) -> Any:
        """What the wrapped sampler returns for the seed nodes `ids`."""
        with one_dgl_thread():
            return self._sampler.sample(graph, ids)

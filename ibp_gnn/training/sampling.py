"""Mini-batches of sampled blocks that are the same in every run with the same seed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ..integrations.dgl_compat import import_dgl
from .seeding import one_dgl_thread, seed_worker


def make_loader(
    graph: Any,
    ids: torch.Tensor,
    fanouts: Sequence[int],
    *,
    batch_size: int,
    workers: int,
    node_type: str | None = None,
) -> Any:
    """DGL's DataLoader over `ids` ([n] int64, CPU; of `node_type` in a heterograph), in their order: yields
    (input_nodes, output_nodes, blocks).

    The same seeds (`seed_everything`) give the same batches for one number of workers; another number gives
    other batches, since every worker has its own seed.
    """
    dgl = import_dgl()
    return dgl.dataloading.DataLoader(
        graph,
        SeedBatches(ids, batch_size, node_type),
        OneThreadSampler(dgl.dataloading.NeighborSampler(list(fanouts))),
        num_workers=workers,
        worker_init_fn=seed_worker,
    )


def make_full_loader(graph: Any, ids: torch.Tensor, *, batch_size: int, workers: int) -> Any:
    """Yields (input_nodes, output_nodes, block) for one batch of `ids` ([n] int64, CPU) after another, in their order,
    the block with all edges into its nodes. The same in every run, without a seed, for any number of workers.

    torch's loader, since DGL's with workers takes the batches from several places of `ids` in turn.
    """
    batches = FullBatches(graph, ids, batch_size)
    return torch.utils.data.DataLoader(batches, batch_size=None, num_workers=workers)


class SeedBatches(torch.utils.data.Dataset[Any]):
    """Batch i of the nodes `ids`, as DGL's loader asks for it; with a node type by it.

    DGL's own data set has each worker take a place of `ids` for itself, so that the last batch, which may be shorter,
    comes somewhere in between.

    Each batch has memory of its own. A worker sends its batch, and the seeds in it, from another thread, which moves
    their whole storage to shared memory: as views of one tensor, those of the next batch would be freed under the
    sampler.
    """

    device = torch.device("cpu")

    def __init__(self, ids: torch.Tensor, batch_size: int, node_type: str | None) -> None:
        self._batches, self._node_type = ids.split(batch_size), node_type

    def __len__(self) -> int:
        return len(self._batches)

    def __getitem__(self, i: int) -> torch.Tensor | dict[str, torch.Tensor]:
        ids = self._batches[i].clone()
        return ids if self._node_type is None else {self._node_type: ids}


class FullBatches(torch.utils.data.Dataset[Any]):
    """Batch i of the nodes `ids`, with all in-edges in the graph's order.

    (DGL's NeighborSampler([-1]) takes all in-edges as well, but in an order that varies from call to call, and with it
    the last bits of a sum over them; seen with DGL 2.1.0.)
    Each batch has memory of its own; see SeedBatches.
    """

    def __init__(self, graph: Any, ids: torch.Tensor, batch_size: int) -> None:
        self._graph, self._ids, self._batch_size = graph, ids, batch_size

    def __len__(self) -> int:
        return -(-len(self._ids) // self._batch_size)

    def __getitem__(self, i: int) -> tuple[torch.Tensor, torch.Tensor, Any]:
        dgl = import_dgl()
        ids = self._ids[i * self._batch_size : (i + 1) * self._batch_size].clone()
        with one_dgl_thread():  # several would number the input nodes in the order in which they happen to run
            block = dgl.to_block(dgl.in_subgraph(self._graph, ids), ids)
        return block.srcdata[dgl.NID], ids, block


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

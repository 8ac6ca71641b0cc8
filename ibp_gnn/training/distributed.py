"""The processes of a training run under torchrun: who trains which seeds, and what is added up over all of them.

A loop knows nothing of it: it gets this process's seeds, and batches of this process's size.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, NamedTuple, TypeVar, cast

import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel

from ..config import ConfigError
from ..distributed.agreement import require_same
from ..distributed.one_per_machine import one_per_machine

T = TypeVar("T")
_VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")  # that torchrun sets


def is_first_process() -> bool:
    """Of those that torchrun has started, if it has: the one that logs and writes the run's files."""
    return not _is_under_torchrun() or os.environ["RANK"] == "0"


def _is_under_torchrun() -> bool:
    return os.environ.keys() >= set(_VARIABLES)


def leave() -> None:
    """Leaves the process group, if there is one. A process that exits without it may abort, since threads still run."""
    if distributed.is_initialized():
        distributed.destroy_process_group()


class Share(NamedTuple):
    """What one process does of a list of seeds."""

    ids: torch.Tensor
    """int64 [n], batch after batch; of each batch at least one, so that all processes take equally many steps."""
    counted: list[int]
    """By step: how many of its seeds are this process's. 0: the one that it has is another's, and counts nothing."""
    totals: list[int]
    """By step: the seeds of all processes."""

    def weight(self, step: int) -> float:
        """This process's part of the step's mean over all seeds."""
        return self.counted[step] / self.totals[step]


@dataclass(frozen=True)
class Ranks:
    """This process among those of the run. Without torchrun it is alone, and all below does nothing."""

    rank: int = 0
    size: int = 1
    local_rank: int = 0
    """Its number on its machine."""
    local_size: int = 1
    """Processes of its machine."""
    timeout: timedelta = timedelta(minutes=10)
    joined: bool = False
    """Whether there is a process group, be it of one process."""

    @classmethod
    def start(cls, device_type: str, timeout_seconds: float) -> Ranks:
        """Joins the processes that torchrun has started: over gloo, and nccl for tensors on GPUs.

        Raises ConfigError if there are fewer GPUs than processes.
        """
        if not _is_under_torchrun():
            return cls()
        rank, size, local_rank, local_size = (int(os.environ[name]) for name in _VARIABLES)
        timeout = timedelta(seconds=timeout_seconds)
        if device_type == "cuda":
            if torch.cuda.device_count() < local_size:
                got = torch.cuda.device_count()
                raise ConfigError(f"--nproc-per-node: want at most one process for each GPU, {got}, got {local_size}")
            torch.cuda.set_device(local_rank)
        distributed.init_process_group("cpu:gloo,cuda:nccl" if device_type == "cuda" else "gloo", timeout=timeout)
        return cls(rank, size, local_rank, local_size, timeout, joined=True)

    def batch_size(self, total: int) -> int:
        """This process's seeds in a batch of `total`. Raises ConfigError if they cannot all have equally many."""
        if total % self.size:
            raise ConfigError(f"train.batch_size: want a multiple of {self.size}, the number of processes, got {total}")
        return total // self.size

    def share(self, ids: torch.Tensor, batch_size: int) -> Share:
        """ids: int64 [n], n >= 1, the same in all processes. batch_size: of all processes together."""
        batches = ids.split(batch_size)
        parts = [batch.tensor_split(self.size)[self.rank] for batch in batches]
        padded = [part if len(part) else batch[:1] for part, batch in zip(parts, batches, strict=True)]
        return Share(torch.cat(padded), [len(part) for part in parts], [len(batch) for batch in batches])

    def gather(self, value: T) -> list[T]:
        """A collective call. Returns the value of every process, by rank."""
        if not self.joined:
            return [value]
        values: list[Any] = [None] * self.size
        distributed.all_gather_object(values, value)
        return values

    def require_same(self, value: str, what: str) -> None:
        """A collective call. Raises ConfigError in every process if two have different values."""
        if not self.joined:
            return
        try:
            require_same(value, what)
        except ValueError as error:
            raise ConfigError(str(error)) from error

    def one_per_machine(self, make: Callable[[], T]) -> T:
        """A collective call; see ibp_gnn/distributed/one_per_machine.py. What `make` raises on one machine ends the
        processes of the others with a ConfigError, instead of leaving them waiting."""
        made, error = None, None
        try:
            made = one_per_machine(make, local_rank=self.local_rank, local_size=self.local_size, timeout=self.timeout)
        except Exception as raised:
            error = raised
        messages = self.gather(None if error is None else str(error))
        if error is not None:
            raise error
        for rank, message in enumerate(messages):
            if message is not None:
                raise ConfigError(f"rank {rank}: {message}")
        return cast(T, made)

    def averaged(self, model: nn.Module, *, may_skip_parameters: bool) -> nn.Module:
        """The model, whose backward pass averages gradients over all processes; see also `average_sparse`.

        may_skip_parameters: whether there are batches that do not use all of them.
        """
        if not self.joined:
            return model
        # NCCL adds up no sparse tensors. Buffers are averaged once an epoch, not copied from rank 0 at every step.
        left_out = [f"{name}.weight" for name, part in model.named_modules() if isinstance(part, nn.Embedding)]
        left_out += [name for name, _ in model.named_buffers()]
        DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(model, left_out)
        return DistributedDataParallel(model, find_unused_parameters=may_skip_parameters)

    def average_sparse(self, model: nn.Module) -> None:
        """A collective call, after the backward pass: averages the sparse gradients of embeddings."""
        if self.size == 1:
            return
        for part in model.modules():
            if isinstance(part, nn.Embedding):
                weight = part.weight
                own_ids = weight.new_empty(0, dtype=torch.int64)
                own_rows = weight.new_empty(0, part.embedding_dim)
                if weight.grad is not None:  # its batch has nodes of this type
                    grad = weight.grad.coalesce()
                    own_ids, own_rows = grad.indices()[0], grad.values()
                ids, rows = self._concatenated(own_ids), self._concatenated(own_rows) / self.size
                weight.grad = torch.sparse_coo_tensor(ids.unsqueeze(0), rows, weight.shape)

    def average_buffers(self, model: nn.Module) -> None:
        """A collective call: running statistics, which every process has of its own batches, become their mean."""
        if self.size == 1:
            return
        for buffer in model.buffers():
            if buffer.is_floating_point():
                distributed.all_reduce(buffer)
                buffer /= self.size

    def _concatenated(self, rows: torch.Tensor) -> torch.Tensor:
        """A collective call. rows: [n, ...], n different in each process. Returns those of all, by rank."""
        lengths = self.gather(len(rows))
        padded = rows.new_zeros(max(*lengths, 1), *rows.shape[1:])
        padded[: len(rows)] = rows
        of_all = [torch.empty_like(padded) for _ in lengths]
        distributed.all_gather(of_all, padded)
        return torch.cat([part[:length] for part, length in zip(of_all, lengths, strict=True)])

    def close(self) -> None:
        """Leaves the process group. Idempotent."""
        if self.joined:
            leave()

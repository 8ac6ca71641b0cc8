"""WholeGraph (pylibwholegraph), a library for memory that several GPUs read: its start, and its tensors.

Its processes are those of torch.distributed: one a GPU, started by torchrun. A process that is alone needs no torchrun.
"""

from __future__ import annotations

import contextlib
import functools
import os
import weakref
from typing import Any, Literal

import torch
from torch import distributed

from ..store.feature_store import CompressedFeatureStore

Location = Literal["cuda", "cpu"]


def library() -> Any:
    """`pylibwholegraph.torch`. Raises ImportError that says how to get it."""
    try:
        import pylibwholegraph.torch as module
    except ImportError as error:
        cuda = (torch.version.cuda or "13").split(".")[0]
        raise ImportError(
            f"ibp_gnn.wholegraph needs WholeGraph, which is not installed here ({error}). "
            f"Run: pip install pylibwholegraph-cu{cuda} (Python 3.11 or later)"
        ) from error
    return module


def require_gpu() -> torch.device:
    """The current GPU. Raises RuntimeError where torch sees none."""
    if not torch.cuda.is_available():
        raise RuntimeError("WholeGraph: want a CUDA device, but torch.cuda.is_available() is False")
    return torch.device("cuda", torch.cuda.current_device())


def require_slots(store: CompressedFeatureStore) -> None:
    """Raises ValueError for packed rows: WholeGraph's tensors have rows of one length."""
    if store.layout == "packed":
        raise ValueError("store: want rows in slots, got packed rows; build the store with layout='compact'")


@functools.cache
def of_machine() -> Any:
    """A collective call. The communicator of the processes of this machine, each with its current GPU."""
    return _start().get_local_node_communicator()


def peers_are_readable() -> bool:
    """A collective call. Whether the GPUs of this machine read each other's memory."""
    readable: bool = of_machine().support_type_location("continuous", "cuda")
    return readable


@functools.cache
def of_all() -> Any:
    """A collective call. The communicator of all processes."""
    return _start().get_global_communicator()


@functools.cache
def _start() -> Any:
    """Starts the library in the processes of torch's group, or in this one alone, and returns it."""
    module = library()
    require_gpu()
    alone = not distributed.is_initialized()
    if alone and int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise RuntimeError(
            "WholeGraph: want the process group of torchrun's processes; call torch.cuda.set_device(LOCAL_RANK) and "
            "torch.distributed.init_process_group first"
        )
    if alone:  # communicators are made through a group
        distributed.init_process_group("nccl", store=distributed.HashStore(), rank=0, world_size=1)
    size = distributed.get_world_size()
    local_size = int(os.environ.get("LOCAL_WORLD_SIZE", size))
    local_rank = int(os.environ.get("LOCAL_RANK", distributed.get_rank() % local_size))
    # Not init_torch_env, which leaves torch one thread.
    module.init(distributed.get_rank(), size, local_rank, local_size, "warn")
    module.get_local_node_communicator()
    module.get_global_communicator()
    if alone:
        distributed.destroy_process_group()
    return module


class SharedTensor:
    """A tensor whose parts lie with the processes of a communicator, and which each of them reads as one, with any
    kernel: `whole`. To make and to close one is a collective call. A context manager."""

    def __init__(self, shape: list[int], dtype: torch.dtype, *, location: Location) -> None:
        """shape: [n] or [n, d]. location: in GPU memory, or in page-locked CPU memory of this machine. Raises
        RuntimeError where the GPUs cannot read each other's memory."""
        self._module, communicator = library(), of_machine()
        if not communicator.support_type_location("continuous", location):
            raise RuntimeError(
                f"WholeGraph: want GPUs that read each other's memory ('continuous' tensors in {location} memory), "
                "which these do not"
            )
        self._tensor = self._module.create_wholememory_tensor(communicator, "continuous", location, shape, dtype, None)
        self._communicator, self._location = communicator, location
        # Alone, nobody has to be waited for.
        self._end = (
            weakref.finalize(self, _destroy, self._module, self._tensor) if communicator.get_size() == 1 else None
        )

    @property
    def tensor(self) -> Any:
        """As WholeGraph's own functions take it."""
        return self._tensor

    @property
    def whole(self) -> torch.Tensor:
        """All of it, on this process's GPU."""
        whole = self._tensor.get_global_tensor()
        return whole[0] if isinstance(whole, tuple) else whole

    def fill(self, values: torch.Tensor) -> None:
        """A collective call. values: of this shape and dtype, on any device; each process copies its part."""
        part, first = self._tensor.get_local_tensor(host_view=self._location == "cpu")
        part.copy_(values[first : first + len(part)])
        self.barrier()

    def barrier(self) -> None:
        """A collective call. What the processes wrote before is there for all of them."""
        torch.cuda.synchronize()
        self._communicator.barrier()

    def close(self) -> None:
        """A collective call. Frees the memory, when the GPU is done with it. Idempotent."""
        tensor, self._tensor = self._tensor, None
        if self._end is not None:
            self._end()
        elif tensor is not None:
            _destroy(self._module, tensor)

    def __enter__(self) -> SharedTensor:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _destroy(module: Any, tensor: Any) -> None:
    if tensor.wmb_tensor is None:
        return
    with contextlib.suppress(RuntimeError):  # at the end of the process CUDA may be gone
        torch.cuda.synchronize()
    module.destroy_wholememory_tensor(tensor)

"""WholeGraph, a peer that gathers rows to the GPU: the same raw rows in its memory, on the CPU or on the GPU.

Needs the optional package pylibwholegraph (pip install pylibwholegraph-cu13).
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import metadata
from typing import Any, Literal

import torch

from ibp_gnn.testing import assert_bitwise_equal

Gather = Callable[[torch.Tensor], torch.Tensor]
_PROBED_ROWS = 1000


class Unavailable(Exception):
    """WholeGraph cannot be measured; the message says why."""


class WholeGraph:
    """Its library in this process, alone in its group, from the first table until `close`."""

    def __init__(self) -> None:
        self._module: Any = None
        self._communicator: Any = None
        self._why_not = ""

    @contextmanager
    def table(self, rows: torch.Tensor, where: Literal["cpu", "cuda"]) -> Iterator[Gather]:
        """rows: [n, d] on the CPU; copied. What it yields takes int32/int64 ids on the current GPU and returns the rows
        there, on the current stream. Raises Unavailable."""
        self._start()
        table = None
        try:
            try:
                # "continuous": one process maps all of it, so that one kernel gathers. It orders the ids first if the
                # table is in CPU memory and its rows have at most 512 bytes (wholememory_ops/gather_op.cpp).
                table = self._module.create_wholememory_tensor(
                    self._communicator, "continuous", where, list(rows.shape), rows.dtype, None
                )
                _fill(table, rows, where)
            except Exception as error:  # it raises a bare Exception for unknown errors
                raise Unavailable(f"WholeGraph made no table: {type(error).__name__}: {error}") from error
            yield table.gather
        finally:
            if table is not None:
                torch.cuda.synchronize()
                self._module.destroy_wholememory_tensor(table)

    def _start(self) -> None:
        if self._communicator is None and not self._why_not:
            threads = torch.get_num_threads()
            try:
                import pylibwholegraph.torch as module

                os.environ.setdefault("MASTER_ADDR", "localhost")
                os.environ.setdefault("MASTER_PORT", str(_free_port()))
                module.init_torch_env(0, 1, torch.cuda.current_device(), 1, "warn")
                self._module, self._communicator = module, module.get_global_communicator()
            except ImportError as error:
                self._why_not = f"pylibwholegraph is not installed ({error})"
            except Exception as error:  # what keeps an optional peer from starting must not end the benchmark
                self._why_not = f"WholeGraph does not start: {type(error).__name__}: {error}"
            finally:
                torch.set_num_threads(threads)  # it leaves 1
        if self._why_not:
            raise Unavailable(self._why_not)

    def close(self) -> None:
        if self._communicator is not None:
            self._communicator = None
            self._module.finalize()  # ends its communicator and torch's process group


def version() -> str | None:
    """Of pylibwholegraph, whichever CUDA its wheel is for; None where it is not installed."""
    for package in metadata.packages_distributions().get("pylibwholegraph", []):
        return metadata.version(package)
    return None


def _fill(table: Any, rows: torch.Tensor, where: Literal["cpu", "cuda"]) -> None:
    view, _ = table.get_local_tensor(host_view=where == "cpu")  # of a single process: all rows
    view.copy_(rows)
    ids = torch.arange(min(len(rows), _PROBED_ROWS), device="cuda")
    assert_bitwise_equal(table.gather(ids), rows[: len(ids)])


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        return probe.getsockname()[1]

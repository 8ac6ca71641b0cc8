"""WholeGraph, a peer that gathers rows to the GPU: the same raw rows in its memory, on the CPU or on the GPU.

Needs the optional package pylibwholegraph (pip install pylibwholegraph-cu13).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from importlib import metadata
from typing import Any, Literal

import torch

from ibp_gnn.integrations import wholegraph
from ibp_gnn.testing import assert_bitwise_equal

Gather = Callable[[torch.Tensor], torch.Tensor]
_PROBED_ROWS = 1000


class Unavailable(Exception):
    """WholeGraph cannot be measured; the message says why."""


class WholeGraph:
    """Its tables in this process, which is alone in its group."""

    def __init__(self) -> None:
        self._why_not = ""

    @contextmanager
    def table(self, rows: torch.Tensor, where: Literal["cpu", "cuda"]) -> Iterator[Gather]:
        """rows: [n, d] on the CPU; copied. What it yields takes int32/int64 ids on the current GPU and returns the rows
        there, on the current stream. Raises Unavailable."""
        self._start()
        with ExitStack() as stack:
            try:
                # One process maps all of it, so that one kernel gathers. It orders the ids first if the table is in CPU
                # memory and its rows have at most 512 bytes (wholememory_ops/gather_op.cpp).
                table = stack.enter_context(wholegraph.SharedTensor(list(rows.shape), rows.dtype, location=where))
                table.fill(rows)
                _probe(table.tensor.gather, rows)
            except Exception as error:  # it raises a bare Exception for unknown errors
                raise Unavailable(f"WholeGraph made no table: {type(error).__name__}: {error}") from error
            yield table.tensor.gather

    @contextmanager
    def cached_table(self, rows: torch.Tensor, cache_share: float) -> Iterator[Gather]:
        """As `table`, in CPU memory, with its own cache in GPU memory of this share of the rows: it keeps what was read
        often lately. Raises Unavailable."""
        module = self._start()
        table = policy = None
        try:
            try:
                policy = module.create_builtin_cache_policy(
                    "local_device", "continuous", "cpu", "readonly", cache_share
                )
                table = module.create_embedding(
                    wholegraph.of_machine(), "continuous", "cpu", rows.dtype, list(rows.shape), cache_policy=policy
                )
                view, _ = table.get_embedding_tensor().get_local_tensor(host_view=True)
                view.copy_(rows)
                gather = functools.partial(table.gather, is_training=False)
                _probe(gather, rows)
            except Exception as error:
                raise Unavailable(f"WholeGraph made no cached table: {type(error).__name__}: {error}") from error
            yield gather
        finally:
            torch.cuda.synchronize()
            if table is not None:
                module.destroy_embedding(table)
            if policy is not None:
                module.destroy_wholememory_cache_policy(policy)

    def _start(self) -> Any:
        if not self._why_not:
            try:
                wholegraph.of_machine()
                return wholegraph.library()
            except ImportError as error:
                self._why_not = str(error)
            except Exception as error:  # what keeps an optional peer from starting must not end the benchmark
                self._why_not = f"WholeGraph does not start: {type(error).__name__}: {error}"
        raise Unavailable(self._why_not)


def version() -> str | None:
    """Of pylibwholegraph, whichever CUDA its wheel is for; None where it is not installed."""
    for package in metadata.packages_distributions().get("pylibwholegraph", []):
        return metadata.version(package)
    return None


def _probe(gather: Gather, rows: torch.Tensor) -> None:
    ids = torch.arange(min(len(rows), _PROBED_ROWS), device="cuda")
    assert_bitwise_equal(gather(ids), rows[: len(ids)])

"""Starts one process for each GPU, with what torchrun tells its processes, and returns what they found."""

from __future__ import annotations

import json
import os
import socket
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

Work = Callable[..., Any]


def run_ranks(size: int, work: Work, *arguments: Any) -> Any:
    """Calls work(*arguments) in `size` processes of this machine, and waits for them. work: a function of a module,
    which joins the others itself (Ranks.start). If one fails, the others are ended, and its traceback is raised.

    Returns what it returned in the first process, by way of JSON."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "result.json"
        torch.multiprocessing.spawn(_rank, (size, _free_port(), path, work, arguments), nprocs=size)
        return json.loads(path.read_text(encoding="utf-8"))


def _rank(rank: int, size: int, port: int, path: Path, work: Work, arguments: tuple[Any, ...]) -> None:
    os.environ |= {
        "RANK": str(rank),
        "WORLD_SIZE": str(size),
        "LOCAL_RANK": str(rank),
        "LOCAL_WORLD_SIZE": str(size),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
    }
    torch.set_num_threads(max(1, len(os.sched_getaffinity(0)) // size))
    result = work(*arguments)
    if rank == 0:
        path.write_text(json.dumps(result), encoding="utf-8")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])

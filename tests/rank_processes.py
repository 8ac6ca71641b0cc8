"""Processes as torchrun starts them, without its agent, which would end them all when one does."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import ibp_gnn

TESTS = Path(__file__).resolve().parent
PACKAGE = Path(ibp_gnn.__file__).resolve().parent  # installed, or built in place


def start(
    programs: Sequence[Sequence[str]], folder: Path, *, machines: int | Sequence[int] = 1, seconds: int = 240
) -> list[subprocess.Popen[str]]:
    """programs: the arguments of Python, for each rank. machines: on how many they believe to be, equally many on each;
    or how many are on each. A process that takes longer than `seconds` is killed. Both outputs can be read."""
    if isinstance(machines, int):
        machines = [len(programs) // machines] * machines
    places = [(local_rank, local_size) for local_size in machines for local_rank in range(local_size)]
    port = _free_port()
    started = []
    for rank, (arguments, (local_rank, local_size)) in enumerate(zip(programs, places, strict=True)):
        environment = environment_of_package() | {
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
            "WORLD_SIZE": str(len(programs)),
            "RANK": str(rank),
            "LOCAL_WORLD_SIZE": str(local_size),
            "LOCAL_RANK": str(local_rank),
        }
        command = ["timeout", "--signal=KILL", str(seconds), sys.executable, "-u", *arguments]
        started.append(
            subprocess.Popen(
                command, cwd=folder, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
            )
        )
    return started


def run(
    programs: Sequence[Sequence[str]], folder: Path, *, machines: int | Sequence[int] = 1
) -> list[tuple[int, str, str]]:
    """Returns exit status, standard output and standard error of each rank."""
    processes = start(programs, folder, machines=machines)
    outputs = [process.communicate() for process in processes]
    return [(process.returncode, *output) for process, output in zip(processes, outputs, strict=True)]


def left_in_shared_memory(before: set[str]) -> set[str]:
    """before: names in /dev/shm at the start. Returns what has come since and stays; other processes come and go."""
    left = set(os.listdir("/dev/shm")) - before
    until = time.monotonic() + 10
    while left and time.monotonic() < until:
        time.sleep(0.1)
        left &= set(os.listdir("/dev/shm"))
    return left


def environment_of_package() -> dict[str, str]:
    """With the package that this test run imports, and the helper modules of tests."""
    paths = [str(PACKAGE.parent), str(TESTS), os.environ.get("PYTHONPATH", "")]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths)), "OMP_NUM_THREADS": "1"}


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]

"""Stores that go to other processes, and what those answer."""

from __future__ import annotations

import gc
import multiprocessing
import os
import pickle
import time
from multiprocessing import forkserver, resource_tracker
from multiprocessing.connection import Connection
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any

import torch
from update_rows import ALL, fitting

from ibp_gnn import CompressedFeatureStore


def build(rows: torch.Tensor, **options: Any) -> CompressedFeatureStore:
    return CompressedFeatureStore.build(rows.clone(), "ibp", progress=False, **options)


def sent(store: CompressedFeatureStore) -> CompressedFeatureStore:
    """As another process gets it through a pipe, in this one."""
    return pickle.loads(ForkingPickler.dumps(store))


def descriptors() -> int:
    """How many are open here. What multiprocessing keeps open is open at the first call, too."""
    resource_tracker.ensure_running()
    forkserver.ensure_running()
    sent(build(fitting()))
    gc.collect()
    return len(os.listdir("/proc/self/fd"))


def closed_since(open_before: int) -> bool:
    """Whether no more are open than then, at once or in five seconds: workers end, and libraries open files, when they
    do."""
    for _ in range(50):
        if descriptors() <= open_before:
            return True
        time.sleep(0.1)
    return False


def mappings() -> int:
    """How often this process maps memory that stores share."""
    return Path("/proc/self/maps").read_text().count("memfd:ibp_gnn_rows")


def private_kib() -> int:
    """Memory that this process alone has."""
    with open("/proc/self/smaps_rollup") as file:
        return sum(int(line.split()[1]) for line in file if line.startswith("Private_"))


def all_rows(stores: list[CompressedFeatureStore]) -> list[bytes]:
    return [store.gather(torch.arange(len(store))).numpy().tobytes() for store in stores]


def try_to_update(stores: list[CompressedFeatureStore]) -> str:
    try:
        stores[0].update(ALL[:1], fitting(1))
    except RuntimeError as error:
        return str(error)
    return "no error"


def serve(connection: Connection, *stores: Any) -> None:
    torch.set_num_threads(1)  # torch's own threads hang in a forked process
    stores = [store for part in stores for store in (part if isinstance(part, list) else [part])]  # type: ignore[assignment]
    while (request := connection.recv()) is not None:
        if isinstance(request, CompressedFeatureStore):
            stores.append(request)  # type: ignore[attr-defined]
            connection.send(len(stores))
        else:
            connection.send(request(stores))


class Worker:
    def __init__(self, method: str, *stores: Any) -> None:
        context = multiprocessing.get_context(method)
        self.connection, other = context.Pipe()
        self.process = context.Process(target=serve, args=(other, *stores), daemon=True)
        self.process.start()
        other.close()

    def ask(self, request: Any) -> Any:
        self.connection.send(request)
        return self.connection.recv()

    def end(self) -> None:
        self.connection.send(None)
        self.process.join(30)
        assert self.process.exitcode == 0
        self.process.close()
        self.connection.close()

"""A program that test_one_per_machine.py runs as ranks. Arguments: machines, and what is to happen."""

from __future__ import annotations

import os
import sys
import time
from datetime import timedelta
from typing import Any

import torch
from torch import distributed
from update_rows import ALL, fitting

from ibp_gnn import CompressedFeatureStore
from ibp_gnn.config import ConfigError
from ibp_gnn.distributed.one_per_machine import one_per_machine
from ibp_gnn.testing import assert_bitwise_equal


def share(make: Any, seconds: float = 60) -> Any:
    local_rank, local_size = int(os.environ["LOCAL_RANK"]), int(os.environ["LOCAL_WORLD_SIZE"])
    timeout = timedelta(seconds=seconds)
    return one_per_machine(make, local_rank=local_rank, local_size=local_size, timeout=timeout)


def make() -> dict[str, Any]:
    print("made")
    store = CompressedFeatureStore.build(fitting() + int(os.environ["RANK"]), "ibp", progress=False)
    return {"store": store, "rank": distributed.get_rank()}


def main() -> None:
    if sys.argv[1] == "uneven":  # ranks 0 and 1 on a machine, rank 2 on another
        rank = int(os.environ["RANK"])
        os.environ |= {"LOCAL_RANK": "010"[rank], "LOCAL_WORLD_SIZE": "221"[rank]}
    distributed.init_process_group("gloo", timeout=timedelta(seconds=60))
    try:
        do(sys.argv[1])
    finally:  # or the threads of the group may abort the process
        distributed.destroy_process_group()


def do(what: str) -> None:
    rank, is_maker = int(os.environ["RANK"]), os.environ["LOCAL_RANK"] == "0"
    if what == "rows":
        shared = share(make)
        store = shared["store"]
        assert_bitwise_equal(store.gather(ALL), fitting() + shared["rank"])
        distributed.barrier()
        if is_maker:  # the others see it, if it is the same memory
            store.update(torch.tensor([3]), torch.zeros_like(fitting()[:1]))
        distributed.barrier()
        assert not store.gather(torch.tensor([3])).any()
        print(shared["rank"])
        distributed.barrier()
    elif what == "uneven":
        print(share(lambda: f"made by {rank}"))
        of_all: list[Any] = [None] * 3
        distributed.all_gather_object(of_all, rank)
        print(of_all)
    elif what == "error":

        def fail() -> None:
            raise ConfigError("store: there is none")

        try:
            share(fail)
        except ConfigError as error:
            print(error)
    elif what == "maker dies":

        def die() -> None:
            os._exit(9)

        share(die)
    elif what == "other dies":
        if rank == 1:
            distributed.all_gather_object([None] * 2, None)
            os._exit(9)
        share(lambda: time.sleep(0), seconds=2)


main()

"""A program that test_agreement.py runs as two ranks: compares stores that are the same, and others."""

from __future__ import annotations

import sys

import torch
from torch import distributed
from update_rows import ALL, fitting

from ibp_gnn import CompressedFeatureStore
from ibp_gnn.distributed.agreement import fingerprint, require_same, require_same_store


def build(rows: torch.Tensor, codec: str = "ibp", order: torch.Tensor | None = None) -> CompressedFeatureStore:
    return CompressedFeatureStore.build(rows.clone(), codec, order=order, progress=False)


def message(store: CompressedFeatureStore) -> str:
    try:
        require_same_store(store)
    except (RuntimeError, ValueError) as error:
        return str(error)
    return "the same"


def main() -> None:
    distributed.init_process_group("gloo")
    rank = distributed.get_rank()
    rows = fitting()
    other = rows.clone()
    other[-1, -1] = -other[-1, -1]
    print(message(build(rows)))
    print(message(build(other if rank else rows)))
    print(message(build(rows, "dict" if rank else "ibp")))
    print(message(build(rows, order=ALL.flip(0) if rank else None)))
    print(fingerprint(build(rows)))
    closed = build(rows)
    if rank:
        closed.close()
    print(message(closed), file=sys.stderr)
    alone = [distributed.new_group([0]), distributed.new_group([1])][rank]
    require_same(str(rank), "rank", alone)
    distributed.destroy_process_group()


main()

"""Processes compare what they have to have in common, before they compute with it."""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
from torch import distributed

from .. import _native
from ..store.feature_store import CompressedFeatureStore

_PART_BYTES = 32 << 20  # what a thread takes at a time


def fingerprint(store: CompressedFeatureStore) -> str:
    """Reads all of the rows once, on as many threads as torch uses.

    Args:
        store: any.

    Returns:
        A text that two stores have in common if dtype, shape, codec, order and every compressed byte are the same.

    Raises:
        FormatError: the rows lie in a damaged file.
        ValueError: the store is closed.
    """
    with store.lock:
        rows, codec = store.rows, store.codec
        parts = {
            "slots": rows.slots[: rows.num_rows * rows.slot_bytes],
            "bitmask": rows.bitmask[: _native.cpu.bitmask_bytes(rows.num_rows)],
            "overflow": rows.overflow[: rows.num_overflow * rows.row_bytes],
        }
        if store.slot_of is not None:
            parts["slot_of"] = store.slot_of.view(torch.uint8)
        described: list[Any] = [store.shape, str(store.dtype), store.slot_bytes, codec.kind, codec.form.parameters()]
        described += [(name, _checksum(part)) for name, part in parts.items()]
        tables = codec.form.tables()
        described += [(name, table.shape, zlib.crc32(table.tobytes())) for name, table in sorted(tables.items())]
    return hashlib.sha256(repr(described).encode()).hexdigest()


def require_same(value: str, what: str, group: distributed.ProcessGroup | None = None) -> None:
    """A collective call: all processes of the group make it. Nothing to compare without a process group.

    Args:
        value: what this process has.
        what: names it in the message, like "store".
        group: whose processes compare. None: all.

    Raises:
        ValueError: in every process, if two have different values; says which have which.
    """
    if not distributed.is_initialized():
        return
    values: list[Any] = [None] * distributed.get_world_size(group)
    distributed.all_gather_object(values, value, group=group)
    ranks_with: dict[str, list[int]] = {}
    for rank, other in enumerate(values):
        ranks_with.setdefault(other, []).append(rank)
    if len(ranks_with) > 1:
        got = "; ".join(f"ranks {ranks}: {_shortened(other)}" for other, ranks in ranks_with.items())
        raise ValueError(f"{what}: want the same on all ranks, got {got}")


def require_same_store(store: CompressedFeatureStore, group: distributed.ProcessGroup | None = None) -> None:
    """A collective call. Reads all of the rows once.

    Args:
        store: this process's.
        group: whose processes compare. None: all.

    Raises:
        ValueError: in every process, if two stores have other rows, another codec or another order.
        FormatError: the rows lie in a damaged file.
    """
    require_same(fingerprint(store), "store", group)


def _checksum(data: torch.Tensor) -> tuple[int, tuple[int, ...]]:
    """data: uint8 [n] on the CPU."""

    def parts() -> Iterator[memoryview]:
        for start in range(0, len(data), _PART_BYTES):
            yield data[start : start + _PART_BYTES].numpy().data

    if _native.threads() == 1:
        return len(data), tuple(map(zlib.crc32, parts()))
    with ThreadPoolExecutor(_native.threads()) as pool:
        return len(data), tuple(pool.map(zlib.crc32, parts()))


def _shortened(value: str) -> str:
    return value if len(value) <= 200 else value[:200] + "..."

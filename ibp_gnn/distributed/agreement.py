"""Processes compare what they have to have in common, before they compute with it."""

from __future__ import annotations

import hashlib
import os
import zlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
from torch import distributed

from .. import _native
from ..codec.compressed_rows import bitmask_bytes
from ..store.feature_store import CompressedFeatureStore

_PART_BYTES = 32 << 20  # what a thread takes at a time
_SHOWN = 200  # characters of a value, in a message


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
        rows = store.rows
        parts = {
            "slots": rows.slots[: rows.data_bytes],
            "bitmask": rows.bitmask[: bitmask_bytes(rows.num_rows, rows.packing)],
            "overflow": rows.overflow[: rows.num_overflow * rows.row_bytes],
        }
        if store.slot_of is not None:
            parts["slot_of"] = store.slot_of.view(torch.uint8)
        described = [describe(store), *((name, _checksum(part)) for name, part in parts.items())]
    return hashlib.sha256(repr(described).encode()).hexdigest()


def describe(store: CompressedFeatureStore) -> str:
    """Without a look at the rows.

    Args:
        store: any.

    Returns:
        A text that two stores have in common if each one's codec decodes the other one's slots.

    Raises:
        ValueError: the store is closed.
    """
    form = store.codec.form
    tables = [(name, table.shape, zlib.crc32(table.tobytes())) for name, table in sorted(form.tables().items())]
    lie = f"{store.slot_bytes} {store.rows.packing}"
    return f"{store.shape} {store.dtype} {lie} {store.codec.kind} {form.parameters()} {tables}"


def require_same(value: str, what: str, group: distributed.ProcessGroup | None = None) -> None:
    """A collective call: all processes of the group make it. Nothing to compare without a process group.

    Args:
        value: what this process has.
        what: names it in the message, like "store".
        group: whose processes compare. None: all.

    Raises:
        ValueError: in every process, if two have different values; says which have which.
        RuntimeError: another process called `require_same_made`, and has nothing to compare.
    """
    require_same_made(lambda: value, what, group)


def require_same_made(make: Callable[[], str], what: str, group: distributed.ProcessGroup | None = None) -> None:
    """As `require_same`, of what `make` returns. If it raises in one process, no other one waits for that one.

    Args:
        make: makes what this process has.
        what: names it in the message.
        group: whose processes compare. None: all.

    Raises:
        Exception: what `make` raised here.
        RuntimeError: it raised in another process.
        ValueError: as `require_same`.
    """
    if not distributed.is_initialized():
        make()
        return
    value, error = "", None
    try:
        value = make()
    except Exception as raised:
        error = raised
    of_all: list[Any] = [None] * distributed.get_world_size(group)
    mine = value, None if error is None else f"{type(error).__name__}: {error}"
    distributed.all_gather_object(of_all, mine, group=group)
    if error is not None:
        raise error
    ranks_with: dict[str, list[int]] = {}
    for rank, (other, failure) in enumerate(of_all):
        if failure is not None:
            raise RuntimeError(f"{what}: rank {rank} has none to compare: {failure}")
        ranks_with.setdefault(other, []).append(rank)
    if len(ranks_with) > 1:
        first = len(os.path.commonprefix(list(ranks_with)))
        got = "; ".join(f"ranks {ranks}: {_shortened(other, first)}" for other, ranks in ranks_with.items())
        raise ValueError(f"{what}: want the same on all ranks, got {got}")


def require_same_store(store: CompressedFeatureStore, group: distributed.ProcessGroup | None = None) -> None:
    """A collective call. Reads all of the rows once.

    Args:
        store: this process's.
        group: whose processes compare. None: all.

    Raises:
        ValueError: in every process, if two stores have other rows, another codec or another order.
        FormatError: the rows lie in a damaged file.
        RuntimeError: they do in another process.
    """
    require_same_made(lambda: fingerprint(store), "store", group)


def _checksum(data: torch.Tensor) -> tuple[int, tuple[int, ...]]:
    """data: uint8 [n] on the CPU."""

    def parts() -> Iterator[memoryview]:
        for start in range(0, len(data), _PART_BYTES):
            yield data[start : start + _PART_BYTES].numpy().data

    if _native.threads() == 1:
        return len(data), tuple(map(zlib.crc32, parts()))
    with ThreadPoolExecutor(_native.threads()) as pool:
        return len(data), tuple(pool.map(zlib.crc32, parts()))


def _shortened(value: str, first: int) -> str:
    """first: where the values begin to differ. Its neighbourhood."""
    start, end = max(0, first - _SHOWN // 2), first + _SHOWN // 2
    return "..." * (start > 0) + value[start:end] + "..." * (end < len(value))

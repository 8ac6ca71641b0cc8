"""Page-locked rows: refused with the reason, and what works all the same."""

from __future__ import annotations

import dataclasses
import gc
import warnings

import pytest
import torch
from forks import in_child
from page_locking import Registers
from store_files import build, mixed_rows

from ibp_gnn import PinError, _native
from ibp_gnn.store import pinned
from ibp_gnn.testing import assert_bitwise_equal


def test_pinning_that_fails_warns_and_still_works(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = mixed_rows(torch.float32, 8, 40)

    class Refuses:
        def register_host_memory(self, address: int, nbytes: int) -> int:
            raise RuntimeError("cudaErrorMemoryAllocation (out of memory)")

    monkeypatch.setattr(_native, "cuda", lambda: Refuses())
    wanted = rf"could not page-lock {40 * 4 * 8 + 128} bytes .*out of memory.*`ulimit -l` is"
    way = (
        "" if torch.cuda.is_available() else r".*Without a GPU nothing needs page-locked rows: pin='auto' or pin=False"
    )
    with pytest.raises(PinError, match=wanted + way):
        build(rows, layout="inplace", pin=True)
    store = build(rows, layout="inplace", pin="auto")
    with pytest.warns(UserWarning, match=wanted + ".*staging buffer, which is slower"):
        assert store.page_lock() is False
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # said once
        assert store.page_lock() is False


@pytest.mark.cuda
def test_rows_still_arrive_when_pinning_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = mixed_rows(torch.float32, 50, 400)

    def refuse(self: object, *_: object, **__: object) -> None:
        raise PinError("could not page-lock")

    monkeypatch.setattr(pinned.PinnedRows, "__init__", refuse)
    with build(rows) as store:
        ids = torch.randint(0, 400, (1000,), device="cuda")
        with pytest.warns(UserWarning, match="could not page-lock"):
            got = store.gather(ids)
        assert_bitwise_equal(got.cpu(), rows[ids.cpu()])


def test_buffers_that_stay_are_not_locked_anew(registers: Registers) -> None:
    """An update that needs a longer overflow area keeps the slots."""
    rows = build(mixed_rows(torch.float32, 8, 40)).rows
    longer = dataclasses.replace(rows, overflow=torch.zeros(2 * rows.overflow.numel(), dtype=torch.uint8))
    first = pinned.PinnedRows(rows)
    assert registers.locked == {part.data_ptr(): part.numel() for part in (rows.slots, rows.overflow)}
    second = pinned.PinnedRows(longer, before=first)
    assert second.slots is first.slots and second.overflow is not first.overflow
    assert registers.locked == {part.data_ptr(): part.numel() for part in (rows.slots, rows.overflow, longer.overflow)}
    del first
    assert registers.locked == {part.data_ptr(): part.numel() for part in (rows.slots, longer.overflow)}
    second.slots.close()
    second.slots.close()
    assert registers.locked == {longer.overflow.data_ptr(): longer.overflow.numel()}
    del second
    assert registers.locked == {}


def test_a_lock_that_is_refused_leaves_none(registers: Registers, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = build(mixed_rows(torch.float32, 8, 40)).rows
    lock = registers.register_host_memory

    def refuse_the_second(address: int, nbytes: int) -> int:
        registers.refuses = bool(registers.locked)
        return lock(address, nbytes)

    monkeypatch.setattr(registers, "register_host_memory", refuse_the_second)
    with pytest.raises(PinError, match="could not page-lock"):
        pinned.PinnedRows(rows)
    gc.collect()
    assert registers.locked == {}


@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork.*:DeprecationWarning")
def test_a_forked_child_unlocks_nothing(registers: Registers) -> None:
    """It has no CUDA. What it lets go of is its parent's."""
    rows = build(mixed_rows(torch.float32, 8, 40)).rows
    locks = pinned.PinnedRows(rows)

    def close() -> int:
        locks.slots.close()
        return len(registers.locked)

    assert in_child(close) == 2
    locks.slots.close()
    assert len(registers.locked) == 1

from __future__ import annotations

import mmap

import pytest
import torch
from page_locking import Registers

from ibp_gnn.offload.locked_region import Budget, LockedRegion
from ibp_gnn.store.pinned import PinError


def test_it_is_locked_as_far_as_it_grows(registers: Registers) -> None:
    budget = Budget(1 << 30)
    region = LockedRegion(1 << 30, budget, pin=True)
    assert budget.used == 0 and registers.locked == {}
    for length in (1, 100_000, 50_000, 3_000_000):
        region.grow(length)
        assert region.nbytes >= length and budget.used == region.nbytes == sum(registers.locked.values())
        assert all(at % mmap.PAGESIZE == 0 for at in registers.locked)
    starts = sorted(registers.locked)
    assert all(at + registers.locked[at] == after for at, after in zip(starts, starts[1:], strict=False))
    region.close()
    assert registers.locked == {} and budget.used == 0


def test_copies_are_cut_where_locks_end(registers: Registers) -> None:
    """CUDA refuses a copy of memory that was locked in two pieces."""
    region = LockedRegion(1 << 20, Budget(1 << 20), pin=True)
    for length in (1, 100_000, 300_000):
        region.grow(length)
    assert len(registers.locked) == 3
    source, out = torch.randint(256, (250_000,)).to(torch.uint8), torch.empty(250_000, dtype=torch.uint8)
    region.write(10, source)
    region.read(10, out)
    assert torch.equal(out, source) and torch.equal(region.bytes[10:250_010], source)
    base = region.bytes.data_ptr()
    for start, end in region._spans(10, 250_010):
        assert any(at <= base + start and base + end <= at + length for at, length in registers.locked.items())


def test_budget_and_addresses_are_limits(registers: Registers) -> None:
    budget = Budget(100 * mmap.PAGESIZE)
    region = LockedRegion(1 << 30, budget, pin=True)
    region.grow(99 * mmap.PAGESIZE)
    with pytest.raises(MemoryError, match="budget: want"):
        region.grow(101 * mmap.PAGESIZE)
    region.grow(100 * mmap.PAGESIZE)
    small = LockedRegion(1000, Budget(1 << 20), pin=True)
    small.grow(1000)
    with pytest.raises(MemoryError, match="want 1001 bytes"):
        small.grow(1001)


def test_a_refusal_changes_nothing(registers: Registers) -> None:
    budget = Budget(1 << 20)
    region = LockedRegion(1 << 20, budget, pin=True)
    registers.refuses = True
    with pytest.raises(PinError):
        region.grow(1000)
    assert region.nbytes == 0 and budget.used == 0


def test_without_pin_nothing_is_locked(registers: Registers) -> None:
    region = LockedRegion(1 << 20, Budget(1 << 20), pin=False)
    region.grow(5000)
    region.bytes[:5000] = 7
    assert registers.locked == {}

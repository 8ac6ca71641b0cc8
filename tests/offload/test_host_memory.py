from __future__ import annotations

import pytest
import torch
from page_locking import Registers

from ibp_gnn.offload.host_memory import HostArena
from ibp_gnn.store.pinned import PinError


@pytest.fixture
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ibp_gnn.offload.host_memory._PIECE_BYTES", 1000)


def test_parts_do_not_overlap_and_are_locked_once(small_pieces: None, registers: Registers) -> None:
    arena = HostArena(pin=True)
    parts = [arena.take(length) for length in (100, 700, 300, 5000, 1)]
    spans = sorted((part.data_ptr(), part.data_ptr() + part.numel()) for part in parts)
    assert all(end <= start for (_, end), (start, _) in zip(spans, spans[1:], strict=False))
    assert all(part.data_ptr() % 256 == 0 for part in parts) and arena.nbytes == 6101
    arena.lock(None)
    for part in parts:
        assert any(
            at <= part.data_ptr() and part.data_ptr() + part.numel() <= at + length
            for at, length in registers.locked.items()
        )
        assert arena.address_of(part) == part.data_ptr()
    with pytest.raises(ValueError, match="of this arena"):
        arena.address_of(torch.zeros(3, dtype=torch.uint8))
    arena.close()
    assert registers.locked == {}


def test_a_refusal_leaves_nothing_locked(small_pieces: None, registers: Registers) -> None:
    arena = HostArena(pin=True)
    arena.take(2000)
    registers.refuses = True
    with pytest.raises(PinError, match="could not page-lock"):
        arena.lock(None)
    assert registers.locked == {}


def test_dropping_it_unlocks(registers: Registers) -> None:
    arena = HostArena(pin=True)
    arena.take(10)
    arena.lock(None)
    assert len(registers.locked) == 1
    del arena
    assert registers.locked == {}


def test_without_pin_nothing_is_locked(registers: Registers) -> None:
    arena = HostArena(pin=False)
    arena.take(10)
    arena.lock(None)
    assert registers.locked == {}

from __future__ import annotations

import pytest
import torch
from offload_models import DEVICES

from ibp_gnn.offload.locked_region import Budget
from ibp_gnn.offload.page_arena import PageArena, runs_of


def test_runs_of() -> None:
    assert runs_of([]) == []
    assert runs_of([5]) == [(5, 1, 0)]
    assert runs_of([5, 6, 7, 3, 4, 4]) == [(5, 3, 0), (3, 2, 3), (4, 1, 5)]


def make(tokens: torch.Tensor) -> PageArena:
    copies = torch.cuda.Stream() if tokens.is_cuda else None
    return PageArena(tokens, 32, Budget(1 << 24), copies)


@pytest.mark.parametrize("device", DEVICES)
def test_places_and_overflow_rows_are_used_again(device: str) -> None:
    tokens = torch.randn(4 * 32, 256, generator=torch.Generator().manual_seed(0)).bfloat16().to(device)
    wild = tokens.clone()
    wild.view(torch.int16)[::3] = torch.randint(-30000, 30000, wild[::3].shape, device=device).to(torch.int16)
    arena = make(tokens)
    first, second = arena.put(tokens), arena.put(wild)
    assert first == [0, 1, 2, 3] and second == [4, 5, 6, 7] and arena.num_pages == 8
    arena.settle(second)
    spilled = arena.overflow_bytes()
    assert spilled >= 43 * 512 and arena.overflow_share(second) >= 43 / 128 and arena.overflow_share(first) < 0.05
    arena.free(second)
    assert arena.num_pages == 4 and arena.overflow_bytes() < 512 * 8
    again = arena.put(wild)
    arena.settle(again)
    assert sorted(again) == second and arena.overflow_bytes() == spilled
    arena.close()


def test_values_that_save_nothing_are_kept_raw() -> None:
    bits = torch.randint(-(1 << 15), 1 << 15, (64, 128), generator=torch.Generator().manual_seed(0)).to(torch.int16)
    arena = make(bits.view(torch.bfloat16))
    assert arena.slot_bytes == 256
    assert arena.put(bits.view(torch.bfloat16)) == [0, 1] and arena.overflow_bytes() == 0
    arena.close()


@pytest.mark.cuda
def test_a_put_on_a_gpu_does_not_wait() -> None:
    tokens = torch.randn(64, 1024, device="cuda").bfloat16()
    arena = make(tokens)
    arena.free(arena.put(tokens))  # page-locks, and allocates what a put takes
    torch.cuda.synchronize()
    torch.cuda._sleep(2_000_000_000)  # about a second
    event = torch.cuda.Event()
    arena.put(tokens)
    event.record()
    assert not event.query()
    arena.close()

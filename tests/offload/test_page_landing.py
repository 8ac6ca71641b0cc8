from __future__ import annotations

import pytest
import torch
from emulated_gpu import emulated_gpu as emulated_gpu

from ibp_gnn.offload.locked_region import Budget
from ibp_gnn.offload.page_arena import PageArena
from ibp_gnn.offload.page_landing import PageLanding, PageSelection, token_ids
from ibp_gnn.testing import assert_bitwise_equal


def test_token_ids() -> None:
    cpu = torch.device("cpu")
    assert token_ids([2, 3], 3, cpu).tolist() == [6, 7, 8, 9, 10, 11]
    assert token_ids([3, 0, 0], 2, cpu).tolist() == [6, 7, 0, 1, 0, 1]


@pytest.fixture(params=["emulated", pytest.param("cuda", marks=pytest.mark.cuda)])
def device(request: pytest.FixtureRequest) -> torch.device:
    if request.param == "cuda":
        return torch.device("cuda", torch.cuda.current_device())
    request.getfixturevalue("emulated_gpu")
    return torch.device("cpu")


def test_pages_of_several_arenas_and_sizes(device: torch.device) -> None:
    copies = torch.cuda.Stream()
    landing = PageLanding(device, copies)
    tokens = [(torch.randn(256, 512, device=device) * scale).bfloat16() for scale in (1, 1e-4)]
    arenas = [PageArena(of, 32, Budget(1 << 24), copies) for of in tokens]
    for arena, of in zip(arenas, tokens, strict=True):
        arena.put(of)
    for places in ([(0, 3)], [(0, 1), (1, 7), (1, 6), (0, 1)], [(at % 2, at // 2) for at in range(16)], [(1, 0)]):
        selection = PageSelection([(arenas[arena], place) for arena, place in places], device)
        landing.start(selection)
        assert landing.holds is selection
        out = torch.empty(32 * len(places), 512, dtype=torch.bfloat16, device=device)
        landing.decode(out)
        assert landing.holds is None
        want = torch.cat([tokens[arena][32 * place : 32 * place + 32] for arena, place in places])
        assert_bitwise_equal(out, want)
    assert landing.nbytes < 4 * 16 * 32 * 1024

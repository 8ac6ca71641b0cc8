from __future__ import annotations

import pytest
import torch

from ibp_gnn.offload.locked_region import Budget
from ibp_gnn.offload.page_arena import PageArena
from ibp_gnn.offload.page_landing import PageLanding, token_ids
from ibp_gnn.testing import assert_bitwise_equal


def test_token_ids() -> None:
    cpu = torch.device("cpu")
    assert token_ids([2, 3], 3, cpu).tolist() == [6, 7, 8, 9, 10, 11]
    assert token_ids([3, 0, 0], 2, cpu).tolist() == [6, 7, 0, 1, 0, 1]


@pytest.mark.cuda
def test_pages_of_several_arenas_and_sizes() -> None:
    copies = torch.cuda.Stream()
    landing = PageLanding(torch.device("cuda", 0), copies)
    tokens = [(torch.randn(256, 512, device="cuda") * scale).bfloat16() for scale in (1, 1e-4)]
    arenas = [PageArena(of, 32, Budget(1 << 24), copies) for of in tokens]
    for arena, of in zip(arenas, tokens, strict=True):
        arena.put(of)
    for places in ([(0, 3)], [(0, 1), (1, 7), (1, 6), (0, 1)], [(at % 2, at // 2) for at in range(16)], [(1, 0)]):
        pages = [(arenas[arena], place) for arena, place in places]
        assert not landing.has(places, pages)
        landing.start(places, pages)
        assert landing.has(places, pages) and landing.has(places, pages[:1]) and not landing.has([], pages)
        out = torch.empty(32 * len(pages), 512, dtype=torch.bfloat16, device="cuda")
        landing.decode(pages, out)
        want = torch.cat([tokens[arena][32 * place : 32 * place + 32] for arena, place in places])
        assert_bitwise_equal(out, want)
    assert landing.nbytes < 4 * 16 * 32 * 1024

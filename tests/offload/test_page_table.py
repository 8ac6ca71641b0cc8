from __future__ import annotations

import pytest
import torch
from offload_models import DEVICES

from ibp_gnn.offload.page_table import PageTable


def test_pages_come_and_go() -> None:
    table = PageTable(32)
    assert len(table) == 0 and 0 not in table and -1 not in table and "a" not in table
    table.set([5, 3000], 0, [2, 7])
    table.set([0], 1, [4])
    assert len(table) == 3 and 5 in table and 3000 in table and 4 not in table and -5 not in table
    assert table[3000] == (0, 7) and table[0] == (1, 4)
    assert table.pop(5) == (0, 2) and 5 not in table and len(table) == 2
    for missing in (5, 10**9, -1):
        with pytest.raises(KeyError, match=f"got {missing}"):
            table[missing]
    table.clear()
    assert len(table) == 0 and 0 not in table


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_tokens_are_found_on_any_device(device: str, dtype: torch.dtype) -> None:
    table = PageTable(32)
    ids = torch.tensor([0, 31, 5 * 32 + 3, 5 * 32 + 3, 6 * 32, -1, -33, 2**30], dtype=dtype, device=device)
    for found in table.find_tokens(ids):
        assert found.tolist() == [-1] * 8
    table.set([5, 0], 0, [2, 9])
    table.set([6], 3, [1])
    rows, arenas = table.find_tokens(ids)
    assert rows.tolist() == [9 * 32, 9 * 32 + 31, 2 * 32 + 3, 2 * 32 + 3, 32, -1, -1, -1]
    assert arenas.tolist() == [0, 0, 0, 0, 3, -1, -1, -1] and rows.device == ids.device
    table.pop(0)
    assert table.find_tokens(ids)[0].tolist()[:3] == [-1, -1, 2 * 32 + 3]

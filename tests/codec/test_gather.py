"""Gathers to a GPU: sizes, streams, orders, and what they count."""

from __future__ import annotations

import pytest
import torch
from store_files import build, mixed_rows

from ibp_gnn import GatherStats
from ibp_gnn.testing import assert_bitwise_equal


@pytest.mark.cuda
def test_gathers_on_several_streams_and_of_many_sizes() -> None:
    rows = mixed_rows(torch.float32, 100, 20000)
    with build(rows) as store:
        wanted = rows.cuda()
        streams = [torch.cuda.Stream() for _ in range(3)]
        results = []
        for size in (1, 7, 8, 63, 1000, 20000, 150000):
            for stream in streams:
                ids = torch.randint(0, 20000, (size,), device="cuda")
                stream.wait_stream(torch.cuda.current_stream())
                with torch.cuda.stream(stream):
                    results.append((ids, store.gather(ids)))
                torch.cuda.current_stream().wait_stream(stream)
        for ids, got in results:
            assert_bitwise_equal(got, wanted[ids])


@pytest.mark.cuda
def test_an_ordered_gather_puts_rows_where_they_belong(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ibp_gnn.codec.gather._ORDER_FOOTPRINT_BYTES", 0)
    rows = mixed_rows(torch.float32, 50, 5000)
    with build(rows) as store:
        for dtype in (torch.int32, torch.int64):
            ids = torch.randint(0, 5000, (9000,), device="cuda", dtype=dtype)
            assert_bitwise_equal(store.gather(ids).cpu(), rows[ids.cpu()])


def test_adding_stats() -> None:
    one, other = GatherStats(1, 2, 30, 40, 3), GatherStats(10, 20, 300, 400)
    assert one + other == GatherStats(11, 22, 330, 440, 3) == other + one
    assert one + one == GatherStats(2, 4, 60, 80, 6)
    assert other + other == GatherStats(20, 40, 600, 800, None)
    assert one.miss_rate == 2 / 3 and GatherStats().miss_rate == 0

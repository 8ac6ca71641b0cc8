"""Gathers to a GPU: sizes, streams, orders, and what they count."""

from __future__ import annotations

import pytest
import torch
from store_files import build, mixed_rows

from ibp_gnn import CompressedFeatureStore, GatherStats
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


@pytest.mark.cuda
def test_plans_of_one_kernel_with_windows_of_different_length() -> None:
    """Rows of so many values take more shared memory than a kernel has without asking, the narrower ones less."""
    rows = {width: torch.randn(300, width, generator=torch.Generator().manual_seed(width)) for width in (3072, 2048)}
    ids = torch.arange(300, device="cuda")
    wide, narrow = (CompressedFeatureStore.build(of_width, "dict", progress=False) for of_width in rows.values())
    with wide, narrow:
        for store, width in ((wide, 3072), (narrow, 2048), (wide, 3072)):
            assert_bitwise_equal(store.gather(ids), rows[width])
            store.check()


@pytest.mark.cuda
def test_what_a_kernel_would_misread_is_refused() -> None:
    rows = torch.randn(300, 32, generator=torch.Generator().manual_seed(0))
    with CompressedFeatureStore.build(rows, progress=False) as store:
        gather = store.gather_on(torch.device("cuda", torch.cuda.current_device())) if store.page_lock() else None
        assert gather is not None
        ids, out = torch.arange(20, device="cuda"), torch.zeros(20, 32, device="cuda")
        for bad_ids in (ids.to(torch.int16), ids.float(), torch.arange(40, device="cuda")[::2]):
            with pytest.raises(ValueError, match="ids: want contiguous int32 or int64, got"):
                gather.gather(bad_ids, out)
        with pytest.raises(ValueError, match="out: want it contiguous"):
            gather.gather(ids, torch.zeros(32, 20, device="cuda").T)
        with pytest.raises(ValueError, match="out bytes: want 2560, got 2432"):
            gather.gather(ids, out[1:])
        with pytest.raises(ValueError, match="want them on cuda:.*, got cpu"):
            gather.gather(ids.cpu(), out)
        assert not out.any()

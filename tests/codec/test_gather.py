"""Gathers to a GPU: sizes, streams, orders, and what they count."""

from __future__ import annotations

import pytest
import torch
from store_files import build, mixed_rows

from ibp_gnn import Codec, CompressedFeatureStore, GatherStats
from ibp_gnn.codec.gather import GpuGather, MappedRows
from ibp_gnn.codec.values import to_bytes
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


@pytest.mark.cuda
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("kind", ["normal", "relu"])
def test_rows_of_every_width_and_alignment(kind: str, dtype: torch.dtype) -> None:
    """Widths on both sides of what each kernel takes, outputs that start anywhere, and many rows that overflow."""
    generator = torch.Generator().manual_seed(0)
    for width in (3, 16, 17, 32, 33, 50, 64, 65, 96, 100, 128, 129, 192, 250, 256, 257, 300, 384, 385, 512, 513, 602,
                  768, 769, 1000, 1433, 1536, 1537, 2048, 2560, 4097):  # fmt: skip
        rows = torch.randn(300, width, generator=generator)
        rows = (torch.relu(rows) if kind == "relu" else rows).to(dtype)
        codec = Codec.fit(rows, codec="dict")
        noise = torch.randint(-(2**15), 2**15, (100, width), generator=generator)
        words = torch.int32 if dtype.itemsize == 4 else torch.int16
        rows[100:200] = (noise * 65521 if dtype.itemsize == 4 else noise).to(words).view(dtype)
        compressed = codec.compress(rows.cuda())
        wanted, mapped = rows.cuda(), MappedRows.on_device(compressed)
        gather = GpuGather(codec.form, wanted.device, mapped, lead_bytes=compressed.slot_bytes, cache=compressed)
        for ids in (torch.randint(300, (1000,), generator=generator).cuda(), range(7, 295), range(0)):
            of_ids = wanted[list(ids)] if isinstance(ids, range) else wanted[ids]
            for start in (0, 1, 2, 4, 8):  # in values
                buffer = torch.full((of_ids.numel() + 16,), 7, dtype=dtype, device="cuda")
                out = buffer[start : start + of_ids.numel()].view(of_ids.shape)
                gather.gather(ids, to_bytes(out))
                assert_bitwise_equal(out, of_ids)
                assert (buffer[:start] == 7).all() and (buffer[start + of_ids.numel() :] == 7).all()
        gather.check()
        assert gather.stats().misses == 0 and gather.stats().hits == 5 * (1000 + 288)


@pytest.mark.cuda
def test_a_range_of_ids() -> None:
    rows = mixed_rows(torch.float32, 100, 2000).cuda()
    codec = Codec.fit(rows)
    compressed = codec.compress(rows)
    assert_bitwise_equal(codec.decompress(compressed), rows)
    mapped = MappedRows.on_device(compressed)
    gather = GpuGather(codec.form, rows.device, mapped, lead_bytes=compressed.slot_bytes)
    out = torch.empty_like(rows[:150])
    for ordered in (False, True):
        gather.gather(range(1850, 2000), to_bytes(out), ordered=ordered)
        assert_bitwise_equal(out, rows[1850:])
    with pytest.raises(ValueError, match="want step 1"):
        gather.gather(range(0, 300, 2), to_bytes(out))
    gather.gather(range(1900, 2050), to_bytes(out))
    with pytest.raises(IndexError, match="want 0 <= id < 2000"):
        gather.check()
    assert_bitwise_equal(out[:100], rows[1900:])
    assert not out[100:].any()

"""Stores whose rows are packed: what they take, what they refuse, and where they go."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest
import torch
from store_files import an_order, mixed_rows

from ibp_gnn import CompressedFeatureStore, CompressedGPUCache, FormatError
from ibp_gnn.gpu.cache import rows_that_fit
from ibp_gnn.integrations import wholegraph
from ibp_gnn.testing import assert_bitwise_equal

ROWS = 2000


def sparse_rows() -> torch.Tensor:
    """Payloads of very different lengths."""
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(ROWS, 300, generator=generator)
    kept = torch.rand(ROWS, 1, generator=generator) ** 3
    return rows * (torch.rand(ROWS, 300, generator=generator) < kept)


def build(rows: torch.Tensor, layout: str = "packed", **options: object) -> CompressedFeatureStore:
    return CompressedFeatureStore.build(rows, layout=layout, progress=False, **options)  # type: ignore[arg-type]


def test_rows_take_what_their_payloads_take() -> None:
    rows = sparse_rows()
    packed, compact = build(rows), build(rows, "compact")
    payloads = int(packed.codec.measure(rows).clamp(max=1200).sum())
    assert packed.rows.data_bytes <= 1.015 * payloads  # they differ by more than 255 bytes: by units of 8
    assert packed.nbytes < 0.7 * compact.nbytes
    assert packed.savings == 1 - packed.nbytes / packed.raw_nbytes
    assert packed.layout == "packed" and ", packed, " in repr(packed)


@pytest.mark.parametrize("codec", ["auto", "dict", "ibp"])
def test_auto_takes_what_is_clearly_smaller(codec: str) -> None:
    assert build(sparse_rows(), "auto", codec=codec).layout == "packed"
    # Payloads of nearly one length; and of some more.
    assert build(torch.randn(ROWS, 300), "auto", codec=codec).layout == "compact"
    assert build(torch.randn(ROWS, 128).bfloat16(), "auto", codec=codec).layout == "compact"
    assert build(torch.zeros(0, 4), "auto", codec=codec).layout == "compact"
    fitted = build(sparse_rows(), codec=codec).codec
    assert build(sparse_rows(), "auto", codec=fitted).layout == "packed"


def test_updates_are_refused_and_change_nothing(tmp_path: Path) -> None:
    rows = sparse_rows()
    store = build(rows)
    store.save(tmp_path / "s.ibp")
    for one in (store, CompressedFeatureStore.load(tmp_path / "s.ibp", mmap=False)):
        with pytest.raises(ValueError, match="update: want rows in slots, got packed rows.*layout='compact'"):
            one.update(torch.tensor([3]), rows[:1])
        assert_bitwise_equal(one.gather(torch.arange(ROWS)), rows)


@pytest.mark.parametrize("ordered", [False, True], ids=["by_id", "ordered"])
def test_a_cache_is_counted_to_the_byte(ordered: bool) -> None:
    rows = mixed_rows(torch.float32, 33, 1000)
    store = build(rows, order=an_order(1000) if ordered else None)
    hottest = torch.randperm(1000, generator=torch.Generator().manual_seed(1))
    slots = store.to_slots(hottest).to(torch.int64)
    for wanted in (1, 23, 24, 25, 999, 1000):
        needed = 77 + store.rows.select(slots[:wanted]).nbytes
        assert rows_that_fit(store, hottest, needed, needed, 77) == wanted
        if wanted > 1:
            assert rows_that_fit(store, hottest, needed - 1, needed - 1, 77) == wanted - 1


def test_copies_and_files_have_the_same_bytes(tmp_path: Path) -> None:
    rows = sparse_rows()
    store = build(rows, order=torch.arange(ROWS - 1, -1, -1))
    store.save(tmp_path / "s.ibp")
    with CompressedFeatureStore.load(tmp_path / "s.ibp") as loaded:
        for same in (loaded, pickle.loads(pickle.dumps(store)), pickle.loads(pickle.dumps(loaded))):
            assert same.layout == "packed" and same.rows.packing == store.rows.packing
            for name in ("slots", "bitmask", "overflow"):
                assert_bitwise_equal(getattr(same.rows, name), getattr(store.rows, name))
        loaded.save(tmp_path / "again.ibp")
    assert (tmp_path / "again.ibp").read_bytes() == (tmp_path / "s.ibp").read_bytes()


def test_a_damaged_directory_is_a_format_error() -> None:
    rows = sparse_rows()
    store = build(rows)
    store.rows.bitmask.view(torch.int64)[4 * 10] ^= 1 << 38
    assert_bitwise_equal(store.gather(torch.arange(240)), rows[:240])
    with pytest.raises(FormatError, match="row 240: want a place of at most"):
        store.gather(torch.tensor([5, 240]))


def test_wholegraph_refuses_them() -> None:
    with pytest.raises(ValueError, match="store: want rows in slots, got packed rows"):
        wholegraph.require_slots(build(torch.randn(50, 4)))
    wholegraph.require_slots(build(torch.randn(50, 4), "compact"))


@pytest.mark.cuda
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.int32], ids=str)
@pytest.mark.parametrize("width", [16, 33, 128, 300, 768, 1500])
@pytest.mark.parametrize("least_unit", [1, 4])
def test_hits_and_misses(dtype: torch.dtype, width: int, least_unit: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """All kernels, rows that start at any byte and at multiples of 4, outputs at any multiple of a value."""
    monkeypatch.setattr("ibp_gnn.codec.packing.LEAST_UNIT_BYTES", least_unit)
    values = torch.randn(ROWS, width, generator=torch.Generator().manual_seed(width))
    dense = (values * 100).to(dtype) if dtype is torch.int32 else values.to(dtype)
    dense[::50] = mixed_rows(dtype, width, len(dense[::50]))
    sparse = torch.where(values > 0.7, dense, torch.zeros_like(dense))
    for rows in (dense, sparse):
        for codec in ("dict", "ibp"):
            with build(rows, codec=codec) as store:
                assert store.rows.packing is not None and store.rows.packing.unit_bytes >= least_unit
                ids = torch.randint(0, ROWS, (5000,))
                caches = [CompressedGPUCache(store, "700 rows"), CompressedGPUCache(store, f"{ROWS} rows")]
                caches.append(CompressedGPUCache(store, "700 rows", hotness=torch.rand(ROWS)))
                for source in (store, *caches):
                    for offset in (0, 1):
                        room = torch.zeros(5000 * width + offset, dtype=dtype, device="cuda")
                        out = room[offset:].view(5000, width)
                        source.gather(ids.cuda(), out=out)
                        source.check()
                        assert_bitwise_equal(out.cpu(), rows[ids])
                lengths = store.rows.bytes_of_each(ids).sum()
                store.reset_stats()
                store.gather(ids.cuda())
                # Whole loads around each row; what a window does not hold is read again.
                assert int(lengths) <= store.stats().pcie_bytes <= 2 * int(lengths) + 5000 * 64

"""DistributedFeatureStore: the bits of the rows, whoever has them. One process here."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest
import torch

from ibp_gnn import CompressedFeatureStore, FormatError
from ibp_gnn.integrations import wholegraph_store
from ibp_gnn.testing import assert_bitwise_equal, special_rows
from ibp_gnn.wholegraph import DistributedFeatureStore

ROWS, WIDTH = 3000, 30
needs_wholegraph = [
    pytest.mark.cuda,
    pytest.mark.skipif(importlib.util.find_spec("pylibwholegraph") is None, reason="WholeGraph is not installed"),
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]


def store_of(dtype: torch.dtype, **options: Any) -> tuple[torch.Tensor, CompressedFeatureStore]:
    rows = special_rows(dtype, WIDTH, "outliers", ROWS)
    rows[::7] = special_rows(dtype, WIDTH, "random_bits", len(rows[::7]))  # they overflow
    return rows, CompressedFeatureStore.build(rows, progress=False, **options)


class Records:
    """Keeps what a process writes of its part, and counts in how many calls it takes part."""

    def __init__(self) -> None:
        self.written: dict[int, torch.Tensor] = {}
        self.calls = 0

    def write(self, first: int, rows: torch.Tensor) -> None:
        self.written[first] = rows

    def gather(self, indices: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        assert len(indices) == 0
        return torch.empty(0, WIDTH * 4 + 4, dtype=torch.uint8)[:, : WIDTH * 4 + 1]  # in whole words


def of_one_process(store: CompressedFeatureStore) -> tuple[DistributedFeatureStore, Records]:
    """Without a GPU: what a process does for itself."""
    distributed, records = object.__new__(DistributedFeatureStore), Records()
    distributed.codec, distributed.dtype, distributed.shape = store.codec, store.dtype, store.shape
    distributed.device, distributed._slot_bytes = torch.device("cpu"), store.slot_bytes
    distributed._records, distributed._overflow, distributed._last = records, None, None  # type: ignore[assignment]
    return distributed, records


def test_the_part_of_a_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """It may have no rows: WholeGraph gives 10 rows to five of eight processes."""
    monkeypatch.setattr(wholegraph_store, "_ROWS_AT_ONCE", 64)
    rows, store = store_of(torch.float32)
    with store:
        distributed, records = of_one_process(store)
        assert distributed._fill(store, torch.arange(0), 0).shape == (0, WIDTH * 4) and not records.written
        overflow = distributed._fill(store, torch.arange(100, 300), 0)
        assert list(records.written) == [100, 164, 228, 292]
        written = torch.cat(list(records.written.values()))
        assert torch.equal(written[:, -1] == 1, store.overflows(torch.arange(100, 300)))
        assert_bitwise_equal(overflow, rows[100:300][written[:, -1] == 1].view(torch.uint8))


def test_a_process_with_bad_arguments_takes_its_part() -> None:
    """The others would wait for it."""
    _, store = store_of(torch.float32, layout="inplace")
    with store:
        distributed, records = of_one_process(store)
        with pytest.raises(TypeError, match="ids: want int32 or int64"):
            distributed.gather(torch.tensor([0.5]))
        with pytest.raises(ValueError, match="out"):
            distributed.gather(torch.tensor([1]), out=torch.empty(2, WIDTH))
        assert records.calls == 2


class Stored:
    """Rows of bytes, in whole words, as WholeGraph gives them."""

    def __init__(self, rows: torch.Tensor) -> None:
        self.row_bytes = rows.shape[1]
        self.words = torch.nn.functional.pad(rows, (0, -self.row_bytes % 4)).view(torch.int32)

    def gather(self, indices: torch.Tensor) -> torch.Tensor:
        return self.words[indices].view(torch.uint8)[:, : self.row_bytes]


@pytest.mark.parametrize("layout", ["compact", "inplace"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.uint8], ids=str)
def test_pulled_rows_are_those_of_the_store(layout: str, dtype: torch.dtype) -> None:
    """Slots of whole words, and others."""
    rows, store = store_of(dtype, layout=layout)
    ids = torch.randint(0, ROWS, (500,), generator=torch.Generator().manual_seed(3))
    with store:
        distributed, records = of_one_process(store)
        overflow = distributed._fill(store, torch.arange(ROWS), 0)
        distributed._records = Stored(torch.cat(list(records.written.values())))  # type: ignore[assignment]
        if len(overflow):
            distributed._overflow = Stored(overflow)  # type: ignore[assignment]
        for of_ids in (ids, ids[:1], ids[:0]):
            pulled = distributed._pull(of_ids)
            assert pulled.num_overflow == int(store.overflows(of_ids).sum())
            assert_bitwise_equal(store.codec.decompress(pulled), rows[of_ids])


class TestOnGpu:
    pytestmark = needs_wholegraph

    @pytest.mark.parametrize("location", ["cpu", "cuda"])
    @pytest.mark.parametrize("layout", ["compact", "inplace"])
    @pytest.mark.parametrize("cache", [None, "400 rows", "3000 rows"])
    @pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.uint8], ids=str)
    def test_bits(self, location: Any, layout: str, cache: Any, dtype: torch.dtype) -> None:
        order = torch.randperm(ROWS, generator=torch.Generator().manual_seed(0))
        rows, store = store_of(dtype, layout=layout, order=order)
        ids = torch.randint(0, ROWS, (5000,), generator=torch.Generator().manual_seed(3))
        with DistributedFeatureStore(store, location=location, cache=cache) as distributed:
            store.close()
            assert_bitwise_equal(distributed.gather(ids, device="cuda").cpu(), rows[ids])
            assert_bitwise_equal(distributed.gather(ids.int().cuda()).cpu(), rows[ids])
            assert_bitwise_equal(distributed.gather(ids), rows[ids])
            assert distributed.gather(ids[:0], device="cuda").shape == (0, WIDTH)
            assert_bitwise_equal(distributed.gather_async(ids.cuda()).wait().cpu(), rows[ids])
            stats = distributed.stats()
            assert stats.hits + stats.misses == 4 * len(ids)
            assert (stats.hits > 0) == (cache is not None) and (stats.misses > 0) == (cache != "3000 rows")

    def test_from_a_file(self, tmp_path: Path) -> None:
        rows, store = store_of(torch.float32)
        path = tmp_path / "features.ibp"
        store.save(path)
        with DistributedFeatureStore.load(path, location="cuda", cache="50 rows") as distributed:
            assert_bitwise_equal(distributed.gather(torch.arange(ROWS), device="cuda").cpu(), rows)
        broken = bytearray(path.read_bytes())
        broken[len(broken) // 2] ^= 1
        path.write_bytes(broken)
        with pytest.raises(FormatError):
            DistributedFeatureStore.load(path)

    def test_bad_input(self) -> None:
        rows, store = store_of(torch.float32)
        with store:
            with pytest.raises(ValueError, match="location: want cuda or cpu, got 'disk'"):
                DistributedFeatureStore(store, location="disk")  # type: ignore[arg-type]
            with pytest.raises(ValueError, match="cache: want a capacity"):
                DistributedFeatureStore(store, hotness=torch.ones(ROWS))
            with DistributedFeatureStore(store) as distributed:
                for ids in (torch.tensor([1, 3000]), torch.tensor([1, 3000]).cuda()):
                    with pytest.raises(IndexError, match="got 3000 at position 1"):
                        distributed.gather(ids, device="cuda")
                assert_bitwise_equal(distributed.gather(torch.tensor([5]), device="cuda").cpu(), rows[5:6])
            with pytest.raises(ValueError, match="closed"):
                distributed.gather(torch.tensor([5]))

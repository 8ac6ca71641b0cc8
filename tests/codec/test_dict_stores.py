"""Stores and caches of codec "dict"."""

from __future__ import annotations

import dataclasses
import itertools
import pickle

import pytest
import torch
from backends import dict_backend
from dict_cases import Parts, as_words, make_codec

from ibp_gnn import Codec, CompressedFeatureStore, CompressedGPUCache, FormatError
from ibp_gnn.codec.values import SUPPORTED_DTYPES
from ibp_gnn.testing import assert_bitwise_equal, special_rows
from ibp_gnn.testing.oracle_dict import Cut

backend = dict_backend  # with AVX-512


def features(dtype: torch.dtype, width: int, n: int = 300) -> torch.Tensor:
    """Normal values of other sizes in each column; here and there an escape; every 40th row is noise."""
    generator = torch.Generator().manual_seed(width)
    scale = torch.randn(width, generator=generator).exp() * (1 if dtype.is_floating_point else 1000)
    rows = (torch.randn(n, width, generator=generator) * scale).to(dtype)
    noise = as_words(special_rows(dtype, width, "random_bits", n))
    as_words(rows)[torch.rand(n, width, generator=generator) < 0.01] = noise[0, 0]
    as_words(rows)[::40] = noise[::40]
    return rows


@pytest.mark.parametrize("codec", ["dict", "auto", "ibp"])
@pytest.mark.parametrize("layout", ["compact", "inplace", "packed"])
def test_a_store_on_the_cpu(codec, layout):
    for dtype, width in itertools.product(SUPPORTED_DTYPES, (1, 33, 50)):
        rows = special_rows(dtype, width, "outliers", 300) if dtype is torch.bool else features(dtype, width)
        with CompressedFeatureStore.build(rows, codec, layout=layout, chunk_rows=64, progress=False) as store:
            assert store.codec.kind in ("ibp", "dict") and (codec == "auto" or store.codec.kind == codec)
            if layout != "packed":
                assert_bitwise_equal(store.rows.slots, store.codec.compress(rows, slot_bytes=store.slot_bytes).slots)
            ids = torch.randint(0, 300, (500,), generator=torch.Generator().manual_seed(0))
            assert_bitwise_equal(store.gather(ids), rows[ids])
            assert_bitwise_equal(pickle.loads(pickle.dumps(store)).gather(ids), rows[ids])
            if dtype is torch.float32 and width == 50 and codec != "ibp":
                assert store.layout == layout and (layout == "inplace" or store.savings > 0.05)


def store_codecs() -> dict[str, tuple[torch.dtype, bool, Parts | None]]:
    """dtype, whether negative values become 0, the parts to force (None: fitted)."""
    columns, shared = Parts(Cut(8, True), 3, False, True, 0), Parts(Cut(8, True), 3, False, False, 0)
    return {
        "float32": (torch.float32, False, None),
        "float32_shared": (torch.float32, False, shared),
        "float32_columns": (torch.float32, False, columns),
        "float32_zeros": (torch.float32, True, Parts(Cut(8, True), 3, True, False, 0)),
        "bfloat16": (torch.bfloat16, False, None),
        "bfloat16_shared": (torch.bfloat16, False, shared),
        "bfloat16_columns": (torch.bfloat16, False, columns),
        "bfloat16_zeros": (torch.bfloat16, True, Parts(Cut(8, True), 2, True, True, 0)),
        "float16": (torch.float16, False, None),
        "float16_zeros": (torch.float16, True, Parts(Cut(5, True), 3, True, False, 0)),
        "int64": (torch.int64, False, None),
        "int64_columns": (torch.int64, False, Parts(Cut(8, False), 1, False, True, 0)),
    }


def store_case(name: str, width: int) -> tuple[torch.Tensor, Codec]:
    dtype, without_negatives, parts = store_codecs()[name]
    rows = features(dtype, width)
    if without_negatives:
        rows[(rows < 0).any(1, keepdim=True) & (rows <= 0)] = 0
    return rows, Codec.fit(rows, codec="dict") if parts is None else make_codec(rows, parts)


@pytest.mark.cuda
@pytest.mark.parametrize("layout", ["compact", "inplace", "packed"])
@pytest.mark.parametrize("name", store_codecs())
def test_rows_gathered_by_a_gpu(name, layout):
    for width in (32, 50, 64, 100, 128, 256, 602, 768, 1433, 5000):
        rows, codec = store_case(name, width)
        n, row_bytes = len(rows), codec.row_bytes
        with CompressedFeatureStore.build(rows, codec, layout=layout, progress=False) as store:
            ids = torch.randint(0, n, (700,), generator=torch.Generator().manual_seed(width))
            assert_bitwise_equal(store.gather(ids, device="cuda").cpu(), rows[ids])
            stats = store.stats()
            assert (stats.hits, stats.misses, stats.raw_bytes) == (0, 700, 700 * row_bytes)
            lengths = codec.measure(rows).to(torch.int64)
            held = store.rows.is_compressed().to(torch.bool)
            least = torch.where(held, lengths, row_bytes)[ids].sum()
            # A payload: up to whole loads around the first bytes of the slot and the rest, or again from its start.
            most = torch.where(held, 2 * lengths + store.slot_bytes + 64, row_bytes + 4)[ids].sum()
            assert int(least) <= stats.pcie_bytes <= int(most)
            for offset in (1, 2, 3, 4):  # out begins at another multiple of the value's length
                room = torch.zeros(offset + 50 * width + 1, dtype=rows.dtype, device="cuda")
                out = room[offset:-1].view(50, width)
                store.gather(ids[:50].cuda(), out=out)
                assert_bitwise_equal(out.cpu(), rows[ids[:50]])
                border = torch.cat([room[:offset], room[-1:]])
                assert_bitwise_equal(border.cpu(), torch.zeros(offset + 1, dtype=rows.dtype))
            store.check()
            cache = CompressedGPUCache(store, f"{n // 2} rows", hotness=torch.arange(n).flip(0))
            cache.reset_stats()
            assert_bitwise_equal(cache.gather(ids.cuda()).cpu(), rows[ids])
            stats = cache.stats()
            misses = int((ids >= n // 2).sum())
            assert (stats.hits, stats.misses) == (700 - misses, misses)
            assert int(least) * misses / 1400 < stats.pcie_bytes <= int(most)
            cache.check()


@pytest.mark.parametrize("name", store_codecs())
def test_damaged_bitmasks(name, backend):
    """Slots far too short for the payloads that the bitmask says they hold: an error, and no read of other memory."""
    for width in (32, 64, 1433):
        rows, codec = store_case(name, width)
        for slot_bytes in (4, 32, codec.row_bytes // 2 // 4 * 4):
            compressed = codec.compress(rows.to(backend), slot_bytes=slot_bytes)
            damaged = dataclasses.replace(compressed, bitmask=torch.full_like(compressed.bitmask, 255))
            spilled = int(torch.nonzero(compressed.is_compressed() == 0)[0])
            with pytest.raises(FormatError, match=f"row {spilled}\\b"):
                codec.decompress(damaged, torch.tensor([spilled]))
            assert_bitwise_equal(codec.decompress(compressed), rows)

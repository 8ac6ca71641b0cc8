"""Pooling on the CPU, in each code path: the bits of the oracle."""

from __future__ import annotations

import pytest
import torch
from pool_cases import DTYPES, MODES, bags, table

from ibp_gnn import Codec, FormatError, _native
from ibp_gnn.codec.pool import MODES as NUMBERS
from ibp_gnn.codec.pool import Bags, pool_on_cpu
from ibp_gnn.testing import oracle_pool
from ibp_gnn.testing.bits import assert_bitwise_equal


def pool(rows: torch.Tensor, codec: Codec, of: Bags, **how) -> torch.Tensor:
    out = torch.empty(of.num_bags, rows.shape[1], dtype=rows.dtype)
    pool_on_cpu(codec.form, codec.compress(rows), of, out, **how)
    return out


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("kind", ["dict", "ibp"])
def test_bits_of_the_oracle(cpu_path, monkeypatch, dtype, mode, kind):
    monkeypatch.setattr(_native, "cpu_path", cpu_path)
    rows = table(dtype, 20, 400)
    codec = Codec.fit(rows, codec=kind)
    weights = torch.float32 if mode == "sum" else None
    case = bags(400, 60, longest=9, long_bags=4, weights=weights)
    got = pool(rows, codec, Bags(case.ids, case.offsets, 0, 60, case.weights), mode=mode, padding_id=int(case.ids[0]))
    how = {"mode": mode, "padding_id": int(case.ids[0]), "weights": case.weights}
    assert_bitwise_equal(got, oracle_pool.pool(rows, case.ids, case.bounds(), **how))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_value_of_16_bits_and_its_neighbours_are_rounded_as_torch_does(dtype):
    """Sums of two values are rounded: of each value and a small part of it."""
    every = torch.arange(-(2**15), 2**15, dtype=torch.int16)
    values = every.view(torch.float16 if dtype == torch.float32 else dtype).to(dtype)
    rows = torch.stack([values, values * torch.tensor(0.0007, dtype=dtype)], dim=1).T.reshape(-1, 64).contiguous()
    codec = Codec.fit(rows)
    half = len(rows) // 2
    ids = torch.stack([torch.arange(half), torch.arange(half) + half], dim=1).reshape(-1)
    got = pool(rows, codec, Bags(ids, None, 2, half), mode="sum")
    expected = (rows[:half].float() + rows[half:].float()).to(dtype)
    number = ~torch.isnan(expected)
    assert torch.equal(torch.isnan(got), ~number) and int(number.sum()) > 60000
    zero = expected == 0  # a sum starts from 0, so none is -0
    assert_bitwise_equal(got[number & ~zero], expected[number & ~zero])
    assert_bitwise_equal(got[zero], torch.zeros_like(got[zero]))


def test_nan_is_the_quiet_one():
    rows = torch.tensor([[0x7FC00123, -1]], dtype=torch.int32).view(torch.float32).repeat(4, 8)
    got = pool(rows, Codec.fit(rows), Bags(torch.tensor([0, 1]), None, 2, 1), mode="max")
    assert got.view(torch.int32).unique().tolist() == [0x7FC00000]


def test_max_of_zeros_is_the_first():
    rows = torch.tensor([[0.0], [-0.0]]).repeat(1, 8)
    codec = Codec.fit(rows)
    ids = torch.tensor([0, 1, 1, 0])
    assert_bitwise_equal(pool(rows, codec, Bags(ids, None, 2, 2), mode="max"), rows[:2])


@pytest.mark.parametrize("offsets", [[1, 2, 1], [0, 9], [-1, 2]])
def test_offsets_that_make_no_bags(offsets):
    rows = table(torch.float32, 8, 20)
    with pytest.raises(ValueError, match="offsets: want"):
        pool(rows, Codec.fit(rows), Bags(torch.zeros(4, dtype=torch.int64), torch.tensor(offsets), 0, 2), mode="sum")


def test_bad_ids_and_damaged_rows():
    rows = table(torch.float32, 8, 50)
    codec = Codec.fit(rows)
    with pytest.raises(IndexError, match="want 0 <= id < 50, got 50 at position 1"):
        pool(rows, codec, Bags(torch.tensor([0, 50]), None, 2, 1), mode="sum")
    compressed, out = codec.compress(rows), torch.empty(50, 8)
    compressed.slots.fill_(0xFF)
    with pytest.raises(FormatError):
        pool_on_cpu(codec.form, compressed, Bags(torch.arange(50), None, 1, 50), out, mode="sum")


def test_the_extension_checks_what_it_gets():
    rows = table(torch.float32, 8, 20)
    codec = Codec.fit(rows)
    compressed = codec.compress(rows)
    ids, out = torch.zeros(4, dtype=torch.int64), torch.zeros(2, 32, dtype=torch.uint8)
    bounds = torch.tensor([0, 2, 4])

    def call(offsets=bounds, weights=None, mode=0, kind=0, out=out):
        where = compressed.slots, compressed.slot_bytes, compressed.bitmask, compressed.overflow, 20
        _native.cpu.pool(codec.form.native, *where, ids, offsets, weights, -1, mode, kind, out, 1)

    call()
    for wrong in (
        {"mode": 3},
        {"mode": -1},
        {"kind": 3},
        {"weights": torch.zeros(3)},
        {"out": torch.zeros(3, 32, dtype=torch.uint8)},
        {"out": torch.zeros(2, 31, dtype=torch.uint8)},
        {"offsets": torch.zeros(0, dtype=torch.int64)},
    ):
        with pytest.raises(ValueError, match="want"):
            call(**wrong)
    assert NUMBERS == {"sum": 0, "mean": 1, "max": 2}
    assert _native.cpu.POOL_PIECE_IDS == oracle_pool.PIECE_IDS


def test_bags_of_one_feature_of_several():
    both = Bags(torch.arange(7), torch.tensor([0, 2, 3, 3]), 0, 2, torch.arange(7.0))
    first, second = both.of_feature(0), both.of_feature(1)
    assert first.ids.tolist() == [0, 1, 2] and first.bounds().tolist() == [0, 2, 3]
    assert second.ids.tolist() == [3, 4, 5, 6] and second.bounds().tolist() == [0, 0, 4]
    assert second.weights is not None and second.weights.tolist() == [3, 4, 5, 6]
    even = Bags(torch.arange(8), None, 2, 2)
    assert even.of_feature(1).ids.tolist() == [4, 5, 6, 7] and even.of_feature(1).bounds().tolist() == [0, 2, 4]

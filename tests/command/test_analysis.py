"""Entropy bound, analysis and what a report adds for them: against slow counts, and on data whose answer is known."""

from __future__ import annotations

import json
import math
from collections import Counter

import numpy as np
import pytest
import torch

from ibp_gnn import Codec, CompressedFeatureStore
from ibp_gnn.codec.dict import DictForm
from ibp_gnn.codec.fit_dict import EXPONENT_BITS
from ibp_gnn.codec.values import SUPPORTED_DTYPES, to_bytes
from ibp_gnn.command.analysis import CANDIDATES, analyze, bit_agreement, entropy_bound
from ibp_gnn.testing import KINDS, special_rows

every_dtype = pytest.mark.parametrize("dtype", SUPPORTED_DTYPES, ids=lambda dtype: str(dtype).removeprefix("torch."))


def normal(rows: int, width: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> torch.Tensor:
    return (torch.randn(rows, width, generator=torch.Generator().manual_seed(seed)) * 0.1).to(dtype)


def sparse(rows: int, width: int, seed: int = 0) -> torch.Tensor:
    return torch.relu(normal(rows, width, seed=seed))


def words_of(rows: torch.Tensor) -> list[list[int]]:
    """Every value's bits as an unsigned number, row by row."""
    size = rows.dtype.itemsize
    matrix = to_bytes(rows).numpy()
    return [[int.from_bytes(bytes(row[i : i + size]), "little") for i in range(0, len(row), size)] for row in matrix]


def entropy(outcomes: list) -> float:
    shares = [count / len(outcomes) for count in Counter(outcomes).values()]
    return -sum(share * math.log2(share) for share in shares)


def slow_bound(rows: torch.Tensor) -> tuple[float, float]:
    """Bits per value and bias, as the docstring of entropy_bound says, one value at a time."""
    bits, dtype, n = 8 * rows.dtype.itemsize, rows.dtype, len(rows)
    total, surplus = 0.0, 0
    for column in zip(*words_of(rows), strict=True):
        if bits == 8:
            symbols, parts = list(column), []
        elif dtype in EXPONENT_BITS:
            mantissa = bits - 1 - EXPONENT_BITS[dtype]
            symbols = [None if word == 0 else (word >> mantissa) & ((1 << EXPONENT_BITS[dtype]) - 1) for word in column]
            others = [word for word in column if word]
            parts = [[(word >> bit) & 1 for word in others] for bit in [*range(mantissa), bits - 1]]
        else:
            signed = [word - (1 << bits) if word >> (bits - 1) else word for word in column]
            folded = [~value if value < 0 else value for value in signed]
            symbols = [(value < 0, size.bit_length()) for value, size in zip(signed, folded, strict=True)]
            parts = [[(size >> bit) & 1 for size in folded if size.bit_length() > bit + 1] for bit in range(bits)]
        total += entropy(symbols) + sum(len(part) / n * entropy(part) for part in parts if part)
        surplus += len(set(symbols)) - 1 + sum(len(set(part)) - 1 for part in parts if part)
    width = len(words_of(rows)[0])
    return total / width, surplus / width / (2 * n * math.log(2))


@every_dtype
@pytest.mark.parametrize("kind", KINDS)
def test_bound_is_what_slow_counting_gives(dtype, kind):
    rows = special_rows(dtype, 3, kind, n=40)
    bits, bias = slow_bound(rows)
    bound = entropy_bound(rows)
    assert bound.bits_per_value == pytest.approx(bits, abs=1e-9)
    assert bound.bias_bits == pytest.approx(bias, abs=1e-9)
    columns = bound.exponent_bits + bound.sign_bits + bound.mantissa_bits
    assert columns.shape == (3,) and columns.mean() == pytest.approx(bits, abs=1e-9)


@pytest.mark.parametrize("make", [normal, sparse])
def test_bound_counts_in_steps(make, monkeypatch):
    rows = make(500, 7).reshape(500, 7, 1)
    whole = entropy_bound(rows).bits_per_value
    monkeypatch.setattr("ibp_gnn.command.analysis._VALUES_PER_STEP", 64)
    assert entropy_bound(rows).bits_per_value == pytest.approx(whole, abs=1e-12)
    integers = (rows * 1000).to(torch.int32)
    assert entropy_bound(integers).bits_per_value == pytest.approx(slow_bound(integers)[0], abs=1e-9)


def test_bound_of_known_distributions():
    mixed = torch.arange(4096).reshape(-1, 1)
    uniform = torch.randint(0, 256, (200_000, 1), generator=torch.Generator().manual_seed(1), dtype=torch.uint8)
    assert entropy_bound(torch.ones(100, 5)).bits_per_value == 0
    assert entropy_bound(uniform).bits_per_value == pytest.approx(8, abs=0.01)
    assert entropy_bound(mixed).bits_per_value == pytest.approx(12, abs=0.01)
    # Noise: 23 mantissa bits, a sign, and the exponent of a normal distribution, which has about 2.55 bits.
    bound = entropy_bound(normal(50_000, 4))
    assert bound.sign_bits.mean() == pytest.approx(1, abs=0.01)
    assert bound.mantissa_bits.mean() == pytest.approx(22.9, abs=0.1)
    assert bound.exponent_bits.mean() == pytest.approx(2.55, abs=0.1)
    # Half of the values cost a bit more only to say that they are zero.
    half = entropy_bound(sparse(50_000, 4))
    assert half.bits_per_value == pytest.approx(1 + (bound.bits_per_value - 1) / 2, abs=0.1)


def test_a_small_sample_is_biased_and_says_so():
    large, small = entropy_bound(normal(60_000, 16)), entropy_bound(normal(60, 16))
    assert small.bits_per_value < large.bits_per_value - 0.1
    assert small.bias_bits > 0.1 > 0.01 > large.bias_bits
    assert small.bits_per_value + small.bias_bits == pytest.approx(large.bits_per_value, abs=0.1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
@pytest.mark.parametrize("codec", ["ibp", "dict"])
def test_codecs_do_not_get_below_the_bound(dtype, codec):
    rows = normal(4096, 32, dtype)
    assert Codec.fit(rows, codec=codec).report(rows).bits_per_value > entropy_bound(rows).bits_per_value


@pytest.mark.parametrize("rows", [torch.zeros(0, 3), torch.zeros(3, 0), torch.tensor(1.0)])
def test_bound_refuses(rows):
    with pytest.raises(ValueError, match="rows: want"):
        entropy_bound(rows)


@every_dtype
def test_report_knows_the_compact_store(dtype):
    for rows in (special_rows(dtype, 9, "outliers", n=300), special_rows(dtype, 40, "random_bits", n=50)):
        for kind in CANDIDATES:
            codec = Codec.fit(rows, codec=kind)
            report = codec.report(rows)
            with CompressedFeatureStore.build(rows, codec, pin=False, progress=False) as store:
                assert report.compact_bytes == store.nbytes
                assert report.compact_slot_bytes == store.slot_bytes
                assert report.compact_savings == pytest.approx(store.savings)
                assert report.overflow_share == store.rows.num_overflow / len(rows)


@every_dtype
@pytest.mark.parametrize("kind", ["outliers", "negative_zero", "powers_of_two", "random_bits"])
def test_report_counts_escapes(dtype, kind):
    rows = special_rows(dtype, 5, kind, n=64)
    codec = Codec.fit(rows, codec="dict")
    form = codec.form
    assert isinstance(form, DictForm)
    below, escapes = form.value_bits - form.symbol_bits - form.sign_low, 0
    for row in words_of(rows):
        for column, word in enumerate(row):
            coded = form.dictionary[column if form.per_column else 0, : form.num_symbols]
            symbol = (word >> below) & ((1 << form.symbol_bits) - 1)
            escapes += symbol not in coded and not (form.zero_code and word == 0)
    assert codec.report(rows).escape_share == escapes / (len(rows) * 5)
    assert Codec.fit(rows, codec="ibp").report(rows).escape_share is None


def test_escapes_are_counted_in_steps(monkeypatch):
    rows = sparse(300, 11)
    codec = Codec.fit(rows, codec="dict")
    whole = codec.report(rows).escape_share
    monkeypatch.setattr("ibp_gnn.codec.dict._VALUES_PER_STEP", 50)
    assert codec.report(rows).escape_share == whole > 0


def test_bit_agreement():
    rows = torch.tensor([[0b000, 0b1000], [0b001, 0b1000], [0b011, 0b1000], [0b111, 0b0000]], dtype=torch.uint8)
    assert bit_agreement(rows).tolist() == [0.875, 0.75, 0.875, 0.875, 1, 1, 1, 1]


@every_dtype
def test_analysis_recommends_what_auto_takes(dtype):
    for kind in KINDS:
        rows = special_rows(dtype, 6, kind, n=50)
        assert analyze(rows).recommendation == Codec.fit(rows, codec="auto").kind


@pytest.mark.parametrize("make", [normal, sparse])
def test_analysis_of_a_sample(make):
    rows = make(3000, 8)
    analysis = analyze(rows.numpy(), max_rows=500, seed=3)
    assert (analysis.total_rows, analysis.num_rows, analysis.row_shape) == (3000, 500, (8,))
    assert [report.codec for report in analysis.reports] == [codec.kind for codec in analysis.codecs] == [*CANDIDATES]
    assert all(report.num_rows == 500 for report in analysis.reports)
    assert analysis.best.payload_bytes == min(report.payload_bytes for report in analysis.reports)
    assert analysis.bit_agreement.shape == (32,)
    assert analyze(rows, max_rows=500, seed=3).to_dict() == analysis.to_dict()
    assert json.loads(json.dumps(analysis.to_dict()))["recommendation"] == "dict"


def test_verdicts():
    worth = analyze(normal(2000, 64))
    noisy = special_rows(torch.float32, 24, "random_bits", n=500)
    noise = analyze(noisy)
    hardly = analyze(torch.cat([torch.ones(500, 2), noisy[:, 2:]], dim=1))
    assert worth.worth_it and worth.verdict.startswith("Compressing this data is worth it: codec 'dict' saves 15.")
    assert not hardly.worth_it and "hardly worth it" in hardly.verdict
    assert not noise.worth_it and noise.verdict == "Compressing this data is not worth it: no codec makes it smaller."
    little = analyze(torch.cat([torch.ones(500, 1), noisy[:, 1:]], dim=1))
    assert not little.worth_it and "keep the rows raw" in little.verdict
    assert all(analysis.verdict.endswith(".") and "\n" not in analysis.verdict for analysis in (worth, hardly, noise))


def test_verdict_where_slots_save_nothing():
    rows = torch.zeros(1000, 1, dtype=torch.int32)
    rows[:] = torch.arange(1000)[:, None]
    analysis = analyze(rows)
    assert analysis.best.compact_savings <= 0 < analysis.best.savings
    assert "no memory" in analysis.verdict


def test_analysis_refuses():
    with pytest.raises(ValueError, match="max_rows: want at least 1, got 0"):
        analyze(normal(10, 2), max_rows=0)
    with pytest.raises(ValueError, match="want at least 1 row"):
        analyze(torch.zeros(0, 2))
    with pytest.raises(TypeError, match="complex64"):
        analyze(np.zeros((3, 2), np.complex64))


@pytest.mark.cuda
@every_dtype
def test_same_on_cuda(dtype):
    rows = special_rows(dtype, 6, "outliers", n=100)
    assert analyze(rows.cuda()).to_dict() == analyze(rows).to_dict()

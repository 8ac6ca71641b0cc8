"""The helpers that other tests trust: equality of bits sees every difference, and the special rows are special."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from backends import ask_oracle_once

from ibp_gnn.codec.values import SUPPORTED_DTYPES, to_bytes
from ibp_gnn.testing import KINDS, assert_bitwise_equal, special_rows

FLOATS = [dtype for dtype in SUPPORTED_DTYPES if dtype.is_floating_point]


@pytest.mark.parametrize("dtype", [*SUPPORTED_DTYPES, torch.complex64], ids=str)
def test_every_bit_counts(dtype):
    size = dtype.itemsize
    zeros = torch.zeros(3, 5 * size, dtype=torch.uint8)
    assert_bitwise_equal(zeros.view(dtype), zeros.clone().view(dtype))
    for bit in range(8 * size) if dtype is not torch.bool else (0,):
        other = zeros.clone()
        other[1, 2 * size + bit // 8] = 1 << (bit % 8)
        name = str(dtype).removeprefix("torch.")
        digits = 2 * size
        wanted = (
            rf"bits differ in 1 of 15 values of \[3, 5\] {name}, first at \[1, 2\]: "
            f"want 0x{0:0{digits}x}, got 0x{1 << bit:0{digits}x}"
        )
        with pytest.raises(AssertionError, match=f"^{wanted}$"):
            assert_bitwise_equal(other.view(dtype), zeros.view(dtype))


def test_nan_payloads_and_signs_of_zero_count():
    nans = torch.tensor([0x7FC00000, 0x7FC00001], dtype=torch.int32).view(torch.float32)
    assert_bitwise_equal(nans, nans.clone())
    with pytest.raises(AssertionError, match=r"first at \[0\]: want 0x7fc00001, got 0x7fc00000"):
        assert_bitwise_equal(nans, nans.flip(0))
    with pytest.raises(AssertionError, match="want 0x80000000, got 0x00000000"):
        assert_bitwise_equal(torch.tensor(0.0), torch.tensor(-0.0))


def test_shape_and_dtype_count():
    with pytest.raises(AssertionError, match=r"want \[2, 3\] float32, got \[3, 2\] float32"):
        assert_bitwise_equal(torch.zeros(3, 2), torch.zeros(2, 3))
    with pytest.raises(AssertionError, match=r"want \[2\] int32, got \[2\] float32"):
        assert_bitwise_equal(torch.zeros(2), torch.zeros(2, dtype=torch.int32))
    with pytest.raises(AssertionError, match=r"want \[2\] float32, got \[2\] int32"):
        assert_bitwise_equal(np.zeros(2, np.int32), torch.zeros(2))
    assert_bitwise_equal(torch.zeros(0, 3), torch.zeros(0, 3))
    with pytest.raises(AssertionError, match=r"want \[0, 4\] float32, got \[0, 3\] float32"):
        assert_bitwise_equal(torch.zeros(0, 3), torch.zeros(0, 4))


def test_values_count_and_not_how_they_lie():
    base = torch.arange(24.0).view(4, 6)
    assert_bitwise_equal(base.t(), base.t().contiguous())
    assert_bitwise_equal(base[:, ::2], base[:, ::2].numpy().copy())
    assert_bitwise_equal(base[:1, 0].as_strided((1,), (7,)), torch.zeros(1))
    assert_bitwise_equal(torch._neg_view(base), -base)
    with pytest.raises(AssertionError, match="bits differ in 24 of 24 values"):
        assert_bitwise_equal(torch._neg_view(base), base)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", SUPPORTED_DTYPES, ids=str)
def test_special_rows_have_their_shape(dtype, kind):
    rows = special_rows(dtype, 7, kind, n=5)
    assert rows.shape == (5, 7) and rows.dtype == dtype and rows.is_contiguous()
    assert_bitwise_equal(rows, special_rows(dtype, 7, kind, n=5))
    if dtype is torch.bool:
        assert int(to_bytes(rows).max()) <= 1
    if kind not in ("alternating", "negative_zero") and dtype.itemsize > 1:
        other = special_rows(dtype, 7, kind, n=5, seed=1)
        assert not torch.equal(to_bytes(rows), to_bytes(other))


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_special_floats_are_what_they_are_called(dtype):
    def doubles(kind: str) -> torch.Tensor:
        return special_rows(dtype, 50, kind).double()

    sign_bit = 8 * dtype.itemsize - 1
    nans = doubles("nan_payloads").isnan()
    assert 0.7 < nans.double().mean() < 0.9
    assert len(torch.unique(special_rows(dtype, 50, "nan_payloads").view(torch.uint8)[..., :1])) > 1
    zeros = to_bytes(special_rows(dtype, 50, "negative_zero")).view(40, 50, -1)
    assert bool((doubles("negative_zero") == 0).all())
    assert 0.8 < (zeros[..., -1] == 128).double().mean() < 1
    tiny = doubles("denormals").abs()
    smallest_normal = torch.finfo(dtype).smallest_normal
    assert bool((tiny > 0).all()) and float(tiny.max()) < smallest_normal
    assert bool((doubles("denormals") < 0).any()) and sign_bit > 0
    twos = doubles("powers_of_two")
    assert bool((twos < 2).any()) and bool((twos >= 2).any()) and float((twos - 2).abs().max()) <= 1.5


@pytest.mark.parametrize("dtype", SUPPORTED_DTYPES, ids=str)
def test_special_rows_differ_where_they_should(dtype):
    assert len(torch.unique(to_bytes(special_rows(dtype, 9, "all_equal")), dim=0)) == 1
    alternating = to_bytes(special_rows(dtype, 9, "alternating"))
    assert_bitwise_equal(alternating[0], alternating[2])
    assert not torch.equal(alternating[0], alternating[1])
    if dtype is not torch.bool:
        assert bool((alternating[0] ^ alternating[1] == 255).all())
        outliers = to_bytes(special_rows(dtype, 50, "outliers"))
        high = (outliers & 0xF0).view(40, 50, -1)[..., -1]
        regular = [i for i in range(40) if i % 8 != 5]
        assert len(torch.unique(high[regular], dim=0)) == 1
        assert all(not torch.equal(high[i], high[0]) for i in range(5, 40, 8))


def test_the_oracle_is_asked_again_for_another_answer():
    asked = []

    def ask(question: object, answer: object) -> None:
        ask_oracle_once((question,), (answer,), lambda: asked.append((question, answer)))

    def fail() -> None:
        raise AssertionError("another answer")

    for answer in (torch.tensor([1, 2]), torch.tensor([1, 2]), torch.tensor([1, 3])):
        ask("one of them", answer)
    ask("another", torch.tensor([1, 2]))
    assert [question for question, _ in asked] == ["one of them", "one of them", "another"]
    for _ in range(2):  # one that is wrong is not remembered
        with pytest.raises(AssertionError, match="another answer"):
            ask_oracle_once(("one of them",), (torch.tensor([4]),), fail)

"""Codes of narrow floats are torch's, bit for bit, on every device: all codes, all inputs of 16 bits, many of 32."""

from __future__ import annotations

import pytest
import torch

from ibp_gnn.packing.narrow import FORMATS, NarrowFormat, fp8_format, narrow, widen

each_format = pytest.mark.parametrize("to", FORMATS.values(), ids=FORMATS)
# torch's cast to e4m3 has saturated since 2.12.
TORCH_SATURATES = {name: float(torch.tensor(1e6).to(one.dtype)) == one.largest for name, one in FORMATS.items()}


def bits_of_torch(values: torch.Tensor, to: NarrowFormat) -> torch.Tensor:
    """uint8 [values * nbytes], of a cast on the CPU."""
    return values.cpu().to(to.dtype).contiguous().view(torch.uint8)


def assert_as_torch(values: torch.Tensor, to: NarrowFormat, device: torch.device) -> None:
    """values: on the CPU."""
    codes = narrow(values.to(torch.float32).to(device), to, saturate=TORCH_SATURATES[to.name]).cpu()
    wanted = bits_of_torch(values, to)
    differ = (codes != wanted).view(-1, to.nbytes).any(1)
    if not TORCH_SATURATES[to.name] and to.name == "e4m3":  # older ones differ on inf between their own code paths
        differ &= ~values.isinf()
    assert not bool(differ.any()), values[differ][:5].tolist()


@each_format
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=["float16", "bfloat16"])
def test_all_inputs_of_16_bits(to: NarrowFormat, dtype: torch.dtype, device: torch.device) -> None:
    values = torch.arange(1 << 16, dtype=torch.int32).to(torch.int16).view(dtype)
    if dtype == torch.float16 and to.name == "fp16":  # no cast: packing takes them as they are
        values = values[~values.isnan()]
    assert_as_torch(values, to, device)


@each_format
def test_ten_million_floats(to: NarrowFormat, device: torch.device) -> None:
    generator = torch.Generator().manual_seed(0)
    bits = torch.randint(-(1 << 31), 1 << 31, (10_000_000,), generator=generator, dtype=torch.int32)
    assert_as_torch(bits.view(torch.float32), to, device)
    near = torch.randn(1_000_000, generator=generator) * torch.logspace(-12, 6, 1_000_000)  # where codes are
    assert_as_torch(near, to, device)


@each_format
def test_ties_and_their_neighbours(to: NarrowFormat, device: torch.device) -> None:
    codes = torch.arange(1 << (8 * to.nbytes - 1), dtype=torch.int32)
    values = widen(codes.to(torch.int16 if to.nbytes == 2 else torch.uint8).view(torch.uint8), to)
    values = values[values.isfinite()].to(torch.float64)
    ties = ((values[1:] + values[:-1]) / 2).to(torch.float32)
    beyond = torch.tensor([to.largest * (1 + 2.0 ** -(to.bits_of_mantissa + 2))])  # rounds to inf, or saturates
    ties = torch.cat([ties, beyond, torch.tensor([0.0, float("inf"), float("nan")])])
    around = [ties, torch.nextafter(ties, torch.tensor(0.0)), torch.nextafter(ties, torch.tensor(float("inf")))]
    for values in around:
        assert_as_torch(torch.cat([values, -values]), to, device)


@each_format
def test_all_codes_widen_as_torch_does(to: NarrowFormat, device: torch.device) -> None:
    codes = torch.arange(1 << (8 * to.nbytes), dtype=torch.int32)
    codes = codes.to(torch.int16 if to.nbytes == 2 else torch.uint8).view(torch.uint8)
    wanted = codes.view(to.dtype).to(torch.float32).view(torch.int32)
    got = widen(codes.to(device), to).cpu().view(torch.int32)
    assert torch.equal(got, wanted)


@each_format
@pytest.mark.parametrize("count", [0, 1, 2, 3, 5, 1023])
def test_any_number_of_values_from_any_address(to: NarrowFormat, count: int, device: torch.device) -> None:
    values = torch.randn(count + 1, generator=torch.Generator().manual_seed(count)).to(device)[1:]
    codes = narrow(values, to, saturate=False)
    assert torch.equal(codes.cpu(), bits_of_torch(values, to))
    shifted = torch.cat([codes.new_zeros(1), codes])[1:]
    assert torch.equal(widen(shifted, to).cpu(), values.cpu().to(to.dtype).to(torch.float32))


@each_format
def test_saturating(to: NarrowFormat, device: torch.device) -> None:
    values = torch.tensor([1e30, -1e30, float("inf"), -float("inf"), float("nan")], device=device)
    clipped = widen(narrow(values, to, saturate=True), to).cpu()
    assert clipped[:4].tolist() == [to.largest, -to.largest, to.largest, -to.largest] and bool(clipped[4].isnan())
    not_clipped = widen(narrow(values, to, saturate=False), to).cpu()
    if to.name == "e4m3":
        assert bool(not_clipped.isnan().all())
    else:
        assert not_clipped[:4].tolist() == [float("inf"), -float("inf")] * 2 and bool(not_clipped[4].isnan())


@each_format
def test_error_bounds(to: NarrowFormat, device: torch.device) -> None:
    """Of normal values half of the last bit, relative; of subnormal ones half of the smallest value."""
    values = torch.randn(1_000_000, generator=torch.Generator().manual_seed(1)) * torch.logspace(-9, 4, 1_000_000)
    values = values[values.abs() <= to.largest].to(device)
    error = (widen(narrow(values, to, saturate=False), to).double() - values.double()).abs()
    least = 2.0**to.least_exponent
    bound = values.abs().double().clamp(min=least) * 2.0 ** -(to.bits_of_mantissa + 1)
    assert bool((error <= bound).all())
    half_unit = least * 2.0 ** -(to.bits_of_mantissa + 1)
    assert bool((error <= torch.where(values.abs() < least, half_unit, bound)).all())
    assert float((error / bound).max()) > 0.9, "the bound is no tighter than it has to be"


@each_format
def test_stochastic_rounding(to: NarrowFormat, device: torch.device) -> None:
    """To a neighbour, as often as it is near; by the same random bits the same on all devices."""
    exact = torch.tensor([1.0, -2.5, 0.0, 2.0 ** (to.least_exponent - to.bits_of_mantissa), to.largest])
    between = torch.tensor([1 + 2.0 ** -(to.bits_of_mantissa + 2), -(2.0 ** (to.least_exponent - 1)) * 1.0001])
    values = torch.cat([exact, between]).repeat(20_000)
    random = torch.randint(
        -(1 << 31), 1 << 31, (len(values),), generator=torch.Generator().manual_seed(2), dtype=torch.int32
    )
    codes = narrow(values.to(device), to, saturate=False, random=random.to(device)).cpu()
    assert torch.equal(codes, narrow(values, to, saturate=False, random=random))
    got = widen(codes, to).view(-1, len(exact) + len(between)).double()
    assert torch.equal(got[:, : len(exact)], exact.double().expand(len(got), -1))
    unit = torch.tensor([2.0**-to.bits_of_mantissa, 2.0 ** (to.least_exponent - to.bits_of_mantissa)]).double()
    of_between = got[:, len(exact) :]
    assert bool(((of_between - between.double()).abs() < unit).all())
    assert bool(((of_between.mean(0) - between.double()).abs() < 0.02 * unit).all())
    assert len(of_between[:, 0].unique()) == 2


def test_formats_of_8_bits() -> None:
    assert fp8_format("e5m2") is FORMATS["e5m2"]
    with pytest.raises(ValueError, match="format: want 'e4m3' or 'e5m2', got 'fp16'"):
        fp8_format("fp16")

"""pack_fp16, pack_fp8, unpack: any shape and strides, scales, orders, errors."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from ibp_gnn.packing import PackedTensor, pack_fp8, pack_fp16, unpack
from ibp_gnn.packing.narrow import FORMATS

SHAPES = [(1,), (7,), (8,), (0,), (3, 5), (2, 3, 4), (0, 4), (3, 0), (4, 1)]


def values_of(shape: tuple[int, ...], dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0)).to(dtype)


@pytest.mark.parametrize("first", ["low", "high"])
@pytest.mark.parametrize("shape", SHAPES)
def test_any_shape_and_order(shape: tuple[int, ...], first: Any, device: torch.device) -> None:
    x = values_of(shape)
    assert torch.equal(unpack(pack_fp16(x.to(device), first=first)).cpu(), x.half().float())
    for name in ("e4m3", "e5m2"):
        packed = pack_fp8(x.to(device), name, first=first)
        assert torch.equal(packed.unpack().cpu(), x.to(FORMATS[name].dtype).float())
        assert packed.words.dtype == torch.uint32 and packed.shape == shape


def test_order_of_values_in_words() -> None:
    x = torch.tensor([1.0, 2.0, 0.5, -1.0, 4.0])
    assert [hex(word) for word in pack_fp8(x, "e5m2").words.tolist()] == ["0xbc38403c", "0x44"]
    assert [hex(word) for word in pack_fp8(x, "e5m2", first="high").words.tolist()] == ["0x3c4038bc", "0x44000000"]
    assert [hex(word) for word in pack_fp16(x[:3]).words.tolist()] == ["0x40003c00", "0x3800"]
    assert [hex(word) for word in pack_fp16(x[:3], first="high").words.tolist()] == ["0x3c004000", "0x38000000"]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16])
def test_other_dtypes(dtype: torch.dtype, device: torch.device) -> None:
    x = values_of((50, 9), dtype).to(device)
    assert torch.equal(pack_fp16(x).unpack(), x.half().float())
    assert torch.equal(pack_fp8(x, "e5m2").unpack(), x.float().to(torch.float8_e5m2).float())


def test_all_float16_are_packed_as_they_are(device: torch.device) -> None:
    """The payloads of NaN too."""
    bits = torch.arange(1 << 16, dtype=torch.int32).to(torch.int16)
    packed = pack_fp16(bits.view(torch.float16).to(device))
    assert torch.equal(packed.unpack(torch.float16).view(torch.int16).cpu(), bits)


def test_any_strides(device: torch.device) -> None:
    x = values_of((6, 8)).to(device)
    for view in (x.t(), x[::2], x[:, ::3], x[:1].expand(4, 8), torch._neg_view(x)):
        assert torch.equal(pack_fp16(view).unpack(), view.half().float())


def test_scales_are_the_smallest_powers_of_two(device: torch.device) -> None:
    x = torch.tensor([[448.0, 1.0], [449.0, 0.0], [0.0, 0.0], [float("inf"), 3.0], [1e-30, float("nan")]])
    by_row = pack_fp8(x.to(device), "e4m3", scale="row")
    assert by_row.scale is not None
    assert by_row.scale.flatten()[:4].tolist() == [1.0, 2.0, 1.0, 2.0**-7]
    finite = torch.where(x.isfinite(), x, 0).abs().amax(1)
    scale = by_row.scale.flatten().cpu()
    some = finite > 0
    assert bool((finite <= scale * 448)[some].all()) and bool((finite > scale / 2 * 448)[some].all())
    assert torch.equal(torch.frexp(scale).mantissa, torch.full((5,), 0.5)) and scale[2] == 1
    assert bool(by_row.unpack()[4, 1].isnan())
    by_column = pack_fp8(x[:3].to(device), "e4m3", scale="column")
    assert by_column.scale is not None and by_column.scale.tolist() == [2.0, 2.0**-8]


@pytest.mark.parametrize("scale", ["row", "column", "tensor"])
@pytest.mark.parametrize("name", ["e4m3", "e5m2"])
def test_scaled_values(scale: Any, name: Any, device: torch.device) -> None:
    x = values_of((40, 12)) * torch.logspace(-6, 6, 12) * torch.logspace(-9, 9, 40)[:, None]
    given = torch.full((40, 1), 3.0) if scale == "tensor" else scale
    packed = pack_fp8(x.to(device), name, scale=given.to(device) if scale == "tensor" else scale)
    assert packed.scale is not None
    own = packed.scale.cpu()
    to = FORMATS[name]
    wanted = (x / own).clamp(-to.largest, to.largest) if to.saturates else x / own
    assert torch.equal(packed.unpack().cpu(), wanted.to(to.dtype).float() * own)
    if scale != "tensor":  # relative to the largest of the row or column nothing is lost but its last bits
        error = (packed.unpack().cpu() - x).abs()
        largest = x.abs().amax(1 if scale == "row" else 0, keepdim=True)
        assert bool((error <= largest * 2.0 ** -(to.bits_of_mantissa + 1)).all())


def test_overflow() -> None:
    x = torch.tensor([1e6, -float("inf")])
    assert pack_fp8(x, "e4m3").unpack().tolist() == [448.0, -448.0]
    assert bool(pack_fp8(x, "e4m3", overflow="inf").unpack().isnan().all())
    assert pack_fp8(x, "e5m2").unpack().tolist() == [float("inf"), -float("inf")]
    assert pack_fp8(x, "e5m2", overflow="saturate").unpack().tolist() == [57344.0, -57344.0]


def test_stochastic_rounding_follows_the_generator(device: torch.device) -> None:
    x = values_of((1000,)).to(device)

    def packed(seed: int) -> torch.Tensor:
        generator = torch.Generator(device).manual_seed(seed)
        return pack_fp8(x, "e4m3", rounding="stochastic", generator=generator).unpack()

    assert torch.equal(packed(0), packed(0)) and not torch.equal(packed(0), packed(1))
    mean = torch.stack([packed(seed) for seed in range(200)]).mean(0)
    nearest = pack_fp8(x, "e4m3").unpack()
    assert float((mean - x).abs().mean()) < 0.2 * float((nearest - x).abs().mean())


@pytest.mark.cuda
def test_work_follows_the_stream() -> None:
    x = torch.randn(1 << 24, device="cuda")
    wanted = pack_fp8(x, "e4m3").unpack()
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        packed = pack_fp8(x, "e4m3")
        got = packed.unpack()
        del packed
    torch.cuda.current_stream().wait_stream(stream)
    assert torch.equal(got, wanted)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda x: pack_fp16([1.0]), TypeError, "x: want a torch.Tensor, got list"),
        (lambda x: pack_fp16(x.int()), TypeError, "x: want one of .*, got torch.int32"),
        (lambda x: pack_fp16(x.to_sparse()), TypeError, "x: want a dense tensor"),
        (lambda x: pack_fp16(x[0, 0]), ValueError, "got a scalar"),
        (lambda x: pack_fp16(x, first="up"), ValueError, "first: want 'low' or 'high', got 'up'"),
        (lambda x: pack_fp8(x, "fp16"), ValueError, "format: want 'e4m3' or 'e5m2', got 'fp16'"),
        (lambda x: pack_fp8(x, rounding="up"), ValueError, "rounding: want"),
        (lambda x: pack_fp8(x, overflow="nan"), ValueError, "overflow: want"),
        (lambda x: pack_fp8(x, scale="block"), ValueError, "scale: want 'row', 'column', a tensor or None"),
        (lambda x: pack_fp8(x, scale=torch.zeros(1)), ValueError, "scale: want finite numbers > 0"),
        (lambda x: pack_fp8(x, scale=torch.ones(1).half()), ValueError, "scale: want torch.float32"),
        (lambda x: pack_fp8(x, scale=torch.ones(3)), ValueError, "scale: want a shape that broadcasts"),
        (lambda x: unpack(x), TypeError, "packed: want a PackedTensor, got Tensor"),
    ],
)
def test_bad_arguments(call: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        call(torch.randn(4, 5))


def test_packed_values_are_no_view_of_the_input() -> None:
    x = torch.ones(4, dtype=torch.float16)
    packed = pack_fp16(x)
    x.fill_(2)
    assert isinstance(packed, PackedTensor) and packed.unpack().tolist() == [1.0] * 4

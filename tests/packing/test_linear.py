"""Products with packed weights, against float64 products of the unpacked ones."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from ibp_gnn.packing import PackedTensor, pack_fp8, pack_fp16, packed_gemv

FORMATS = ["fp16", "e5m2", "e4m3"]
# Rows of whole 16 bytes and others, shorter and longer than what a warp takes at once.
SHAPES = [(1, 1), (5, 3), (33, 50), (16, 64), (100, 768), (64, 4096), (37, 5000), (5, 16384)]
UNIT = {torch.float32: 2.0**-24, torch.float16: 2.0**-11, torch.bfloat16: 2.0**-8}


def packed_matrix(format: Any, shape: tuple[int, int], scale: Any = "row", seed: int = 0) -> PackedTensor:
    w = torch.randn(shape, generator=torch.Generator().manual_seed(seed)) * 0.1
    return pack_fp16(w) if format == "fp16" else pack_fp8(w, format, scale=scale)


def vectors(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(1)).to(dtype)


def assert_near(got: torch.Tensor, w: PackedTensor, x: torch.Tensor, bias: torch.Tensor | None = None) -> None:
    """The error of float32 sums of exact products in any order, and of one rounding to the output's dtype."""
    exact = x.cpu().double() @ w.to("cpu").unpack().double().t()
    magnitude = x.cpu().double().abs() @ w.to("cpu").unpack().double().abs().t()
    if bias is not None:
        exact = exact + bias.cpu().double()
    bound = (w.shape[1] + 8) * 2.0**-23 * magnitude + 1.5 * UNIT[x.dtype] * (exact.abs() + magnitude * 2.0**-20) + 1e-7
    assert got.dtype == x.dtype and got.device == x.device and got.shape == exact.shape
    assert bool(((got.cpu().double() - exact).abs() <= bound).all())


@pytest.mark.parametrize("dtype", list(UNIT), ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("format", FORMATS)
def test_one_vector(format: str, shape: tuple[int, int], dtype: torch.dtype, device: torch.device) -> None:
    w = packed_matrix(format, shape).to(device)
    x, bias = vectors((shape[1],), dtype).to(device), vectors((shape[0],), dtype).to(device)
    assert_near(packed_gemv(w, x), w, x)
    assert_near(packed_gemv(w, x, bias), w, x, bias)


@pytest.mark.parametrize("batch", [0, 2, 9, 32, 40])
@pytest.mark.parametrize("dtype", list(UNIT), ids=str)
@pytest.mark.parametrize("shape", [(33, 50), (37, 2100), (16, 64)], ids=str)
@pytest.mark.parametrize("format", FORMATS)
def test_some_vectors(
    format: str, shape: tuple[int, int], dtype: torch.dtype, batch: int, device: torch.device
) -> None:
    w = packed_matrix(format, shape).to(device)
    x, bias = vectors((batch, shape[1]), dtype).to(device), vectors((shape[0],), dtype).to(device)
    if format == "fp16" or batch > 32:  # by torch, of weights in x's dtype and with its sums
        exact = x.double() @ w.unpack().double().t() + bias.double()
        assert torch.allclose(packed_gemv(w, x, bias).double(), exact, rtol=2e-2, atol=5e-2)
        return
    assert_near(packed_gemv(w, x, bias), w, x, bias)


@pytest.mark.parametrize("scale", [None, "row", "column", "number"])
@pytest.mark.parametrize("format", ["e5m2", "e4m3"])
def test_scales(format: str, scale: Any, device: torch.device) -> None:
    w = packed_matrix(format, (40, 200), torch.tensor(0.25) if scale == "number" else scale).to(device)
    for dtype in UNIT:
        for shape in ((200,), (1, 200), (2, 3, 200)):
            x = vectors(shape, dtype).to(device)
            assert_near(packed_gemv(w, x), w, x)


def test_rows_too_long_for_shared_memory(device: torch.device) -> None:
    for format in FORMATS:
        w = packed_matrix(format, (2, 30_000)).to(device)
        for dtype in UNIT:
            x = vectors((30_000,), dtype).to(device)
            if format == "fp16" and device.type == "cuda":  # by torch
                exact = (x.double() @ w.unpack().double().t()).cpu()
                assert torch.allclose(packed_gemv(w, x).cpu().double(), exact, rtol=2e-2, atol=0.5)
                continue
            assert_near(packed_gemv(w, x), w, x)


@pytest.mark.parametrize("format", FORMATS)
def test_what_is_not_finite_comes_through(format: str, device: torch.device) -> None:
    w = torch.ones(20, 100)
    w[3, 7] = float("nan")
    if format != "e4m3":
        w[5, 9] = float("inf")
    packed = (pack_fp16(w) if format == "fp16" else pack_fp8(w, format)).to(device)
    for x in (torch.ones(100), torch.ones(4, 100), torch.ones(4, 100).half()):
        out = packed_gemv(packed, x.to(device)).cpu().view(-1, 20)
        assert bool(out[:, 3].isnan().all()) and int(out.isnan().sum()) == len(out)
        assert bool((out[:, 0] == 100).all())
        if format != "e4m3":
            assert bool((out[:, 5] == float("inf")).all())
    x = torch.ones(2, 100)
    x[1, 0] = float("inf")
    out = packed_gemv(packed, x.to(device)).cpu()
    assert bool((out[1, :3] == float("inf")).all()) and bool((out[0, :3] == 100).all())


def test_views_of_words(device: torch.device) -> None:
    """Rows that do not start at a multiple of 16 bytes."""
    whole = packed_matrix("e4m3", (21, 64), None).to(device)
    words = torch.cat([whole.words.flatten().view(torch.int32)[:1], whole.words.flatten().view(torch.int32)])[1:]
    shifted = PackedTensor(words.view(torch.uint32).view(21, 16), (21, 64), "e4m3")
    for shape in ((64,), (5, 64)):
        x = vectors(shape, torch.float16).to(device)
        assert_near(packed_gemv(shifted, x), whole, x)


@pytest.mark.cuda
def test_in_a_cuda_graph_and_on_another_stream() -> None:
    w, x = packed_matrix("e4m3", (512, 1024)).to("cuda"), vectors((1024,), torch.float32).cuda()
    wanted = packed_gemv(w, x)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        assert torch.equal(packed_gemv(w, x), wanted)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = packed_gemv(w, x)
    x *= 2
    graph.replay()
    assert torch.equal(out, 2 * wanted)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda w, x: packed_gemv(x, x), TypeError, "w: want a PackedTensor, got Tensor"),
        (lambda w, x: packed_gemv(w, x.double()), TypeError, "x: want a tensor of one of"),
        (lambda w, x: packed_gemv(w, x[:7]), ValueError, r"x: want \[..., 8\] on cpu, got \[7\] on cpu"),
        (lambda w, x: packed_gemv(w, x, x), ValueError, r"bias: want \[4\] torch.float32 on cpu, got \[8\]"),
        (lambda w, x: packed_gemv(w, x.requires_grad_()), RuntimeError, "no gradient goes through"),
        (lambda w, x: packed_gemv(pack_fp16(x), x), ValueError, r"w: want \[m, k\] with first='low', got \[8\]"),
        (lambda w, x: packed_gemv(pack_fp16(x[None], first="high"), x), ValueError, "got .* with first='high'"),
        (
            lambda w, x: packed_gemv(pack_fp8(x.view(2, 4), scale=torch.ones(2, 4)), x[:4]),
            ValueError,
            "w: want a scale of rows or of columns",
        ),
    ],
)
def test_bad_arguments(call: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        call(packed_matrix("e4m3", (4, 8)), torch.ones(8))

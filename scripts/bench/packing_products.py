"""Products of a square matrix with one vector and with few: packed weights, and torch's of float32, 16 and 8 bits."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import torch
from tqdm import tqdm

from ibp_gnn.config import setting
from ibp_gnn.packing import PackedTensor, pack_fp8, pack_fp16, packed_gemv

from .timing import in_turns, medians

_CALLS = 24  # of a method in one CUDA graph, at least
_WARM_UP = 2
FORMATS = ("e5m2", "e4m3", "fp16")


@dataclasses.dataclass(frozen=True)
class ProductsConfig:
    """sizes: rows and columns of the matrix. batches: vectors of a product. cold_mb: weights that a method goes through
    before it meets the same again, at least, so that none finds them in the L2 cache."""

    sizes: tuple[int, ...] = setting((4096, 8192, 16384), ge=64)
    batches: tuple[int, ...] = setting((1, 8, 32), ge=1)
    cold_mb: int = setting(256, ge=1)
    repeats: int = setting(15, ge=1)


Method = Callable[[int], torch.Tensor]  # takes the number of a copy of the weights


def measure_products(config: ProductsConfig, device: torch.device) -> list[dict[str, Any]]:
    """For each size and batch: microseconds of a call by method, and how many times as fast as float32 each is."""
    results = []
    for size in config.sizes:
        weights = torch.randn(size, size, device=device) * 0.02
        for batch in config.batches:
            x = torch.randn(batch, size, device=device)
            methods = _methods(weights, x, config)
            times = _microseconds(methods, config)
            one = {
                "size": size,
                "batch": batch,
                "us": times,
                "weight_gb_per_s": {
                    name: size * size * _bytes(name) / us / 1e3 for name, us in times.items() if _bytes(name)
                },
                "vs_float32": {name: times["torch_float32"] / us for name, us in times.items()},
            }
            results.append(one)
            del methods
            torch.cuda.empty_cache()
    return results


def _bytes(name: str) -> int:
    """Of a weight."""
    return 4 if "float32" in name.split("_x_")[0] else 2 if "16" in name.split("_x_")[0] else 1


def _methods(weights: torch.Tensor, x: torch.Tensor, config: ProductsConfig) -> dict[str, Method]:
    """Names end with the dtype of x where there are several. Packed ones are checked against float64."""
    methods: dict[str, Method] = {}

    def torch_product(dtype: torch.dtype) -> Method:
        of_dtype, copies = x.to(dtype), _copies(weights.to(dtype), config)
        return lambda number: torch.nn.functional.linear(of_dtype, copies[number % len(copies)])

    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        methods[f"torch_{_name(dtype)}"] = torch_product(dtype)
    if torch.cuda.get_device_capability()[:2] >= (8, 9) and len(x) % 16 == 0:
        methods["torch_float8_e4m3"] = _scaled_product(weights, x, config)
    for format in FORMATS:
        packed = pack_fp16(weights) if format == "fp16" else pack_fp8(weights, format, scale="row")  # type: ignore[arg-type]
        copies = [dataclasses.replace(packed, words=words) for words in _copies(packed.words, config)]
        for dtype in (torch.float32, torch.float16, torch.bfloat16):
            of_dtype = x.to(dtype)
            _check(packed, of_dtype)
            methods[f"{format}_x_{_name(dtype)}"] = functools.partial(_packed_product, copies, of_dtype)
    return methods


def _packed_product(copies: list[PackedTensor], x: torch.Tensor, number: int) -> torch.Tensor:
    return packed_gemv(copies[number % len(copies)], x)


def _scaled_product(weights: torch.Tensor, x: torch.Tensor, config: ProductsConfig) -> Method:
    copies = _copies(weights.to(torch.float8_e4m3fn), config)
    of_8_bits, one = x.to(torch.float8_e4m3fn), torch.ones((), device=x.device)

    def product(number: int) -> torch.Tensor:
        w = copies[number % len(copies)]
        return torch._scaled_mm(of_8_bits, w.t(), scale_a=one, scale_b=one, out_dtype=torch.bfloat16)

    return product


def _check(w: PackedTensor, x: torch.Tensor) -> None:
    """Raises AssertionError for results that sums in float32, rounded to x's dtype, do not have."""
    exact = x.double() @ w.unpack().double().t()
    tolerance = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 1e-2}[x.dtype]
    error = float((packed_gemv(w, x).double() - exact).abs().max() / exact.abs().max())
    if not error < tolerance:
        raise AssertionError(f"{w.format}, {len(x)} vectors of {x.dtype}: want an error below {tolerance}, got {error}")


def _copies(weights: torch.Tensor, config: ProductsConfig) -> list[torch.Tensor]:
    count = max(1, min(_CALLS, -(-config.cold_mb * 1_000_000 // weights.nbytes)))
    return [weights.view(torch.uint8).clone().view(weights.dtype) for _ in range(count)]


def _microseconds(methods: dict[str, Method], config: ProductsConfig) -> dict[str, float]:
    """Medians of replays of CUDA graphs, which leave out what a call takes on the host."""
    graphs = {}
    for name, method in methods.items():
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            method(0)
        torch.cuda.current_stream().wait_stream(stream)
        graphs[name] = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graphs[name]):
            for number in range(_CALLS):
                method(number)

    def replay(graph: torch.cuda.CUDAGraph) -> float:
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        return 1e3 * start.elapsed_time(end) / _CALLS

    rounds = tqdm(range(_WARM_UP + config.repeats), desc="products", leave=False)
    return medians(
        in_turns({name: functools.partial(replay, graph) for name, graph in graphs.items()}, rounds, _WARM_UP)
    )


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")

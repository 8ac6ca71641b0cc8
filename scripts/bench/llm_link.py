"""One large weight: the time it takes to come to the GPU, raw and compressed, and what compute beside it loses."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import torch

from ibp_gnn.config import setting
from ibp_gnn.offload.gpu_decoder import GpuDecoder
from ibp_gnn.offload.placement import Placed
from ibp_gnn.offload.weight import compress_weight
from ibp_gnn.testing import assert_bitwise_equal

from .timing import in_turns, medians, queued_ms

_SEVERAL = 4


@dataclasses.dataclass(frozen=True)
class LinkConfig:
    rows: int = setting(131072, ge=1)
    values: int = setting(4096, ge=1)
    products: int = setting(16, ge=1)  # of the train that runs beside
    product_size: int = setting(8192, ge=1)
    repeats: int = setting(7, ge=1)


def measure_link(config: LinkConfig, device: torch.device) -> dict[str, Any]:
    raw = torch.empty(config.rows, config.values, dtype=torch.bfloat16, device=device).normal_(0, 0.02)
    weight = compress_weight(raw, by_row=False, device=device)
    resident = GpuDecoder([Placed(weight, "compressed", False, True)], device, 1)
    decoder = GpuDecoder([Placed(weight, "streamed", False, True)], device, 1)
    resident.fill()
    decoder.fill()
    pinned = torch.empty(raw.shape, dtype=raw.dtype, pin_memory=True).copy_(raw)
    landed = torch.empty_like(raw)
    buffer = torch.empty(weight.layout.nbytes, dtype=torch.uint8, pin_memory=True).copy_(weight.buffer)
    small = torch.empty(weight.layout.nbytes, dtype=torch.uint8, device=device)
    for one in (decoder, resident):
        with one.lend(0) as decoded:
            assert_bitwise_equal(decoded, raw)

    def decode_resident() -> None:
        with resident.lend(0):
            pass

    def stream_several() -> None:  # the first one has come before
        for _ in range(_SEVERAL + 1):
            with decoder.lend(0):
                pass

    a = torch.randn(config.product_size, config.product_size, dtype=torch.bfloat16, device=device)

    def products() -> None:
        for _ in range(config.products):
            torch.mm(a, a)

    side = torch.cuda.Stream(device)

    def beside(call: Callable[[], Any]) -> Callable[[], None]:
        def both() -> None:
            side.wait_stream(torch.cuda.current_stream(device))
            with torch.cuda.stream(side):
                call()
            products()

        return both

    copy_raw = lambda: landed.copy_(pinned, non_blocking=True)  # noqa: E731

    def copy_several() -> None:
        for _ in range(_SEVERAL + 1):
            copy_raw()

    measures = {
        "raw_dma": copy_raw,
        "compressed_dma": lambda: small.copy_(buffer, non_blocking=True),
        "streamed_and_decoded": stream_several,
        "decode_from_gpu": decode_resident,
        "copy_on_gpu": lambda: landed.copy_(raw),
        "products_alone": products,
    }
    calls = {name: (lambda call=call: queued_ms(call)) for name, call in measures.items()}
    ms = medians(in_turns(calls, range(config.repeats + 2), warm_up=2))
    ms["streamed_and_decoded"] /= _SEVERAL
    beside_calls = {"raw_dma": beside(copy_several), "streamed_and_decoded": beside(stream_several)}

    def products_ms(both: Callable[[], None]) -> float:
        torch.cuda.synchronize()
        spent = queued_ms(both)
        torch.cuda.synchronize()
        return spent

    slowed = medians(
        in_turns(
            {name: (lambda both=both: products_ms(both)) for name, both in beside_calls.items()},
            range(config.repeats + 1),
            warm_up=1,
        )
    )
    result = {
        "raw_bytes": raw.nbytes,
        "compressed_bytes": weight.layout.nbytes,
        "ratio": weight.layout.nbytes / raw.nbytes,
        "ms": ms,
        "speedup_of_transfer": ms["raw_dma"] / ms["streamed_and_decoded"],
        "decode_gb_s": raw.nbytes / ms["decode_from_gpu"] / 1e6,
        "products_beside_ms": slowed,
        "slowdown_beside": {name: spent / ms["products_alone"] for name, spent in slowed.items()},
    }
    resident.close()
    decoder.close()
    print(f"link: {result}", flush=True)
    return result

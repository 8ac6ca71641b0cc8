from __future__ import annotations

import pytest
import torch

from ibp_gnn.offload.gpu_decoder import GpuDecoder
from ibp_gnn.offload.placement import Place, Placed
from ibp_gnn.offload.weight import compress_weight
from ibp_gnn.testing import assert_bitwise_equal

pytestmark = pytest.mark.cuda
RAW = [torch.randn(60 + at, 1024, generator=torch.Generator().manual_seed(at)).bfloat16() for at in range(6)]


def make(places: list[Place], prefetch: int = 2) -> GpuDecoder:
    device = torch.device("cuda", torch.cuda.current_device())
    placed = [
        Placed(compress_weight(raw, by_row=at == 0, device=device), place, at == 0, True)
        for at, (raw, place) in enumerate(zip(RAW, places, strict=True))
    ]
    decoder = GpuDecoder(placed, device, prefetch)
    assert all(torch.equal(decoder.copy(at).cpu(), raw) for at, raw in enumerate(RAW))  # before it is filled, too
    decoder.fill()
    return decoder


@pytest.mark.parametrize("place", ["raw", "compressed", "streamed"])
def test_each_place_gives_the_same_bits(place: Place) -> None:
    decoder = make([place] * 6)
    for _ in range(2):
        for number, raw in enumerate(RAW):
            with decoder.lend(number) as lent:
                kept = lent.clone()
            assert_bitwise_equal(kept.cpu(), raw)
            assert_bitwise_equal(decoder.copy(number).cpu(), raw)
            assert_bitwise_equal(decoder.copy(number, torch.device("cpu")), raw)
            assert_bitwise_equal(decoder.compressed(number).decompress(), raw)
    ids = torch.tensor([[0, 59], [7, 7]], device="cuda")
    assert_bitwise_equal(decoder.read_rows(0, ids).cpu(), RAW[0][ids.cpu()])
    decoder.close()


def test_each_weight_crosses_the_link_once_a_pass_when_the_order_is_known() -> None:
    decoder = make(["streamed"] * 6)
    order = [3, 1, 5, 0, 2, 4]

    def one_pass() -> int:
        before = decoder.streamed_bytes
        for number in order:
            with decoder.lend(number):
                pass
        return decoder.streamed_bytes - before

    for _ in range(2):  # learns
        one_pass()
    once = sum(decoder.compressed(number).buffer.numel() for number in range(6))
    assert one_pass() == once and one_pass() == once
    decoder.close()


def test_buffers_are_bounded() -> None:
    decoder = make(["streamed"] * 6, prefetch=1)
    largest = max(decoder.compressed(number).padded_nbytes for number in range(6))
    assert decoder.device_nbytes < largest + 2 * 0.75 * largest + 4096
    assert decoder.host_nbytes == sum(decoder.compressed(number).buffer.numel() for number in range(6))
    decoder.close()

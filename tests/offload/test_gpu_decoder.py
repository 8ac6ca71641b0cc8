from __future__ import annotations

import gc

import pytest
import torch
from emulated_gpu import emulated_gpu as emulated_gpu
from page_locking import Registers

from ibp_gnn.offload.gpu_decoder import GpuDecoder
from ibp_gnn.offload.placement import Place, Placed
from ibp_gnn.offload.weight import compress_weight
from ibp_gnn.store.pinned import PinError
from ibp_gnn.testing import assert_bitwise_equal

RAW = [torch.randn(60 + at, 1024, generator=torch.Generator().manual_seed(at)).bfloat16() for at in range(6)]


@pytest.fixture(params=["emulated", pytest.param("cuda", marks=pytest.mark.cuda)])
def device(request: pytest.FixtureRequest) -> torch.device:
    if request.param == "cuda":
        return torch.device("cuda", torch.cuda.current_device())
    request.getfixturevalue("emulated_gpu")
    return torch.device("cpu")


def make(device: torch.device, places: list[Place], prefetch: int = 2) -> GpuDecoder:
    placed = [
        Placed(compress_weight(raw, by_row=at == 0, device=device), place, at == 0, True)
        for at, (raw, place) in enumerate(zip(RAW, places, strict=True))
    ]
    decoder = GpuDecoder(placed, device, prefetch)
    assert all(torch.equal(decoder.copy(at).cpu(), raw) for at, raw in enumerate(RAW))  # before it is filled, too
    decoder.fill()
    return decoder


@pytest.mark.parametrize("place", ["raw", "compressed", "streamed"])
def test_each_place_gives_the_same_bits(device: torch.device, place: Place) -> None:
    decoder = make(device, [place] * 6)
    for _ in range(2):
        for number, raw in enumerate(RAW):
            with decoder.lend(number) as lent:
                kept = lent.clone()
            assert_bitwise_equal(kept.cpu(), raw)
            assert_bitwise_equal(decoder.copy(number).cpu(), raw)
            assert_bitwise_equal(decoder.copy(number, torch.device("cpu")), raw)
            assert_bitwise_equal(decoder.compressed(number).decompress(), raw)
    ids = torch.tensor([[0, 59], [7, 7]], device=device)
    assert_bitwise_equal(decoder.read_rows(0, ids).cpu(), RAW[0][ids.cpu()])
    decoder.close()


def test_each_weight_crosses_the_link_once_a_pass_when_the_order_is_known(device: torch.device) -> None:
    decoder = make(device, ["streamed"] * 6)
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


def test_buffers_are_bounded(device: torch.device) -> None:
    decoder = make(device, ["streamed"] * 6, prefetch=1)
    largest = max(decoder.compressed(number).padded_nbytes for number in range(6))
    assert decoder.device_nbytes < largest + 2 * 0.75 * largest + 4096
    assert decoder.host_nbytes == sum(decoder.compressed(number).buffer.numel() for number in range(6))
    decoder.close()


def test_weights_that_do_not_come_make_room(device: torch.device) -> None:
    decoder = make(device, ["streamed"] * 6, prefetch=1)
    generator = torch.Generator().manual_seed(0)
    for number in torch.randint(6, (60,), generator=generator).tolist():
        with decoder.lend(number) as lent:
            kept = lent.clone()
        assert_bitwise_equal(kept.cpu(), RAW[number])
    decoder.close()


def test_page_locked_memory_is_let_go_of(emulated_gpu: Registers) -> None:
    decoder = make(torch.device("cpu"), ["streamed"] * 6)
    assert sum(emulated_gpu.locked.values()) >= decoder.host_nbytes > 0
    decoder.close()
    assert emulated_gpu.locked == {}
    decoder = make(torch.device("cpu"), ["streamed"] * 6)
    del decoder
    gc.collect()
    assert emulated_gpu.locked == {}


def test_a_refusal_to_page_lock_leaves_weights_that_can_be_copied(emulated_gpu: Registers) -> None:
    cpu = torch.device("cpu")
    placed = [Placed(compress_weight(raw, by_row=False, device=cpu), "streamed", False, True) for raw in RAW]
    decoder = GpuDecoder(placed, cpu, 2)
    emulated_gpu.refuses = True
    with pytest.raises(PinError, match="could not page-lock"):
        decoder.fill()
    for number, raw in enumerate(RAW):
        assert_bitwise_equal(decoder.copy(number), raw)

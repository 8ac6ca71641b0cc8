from __future__ import annotations

import threading

import pytest
import torch

from ibp_gnn.offload.decoder import CpuDecoder, block_ids
from ibp_gnn.offload.weight import compress_weight
from ibp_gnn.testing import assert_bitwise_equal

CPU = torch.device("cpu")
RAW = [torch.randn(50 + at, 1000, generator=torch.Generator().manual_seed(at)).bfloat16() for at in range(3)]


@pytest.fixture
def decoder() -> CpuDecoder:
    return CpuDecoder([compress_weight(raw, by_row=True, device=CPU) for raw in RAW])


def test_lends_copies_and_rows(decoder: CpuDecoder) -> None:
    for number, raw in enumerate(RAW):
        with decoder.lend(number) as lent:
            assert_bitwise_equal(lent, raw)
        assert_bitwise_equal(decoder.copy(number), raw)
        ids = torch.tensor([[0, 49], [7, 7]])
        assert_bitwise_equal(decoder.read_rows(number, ids), raw[ids])
        assert_bitwise_equal(decoder.compressed(number).decompress(), raw)


def test_holds_compressed_weights_and_one_that_is_not(decoder: CpuDecoder) -> None:
    raw = sum(one.nbytes for one in RAW)
    assert decoder.device_nbytes < 0.75 * raw + max(one.nbytes for one in RAW) + 4096


def test_threads_take_turns(decoder: CpuDecoder) -> None:
    wrong = []

    def read(number: int) -> None:
        for _ in range(30):
            with decoder.lend(number) as lent:
                if not torch.equal(lent.clone(), RAW[number]):
                    wrong.append(number)

    threads = [threading.Thread(target=read, args=(at % 3,)) for at in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_block_ids(decoder: CpuDecoder) -> None:
    weight = decoder.compressed(0)
    assert weight.blocks_per_row == 5  # of 200 values: the longest whole vectors of 8 values
    assert block_ids(weight, torch.tensor([3, 0])).tolist() == [15, 16, 17, 18, 19, 0, 1, 2, 3, 4]
    whole = compress_weight(RAW[0][:, :768], by_row=True, device=CPU)
    assert block_ids(whole, torch.tensor([3, 0])).tolist() == [3, 0]

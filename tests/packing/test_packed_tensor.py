"""PackedTensor: what it takes, and values from words in either order."""

from __future__ import annotations

import dataclasses
import pickle

import pytest
import torch

from ibp_gnn.packing import PackedTensor, pack_fp8


def words(values: list[int]) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int64).to(torch.uint32)


def test_values_of_words_in_either_order() -> None:
    low = PackedTensor(words([0x3C38_4038]), (4,), "e5m2")
    assert low.unpack().tolist() == [0.5, 2.0, 0.5, 1.0]
    high = PackedTensor(words([0x3C38_4038]), (4,), "e5m2", first="high")
    assert high.unpack().tolist() == [1.0, 0.5, 2.0, 0.5]
    assert PackedTensor(words([0x3C00_4000]), (2,), "fp16", first="high").unpack().tolist() == [1.0, 2.0]


def test_sizes_and_text() -> None:
    x = pack_fp8(torch.randn(5, 7), "e4m3", scale="row")
    assert x.nbytes == 5 * 2 * 4 + 5 * 4
    assert repr(x) == "PackedTensor([5, 7] e4m3, LOSSY, 60 bytes on cpu, scale [5, 1])"


def test_pickle_and_to() -> None:
    x = pack_fp8(torch.randn(5, 7), "e4m3", scale="row")
    again = pickle.loads(pickle.dumps(x))
    assert torch.equal(again.unpack(), x.unpack()) and again.shape == x.shape
    assert x.to("cpu") is x


@pytest.mark.cuda
def test_to_another_device() -> None:
    x = pack_fp8(torch.randn(5, 7), "e4m3", scale="row")
    there = x.to("cuda")
    assert there.device.type == "cuda" and torch.equal(there.unpack().cpu(), x.unpack())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_unpacked_to_16_bits(dtype: torch.dtype, device: torch.device) -> None:
    x = pack_fp8(torch.randn(5, 7).to(device), "e4m3", scale="row")
    assert x.unpack(dtype).dtype == dtype and torch.equal(x.unpack(dtype), x.unpack().to(dtype))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format": "fp4"}, "format: want one of"),
        ({"first": "left"}, "first: want 'low' or 'high'"),
        ({"shape": ()}, "shape: want at least one dimension"),
        ({"shape": (5, 9)}, r"words: want contiguous \[5, 3\] torch.uint32, got \[5, 2\]"),
        ({"words": torch.zeros(5, 2, dtype=torch.int32)}, "words: want contiguous"),
        ({"scale": torch.ones(5)}, r"scale: want a shape that broadcasts to \[5, 7\], got \[5\]"),
        ({"scale": torch.ones(5, 1).half()}, "scale: want torch.float32 on cpu"),
    ],
)
def test_parts_that_do_not_fit(change: dict, message: str) -> None:
    x = pack_fp8(torch.randn(5, 7), "e4m3")
    with pytest.raises(ValueError, match=message):
        dataclasses.replace(x, **change)


def test_another_dtype() -> None:
    with pytest.raises(ValueError, match="dtype: want one of"):
        pack_fp8(torch.randn(5, 7), "e4m3").unpack(torch.int32)

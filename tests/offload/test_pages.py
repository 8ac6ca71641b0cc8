from __future__ import annotations

import gc
import threading
from typing import Any

import pytest
import torch
from emulated_gpu import emulated_gpu as emulated_gpu
from page_locking import Registers

from ibp_gnn.offload.page_landing import PageLanding
from ibp_gnn.offload.pages import CompressedPages
from ibp_gnn.testing import assert_bitwise_equal

TOKENS = 32
BITS = {torch.bfloat16: torch.int16, torch.float16: torch.int16, torch.float32: torch.int32}


def kv(
    count: int, shape: tuple[int, ...] = (4, 64), dtype: torch.dtype = torch.bfloat16, seed: int = 0
) -> torch.Tensor:
    """[count, TOKENS, *shape]; some tokens are random bits, which do not fit their slots."""
    generator = torch.Generator().manual_seed(seed)
    pages = torch.randn(count, TOKENS, *shape, generator=generator).to(dtype)
    bits = pages.view(BITS[dtype])
    for page, token in ((0, 3), (1, 0), (1, 31), (count - 1, 7)):
        bits[page, token] = torch.randint(-30000, 30000, shape, generator=generator).to(bits.dtype)
    return pages


@pytest.fixture(params=["cpu", "emulated", pytest.param("cuda", marks=pytest.mark.cuda)])
def device(request: pytest.FixtureRequest) -> str:
    """emulated: the way of a GPU, in CPU memory."""
    if request.param == "emulated":
        request.getfixturevalue("emulated_gpu")
    return str(request.param)


def make(device: str, shape: tuple[int, ...] = (4, 64), dtype: torch.dtype = torch.bfloat16, **options: Any) -> Any:
    if device == "emulated":
        device, copies = "cpu", torch.cuda.Stream()
        options |= {"copies": copies, "landing": PageLanding(torch.device("cpu"), copies)}
    return CompressedPages(TOKENS, shape, dtype, device=device, **({"budget": "64MB"} | options))


def to(device: str, pages: torch.Tensor) -> torch.Tensor:
    return pages.to("cpu" if device == "emulated" else device)


@pytest.mark.parametrize("dtype", BITS, ids=str)
@pytest.mark.parametrize("shape", [(64,), (2, 80), (1, 96), (8, 128), (4, 512)], ids=str)
def test_pages_and_tokens_come_back(device: str, dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    want = to(device, kv(12, shape, dtype))
    with make(device, shape, dtype) as pages:
        pages.put(range(5), want[:5])
        pages.put(torch.tensor([11, 10, 9, 8, 7, 6, 5]), want[5:].flip(0))
        assert len(pages) == 12 and 11 in pages and 12 not in pages
        order = [3, 11, 0, 0, 7, 1]
        assert_bitwise_equal(pages.get(order), want[order])
        out = torch.empty_like(want)
        assert pages.get(list(range(12)), out) is out
        assert_bitwise_equal(out, want)
        ids = torch.randint(12 * TOKENS, (100,), generator=torch.Generator().manual_seed(1))
        assert_bitwise_equal(pages.get_tokens(ids), want.view(-1, *shape)[to(device, ids)])
        assert_bitwise_equal(pages.get_tokens(ids.int()), want.view(-1, *shape)[to(device, ids)])
        assert_bitwise_equal(pages.get_tokens(to(device, ids)), want.view(-1, *shape)[to(device, ids)])
        assert pages.get([]).shape == (0, TOKENS, *shape) and len(pages.get_tokens(ids[:0])) == 0
        report = pages.report()
        assert report.pages == 12 and report.raw_bytes == want.nbytes and report.fits == 1
        if dtype is torch.bfloat16 and want[0, 0].numel() >= 256:
            assert report.compressed_bytes < 0.78 * report.raw_bytes  # random tokens among them


def test_pages_are_replaced_dropped_and_their_memory_used_again(device: str) -> None:
    want = to(device, kv(40))
    with make(device) as pages:
        pages.put(range(20), want[:20])
        locked = pages.report().locked_bytes
        for first in (0, 10):  # many times what the memory has room for
            for _ in range(5):
                pages.put(range(10), want[20 + first : 30 + first])
                pages.drop(range(10, 20))
                pages.put(range(10, 20), want[10:20])
        assert_bitwise_equal(pages.get(range(20)), torch.cat([want[30:], want[10:20]]))
        assert pages.report().locked_bytes <= 1.6 * locked
        with pytest.raises(KeyError, match="got 99"):
            pages.drop([3, 99])
        assert 3 in pages
        pages.drop([3, 3])
        for call in (pages.get, pages.drop, pages.prefetch):
            with pytest.raises(KeyError, match="want pages that were put, got 3"):
                call([3])
        with pytest.raises(KeyError, match="one of page 3"):
            pages.get_tokens(torch.tensor([0, 3 * TOKENS + 1]))


def test_a_new_codec_when_savings_fall(device: str) -> None:
    first, later = to(device, kv(20)), to(device, (kv(64, seed=1).float() * 1e-6).bfloat16())
    with make(device) as pages:
        pages.put(range(20), first)
        for at in range(0, 64, 16):
            pages.put(range(100 + at, 116 + at), later[at : at + 16])
            pages.get([100])  # ends the put
        assert pages.report().fits == 2
        assert_bitwise_equal(pages.get([105, 3, 163, 4]), torch.stack([later[5], first[3], later[63], first[4]]))
        ids = torch.tensor([105 * TOKENS + 3, 7, 163 * TOKENS])
        assert_bitwise_equal(pages.get_tokens(ids), torch.stack([later[5, 3], first[0, 7], later[63, 0]]))


def test_the_budget_is_a_limit_that_changes_nothing(device: str) -> None:
    want = to(device, kv(64))
    with make(device, budget=500_000) as pages:  # 45 pages uncompressed: 16 KiB each
        pages.put(range(20), want[:20])
        with pytest.raises(MemoryError):
            pages.put(range(60), want[:60])
        assert len(pages) == 20 and pages.report().locked_bytes <= 500_000
        assert_bitwise_equal(pages.get(range(20)), want[:20])
        pages.put(range(20, 36), want[20:36])  # 36 pages: 590 KB, within 500 KB since they are compressed
        assert_bitwise_equal(pages.get(range(36)), want[:36])


def test_inputs_may_be_overwritten_at_once(device: str) -> None:
    want = to(device, kv(8))
    with make(device) as pages:
        for at in range(8):
            buffer = want[at : at + 1].clone()
            pages.put([at], buffer)
            buffer.zero_()
        assert_bitwise_equal(pages.get(range(8)), want)
        transposed = want.transpose(2, 3).contiguous().transpose(2, 3)
        pages.put(range(8), transposed)
        assert_bitwise_equal(pages.get(range(8)), want)


def test_a_prefetch_is_used_and_a_wrong_one_is_harmless(device: str) -> None:
    if device == "cpu":
        pytest.skip("nothing is fetched there")
    want = to(device, kv(16))
    with make(device) as pages:
        pages.put(range(16), want)
        pages.prefetch(range(8))
        moved = pages.landing.moved_bytes
        assert_bitwise_equal(pages.get(range(8)), want[:8])
        assert pages.landing.moved_bytes == moved
        pages.prefetch([1])
        assert_bitwise_equal(pages.get([9, 1]), want[[9, 1]])
        pages.prefetch([1])
        pages.put([1], want[5:6])
        assert_bitwise_equal(pages.get([1]), want[5:6])


@pytest.mark.cuda
def test_puts_on_several_streams_and_threads() -> None:
    want = kv(64).cuda()
    wrong: list[int] = []

    def use(pages: CompressedPages, first: int) -> None:
        with torch.cuda.stream(torch.cuda.Stream()):
            for _ in range(10):
                pages.put(range(first, first + 16), want[first : first + 16])
                if not torch.equal(pages.get(range(first, first + 16)).view(torch.int16),
                                   want[first : first + 16].view(torch.int16)):  # fmt: skip
                    wrong.append(first)

    with make("cuda") as pages:
        pages.put([0], want[:1])
        torch.cuda.synchronize()
        threads = [threading.Thread(target=use, args=(pages, first)) for first in (0, 16, 32, 48)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert wrong == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"page_tokens": 48}, "page_tokens: want a multiple of 32, got 48"),
        ({"page_tokens": True}, "page_tokens: want"),
        ({"token_shape": ()}, "token_shape: want at least one value"),
        ({"budget": 0.5}, "budget: want bytes"),
        ({"budget": "3 rows"}, "budget: want bytes"),
        ({"refit_drop": 0}, "refit_drop: want more than 0"),
        ({"dtype": torch.complex64}, "want one of"),
        ({"device": "mps"}, "device: want cpu or cuda"),
    ],
)
def test_bad_options(options: dict[str, Any], message: str) -> None:
    settings = {"page_tokens": 32, "token_shape": (64,), "dtype": torch.bfloat16, "device": "cpu"} | options
    with pytest.raises((TypeError, ValueError), match=message):
        CompressedPages(**settings)  # type: ignore[arg-type]


def test_bad_pages() -> None:
    want = kv(4)
    with make("cpu") as pages:
        for numbers, given, message in (
            ([0, 1], want, r"want \[2, 32, 4, 64\]"),
            (range(4), want.float(), "torch.bfloat16, got .* torch.float32"),
            ([0, 1, 1, 2], want, "different numbers"),
            ([0, 1, -1, 2], want, "at least 0, below 16777216, got -1"),
            (["a", 1, 2, 3], want, "want ints"),
            ([0, 1, 1 << 24, 2], want, "below 16777216, got 16777216"),
            (range(4), want.to("meta"), "want them on cpu"),
        ):
            with pytest.raises((TypeError, ValueError), match=message):
                pages.put(numbers, given)
        assert len(pages) == 0
        pages.put(range(4), want)
        with pytest.raises(ValueError, match="out: want"):
            pages.get([0], torch.empty(1, 32, 4, 63, dtype=torch.bfloat16))
    with pytest.raises(RuntimeError, match="closed"):
        pages.get([0])


def test_closing_and_dropping_unlocks(emulated_gpu: Registers) -> None:
    for drop in (False, True):
        pages = make("emulated")
        pages.put(range(16), kv(16))
        assert sum(emulated_gpu.locked.values()) == pages.report().locked_bytes > 0
        if not drop:
            pages.close()
        del pages
        gc.collect()
        assert emulated_gpu.locked == {}

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from emulated_gpu import emulated_gpu as emulated_gpu
from offload_models import llama, some_ids

from ibp_gnn.testing import assert_bitwise_equal

transformers = pytest.importorskip("transformers")

from transformers import DynamicCache  # noqa: E402

from ibp_gnn.offload.kv_cache import CompressedLayer, CompressedOffloadedCache  # noqa: E402
from ibp_gnn.offload.page_landing import PageLanding  # noqa: E402
from ibp_gnn.offload.pages import CompressedPages  # noqa: E402

BATCH, HEADS = 3, 2
IS_4 = transformers.__version__.startswith("4.")


@pytest.fixture(params=["cpu", "emulated", pytest.param("cuda", marks=pytest.mark.cuda)])
def device(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """emulated: the way of a GPU, in CPU memory."""
    if request.param != "emulated":
        return str(request.param)
    request.getfixturevalue("emulated_gpu")
    copies = torch.cuda.Stream()
    landings = [PageLanding(torch.device("cpu"), copies) for _ in range(2)]
    turn = itertools.count()

    def make_pages(shared: Any, row_values: int, dtype: torch.dtype, device: torch.device) -> CompressedPages:
        options = {"landing": landings[next(turn) % 2], "copies": copies, "refit_drop": shared.refit_drop}
        where = {"budget": shared.budget, "device": device}
        return CompressedPages(shared.block_tokens, (row_values,), dtype, **where, **options)

    monkeypatch.setattr("ibp_gnn.offload.kv_cache._Shared.make_pages", make_pages)
    return "cpu"


def make(config: Any = None, **options: Any) -> CompressedOffloadedCache:
    settings = {"budget": "256MB", "block_tokens": 32, "recent_tokens": 16} | options
    return CompressedOffloadedCache(config, **settings)


class Both:
    """The same calls to our cache and to transformers', whose results must be the same bits."""

    def __init__(self, device: str, size: int = 64, value_size: int | None = None, dtype: Any = torch.bfloat16) -> None:
        self.ours, self.theirs = make(), DynamicCache()
        self._device, self._sizes, self._dtype = device, (size, value_size or size), dtype
        self._generator = torch.Generator().manual_seed(0)

    def update(self, tokens: int, batch: int = BATCH) -> None:
        for layer in range(3):
            keys, values = (
                torch.randn(batch, HEADS, tokens, size, generator=self._generator).to(self._dtype).to(self._device)
                for size in self._sizes
            )
            got, want = (cache.update(keys, values, layer) for cache in (self.ours, self.theirs))
            assert_bitwise_equal(got[0].contiguous(), want[0].contiguous())
            assert_bitwise_equal(got[1].contiguous(), want[1].contiguous())
        assert self.ours.get_seq_length() == self.theirs.get_seq_length()
        query = torch.zeros(1) if IS_4 else 1
        assert self.ours.get_mask_sizes(query, 0) == self.theirs.get_mask_sizes(query, 0)

    def both(self, name: str, *args: Any) -> None:
        for cache in (self.ours, self.theirs):
            getattr(cache, name)(*args)
        assert self.ours.get_seq_length() == self.theirs.get_seq_length()


@pytest.mark.parametrize("size", [64, 80, 96, 128])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
def test_keys_and_values_are_those_of_transformers(device: str, size: int, dtype: torch.dtype) -> None:
    caches = Both(device, size, dtype=dtype)
    for tokens in (70, 1, 1, 30, 1, 64, 1, 200, 1):
        caches.update(tokens)
    sealed = (369 - 16) // 32
    report = caches.ours.report()
    assert report.pages >= 3 * BATCH * (sealed - 1)
    assert all(layer.keys.shape[-2] < 16 + 32 for layer in caches.ours.layers)
    caches.ours.close()


def test_keys_and_values_of_different_sizes(device: str) -> None:
    caches = Both(device, 96, 64)
    for tokens in (100, 1, 1):
        caches.update(tokens)


@pytest.mark.parametrize("removed", [1, 15, 16, 40, 64, 90, 144, 145, 1000])
def test_crop(device: str, removed: int) -> None:
    caches = Both(device)
    caches.update(144)
    caches.update(1)
    caches.both("crop", -removed)
    for tokens in (1, 60, 1):
        caches.update(tokens)


def test_beams_and_batches(device: str) -> None:
    caches = Both(device)
    caches.update(100)
    pages = caches.ours.report().pages
    caches.both("reorder_cache", torch.tensor([2, 2, 0], device=device))
    assert caches.ours.report().pages == pages - 3 * 2, "sequences share pages, those of none are dropped"
    caches.update(1)
    caches.both("batch_repeat_interleave", 2)
    caches.update(1, batch=6)
    caches.update(70, batch=6)
    caches.both("reorder_cache", torch.tensor([5, 0, 1, 1, 3, 3], device=device))
    caches.update(1, batch=6)
    caches.both("batch_select_indices", torch.tensor([4, 1]))
    caches.update(1, batch=2)
    caches.both("batch_select_indices", torch.tensor([False, True]))
    caches.update(40, batch=1)
    caches.both("crop", -60)
    caches.update(1, batch=1)


def test_reset_and_close_free_the_pages() -> None:
    caches = Both("cpu")
    caches.update(100)
    caches.ours.reset()
    caches.theirs = DynamicCache()  # transformers 4 keeps zeros
    assert caches.ours.report().pages == 0
    caches.update(100, batch=1)
    caches.ours.close()
    assert caches.ours.report().locked_bytes == 0 and caches.ours.get_seq_length() == 0
    caches.ours.close()


@pytest.mark.parametrize(
    "how", [{"do_sample": False}, {"do_sample": True}, {"num_beams": 3}, {"prompt_lookup_num_tokens": 3}], ids=str
)
@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.filterwarnings("ignore:`past_key_values` is deprecated")
def test_generates_the_same_tokens(device: str, how: dict[str, Any], batch: int) -> None:
    if (batch > 1 or IS_4) and "prompt_lookup_num_tokens" in how:
        pytest.skip("assisted generation takes one sequence; that of transformers 4 an end token")
    model, ids = llama().to(device), some_ids(device, (batch, 90)) % 900 + 1
    mask = torch.ones_like(ids)
    mask[0, :5] = batch == 1
    options: dict[str, Any] = {"attention_mask": mask, "max_new_tokens": 60, **how}
    tokens = []
    with make(model.config) as cache:
        for given in ({}, {"past_key_values": cache}):
            torch.manual_seed(1)
            tokens.append(model.generate(ids, **options, **given))
        assert cache.report().pages > 0
    assert torch.equal(*tokens)


@pytest.mark.parametrize("layers", [1, 2, 3, 4])
def test_each_layer_is_fetched_once_a_step(device: str, layers: int, request: pytest.FixtureRequest) -> None:
    if "cpu" in request.node.callspec.id:
        pytest.skip("nothing is fetched there")
    cache, kv = make(), torch.randn(1, 2, 100, 64, generator=torch.Generator().manual_seed(0)).bfloat16().to(device)

    def step(tokens: int) -> int:
        before = moved_bytes(cache)
        for layer in range(layers):
            cache.update(kv[:, :, :tokens], kv[:, :, :tokens], layer)
        return moved_bytes(cache) - before

    step(100)
    step(1)
    once = sum(layer.pages.report().compressed_bytes for layer in cache.layers)
    for _ in range(3):
        assert 0.9 * once < step(1) <= once
    cache.close()


def moved_bytes(cache: CompressedOffloadedCache) -> int:
    landings = {id(layer.landing): layer.landing for layer in cache.layers if layer.landing is not None}
    return sum(landing.moved_bytes for landing in landings.values())


def test_sliding_layers_are_left_to_transformers() -> None:
    config = transformers.MistralConfig(
        vocab_size=1000, hidden_size=256, intermediate_size=512, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, sliding_window=48, eos_token_id=None, pad_token_id=0,
    )  # fmt: skip
    torch.manual_seed(0)
    model = transformers.MistralForCausalLM(config).bfloat16().eval()
    with make(config) as cache:
        assert not any(isinstance(layer, CompressedLayer) for layer in cache.layers)
        ids = some_ids(shape=(1, 60)) % 900 + 1
        want = model.generate(ids, max_new_tokens=20, do_sample=False)
        assert torch.equal(want, model.generate(ids, max_new_tokens=20, do_sample=False, past_key_values=cache))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"block_tokens": 33}, "block_tokens: want a multiple of 32"),
        ({"recent_tokens": -1}, "recent_tokens: want 0 or more"),
        ({"budget": "nonsense"}, "budget: want bytes"),
    ],
)
def test_bad_options(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make(**options)


def test_the_budget_is_of_all_layers() -> None:
    cache = make(budget=200_000)
    kv = torch.randn(1, 2, 512, 64).bfloat16()
    with pytest.raises(MemoryError):
        for layer in range(4):
            cache.update(kv, kv, layer)


@pytest.mark.cuda
def test_gpu_memory_is_that_of_a_layer() -> None:
    """Not of all layers, which transformers' cache has there."""
    layers, tokens = 12, 8192
    kv = torch.randn(1, 8, tokens, 128, device="cuda").bfloat16()
    with make(block_tokens=64, budget=layers * 2 * kv.nbytes) as cache:
        before = torch.cuda.memory_allocated()
        for layer in range(layers):
            cache.update(kv, kv, layer)
        for _ in range(2):
            for layer in range(layers):
                updated = cache.update(kv[:, :, :1], kv[:, :, :1], layer)
        assert_bitwise_equal(updated[0][:, :, :tokens], kv)
        del updated
        torch.cuda.synchronize()
        held = torch.cuda.memory_allocated() - before
    assert held < 6 * kv.nbytes, held / kv.nbytes

"""CompressedEmbeddingBag against the oracle of its order and against torch.nn.EmbeddingBag."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pool_cases import DTYPES, MODES, bags, table

import ibp_gnn
from ibp_gnn import Codec, CompressedEmbeddingBag, CompressedFeatureStore
from ibp_gnn.testing import oracle_pool
from ibp_gnn.testing.bits import assert_bitwise_equal

NUM_ROWS = 300
devices = pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.cuda)])
_stores: dict[tuple[torch.dtype, int], CompressedFeatureStore] = {}


def make(rows, **options):
    return CompressedEmbeddingBag.from_pretrained(rows, progress=False, **options)


def store_of(dtype: torch.dtype, width: int) -> CompressedFeatureStore:
    """Made once: what is drawn are bags, not rows."""
    if (dtype, width) not in _stores:
        codec = Codec.fit(table(dtype, width, hostile=False))
        _stores[dtype, width] = CompressedFeatureStore.build(
            table(dtype, width, NUM_ROWS, hostile=False), codec, progress=False
        )
    return _stores[dtype, width]


@st.composite
def calls(draw):
    """A module's options and the arguments of a call."""
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    mode, dtype = draw(st.sampled_from(MODES)), draw(st.sampled_from(DTYPES))
    options = {
        "mode": mode,
        "padding_idx": draw(st.none() | st.integers(-NUM_ROWS, NUM_ROWS - 1)),
        "include_last_offset": draw(st.booleans()),
    }
    kind, of_offsets = (draw(st.sampled_from((torch.int32, torch.int64))) for _ in range(2))
    few = draw(st.booleans())  # so that the padding is among them
    most = 4 if few else NUM_ROWS
    weighted = mode == "sum" and draw(st.booleans())
    if draw(st.booleans()):
        shape = (draw(st.integers(0, 6)), draw(st.integers(0, 9)))
        ids, offsets = torch.randint(0, most, shape, generator=generator).to(kind), None
        options["include_last_offset"] = False
    else:
        lengths = draw(st.lists(st.sampled_from((0, 0, 1, 2, 3, 7, 40, 130, 260)), min_size=1, max_size=5))
        ids = torch.randint(0, most, (sum(lengths),), generator=generator).to(kind)
        starts = [sum(lengths[:i]) for i in range(len(lengths))]
        offsets = torch.tensor(starts + [len(ids)] * options["include_last_offset"]).to(of_offsets)
    weights = torch.randn(ids.shape, generator=generator).to(dtype) if weighted else None
    return dtype, draw(st.sampled_from((4, 16, 33))), options, ids, offsets, weights


def expected_of(rows, options, ids, offsets, weights):
    if offsets is None:
        bounds = torch.arange(len(ids) + 1) * ids.shape[1]
    else:
        last = [] if options["include_last_offset"] else [torch.tensor([len(ids)])]
        bounds = torch.cat([offsets.long(), *last])
    padding = options["padding_idx"]
    return oracle_pool.pool(
        rows,
        ids.reshape(-1),
        bounds,
        mode=options["mode"],
        padding_id=-1 if padding is None else padding % NUM_ROWS,
        weights=None if weights is None else weights.reshape(-1),
    )


@settings(max_examples=300)
@given(calls())
def test_bits_of_the_oracle(call):
    dtype, width, options, *arguments = call
    bag = make(store_of(dtype, width), **options)
    rows = table(dtype, width, NUM_ROWS, hostile=False)
    assert_bitwise_equal(bag(*arguments), expected_of(rows, options, *arguments))


@pytest.mark.cuda
@settings(max_examples=300)
@given(calls())
def test_bits_of_the_oracle_on_a_gpu(call):
    dtype, width, options, *arguments = call
    bag = make(store_of(dtype, width), device="cuda", **options)
    rows = table(dtype, width, NUM_ROWS, hostile=False)
    expected = expected_of(rows, options, *arguments)
    assert_bitwise_equal(bag(*arguments), expected)  # ids in CPU memory
    assert_bitwise_equal(bag(*(None if part is None else part.cuda() for part in arguments)), expected)
    bag.check()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_ten_thousand_calls_of_torchs(dtype):
    """Over all three dtypes. max is equal, sums differ by rounding."""
    generator, width = torch.Generator().manual_seed(0), 16
    rows = table(dtype, width, NUM_ROWS, hostile=False)
    store, greatest = store_of(dtype, width), 0.0
    modules = {
        (mode, padding, last): (
            make(store, mode=mode, padding_idx=padding, include_last_offset=last),
            torch.nn.EmbeddingBag.from_pretrained(
                rows.float(), mode=mode, padding_idx=padding, include_last_offset=last
            ),
        )
        for mode in MODES
        for padding in (None, 2)
        for last in (False, True)
    }
    epsilon = torch.finfo(dtype).eps
    numbers = torch.randint(0, 2**31, (3400, 8), generator=generator).tolist()
    for number, (mode, padding, last, kind, two_d, weigh, count, seed) in enumerate(numbers):
        mode, padding, last = MODES[mode % 3], (None, 2)[padding % 2], bool(last % 2)
        drawn = torch.Generator().manual_seed(seed)
        ids_dtype = (torch.int32, torch.int64)[kind % 2]
        if two_d % 4 == 0 and not last:
            ids = torch.randint(0, 40, (count % 5, 1 + count % 7), generator=drawn).to(ids_dtype)
            offsets, longest = None, ids.shape[1]
        else:
            lengths = torch.randint(0, 12, (1 + count % 6,), generator=drawn)
            ids = torch.randint(0, 40, (int(lengths.sum()),), generator=drawn).to(ids_dtype)
            offsets = torch.cat([torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)])
            offsets, longest = (offsets if last else offsets[:-1]).to(ids_dtype), 12
        weights = None
        if mode == "sum" and weigh % 2:
            weights = torch.randn(ids.shape, generator=drawn).to(dtype)
        ours, torchs = modules[mode, padding, last]
        got = ours(ids, offsets, weights)
        expected = torchs(ids, offsets, None if weights is None else weights.float())
        assert got.dtype == dtype and got.shape == expected.shape, number
        if mode == "max":
            assert torch.equal(got.float(), expected), number
        elif len(ids):
            difference = float((got.double() - expected.double()).abs().max()) if len(got) else 0.0
            greatest = max(greatest, difference)
            # Rounding of the result, and of each sum in float32.
            bound = epsilon * float(expected.abs().max()) + longest * 2.0**-23 * longest
            assert difference <= bound, number
    print(f"{dtype}: differs by at most {greatest:.1e}")
    assert greatest < 0.05


@devices
@pytest.mark.parametrize("mode", MODES)
def test_what_torch_refuses_is_refused_alike(device, mode):
    rows = table(torch.float32, 8, NUM_ROWS, hostile=False)
    ours = make(store_of(torch.float32, 16), mode=mode, device=device)
    torchs = torch.nn.EmbeddingBag.from_pretrained(table(torch.float32, 16, NUM_ROWS, hostile=False), mode=mode)
    ids, offsets = torch.arange(6), torch.tensor([0, 2])
    refused = [
        (ids, None, None),
        (ids.view(2, 3), offsets, None),
        (ids.view(1, 2, 3), None, None),
        (ids, offsets.view(1, 2), None),
        (ids, offsets + 1, None),
        (ids, torch.tensor([0, 7]), None),
        (ids.float(), offsets, None),
        (ids, offsets.float(), None),
        (ids, offsets, torch.ones(5)),
    ]
    if mode != "sum":
        refused.append((ids, offsets, torch.ones(6)))
    else:
        refused.append((ids, offsets, torch.ones(6, dtype=torch.float64)))
    for arguments in refused:
        with pytest.raises((ValueError, RuntimeError, NotImplementedError)) as of_torch:
            torchs(*arguments)
        with pytest.raises(of_torch.type, match="want"):
            ours(*arguments)
    assert len(rows) == NUM_ROWS


@devices
def test_bad_input(device):
    bag = make(store_of(torch.float32, 16), device=device, mode="sum")
    with pytest.raises(IndexError, match="want 0 <= id < 300, got 300 at position 1"):
        bag(torch.tensor([[0, 300]]))
    with pytest.raises(IndexError, match="got -1"):
        bag(torch.tensor([[0, -1]]))
    with pytest.raises(TypeError, match="input: want a tensor, got list"):
        bag([[0]])
    with pytest.raises(RuntimeError, match="not to fall, got 4 before 2"):
        bag(torch.arange(6), torch.tensor([0, 4, 2]))
    with pytest.raises(RuntimeError, match="requires_grad"):
        bag(torch.tensor([[1]]), per_sample_weights=torch.ones(1, 1, requires_grad=True))
    with pytest.raises(ValueError, match="mode: want one of sum, mean, max, got 'min'"):
        make(store_of(torch.float32, 16), mode="min")
    for padding in (300, -301):
        with pytest.raises(AssertionError):
            torch.nn.EmbeddingBag(300, 4, padding_idx=padding)
        with pytest.raises(AssertionError, match="padding_idx: want -300 to 299"):
            make(store_of(torch.float32, 16), padding_idx=padding)


def test_options_of_a_module_are_taken():
    module = torch.nn.EmbeddingBag(50, 8, mode="max", padding_idx=-3, include_last_offset=True)
    module.weight.requires_grad_(False)
    bag = make(module)
    assert (bag.mode, bag.padding_idx, bag.include_last_offset) == ("max", 47, True)
    ids, offsets = torch.tensor([1, 47, 3, 47]), torch.tensor([0, 3, 4])
    assert torch.equal(bag(ids, offsets), module(ids, offsets))
    assert make(module, mode="sum", include_last_offset=False).mode == "sum"
    assert make(torch.randn(50, 8)).mode == "mean"


@devices
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_hostile_rows_and_long_bags(device, dtype):
    rows = table(dtype, 40, NUM_ROWS)
    case = bags(NUM_ROWS, 50, 3, long_bags=3)
    for mode in MODES:
        bag = make(rows, mode=mode, device=device)
        expected = oracle_pool.pool(rows, case.ids, case.bounds(), mode=mode)
        assert_bitwise_equal(bag(case.ids, case.offsets), expected)


@pytest.mark.cuda
@pytest.mark.parametrize("hot", [True, False])
def test_a_cache(hot):
    rows = table(torch.bfloat16, 64, 4000)
    hotness = torch.arange(4000) % 91 if hot else None
    bag = make(rows, capacity=0.3, hotness=hotness, mode="sum")
    assert bag.device == torch.device("cuda", 0) and bag.table.source.num_cached > 500
    case = bags(4000, 900, 3, long_bags=3)
    expected = oracle_pool.pool(rows, case.ids, case.bounds(), mode="sum")
    out = bag(case.ids, case.offsets)
    assert out.is_cuda
    assert_bitwise_equal(out, expected)
    stats = bag.stats()
    assert stats.hits + stats.misses == len(case.ids) and stats.pcie_bytes > 0
    bag.reset_stats()
    assert bag.stats() == ibp_gnn.GatherStats()
    cached = torch.nonzero(hotness == 90).flatten()[:40] if hot else torch.arange(40)
    bag(cached.view(8, 5))
    assert bag.stats().misses == 0


@pytest.mark.cuda
def test_rows_that_are_not_page_locked():
    rows = table(torch.float32, 64, 1000)
    bag = make(rows, device="cuda", pin=False, mode="mean")
    case = bags(1000, 300, 4)
    assert_bitwise_equal(bag(case.ids, case.offsets), oracle_pool.pool(rows, case.ids, case.bounds(), mode="mean"))


@devices
def test_update(device):
    rows = table(torch.float32, 16, NUM_ROWS, hostile=False)
    bag = make(rows, mode="sum", device=device)
    ids = torch.randint(0, NUM_ROWS, (40, 5), generator=torch.Generator().manual_seed(0))
    bounds = torch.arange(41) * 5
    assert_bitwise_equal(bag(ids), oracle_pool.pool(rows, ids.view(-1), bounds, mode="sum"))
    rows[10:60] = table(torch.float32, 16, 50, seed=5)
    bag.update(torch.arange(10, 60), rows[10:60])
    assert_bitwise_equal(bag(ids), oracle_pool.pool(rows, ids.view(-1), bounds, mode="sum"))
    assert_bitwise_equal(bag.to_dense(), rows)


@devices
def test_inference_mode_and_no_gradients(device):
    bag = make(store_of(torch.float32, 16), device=device)
    with torch.inference_mode():
        inside = bag(torch.tensor([[1, 2]]))
    assert torch.equal(inside, bag(torch.tensor([[1, 2]]))) and not inside.requires_grad
    assert not list(bag.parameters())

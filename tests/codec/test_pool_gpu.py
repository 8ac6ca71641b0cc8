"""Pooling on a GPU: the bits of the CPU, whatever is cached, staged or pooled in two steps."""

from __future__ import annotations

import threading

import pytest
import torch
from pool_cases import DTYPES, MODES, bags, table

import ibp_gnn
from ibp_gnn import Codec, _native
from ibp_gnn.codec import pool_gpu
from ibp_gnn.codec.pool import Bags, pool_on_cpu
from ibp_gnn.codec.pool_gpu import GpuPool, PooledFeature, pool_rows
from ibp_gnn.testing.bits import assert_bitwise_equal

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.filterwarnings("ignore:capacity"),
]
GPU = torch.device("cuda", 0)
WIDTHS = (1, 7, 16, 33, 64, 100, 128, 200, 256, 300, 512)


class Tables:
    """A store, what caches it, and pooling both ways."""

    def __init__(self, rows, capacity="50%", codec=None, seed=0, prefix=True, layout="compact"):
        """codec: None = fitted to usual rows, whatever these are."""
        self.rows = rows
        if codec is None:
            codec = Codec.fit(table(rows.dtype, rows.shape[1], hostile=False), codec="dict")
        order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(seed)) if prefix else None
        self.store = ibp_gnn.CompressedFeatureStore.build(rows, codec, order=order, progress=False, layout=layout)
        self.source = self.store
        if capacity is not None:
            hotness = None if prefix else torch.arange(len(rows)) % 97
            self.source = ibp_gnn.CompressedGPUCache(self.store, capacity, hotness=hotness)

    def feature(self, mode="sum", key=0, padding_id=-1, column=0):
        return PooledFeature(self.source.gather_on(GPU), key, mode, padding_id, column)

    def on_cpu(self, of: Bags, mode, padding_id=-1):
        out = torch.empty(of.num_bags, self.rows.shape[1], dtype=self.rows.dtype)
        how = {"mode": mode, "padding_id": padding_id, "slot_of": self.store.slot_of}
        pool_on_cpu(self.store.codec.form, self.store.rows, of, out, **how)
        return out

    def on_gpu(self, of: Bags, mode="sum", padding_id=-1):
        pool = GpuPool(GPU, self.rows.dtype, [self.feature(mode, padding_id=padding_id)])
        return run(pool, of, self.rows)


def run(pool, of: Bags, rows, columns=None, staged=None):
    out = torch.full((of.num_bags, rows.shape[1] if columns is None else columns), 77, dtype=rows.dtype, device=GPU)
    pool.pool(to_gpu(of), out, staged)
    return out


def to_gpu(of: Bags) -> Bags:
    return Bags(*(part.to(GPU) if isinstance(part, torch.Tensor) else part for part in of))


def of(case, num_bags) -> Bags:
    weights = None if case.weights is None else case.weights.float()
    return Bags(case.ids, case.offsets, 0, num_bags, weights)


@pytest.fixture(params=["staged", "in_parts", "direct"])
def staging(request, monkeypatch):
    """How rows that are not cached get to the GPU."""
    monkeypatch.setattr(pool_gpu, "STAGE_MIN_IDS", 1 << 40 if request.param == "direct" else 1)
    monkeypatch.setattr(pool_gpu, "STAGE_BELOW_CACHED", 2.0)
    monkeypatch.setattr(pool_gpu, "STAGE_PART_IDS", 1 if request.param == "in_parts" else 1 << 40)
    return request.param


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_bits_of_the_cpu(dtype, width, staging):
    tables = Tables(table(dtype, width, 1500), "700 rows")
    at_once = _native.cuda().can_pool(tables.feature().gather.plan)
    assert at_once or width in (1, 7, 33) or width * dtype.itemsize > 1024
    for number, mode in enumerate((*MODES, "weighted")):
        weights = dtype if mode == "weighted" else None
        mode = "sum" if mode == "weighted" else mode
        ids = torch.int32 if number % 2 else torch.int64
        case = of(bags(1500, 400, number, long_bags=5, dtype=ids, weights=weights), 400)
        padding_id = int(case.ids[3])
        expected = tables.on_cpu(case, mode, padding_id)
        assert_bitwise_equal(tables.on_gpu(case, mode, padding_id), expected)
    tables.source.check()


@pytest.mark.parametrize("capacity", [None, "1 row", "30%", "3000 rows"])
@pytest.mark.parametrize("prefix", [True, False])
@pytest.mark.parametrize("layout", ["compact", "inplace"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_whatever_is_cached(dtype, capacity, prefix, layout, staging):
    tables = Tables(table(dtype, 64, 3000), capacity, prefix=prefix, layout=layout)
    case = of(bags(3000, 700, 1, long_bags=2), 700)
    assert_bitwise_equal(tables.on_gpu(case, "sum"), tables.on_cpu(case, "sum"))
    tables.source.check()
    stats = tables.source.stats()
    assert stats.hits + stats.misses == len(case.ids)
    if capacity is None:
        assert stats.hits == 0
    if capacity == "3000 rows":
        assert stats.misses == stats.pcie_bytes == 0
    elif staging != "direct":
        different = len(torch.unique(case.ids))
        overflow = (
            tables.store.rows.overflows(tables.store.to_slots(case.ids.long())).sum() * tables.store.codec.row_bytes
        )
        assert 0 < stats.pcie_bytes <= different * (tables.store.slot_bytes + 32) + int(overflow) + 4 * len(case.ids)


@pytest.mark.parametrize("codec", ["ibp", "zero_code"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_rows_that_no_kernel_pools_at_once(dtype, codec):
    rows = table(dtype, 64, 1000)
    if codec == "zero_code":
        rows = torch.where(torch.rand(rows.shape, generator=torch.Generator().manual_seed(0)) < 0.7, 0.0, rows.float())
        rows = rows.to(dtype)
    tables = Tables(rows, codec=Codec.fit(rows, codec="ibp" if codec == "ibp" else "dict"))
    assert codec == "ibp" or tables.store.codec.form.parameters()["zero_code"]
    assert not _native.cuda().can_pool(tables.feature().gather.plan)
    for mode in MODES:
        case = of(bags(1000, 300, 2, long_bags=3), 300)
        assert_bitwise_equal(tables.on_gpu(case, mode, int(case.ids[0])), tables.on_cpu(case, mode, int(case.ids[0])))


def test_usual_rows_are_pooled_at_once():
    for dtype in DTYPES:
        for width in (16, 64, 128, 256):
            assert _native.cuda().can_pool(Tables(table(dtype, width, hostile=False)).feature().gather.plan)


@pytest.mark.parametrize("num_bags", [1, 2, 31, 513, 20000])
@pytest.mark.parametrize("bag_ids", [0, 1, 5, 127, 128, 255, 256, 257, 1000])
def test_bags_of_equal_length(num_bags, bag_ids):
    if num_bags * bag_ids > 600000:
        pytest.skip("large")
    tables = Tables(table(torch.float32, 64, 900))
    ids = torch.randint(0, 900, (num_bags * bag_ids,), generator=torch.Generator().manual_seed(bag_ids))
    case = Bags(ids, None, bag_ids, num_bags)
    assert_bitwise_equal(tables.on_gpu(case, "mean"), tables.on_cpu(case, "mean"))


def test_one_bag_of_many():
    tables = Tables(table(torch.bfloat16, 32, 900))
    case = Bags(torch.randint(0, 900, (300_001,)), None, 300_001, 1)
    assert_bitwise_equal(tables.on_gpu(case, "sum"), tables.on_cpu(case, "sum"))


def test_last_offset_may_come_before_the_end():
    tables = Tables(table(torch.float32, 64, 900))
    case = Bags(torch.arange(100), torch.tensor([0, 10, 90]), 0, 2)
    assert_bitwise_equal(tables.on_gpu(case, "sum"), tables.on_cpu(case, "sum"))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_several_tables_and_kernels_in_one_output(dtype, staging):
    widths = (16, 128, 64, 128, 300, 8, 64, 128)
    all_tables = [Tables(table(dtype, width, 500 + 100 * i, i), capacity="60%") for i, width in enumerate(widths)]
    all_tables[5] = Tables(table(dtype, 8, 1000, 5), codec="ibp")
    modes = [MODES[i % 3] for i in range(len(widths))]
    cases = [of(bags(len(one.rows), 257, i, long_bags=i % 2), 257) for i, one in enumerate(all_tables)]
    order = torch.randperm(len(widths), generator=torch.Generator().manual_seed(9)).tolist()  # of the features' ids
    offsets, first = [], 0
    for i in order:
        offsets.append(cases[i].offsets + first)
        first += len(cases[i].ids)
    case = Bags(torch.cat([cases[i].ids for i in order]), torch.cat(offsets), 0, 257)
    features, column = [], 0
    for i, one in enumerate(all_tables):
        features.append(one.feature(modes[i], order.index(i), column=column))
        column += widths[i]
    # The last feature looks up the first table once more.
    features.append(all_tables[1].feature("sum", order.index(1), column=column))
    pool = GpuPool(GPU, dtype, features)
    for _ in range(2):
        out = run(pool, case, all_tables[0].rows, column + 128)
        parts = out.split([*widths, 128], dim=1)
        for i, one in enumerate(all_tables):
            assert_bitwise_equal(parts[i].contiguous(), one.on_cpu(cases[i], modes[i]))
        assert_bitwise_equal(parts[-1].contiguous(), all_tables[1].on_cpu(cases[1], "sum"))


def test_rows_that_were_staged_for_other_ids_do_no_harm(monkeypatch):
    tables = Tables(table(torch.float32, 64, 3000), "10%")
    pool = GpuPool(GPU, torch.float32, [tables.feature()])
    monkeypatch.setattr(pool_gpu, "STAGE_MIN_IDS", 1)
    one, two = (of(bags(3000, 300, seed), 300) for seed in (1, 2))
    staged = pool.stage(to_gpu(one))
    assert staged is not None
    assert_bitwise_equal(run(pool, two, tables.rows, staged=staged), tables.on_cpu(two, "sum"))
    before = tables.source.stats().pcie_bytes
    assert_bitwise_equal(run(pool, one, tables.rows, staged=staged), tables.on_cpu(one, "sum"))
    overflows = tables.store.rows.overflows(tables.store.to_slots(one.ids))
    assert tables.source.stats().pcie_bytes - before <= int(overflows.sum()) * tables.store.codec.row_bytes


def test_more_rows_than_can_be_staged(monkeypatch):
    tables = Tables(table(torch.float32, 64, 3000), "10%")
    monkeypatch.setattr(pool_gpu, "STAGE_MIN_IDS", 1)
    monkeypatch.setattr(pool_gpu, "_STAGE_MOST_BYTES", 40 * 256)
    case = of(bags(3000, 300, 3), 300)
    assert_bitwise_equal(tables.on_gpu(case, "sum"), tables.on_cpu(case, "sum"))


def test_after_an_update(staging):
    tables = Tables(table(torch.float32, 64, 2000), "30%")
    pool = GpuPool(GPU, torch.float32, [tables.feature()])
    case = of(bags(2000, 300, 4), 300)
    run(pool, case, tables.rows)
    for seed in range(3):
        new = table(torch.float32, 64, 2000, seed + 10)
        ids = torch.randperm(2000)[:700]
        tables.store.update(ids, new[ids])
        assert_bitwise_equal(run(pool, case, tables.rows), tables.on_cpu(case, "sum"))


@pytest.mark.parametrize("mode", MODES)
def test_bad_ids_count_as_zeros_and_are_reported(mode, staging):
    rows = table(torch.float32, 64, 800, hostile=False)
    tables = Tables(torch.cat([rows, torch.zeros(1, 64)]))
    case = of(bags(800, 200, 5), 200)
    bad, good = case.ids.clone(), case.ids.clone()
    bad[::7], good[::7] = 801 + torch.arange(len(bad[::7])), 800
    bad[7] = -5
    pool = GpuPool(GPU, torch.float32, [tables.feature(mode)])
    got = run(pool, case._replace(ids=bad), rows)
    assert_bitwise_equal(got, tables.on_cpu(case._replace(ids=good), mode))
    with pytest.raises(IndexError, match="want 0 <= id < 801"):
        tables.source.check()
    assert_bitwise_equal(run(pool, case, rows), tables.on_cpu(case, mode))


def test_damaged_rows_count_as_zeros_and_are_reported(staging):
    rows = table(torch.float32, 64, 800, hostile=False)
    tables = Tables(torch.cat([rows, torch.zeros(1, 64)]), None)
    case = of(bags(800, 200, 6), 200)
    compressed = tables.store.rows
    payloads = torch.nonzero(compressed.is_compressed()).flatten()[:200]
    zeros = {int(one) for one in torch.nonzero(torch.isin(tables.store.slot_of.long()[:800], payloads)).flatten()}
    tables.feature()
    torch.cuda.synchronize()
    expected = case._replace(ids=torch.tensor([800 if int(one) in zeros else int(one) for one in case.ids]))
    expected = tables.on_cpu(expected, "sum")
    compressed.slot_matrix()[payloads] = 0xFF
    pool = GpuPool(GPU, torch.float32, [tables.feature()])
    assert_bitwise_equal(run(pool, case, rows), expected)
    with pytest.raises(ibp_gnn.FormatError, match="damaged"):
        tables.source.check()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_random_bytes_as_slots_read_nothing_outside(dtype, staging):
    """Run under compute-sanitizer, too; what comes out is unspecified."""
    tables = Tables(table(dtype, 64, 800), None)
    generator = torch.Generator().manual_seed(3)
    tables.store.rows.slot_matrix().random_(0, 256, generator=generator)
    case = of(bags(800, 300, 6, long_bags=2), 300)
    run(GpuPool(GPU, dtype, [tables.feature()]), case, tables.rows)
    with pytest.raises((ibp_gnn.FormatError, IndexError)):
        tables.source.check()


def test_offsets_that_make_no_bags_do_no_harm(staging):
    tables = Tables(table(torch.float32, 64, 800))
    generator = torch.Generator().manual_seed(3)
    for _ in range(20):
        offsets = torch.randint(-(10**6), 10**6, (500,), generator=generator)
        offsets[::2] = torch.randint(-10, 3000, (250,), generator=generator)
        tables.on_gpu(Bags(torch.randint(0, 800, (3000,)), offsets, 0, 500))
    tables.source.check()
    case = of(bags(800, 200, 6), 200)
    assert_bitwise_equal(tables.on_gpu(case), tables.on_cpu(case, "sum"))


def test_no_bags_and_no_ids(staging):
    tables = Tables(table(torch.float32, 64, 800))
    none = torch.zeros(0, dtype=torch.int64)
    pool = GpuPool(GPU, torch.float32, [tables.feature("max")])
    out = torch.empty(0, 64, device=GPU)
    if staging == "direct":
        pool.pool(to_gpu(Bags(none, none, 0, 0)), out)
    assert torch.equal(
        run(pool, Bags(none, torch.zeros(3, dtype=torch.int64), 0, 3), tables.rows).cpu(), torch.zeros(3, 64)
    )


def test_rows_that_were_gathered():
    for dtype in DTYPES:
        rows = table(dtype, 40, 500)
        tables = Tables(rows)
        case = of(bags(500, 100, 7, long_bags=1, weights=torch.float32), 100)
        out = torch.full((100, 50), 7, dtype=dtype, device=GPU)
        pool_rows(rows[case.ids].to(GPU), to_gpu(case), out, mode="sum", column=10)
        assert_bitwise_equal(out[:, 10:].contiguous(), tables.on_cpu(case, "sum"))
        assert bool((out[:, :10] == 7).all())


def test_streams_and_threads(staging):
    tables = Tables(table(torch.float32, 128, 5000), "20%")
    pool = GpuPool(GPU, torch.float32, [tables.feature()])
    cases = [of(bags(5000, 500, seed), 500) for seed in range(8)]
    expected = [tables.on_cpu(case, "sum") for case in cases]
    failures: list[BaseException] = []

    def work(number: int) -> None:
        try:
            stream = torch.cuda.Stream(GPU)
            with torch.cuda.stream(stream):
                for turn in range(20):
                    at = (number + turn) % len(cases)
                    assert_bitwise_equal(run(pool, cases[at], tables.rows), expected[at])
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures, failures[0]


def test_memory_outlives_what_was_launched(staging):
    """Everything is dropped at once, and its memory written over, while the kernel waits behind others."""
    rows = table(torch.float32, 128, 5000)
    case = of(bags(5000, 2000, 8), 2000)
    tables = Tables(rows, "50%")
    expected = tables.on_cpu(case, "sum")
    stream = torch.cuda.Stream(GPU)
    with torch.cuda.stream(stream):
        torch.cuda._sleep(50_000_000)
        got = tables.on_gpu(case)
    size = tables.source.nbytes
    tables.store.close()
    del tables
    torch.full((max(1, size),), 0xFF, dtype=torch.uint8, device=GPU)
    assert_bitwise_equal(got, expected)


def test_in_a_cuda_graph(staging):
    tables = Tables(table(torch.float32, 128, 5000), "50%")
    pool = GpuPool(GPU, torch.float32, [tables.feature()])
    cases = [Bags(torch.randint(0, 5000, (4000,)), None, 8, 500) for _ in range(3)]
    of_graph = to_gpu(cases[0])
    out = torch.empty(500, 128, device=GPU)
    pool.pool(of_graph, out)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        pool.pool(of_graph, out)
    for case in cases:
        of_graph.ids.copy_(case.ids)
        graph.replay()
        assert_bitwise_equal(out, tables.on_cpu(case, "sum"))


def test_the_extension_checks_what_it_gets():
    cuda = _native.cuda()
    tables = Tables(table(torch.float32, 64, 800))
    plan = tables.feature().gather.plan
    with pytest.raises(ValueError, match="mode: want 0 to 2, got 3"):
        cuda.make_pool_plan(0, [(plan, 0, 3, -1, 0)])
    ibp = Tables(table(torch.float32, 64, 800), codec="ibp").feature().gather.plan
    with pytest.raises(ValueError, match="want rows that a kernel decodes and pools"):
        cuda.make_pool_plan(0, [(plan, 0, 0, -1, 0), (ibp, 1, 0, -1, 0)])
    with pytest.raises(ValueError, match="ids: want at most"):
        request(num_ids=(1 << 30) + 1)
    with pytest.raises(ValueError, match="bags: want at least 0, got -1"):
        request(num_bags=-1)


def request(**changed):
    parts = dict.fromkeys(("ids", "offsets", "num_offsets", "bag_ids", "weights", "out", "out_stride_bytes"), 0)
    flags = {"ids_are_int64": True, "offsets_are_int64": True, "num_ids": 0, "num_bags": 0}
    return _native.cuda().PoolRequest(**{**parts, **flags, **changed})


def test_codecs_with_a_dictionary_for_each_column():
    """Columns of different scales."""
    rows = torch.randn(4000, 64, generator=torch.Generator().manual_seed(0)) * (2.0 ** torch.arange(-32, 32))
    tables = Tables(rows, codec=Codec.fit(rows, codec="dict"))
    assert tables.store.codec.form.parameters()["per_column"]
    case = of(bags(4000, 300, 9), 300)
    assert _native.cuda().can_pool(tables.feature().gather.plan)
    assert_bitwise_equal(tables.on_gpu(case, "sum"), tables.on_cpu(case, "sum"))

"""CompressedFeatureStore: the same bits as the features, from every kind of input to every kind of target."""

from __future__ import annotations

import logging
import multiprocessing
import pickle
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from store_files import build, mixed_rows

from ibp_gnn import (
    Codec,
    CompressedFeatureStore,
    CompressedGPUCache,
    FormatError,
    Prefetcher,
    _native,
    share_budget,
)
from ibp_gnn.codec.values import SUPPORTED_DTYPES
from ibp_gnn.testing import KINDS, assert_bitwise_equal, special_rows

CUDA = pytest.param("cuda", marks=pytest.mark.cuda)


@pytest.fixture(params=["cpu", CUDA, pytest.param("cuda-staged", marks=pytest.mark.cuda)])
def target(request: pytest.FixtureRequest) -> tuple[torch.device, bool | str]:
    """(device to gather to, `pin` for the store)."""
    if request.param == "cpu":
        return torch.device("cpu"), "auto"
    if not torch.cuda.is_available() or not _native.cuda_is_built():
        pytest.skip("no CUDA device, or no CUDA extension")
    pin = False if request.param == "cuda-staged" else "auto"
    return torch.device("cuda", torch.cuda.current_device()), pin


@pytest.mark.parametrize("layout", ["compact", "inplace", "packed"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", SUPPORTED_DTYPES, ids=str)
def test_rows_come_back_bit_for_bit(dtype: torch.dtype, kind: str, layout: str, target: tuple) -> None:
    device, pin = target
    for width in (1, 3, 33, 128):
        rows = special_rows(dtype, width, kind, 70)
        with build(rows, layout=layout, pin=pin) as store:
            ids = torch.randint(0, 70, (200,), generator=torch.Generator().manual_seed(width))
            assert_bitwise_equal(store.gather(ids, device=device), rows[ids].to(device))
            assert store.layout == layout or store.slot_bytes == store.codec.row_bytes


@pytest.mark.parametrize("codec", ["ibp", "dict"])
@pytest.mark.parametrize("width", [1, 2, 3, 31, 32, 33, 50, 100, 128, 602, 1433, 9000])
def test_widths_with_overflow_rows(width: int, codec: str, target: tuple) -> None:
    device, pin = target
    rows = mixed_rows(torch.float32, width, 300)
    if codec == "dict":  # to which outliers are rows like others
        rows[torch.arange(300) % 9 > 0] = 0.1 * torch.randn(266, width, generator=torch.Generator().manual_seed(5))
    with build(rows, codec=codec, pin=pin) as store:
        if width >= (31 if codec == "ibp" else 50):
            assert store.rows.num_overflow > 0, "the data must exercise the overflow area"
        ids = torch.randperm(300, generator=torch.Generator().manual_seed(0))
        assert_bitwise_equal(store.gather(ids.to(device)), rows[ids].to(device))


@pytest.mark.parametrize("ids_dtype", [torch.int32, torch.int64])
def test_ids_of_every_kind(ids_dtype: torch.dtype, target: tuple) -> None:
    device, pin = target
    rows = mixed_rows(torch.float16, 17, 50)
    with build(rows, pin=pin) as store:
        for ids in ([], [7], [49, 0, 0, 0, 49], list(range(50)) * 3):
            wanted = rows[torch.tensor(ids, dtype=torch.int64)]
            for holder in ("cpu", device):
                got = store.gather(torch.tensor(ids, dtype=ids_dtype, device=holder), device=device)
                assert_bitwise_equal(got, wanted.to(device))
        strided = torch.arange(50, dtype=ids_dtype, device=device)[::3]
        assert_bitwise_equal(store.gather(strided), rows[::3].to(device))
        numpy_ids = np.array([3, 1], dtype=np.int32 if ids_dtype == torch.int32 else np.int64)
        assert_bitwise_equal(store.gather(numpy_ids, device=device), rows[[3, 1]].to(device))


def test_the_target_defaults_to_the_ids_device(target: tuple) -> None:
    device, pin = target
    with build(mixed_rows(torch.float32, 8, 40), pin=pin) as store:
        assert store.gather(torch.tensor([1], device=device)).device == device
        assert store.gather(torch.tensor([1], device=device), device="cpu").device.type == "cpu"


def test_out_is_filled_and_checked(target: tuple) -> None:
    device, pin = target
    rows = mixed_rows(torch.bfloat16, 12, 40)
    with build(rows, pin=pin) as store:
        out = torch.empty(3, 12, dtype=torch.bfloat16, device=device)
        assert store.gather(torch.tensor([5, 6, 7]), device=device, out=out) is out
        assert_bitwise_equal(out, rows[5:8].to(device))
        with pytest.raises(ValueError, match=r"out: want \[3, 12\] torch.bfloat16 .* got \[3, 11\]"):
            store.gather(torch.tensor([5, 6, 7]), device=device, out=out[:, :11])
        with pytest.raises(ValueError, match="got .*float32"):
            store.gather(torch.tensor([5, 6, 7]), device=device, out=out.float())


def test_an_unaligned_out_is_written_where_it_lies(target: tuple) -> None:
    device, pin = target
    rows = mixed_rows(torch.uint8, 40, 30)
    with build(rows, pin=pin) as store:
        room = torch.full((40 * 5 + 3,), 77, dtype=torch.uint8, device=device)
        out = room[1:201].view(5, 40)
        store.gather(torch.arange(5), device=device, out=out)
        assert_bitwise_equal(out, rows[:5].to(device))
        assert room[0] == 77 and bool((room[201:] == 77).all())


@pytest.mark.parametrize("bad", [-1, 40, 2**40, -(2**40)])
def test_cpu_ids_out_of_range_are_named_at_once(bad: int, target: tuple) -> None:
    device, pin = target
    with build(mixed_rows(torch.float32, 8, 40), pin=pin) as store:
        with pytest.raises(IndexError, match=rf"want 0 <= id < 40, got {bad} at position 2"):
            store.gather(torch.tensor([1, 2, bad]), device=device)


@pytest.mark.cuda
@pytest.mark.parametrize("bad", [-1, 40, 2**40, -(2**40)])
def test_gpu_ids_out_of_range_give_zeros_and_are_reported_later(bad: int) -> None:
    rows = mixed_rows(torch.float32, 8, 40)
    with build(rows) as store:
        got = store.gather(torch.tensor([1, bad, 2], device="cuda"))
        wanted = torch.stack([rows[1], torch.zeros(8), rows[2]])
        assert_bitwise_equal(got.cpu(), wanted)
        with pytest.raises(IndexError, match=rf"want 0 <= id < 40, got {bad} in an earlier gather"):
            store.check()
        store.check()  # reported once
        assert_bitwise_equal(store.gather(torch.tensor([3], device="cuda")).cpu(), rows[3:4])
        store.gather(torch.tensor([bad], device="cuda"))
        torch.cuda.synchronize()
        with pytest.raises(IndexError, match="earlier gather"):
            store.gather(torch.tensor([3], device="cuda"))
        store.gather(torch.tensor([bad], device="cuda"))
        with pytest.raises(IndexError, match="earlier gather"):
            store.close()


@pytest.mark.parametrize(
    ("ids", "error", "message"),
    [
        (torch.tensor([float("nan")]), TypeError, "ids: want int32 or int64, got torch.float32"),
        (torch.tensor([True]), TypeError, "got torch.bool"),
        (torch.tensor([[1]]), ValueError, r"ids: want shape \[n\], got \[1, 1\]"),
        ([1, 2], TypeError, "ids: want an int32 or int64 tensor, got list"),
        (np.array([1.0]), TypeError, "got numpy float64"),
    ],
)
def test_bad_ids(ids: object, error: type, message: str) -> None:
    with build(mixed_rows(torch.float32, 8, 40)) as store:
        with pytest.raises(error, match=message):
            store.gather(ids)


@pytest.mark.parametrize(
    ("features", "options", "error", "message"),
    [
        (torch.zeros(4, 0), {}, ValueError, r"features: want at least 1 value per row, got shape \[4, 0\]"),
        (torch.tensor(1.0), {}, ValueError, r"features: want \[n, \*row_shape\], got a scalar"),
        (torch.zeros(4, 2, dtype=torch.complex64), {}, TypeError, "got torch.complex64"),
        (
            [[1.0]],
            {},
            TypeError,
            r"features: want a torch.Tensor or a numpy.ndarray, got list; numpy.array\(features\)",
        ),
        ("x.npy", {}, TypeError, r"got str; read the file first: numpy.load\('x.npy', mmap_mode='r'\)"),
        (Path("x.npy"), {}, TypeError, r"got PosixPath; read the file first: numpy.load\('x.npy'"),
        (
            np.ma.masked_array(np.ones((4, 2)), [[True, False]] * 4),
            {},
            TypeError,
            r"masked array.*features.filled\(VALUE\)",
        ),
        (torch.eye(3).to_sparse(), {}, TypeError, r"want a dense tensor, got .*; features.to_dense\(\)"),
        (
            torch.zeros(4, 2),
            {"layout": "dense"},
            ValueError,
            r"layout: want one of \['compact', 'inplace', 'packed', 'auto'\], got 'dense'",
        ),
        (torch.zeros(4, 2), {"codec": "zip"}, ValueError, r"codec: want one of \['auto', 'dict', 'ibp'\], got 'zip'"),
        (torch.zeros(4, 2), {"codec": 3}, TypeError, "codec: want a name or a Codec, got int"),
        (torch.zeros(4, 2), {"pin": "yes"}, ValueError, "pin: want True, False or 'auto', got 'yes'"),
        (torch.zeros(4, 2), {"chunk_rows": 0}, ValueError, "chunk_rows: want at least 1, got 0"),
        (
            torch.zeros(4, 2),
            {"codec": Codec.fit(torch.zeros(4, 3))},
            ValueError,
            r"rows: want \[n, 3\] torch.float32, got \[4, 2\]",
        ),
        (torch.zeros(4, 3).half(), {"codec": Codec.fit(torch.zeros(4, 3))}, ValueError, "got .* torch.float16"),
    ],
)
def test_bad_builds(features: object, options: dict, error: type, message: str) -> None:
    with pytest.raises(error, match=message):
        build(features, **options)


def test_a_closed_store_says_so() -> None:
    store = build(mixed_rows(torch.float32, 8, 40))
    store.close()
    store.close()
    assert repr(store) == "CompressedFeatureStore(closed)"
    for use in (lambda: store.gather(torch.tensor([0])), lambda: store.nbytes, lambda: store.shape, lambda: len(store)):
        with pytest.raises(ValueError, match="this CompressedFeatureStore is closed"):
            use()


@pytest.mark.parametrize("chunk_rows", [1, 32, 50, 1000])
@pytest.mark.parametrize("layout", ["compact", "inplace"])
def test_chunks_do_not_change_a_byte(chunk_rows: int, layout: str) -> None:
    rows = mixed_rows(torch.float32, 33, 333)
    codec = Codec.fit(rows)
    whole = codec.compress(rows, slot_bytes=None if layout == "compact" else codec.row_bytes)
    store = build(rows, codec=codec, layout=layout, chunk_rows=chunk_rows)
    for name in ("slots", "bitmask", "overflow"):
        assert_bitwise_equal(getattr(store.rows, name), getattr(whole, name))


def test_numpy_memmap_and_strided_features(tmp_path: object) -> None:
    rows = mixed_rows(torch.float32, 20, 100)
    np.save(f"{tmp_path}/rows.npy", rows.numpy())
    memmap = np.load(f"{tmp_path}/rows.npy", mmap_mode="r")
    padded = torch.zeros(200, 40)
    padded[::2, ::2] = rows
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for features in (rows.numpy(), memmap, padded[::2, ::2], rows.clone().requires_grad_()):
            store = build(features, chunk_rows=32)
            assert_bitwise_equal(store.gather(torch.arange(100)), rows)


@pytest.mark.parametrize("row_shape", [(), (1,), (3, 4), (2, 1, 5)])
def test_rows_of_any_rank_keep_their_shape(row_shape: tuple[int, ...], target: tuple) -> None:
    device, pin = target
    rows = torch.randn(60, *row_shape, generator=torch.Generator().manual_seed(1))
    with build(rows, pin=pin) as store:
        assert store.shape == (60, *row_shape)
        assert_bitwise_equal(store.gather(torch.tensor([9, 9, 59]), device=device), rows[[9, 9, 59]].to(device))


def test_sizes_add_up() -> None:
    rows = mixed_rows(torch.float32, 50, 1000)
    store = build(rows)
    assert store.raw_nbytes == 1000 * 200 and store.dtype == torch.float32 and len(store) == 1000
    held = store.rows
    assert held.slots.numel() == 1000 * store.slot_bytes + 64
    assert store.nbytes == held.slots.numel() + held.overflow.numel() + held.bitmask.numel() + 2 * 200
    assert store.savings == 1 - store.nbytes / store.raw_nbytes
    # The slot length is the best one: no other multiple of 4 gives a smaller total.
    others = [store.codec.compress(rows, slot_bytes=length).nbytes for length in range(4, 204, 4)]
    assert held.nbytes == min(others)


def test_a_store_survives_pickling() -> None:
    rows = mixed_rows(torch.float32, 8, 40)
    copy = pickle.loads(pickle.dumps(build(rows, layout="inplace", pin=False)))
    assert_bitwise_equal(copy.gather(torch.arange(40)), rows)
    assert copy.layout == "inplace"


def _gather_in_child(store: CompressedFeatureStore, device: str, queue: object) -> None:
    try:
        got: object = store.gather(torch.arange(10), device=device).numpy().tobytes()
    except Exception as error:
        got = f"{type(error).__name__}: {error}"
    queue.put(got)  # type: ignore[attr-defined]


def _ask_child(store: CompressedFeatureStore, device: str) -> object:
    context = multiprocessing.get_context("fork")
    queue = context.SimpleQueue()
    child = context.Process(target=_gather_in_child, args=(store, device, queue))
    child.start()
    answer = queue.get()
    child.join(timeout=60)
    assert child.exitcode == 0
    return answer


def test_a_forked_child_decodes_on_the_cpu() -> None:
    rows = mixed_rows(torch.float32, 2000, 400)
    store = build(rows)
    store.gather(torch.arange(400))  # threads have run in the parent before the fork
    assert _ask_child(store, "cpu") == rows[:10].numpy().tobytes()


def test_a_forked_child_that_touches_cuda_is_told_why_not(monkeypatch: pytest.MonkeyPatch) -> None:
    """What torch reports in a child of a process that has initialised CUDA, on any machine."""
    store = build(mixed_rows(torch.float32, 8, 40))
    monkeypatch.setattr(torch.cuda, "_is_in_bad_fork", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    with pytest.raises(RuntimeError, match="forked after CUDA was initialised; gather to the CPU there, or start"):
        store.gather(torch.tensor([1]), device="cuda")


@pytest.mark.cuda
def test_a_real_forked_child_that_touches_cuda_is_told_why_not() -> None:
    rows = mixed_rows(torch.float32, 8, 40)
    with build(rows) as store:
        store.gather(torch.arange(3), device="cuda")
        assert "spawn" in str(_ask_child(store, "cuda"))
        assert _ask_child(store, "cpu") == rows[:10].numpy().tobytes()
        assert_bitwise_equal(store.gather(torch.arange(3), device="cuda").cpu(), rows[:3])


@pytest.mark.skipif(torch.cuda.is_available(), reason="a machine without a GPU")
def test_without_a_gpu_a_cuda_target_is_refused() -> None:
    store = build(mixed_rows(torch.float32, 8, 40))
    with pytest.raises(RuntimeError, match="device: want one that torch can use, got cuda"):
        store.gather(torch.tensor([1]), device="cuda")
    with pytest.raises(ValueError, match="device: want cpu or cuda, got meta"):
        store.gather(torch.tensor([1]), device="meta")


def test_a_damaged_row_is_refused(target: tuple) -> None:
    device, pin = target
    rows = special_rows(torch.float32, 50, "outliers", 100)
    rows[5] = special_rows(torch.float32, 50, "random_bits", 1)[0]
    store = build(rows, pin=pin)
    assert store.rows.num_overflow >= 1
    overflowing = int(torch.nonzero(store.rows.overflows())[0])
    compressed = int(torch.nonzero(store.rows.is_compressed())[0])
    slots = store.rows.slots.view(-1)
    slots[overflowing * store.slot_bytes : overflowing * store.slot_bytes + 4] = 255  # no such overflow row
    slots[compressed * store.slot_bytes : (compressed + 1) * store.slot_bytes] = 0  # no chunk participates
    for row in (overflowing, compressed):
        with pytest.raises((FormatError, ValueError), match=str(row) if pin == "auto" else "damaged|overflow"):
            store.gather(torch.tensor([row]), device=device)
            store.check()


@pytest.mark.cuda
@pytest.mark.parametrize("layout", ["compact", "inplace", "packed"])
def test_a_gpu_gather_moves_only_the_compressed_bytes(layout: str) -> None:
    rows = special_rows(torch.float32, 256, "outliers", 4000)
    with build(rows, layout=layout) as store:
        lengths = store.codec.measure(rows).clamp(max=store.codec.row_bytes)
        store.gather(torch.arange(4000, device="cuda"))
        stats = store.stats()
        assert (stats.hits, stats.misses, stats.raw_bytes) == (0, 4000, 4000 * 1024)
        # Whole 16-byte words of the compressed rows: at most one more at either end.
        assert int(lengths.sum()) <= stats.pcie_bytes <= int(lengths.sum()) + 4000 * 36
        store.reset_stats()
        assert store.stats().misses == 0


@pytest.mark.cuda
@pytest.mark.slow
def test_slots_beyond_four_gigabytes() -> None:
    rows = torch.randint(-(2**63), 2**63 - 1, (5_000_000, 128))
    with build(rows, chunk_rows=1 << 18) as store:
        assert store.nbytes > 2**32
        ids = torch.randint(0, 5_000_000, (20000,))
        assert_bitwise_equal(store.gather(ids, device="cuda").cpu(), rows[ids])


@pytest.mark.parametrize("layout", ["compact", "inplace", "packed"])
@pytest.mark.parametrize("codec", ["ibp", "dict"])
def test_an_ordered_store_has_the_same_rows_by_id(codec: str, layout: str, target: tuple) -> None:
    device, pin = target
    rows = mixed_rows(torch.float32, 33, 333)
    order = torch.randperm(333, generator=torch.Generator().manual_seed(5))
    fitted = Codec.fit(rows, codec=codec)
    with build(rows, codec=fitted, layout=layout, order=order, pin=pin, chunk_rows=64) as store:
        assert store.slot_of is not None and store.slot_of.dtype == torch.int32
        assert_bitwise_equal(store.slot_of[order], torch.arange(333, dtype=torch.int32))
        # In its slots lie the rows of another store, of the rows in this order.
        straight = build(rows[order], codec=fitted, layout=layout)
        for name in ("slots", "bitmask", "overflow"):
            assert_bitwise_equal(getattr(store.rows, name), getattr(straight.rows, name))
        assert store.nbytes == straight.nbytes + 4 * 333
        for ids in (
            torch.arange(333),
            torch.tensor([0, 332, 7, 7], dtype=torch.int32),
            torch.tensor([], dtype=torch.long),
        ):
            for holder in ("cpu", device):
                got = store.gather(ids.to(holder), device=device)
                assert_bitwise_equal(got, rows[ids.to(torch.int64)].to(device))
        with pytest.raises(IndexError, match="want 0 <= id < 333, got 333 at position 1"):
            store.gather(torch.tensor([1, 333]), device=device)
        copy = pickle.loads(pickle.dumps(store))
        assert_bitwise_equal(copy.gather(torch.arange(333)), rows)


@pytest.mark.cuda
def test_gpu_ids_out_of_range_of_an_ordered_store_are_named() -> None:
    rows = mixed_rows(torch.float32, 8, 40)
    with build(rows, order=torch.arange(39, -1, -1)) as store:
        for bad in (-1, 40, 2**40):
            got = store.gather(torch.tensor([1, bad, 2], device="cuda"))
            assert_bitwise_equal(got.cpu(), torch.stack([rows[1], torch.zeros(8), rows[2]]))
            with pytest.raises(IndexError, match=rf"want 0 <= id < 40, got {bad} in an earlier gather"):
                store.check()


def test_a_damaged_table_of_slots_is_refused() -> None:
    store = build(mixed_rows(torch.float32, 8, 40), order=np.arange(39, -1, -1))
    assert store.slot_of is not None
    for bad in (-1, 40):
        store.slot_of[7] = bad
        with pytest.raises(FormatError, match=f"row 7: want a slot of 0 to 39, got {bad}"):
            store.gather(torch.tensor([6, 7, 8]))


def test_values_of_features_that_need_grad() -> None:
    features = mixed_rows(torch.float32, 8, 40).requires_grad_()
    rows = build(features).gather(torch.arange(40))
    assert not rows.requires_grad
    assert_bitwise_equal(rows, features.detach())


def test_a_store_larger_than_its_rows_warns() -> None:
    noise = torch.randint(-(2**62), 2**62, (9, 3), generator=torch.Generator().manual_seed(0))
    with pytest.warns(
        UserWarning, match="compressing does not pay here: the store takes [0-9,]+ bytes, the raw rows"
    ) as seen:
        store = CompressedFeatureStore.build(noise)
    assert store.nbytes > store.raw_nbytes and f"{store.nbytes:,} bytes" in str(seen[0].message)
    assert seen[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        build(torch.zeros(2000, 16))
        build(torch.zeros(0, 16))


@pytest.mark.parametrize("layout", ["compact", "inplace", "packed"])
def test_the_layout_is_the_one_that_was_asked_for(layout: str, tmp_path: Path) -> None:
    """Also of rows that cannot be compressed, whose compact slots are as long as rows."""
    noise = torch.randint(-(2**62), 2**62, (90, 4), generator=torch.Generator().manual_seed(0))
    for rows in (noise, torch.zeros(90, 4)):
        store = build(rows, layout=layout)
        for same in (store, pickle.loads(pickle.dumps(store))):
            assert same.layout == layout and f", {layout}, " in repr(same)
        store.save(tmp_path / f"{layout}.ibp")
        with CompressedFeatureStore.load(tmp_path / f"{layout}.ibp") as loaded:  # a file has the slots' length alone
            of_slots = "compact" if store.slot_bytes < store.codec.row_bytes else "inplace"
            assert loaded.layout == ("packed" if layout == "packed" else of_slots)


def test_what_is_built_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, "ibp_gnn"):
        store = build(torch.zeros(50, 4))
    assert ("ibp_gnn.store.feature_store", logging.DEBUG, f"built {store!r}") in caplog.record_tuples


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_errors_name_the_cpu() -> None:
    store = build(torch.zeros(50, 4))
    way = r"device: want one that torch can use, got cuda; .*Without a GPU: device='cpu' .*the store itself"
    for call in (
        lambda: store.gather(torch.arange(3), "cuda"),
        lambda: store.count_unique(),
        lambda: CompressedGPUCache(store, "4 rows"),
        lambda: share_budget({"a": store}, "4 rows"),
        lambda: Prefetcher([], store, device="cuda"),
    ):
        with pytest.raises(RuntimeError, match=way):
            call()
    for make in (
        lambda: CompressedGPUCache(store, "4 rows", device="cpu"),
        lambda: share_budget({"a": store}, "4 rows", device="cpu"),
    ):
        with pytest.raises(ValueError, match="device: want cuda, got cpu; on the CPU the store"):
            make()

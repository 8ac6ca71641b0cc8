"""What the CPU decodes, a GPU decodes, bit for bit, and what is damaged for one is damaged for the other."""

from __future__ import annotations

import pytest
import torch

from ibp_gnn import Codec, CompressedFeatureStore, CompressedGPUCache, FormatError
from ibp_gnn.codec.gather import GpuGather
from ibp_gnn.codec.values import to_bytes
from ibp_gnn.testing import assert_bitwise_equal, special_rows

pytestmark = pytest.mark.cuda

ROWS = 600


def make_rows(dtype: torch.dtype, width: int, kind: str, seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    rows = torch.randn(ROWS, width, generator=generator)
    if kind == "zeros":
        rows = rows.clamp(min=0)
    elif kind == "outliers":
        rows[torch.rand(ROWS, width, generator=generator) < 0.02] *= 1e-9
    rows = rows.to(dtype)
    rows[::37] = special_rows(dtype, width, "random_bits", len(rows[::37]), seed=seed)
    return rows


def on_the_cpu(store: CompressedFeatureStore) -> tuple[torch.Tensor, torch.Tensor]:
    """All rows as the CPU decodes them, zeros for damaged ones; and bool [ROWS], which those are."""
    rows, damaged = torch.zeros(store.shape, dtype=store.dtype), torch.zeros(len(store), dtype=torch.bool)
    for id in range(len(store)):
        try:
            store.gather(torch.tensor([id]), out=rows[id : id + 1])
        except FormatError:
            damaged[id] = True
            rows[id] = 0
    return rows, damaged


def assert_same_on_a_gpu(source: CompressedFeatureStore | CompressedGPUCache, store: CompressedFeatureStore) -> None:
    rows, damaged = on_the_cpu(store)
    ids = torch.arange(len(store))
    got = source.gather(ids, device="cuda")
    torch.cuda.synchronize()
    if damaged.any():
        with pytest.raises(FormatError, match="is damaged"):
            source.check()
    else:
        source.check()
    assert_bitwise_equal(got.cpu(), rows)
    for id in torch.nonzero(damaged).flatten()[:5].tolist():
        source.gather(torch.tensor([id], device="cuda"))
        with pytest.raises(FormatError, match=f"row {id} is damaged"):
            source.check()


CASES = [
    (dtype, width, kind)
    for dtype in (torch.float32, torch.bfloat16, torch.float16)
    for width in (16, 50, 128, 300, 768, 1500)
    for kind in ("dense", "zeros", "outliers")
]


@pytest.mark.parametrize("layout", ["compact", "inplace", "packed"])
@pytest.mark.parametrize(("dtype", "width", "kind"), CASES, ids=str)
def test_random_damage(dtype: torch.dtype, width: int, kind: str, layout: str) -> None:
    generator = torch.Generator().manual_seed(width)
    rows = make_rows(dtype, width, kind, width)
    for codec in ("dict", "ibp"):
        with CompressedFeatureStore.build(rows, codec, layout=layout, progress=False) as store:
            rows_bytes = store.rows.slots[: store.rows.data_bytes]
            step = len(rows_bytes) // ROWS
            for row in torch.randperm(ROWS, generator=generator)[: ROWS // 2].tolist():
                first = int(torch.randint(0, step, (1,), generator=generator))
                count = int(torch.randint(1, 1 + step // 4, (1,), generator=generator))
                noise = torch.randint(0, 256, (count,), dtype=torch.uint8, generator=generator)
                part = rows_bytes[row * step + first : min(row * step + first + count, (row + 1) * step)]
                part ^= noise[: len(part)]
            if layout == "packed":  # any bit of a directory, and so any place
                damaged = torch.randint(0, len(store.rows.bitmask), (3,), generator=generator)
                store.rows.bitmask[damaged] ^= torch.randint(1, 256, (3,), dtype=torch.uint8, generator=generator)
            else:
                store.rows.bitmask[: ROWS // 16] ^= torch.randint(
                    0, 16, (ROWS // 16,), dtype=torch.uint8, generator=generator
                )
            assert_same_on_a_gpu(store, store)


@pytest.mark.parametrize("layout", ["compact", "inplace", "packed"])
@pytest.mark.parametrize(("dtype", "width", "kind"), CASES, ids=str)
def test_any_hint_gives_the_same_rows(dtype: torch.dtype, width: int, kind: str, layout: str) -> None:
    """lead_bytes of a file may be anything up to the length of a slot."""
    rows = make_rows(dtype, width, kind, width)
    ids, device = torch.randint(0, ROWS, (3000,)), torch.device("cuda", torch.cuda.current_device())
    with CompressedFeatureStore.build(rows, "dict", layout=layout, progress=False) as store:
        usual, longest = store.lead_bytes, store.slot_bytes
        mapped, first_half = store.mapped_rows(device), store.rows.select(torch.arange(ROWS // 2), device)
        hints = {0, 1, 16, usual // 2, usual - 40, usual - 8, usual - 1, usual, usual + 1, longest}
        for hint in sorted(one for one in hints if 0 <= one <= longest):
            for cache in (None, first_half):
                gather = GpuGather(store.codec.form, device, mapped, lead_bytes=hint, cache=cache)
                out = torch.full((len(ids), width), float("nan"), dtype=dtype, device=device)
                gather.gather(ids.to(device), to_bytes(out))
                gather.check()
                assert_bitwise_equal(out.cpu(), rows[ids])


@pytest.mark.parametrize("bad", [-1, -(2**31), ROWS, 2**31 - 1])
@pytest.mark.parametrize("ordered", [False, True])
@pytest.mark.parametrize("cached", [False, True])
def test_damaged_tables_of_slots(bad: int, cached: bool, ordered: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if ordered:
        monkeypatch.setattr("ibp_gnn.codec.gather._ORDER_FOOTPRINT_BYTES", 0)
        monkeypatch.setattr("ibp_gnn.codec.gather._ORDER_MIN_MISSES", 0)
    rows = make_rows(torch.float32, 50, "dense", 1)
    order = torch.randperm(ROWS, generator=torch.Generator().manual_seed(3))
    store = CompressedFeatureStore.build(rows, order=order, progress=False)
    assert store.slot_of is not None
    store.slot_of[7] = bad
    ids = torch.arange(20)
    wanted = rows[:20].clone()
    wanted[7] = 0
    with pytest.raises(FormatError, match=f"row 7: want a slot of 0 to {ROWS - 1}, got {bad}"):
        store.gather(ids)
    source: CompressedFeatureStore | CompressedGPUCache = store
    if cached:
        source = CompressedGPUCache(store, "3 rows", hot_ids=torch.tensor([1, 2, 3]))
    assert_bitwise_equal(source.gather(ids, device="cuda").cpu(), wanted)
    with pytest.raises(FormatError, match="row 7 is damaged"):
        source.check()


@pytest.mark.parametrize("codec", ["dict", "ibp"])
def test_rows_that_change_while_they_are_compressed(codec: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between measuring and encoding another stream may write to them: an error that names the row, and nothing is
    written outside of the overflow area."""
    from ibp_gnn.codec import dispatch
    from ibp_gnn.codec.compressed_rows import CompressedRows

    rows = make_rows(torch.float32, 50, "dense", 1)
    fitted = Codec.fit(rows, codec=codec)
    real = dispatch.encode
    for changed, to in ((101, special_rows(torch.float32, 50, "random_bits", 1)[0]), (37, rows[1])):
        on_gpu = rows.cuda()
        guards: list[CompressedRows] = []

        def encode(*args, on_gpu=on_gpu, changed=changed, to=to, guards=guards, **kwargs):  # type: ignore[no-untyped-def]
            on_gpu[changed] = to.cuda()
            guards.append(args[3])
            args[3].overflow[:-64].fill_(0xAB)
            real(*args, **kwargs)

        monkeypatch.setattr(dispatch, "encode", encode)
        with pytest.raises(ValueError, match=rf"row {changed}: .* the rows changed meanwhile"):
            fitted.compress(on_gpu, slot_bytes=188)
        torch.cuda.synchronize()
        assert bool((guards[0].overflow[-64:] == 0).all())
        monkeypatch.undo()
    assert_bitwise_equal(fitted.decompress(fitted.compress(rows.cuda())).cpu(), rows)

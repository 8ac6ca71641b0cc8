"""GraphBolt's features are updated: some rows, or all by others of any shape and dtype."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from adapter_cases import rows_of
from cpu_cache import CpuCache
from exact_sources import TensorSource

pytest.importorskip("dgl")
pytest.importorskip("torchdata")

from dgl import graphbolt as gb  # noqa: E402
from graphbolt_cases import FEAT, LABEL, compressed  # noqa: E402

from ibp_gnn import Codec, CompressedFeatureStore, CompressedGPUCache  # noqa: E402
from ibp_gnn.graphbolt import CompressedFeature  # noqa: E402
from ibp_gnn.testing import assert_bitwise_equal  # noqa: E402

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*CPU affinity.*"),
    pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork.*:DeprecationWarning"),
]

NEW_ROWS = {
    "wider": rows_of(torch.float32, 200, 7, seed=3),
    "narrower": rows_of(torch.float32, 200, 1, seed=3),
    "of one dimension": rows_of(torch.float32, 200, seed=3),
    "of three": rows_of(torch.float32, 200, 2, 2, seed=3),
    "of another dtype": rows_of(torch.int8, 200, 3, seed=3),
    "more": rows_of(torch.float32, 333, 3, seed=3),
    "fewer": rows_of(torch.float32, 2, 3, seed=3),
    "none": torch.empty(0, 3),
    "without values": torch.empty(200, 0),
    "not to be compressed": torch.full((200, 3), 2j),
    "alike": rows_of(torch.float32, 200, 3, seed=3),
    "of other exponents": rows_of(torch.float32, 200, 3, seed=3) * 1e-20,
    "with a gradient": rows_of(torch.float32, 200, 3, seed=3).requires_grad_(),
}


def assert_rows(feature: gb.Feature, rows: torch.Tensor) -> None:
    """That the feature is these rows, read in every way."""
    assert (feature.size(), feature.count()) == (rows.shape[1:], len(rows))
    ids = torch.arange(len(rows) - 1, -1, -1)
    (pending,) = feature.read_async(ids)
    for got, want in ((feature.read(), rows), (feature.read(ids), rows.flip(0)), (pending.wait(), rows.flip(0))):
        assert got.dtype == want.dtype and torch.equal(got, want)


@pytest.mark.parametrize("how", ["feature", "store", "cache"])
@pytest.mark.parametrize("new", NEW_ROWS)
def test_update_of_all_rows(new: str, how: str) -> None:
    rows, value = rows_of(torch.float32, 200, 3), NEW_ROWS[new]
    if how == "store":
        features = compressed({FEAT: rows, LABEL: torch.arange(200)})
        feature = features[FEAT]
    else:
        store = CompressedFeatureStore.build(rows, progress=False)
        feature = CompressedFeature(CpuCache(store) if how == "cache" else store)
        features = compressed({FEAT: feature})
    before = feature.source
    if how == "cache" and new in ("none", "without values", "not to be compressed"):
        with pytest.raises(ValueError, match="value: want rows that a GPU cache can have, got"):
            features.update(*FEAT, value)
        assert feature.source is before
        value = rows
    else:
        features.update(*FEAT, value)
        assert feature.source is not before
    assert features[FEAT] is feature
    assert_rows(feature, value.detach())
    features.update(*FEAT, rows)  # and back
    assert_rows(feature, rows)
    features.update(*FEAT, rows[:2].neg(), torch.tensor([9, 0]))
    changed = rows.clone()
    changed[[9, 0]] = -rows[:2]
    assert_rows(feature, changed)
    assert_bitwise_equal(before.gather(torch.arange(200)), rows)  # whoever has the old one
    if how == "store":
        assert_bitwise_equal(features.read(*LABEL), torch.arange(200))


def test_update_of_all_rows_keeps_how_they_are_compressed() -> None:
    rows = rows_of(torch.float32, 200, 32)
    wide = rows_of(torch.float32, 200, 40, seed=1)
    for options in ({"codec": "ibp"}, {"codec": "dict", "layout": "inplace"}, {"pin": False}):
        features = compressed({FEAT: rows}, **options)
        first = features[FEAT].source
        for value in (torch.empty(0, 2), torch.ones(3, 2, dtype=torch.complex64), wide):
            features.update(*FEAT, value)
        second = features[FEAT].source
        assert second.codec.kind == options.get("codec", second.codec.kind)
        assert (second.layout, second._pin) == (first.layout, first._pin)

    fitted = Codec.fit(rows, codec="ibp")
    features = compressed({FEAT: rows}, codec=fitted)
    features.update(*FEAT, rows.neg())
    assert features[FEAT].source.codec is fitted
    features.update(*FEAT, wide)  # which it is not for
    assert features[FEAT].source.codec.kind == "ibp"
    assert_rows(features[FEAT], wide)

    order = torch.randperm(200)
    store = CompressedFeatureStore.build(rows, order=order, layout="inplace", pin=False, progress=False)
    feature = CompressedFeature(store)
    feature.update(wide)
    assert torch.equal(feature.source.slot_of, store.slot_of)
    assert (feature.source.layout, feature.source._pin) == ("inplace", False)
    assert_rows(feature, wide)


def test_update_of_all_rows_of_a_file(tmp_path: Path) -> None:
    rows, wide = rows_of(torch.float32, 200, 3), rows_of(torch.float32, 200, 5)
    CompressedFeatureStore.build(rows, progress=False).save(tmp_path / "rows.ibp")
    feature = CompressedFeature(CompressedFeatureStore.load(tmp_path / "rows.ibp"))
    with pytest.raises(ValueError, match="value: update: want rows in memory"):
        feature.update(rows[:1], torch.tensor([0]))
    feature.update(wide)
    assert_rows(feature, wide)
    assert_bitwise_equal(CompressedFeatureStore.load(tmp_path / "rows.ibp").gather(torch.arange(200)), rows)


def test_a_cache_follows_an_update_of_all_rows() -> None:
    rows, wide = rows_of(torch.float32, 200, 3), rows_of(torch.float32, 200, 5)
    cache = CpuCache(CompressedFeatureStore.build(rows, layout="inplace", progress=False), "7 rows")
    feature = CompressedFeature(cache)
    feature.update(wide)
    assert isinstance(feature.source, CpuCache) and feature.source is not cache
    assert (feature.source.capacity, feature.source.store.layout) == ("7 rows", "inplace")
    assert_rows(feature, wide)
    feature.source.fails, last = True, feature.source
    with pytest.raises(ValueError, match="want more than that"):
        feature.update(rows)
    assert feature.source is last
    assert_rows(feature, wide)


@pytest.mark.parametrize(
    ("value", "ids", "error", "message"),
    [
        ([1.0], None, TypeError, "value: want a tensor or a NumPy array, got list"),
        (torch.tensor(1.0), None, ValueError, r"value: want \[n, \*row_shape\], got a scalar"),
        ([1.0], [0], TypeError, "value: want a tensor or a NumPy array, got list"),
        (torch.ones(1, 3), [0, 1], ValueError, "value: rows: want 2 of them, as many as ids, got 1"),
        (torch.ones(1, 4), [0], ValueError, "value: .*want"),
        (torch.ones(2, 3), [7, 7], ValueError, "value: ids: want distinct ids, got 7 more than once"),
        (torch.ones(1, 3), [200], IndexError, "want 0 <= id < 200, got 200"),
    ],
)
def test_after_a_failed_update_nothing_has_changed(
    value: Any, ids: list[int] | None, error: type[Exception], message: str
) -> None:
    rows = rows_of(torch.float32, 200, 3)
    features = compressed({FEAT: rows})
    source = features[FEAT].source
    with pytest.raises(error, match=message):
        features.update(*FEAT, value, None if ids is None else torch.tensor(ids))
    assert features[FEAT].source is source
    assert_rows(features[FEAT], rows)


@pytest.mark.parametrize("ids", [None, torch.arange(3)])
def test_update_of_a_source_of_the_users(ids: torch.Tensor | None) -> None:
    feature = CompressedFeature(TensorSource(torch.ones(3, 2)))
    with pytest.raises(NotImplementedError, match="want a feature over a CompressedFeatureStore .*make a new one"):
        feature.update(torch.zeros(3, 2), ids)
    assert_rows(feature, torch.ones(3, 2))


def test_is_pinned(monkeypatch: pytest.MonkeyPatch) -> None:
    rows, odd = rows_of(torch.float32, 200, 3), torch.ones(200, dtype=torch.complex64)
    features = compressed({FEAT: rows, LABEL: odd})
    assert not features.is_pinned()
    assert not any(features[key].is_pinned() for key in (FEAT, LABEL))
    assert not CompressedFeature(TensorSource(rows)).is_pinned()
    monkeypatch.setattr(CompressedFeatureStore, "is_pinned", lambda store: True)
    assert features[FEAT].is_pinned() and CompressedFeature(CpuCache(features[FEAT].source)).is_pinned()
    assert not features.is_pinned()  # not all of them
    assert compressed({FEAT: rows}).is_pinned()
    features[LABEL] = gb.Feature()
    assert not features.is_pinned()


@pytest.mark.cuda
def test_is_pinned_and_updates_on_a_gpu() -> None:
    rows, wide = rows_of(torch.float32, 500, 8), rows_of(torch.float32, 500, 24)
    features = compressed({FEAT: rows})
    assert not features.is_pinned()
    assert features.pin_memory_().is_pinned()
    moved = features.to("cuda")
    assert moved.is_pinned()
    ids = torch.arange(0, 500, 3, device="cuda")
    for value in (wide.cuda(), wide[:100], rows):
        moved.update(*FEAT, value)
        assert isinstance(moved[FEAT].source, CompressedGPUCache)
        want = value.cpu()[: len(value)]
        assert_bitwise_equal(moved.read(*FEAT, ids[ids < len(value)]), want[ids[ids < len(value)].cpu()])
    assert_bitwise_equal(features.read(*FEAT, ids), rows[ids.cpu()])  # a copy, as GraphBolt's `to` gives

"""Features without rows, as of a relation or a node type that nothing is of: all that works with rows works."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from ibp_gnn import Codec, CompressedFeatureStore
from ibp_gnn.codec.values import SUPPORTED_DTYPES
from ibp_gnn.command.analysis import analyze
from ibp_gnn.command.cli import main
from ibp_gnn.gpu.budget import plan_caches, share_budget
from ibp_gnn.store.build import Job
from ibp_gnn.store.file.building import build_file
from ibp_gnn.testing import assert_bitwise_equal

NO_IDS = torch.zeros(0, dtype=torch.int64)


def build(features: Any, **options: Any) -> CompressedFeatureStore:
    return CompressedFeatureStore.build(features, pin=False, progress=False, **options)


def nothing(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    return torch.zeros(shape, dtype=torch.uint8).to(dtype)


def check(store: CompressedFeatureStore, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    assert (store.shape, len(store), store.dtype) == (shape, 0, dtype)
    assert (store.raw_nbytes, store.savings) == (0, 0.0) and store.nbytes > 0
    assert "savings=0.0%" in repr(store)
    assert_bitwise_equal(store.gather(NO_IDS), nothing(shape, dtype))
    assert store.gather(NO_IDS.to(torch.int32), out=nothing(shape, dtype)).shape == shape
    with pytest.raises(IndexError, match="want 0 <= id < 0, got 0 at position 0"):
        store.gather(torch.tensor([0]))
    if store._held_file is None:
        store.update(NO_IDS, nothing(shape, dtype))


@pytest.mark.parametrize("codec", ["auto", "dict", "ibp"])
@pytest.mark.parametrize("dtype", SUPPORTED_DTYPES, ids=str)
def test_any_dtype(dtype: torch.dtype, codec: str) -> None:
    store = build(nothing((0, 5), dtype), codec=codec)
    assert codec in ("auto", store.codec.kind)
    check(store, (0, 5), dtype)


@pytest.mark.parametrize("layout", ["compact", "inplace"])
@pytest.mark.parametrize("row_shape", [(), (1,), (3, 4), (600,)], ids=str)
def test_any_shape(row_shape: tuple[int, ...], layout: str) -> None:
    for features in (torch.zeros(0, *row_shape), np.zeros((0, *row_shape), np.float32)):
        check(build(features, layout=layout, order=NO_IDS), (0, *row_shape), torch.float32)


def test_with_a_codec_of_other_rows() -> None:
    codec = Codec.fit(torch.randn(50, 4), codec="ibp")
    assert build(torch.zeros(0, 4), codec=codec).codec is codec


@pytest.mark.parametrize("options", [{}, {"mmap": False}, {"shared": True}, {"verify": "read"}], ids=str)
def test_saved_and_loaded(options: dict[str, Any], tmp_path: Path) -> None:
    path, store = tmp_path / "s.ibp", build(torch.zeros(0, 4))
    store.save(path)
    check(pickle.loads(pickle.dumps(store)), (0, 4), torch.float32)
    with CompressedFeatureStore.load(path, pin=False, **options) as loaded:
        check(loaded, (0, 4), torch.float32)
        check(pickle.loads(pickle.dumps(loaded)), (0, 4), torch.float32)
        loaded.save(tmp_path / "again.ibp")
    assert (tmp_path / "again.ibp").read_bytes() == path.read_bytes()
    built = tmp_path / "built.ibp"
    assert build_file(Job.check(torch.zeros(0, 4), "auto", "compact", None, None, False), built, {}) == ""
    assert built.read_bytes() == path.read_bytes()


def test_commands(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, out = str(tmp_path / "s.ibp"), str(tmp_path / "out.npy")
    build(torch.zeros(0, 3, 2)).save(path)
    for arguments in (["info", path], ["verify", path, "--quiet"], ["extract", path, out, "--quiet"]):
        assert main(arguments) == 0, capsys.readouterr().err
    assert np.load(out).shape == (0, 3, 2)
    capsys.readouterr()
    assert main(["info", path, "--json"]) == 0
    info = json.loads(capsys.readouterr().out)
    assert (info["shape"], info["raw_bytes"], info["savings"]) == ([0, 3, 2], 0, 0.0)


def test_a_budget_with_a_feature_without_rows() -> None:
    rows = torch.randn(40, 8, generator=torch.Generator().manual_seed(0))
    stores = {"none": build(torch.zeros(0, 3)), "some": build(rows), "nothing": build(torch.zeros(0, 5))}
    hotness = {"none": torch.zeros(0), "some": torch.arange(40), "nothing": torch.zeros(0)}
    for scores in (None, hotness):
        alone = plan_caches({"some": stores["some"]}, 2000, 40, hotness=scores and {"some": scores["some"]})
        plans = plan_caches(stores, 2000, 40, hotness=scores)
        assert list(plans) == list(stores)
        assert_bitwise_equal(plans["some"].ids, alone["some"].ids)
        assert 0 < len(plans["some"].ids) and plans["some"].nbytes == alone["some"].nbytes
        assert all(len(plans[key].ids) == plans[key].nbytes == 0 for key in ("none", "nothing"))
        assert len(plan_caches(stores, None, 3, hotness=scores)["some"].ids) == 3
    with pytest.raises(ValueError, match=r"capacity: want at least [1-9][0-9]* bytes \(one row\), got 5 bytes"):
        plan_caches(stores, 5, 40)


@pytest.mark.filterwarnings("error")
def test_a_budget_for_nothing() -> None:
    stores = {"a": build(torch.zeros(0, 3)), "b": build(torch.zeros(0, 5))}
    plans = plan_caches(stores, 1000, 0)
    assert all(len(plan.ids) == plan.nbytes == 0 for plan in plans.values())
    if torch.cuda.is_available():
        assert share_budget(stores, "1GB") == stores


def test_what_needs_a_row_still_says_so() -> None:
    for call in (Codec.fit, analyze):
        with pytest.raises(ValueError, match=r"rows: want at least 1 row to fit a codec, got shape \[0, 2\]"):
            call(torch.zeros(0, 2))
    with pytest.raises(ValueError, match="codec: want one of"):
        build(torch.zeros(0, 2), codec="zip")
    with pytest.raises(ValueError, match="want at least 1 value per row"):
        build(torch.zeros(0, 0))
    with pytest.raises(TypeError, match="want one of"):
        build(torch.zeros(0, 2, dtype=torch.complex64))

"""LOSSY stores: rounded as torch rounds, gathered bit for bit from then on, and never without being asked."""

from __future__ import annotations

import inspect
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml

from ibp_gnn import CompressedFeatureStore, FormatError
from ibp_gnn.store.file.reading import StoreFile
from ibp_gnn.store.precision import PRECISIONS, Precision
from ibp_gnn.testing import assert_bitwise_equal

CONFIGS = sorted((Path(__file__).resolve().parents[2] / "configs").glob("*.yaml"))
CASTS = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp8_e4m3": torch.float8_e4m3fn, "fp8_e5m2": torch.float8_e5m2}
# Half of the last bit.
ERRORS = {"bf16": 2.0**-8, "fp16": 2.0**-11, "fp8_e4m3": 2.0**-4, "fp8_e5m2": 2.0**-3}


def features(dtype: torch.dtype = torch.float32, count: int = 500) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    return (torch.randn(count, 4, 6, generator=generator) * torch.logspace(-4, 3, 6)).to(dtype)


def build(rows: Any, precision: Any, **options: Any) -> CompressedFeatureStore:
    return CompressedFeatureStore.build(rows, precision=precision, progress=False, pin=False, **options)


def scale_of(rows: torch.Tensor, largest: float) -> torch.Tensor:
    """The smallest powers of two by which columns are in range."""
    return 2.0 ** torch.ceil(torch.log2(rows.flatten(1).double().abs().amax(0) / largest))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", PRECISIONS)
def test_values_are_those_of_a_cast(name: str, dtype: torch.dtype) -> None:
    rows = features(dtype)
    if name == "fp16" and dtype == torch.bfloat16:
        with pytest.raises(ValueError, match="out_dtype: want one of .* for precision 'fp16', got torch.bfloat16"):
            build(rows, name)
        return
    with build(rows, name) as store:
        assert store.dtype == dtype and store.precision is not None and store.precision.name == name
        if name.startswith("fp8_"):
            scale = scale_of(rows, torch.finfo(CASTS[name]).max)
            values = (rows.flatten(1).double() / scale).to(torch.float32).to(CASTS[name]).double() * scale
            wanted = values.view(rows.shape).to(dtype)
        else:
            wanted = rows.to(CASTS[name]).to(dtype)
        assert_bitwise_equal(store[:], wanted)


@pytest.mark.parametrize("name", PRECISIONS)
def test_error_bounds(name: str) -> None:
    rows = torch.randn(20_000, 30, generator=torch.Generator().manual_seed(1))
    with build(rows, name) as store:
        error = (store[:] - rows).abs()
        # What is far below the largest value of its column is subnormal in 8 bits.
        least = rows.abs().amax(0) * {"fp8_e4m3": 2.0**-14, "fp8_e5m2": 2.0**-29}.get(name, 0)
        least += 2.0**-14 if name == "fp16" else 0
        assert bool((error <= torch.maximum(rows.abs(), least) * ERRORS[name]).all())
        assert float((error / rows.abs().clamp(min=0.1)).max()) > 0.8 * ERRORS[name]


@pytest.mark.parametrize("name", PRECISIONS)
def test_it_takes_fewer_bits_than_its_values(name: str) -> None:
    """The lossless codec on top: of normal values the exponents take fewer bits than they have."""
    rows = torch.randn(20_000, 128, generator=torch.Generator().manual_seed(2)) * 0.1
    with build(rows, name) as store, build(rows, None) as lossless:
        bits = 8 * store.nbytes / rows.numel()
        assert bits < {"bf16": 11.6, "fp16": 14.6, "fp8_e4m3": 7.6, "fp8_e5m2": 6.6}[name]
        assert store.nbytes < lossless.nbytes and lossless.precision is None


def test_another_dtype_of_the_store() -> None:
    rows = features()
    with build(rows, "fp8_e4m3", out_dtype=torch.bfloat16) as store, build(rows, "fp8_e4m3") as wide:
        assert_bitwise_equal(store[:], wide[:].to(torch.bfloat16))
        assert store.dtype == torch.bfloat16 and store.raw_nbytes == wide.raw_nbytes // 2
    with pytest.raises(ValueError, match="out_dtype: want None without a precision, got torch.float16"):
        build(rows, None, out_dtype=torch.float16)
    with pytest.raises(ValueError, match="out_dtype: want one of .*, got torch.int32"):
        build(rows, "bf16", out_dtype=torch.int32)


def test_what_is_not_finite() -> None:
    rows = torch.randn(100, 5)
    rows[0] = torch.tensor([float("inf"), -float("inf"), float("nan"), 1e30, 0.0])
    for name in PRECISIONS:
        with build(rows, name) as store:
            got = store[0]
            assert bool(got[2].isnan()) and got[4] == 0
            if name.startswith("fp8_"):  # inf: the largest value of the column's range
                assert bool(got[:2].isfinite().all()) and got[0] >= rows[1:, 0].max() and got[3] > 9e29
            else:
                assert got[:2].tolist() == [float("inf"), -float("inf")]
                assert got[3] == (float("inf") if name == "fp16" else rows[0, 3].bfloat16().float())


def test_updates_are_rounded_too() -> None:
    rows = features()
    with build(rows, "fp8_e5m2") as store:
        assert store.precision is not None
        new = torch.randn(3, 4, 6) * 100
        store.update(torch.tensor([7, 3, 499]), new)
        assert_bitwise_equal(store[[7, 3, 499]], store.precision.round(new))
        largest = 57344 * scale_of(rows, 57344).to(torch.float32)
        store.update(torch.tensor([0]), torch.full((1, 4, 6), 1e30))
        assert_bitwise_equal(store[0].flatten(), largest)


def test_an_order_a_memmap_and_chunks(tmp_path: Path) -> None:
    rows = features(count=1000)
    np.save(tmp_path / "x.npy", rows.numpy())
    mapped = np.load(tmp_path / "x.npy", mmap_mode="r")
    order = torch.randperm(1000)
    with build(rows, "fp8_e4m3") as store, build(mapped, "fp8_e4m3", order=order, chunk_rows=64) as ordered:
        assert store.precision == ordered.precision
        assert_bitwise_equal(store[:], ordered[:])


def test_no_rows() -> None:
    with build(torch.empty(0, 3), "fp8_e4m3") as store:
        assert store.shape == (0, 3)
        assert store.precision == Precision("fp8_e4m3", torch.float32, (0, 0, 0))


def test_a_file_is_refused_unless_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "x.ibp"
    with build(features(), "fp8_e4m3") as store:
        store.save(path)
        message = r"x.ibp: want lossless rows, got LOSSY fp8_e4m3; lossy=True .*store.precision=fp8_e4m3"
        for options in ({}, {"mmap": False}, {"shared": True}):
            with pytest.raises(ValueError, match=message):
                CompressedFeatureStore.load(path, **options)
        for options in ({}, {"mmap": False}, {"shared": True}):
            with CompressedFeatureStore.load(path, lossy=True, **options) as loaded:
                assert loaded.precision == store.precision
                assert_bitwise_equal(loaded[:], store[:])
                again = pickle.loads(pickle.dumps(loaded))
                assert again.precision == store.precision
    with build(features(), None) as store:
        store.save(path)
    with CompressedFeatureStore.load(path, lossy=True) as loaded:
        assert loaded.precision is None and "LOSSY" not in repr(loaded)


def test_what_a_file_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "x.ibp"
    with build(features(), "fp8_e5m2") as store:
        store.save(path)
        with StoreFile(path) as file:
            members = file.header.members()
        assert members["precision"]["name"] == "fp8_e5m2" and len(members["precision"]["scale_exponents"]) == 24
    from ibp_gnn.store.file import header

    for bad in (
        {"name": "fp4", "scale_exponents": []},
        {"name": "fp8_e5m2", "scale_exponents": [0] * 23},
        {"name": "fp8_e5m2", "scale_exponents": [0] * 23 + [128]},
        {"name": "fp8_e5m2", "scale_exponents": [0] * 23 + ["1"]},
        {"name": "bf16", "scale_exponents": [0] * 24},
        {"name": "bf16"},
        {"name": "bf16", "scale_exponents": [], "more": 1},
    ):
        with pytest.raises(FormatError, match="precision|scale_exponents"):
            header._from_members({**members, "precision": bad})


def test_pickled_and_shown() -> None:
    with build(features(), "bf16") as store:
        again = pickle.loads(pickle.dumps(store))
        assert again.precision == store.precision and repr(store).endswith(", LOSSY bf16)")
        assert_bitwise_equal(again[:], store[:])


@pytest.mark.parametrize("rows", [torch.ones(3, 4, dtype=torch.int32), torch.ones(3, 4).to(torch.float8_e5m2)], ids=str)
def test_dtypes_without_precision(rows: torch.Tensor) -> None:
    with pytest.raises(TypeError, match="features: want one of .* for precision 'bf16'"):
        build(rows, "bf16")


def test_another_precision() -> None:
    with pytest.raises(ValueError, match=r"precision: want one of \['bf16', .*\] or None, got 'fp4'"):
        build(features(), "fp4")


def test_lossless_is_the_default() -> None:
    for method in (CompressedFeatureStore.build, CompressedFeatureStore.load):
        defaults = {name: one.default for name, one in inspect.signature(method).parameters.items()}
        assert defaults.get("precision") is None and defaults.get("lossy", False) is False


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_every_config_is_lossless(path: Path) -> None:
    """No config names a precision; bench_packing.py goes through them by itself."""

    def settings(value: Any, name: str = "") -> list[tuple[str, Any]]:
        if isinstance(value, dict):
            return [found for key, inner in value.items() for found in settings(inner, str(key))]
        if isinstance(value, list):
            return [found for inner in value for found in settings(inner, name)]
        return [(name, value)]

    found = settings(yaml.safe_load(path.read_text()))
    assert found and not [(name, value) for name, value in found if "precision" in name and value is not None]
    assert not [value for _, value in found if value in PRECISIONS]


@pytest.mark.cuda
@pytest.mark.parametrize("out_dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", PRECISIONS)
def test_on_a_gpu(name: str, out_dtype: torch.dtype) -> None:
    """Built from rows on a GPU or the CPU, gathered there or here: the same bits."""
    if name == "fp16" and out_dtype == torch.bfloat16:
        pytest.skip("bfloat16 does not hold fp16")
    rows = torch.randn(5000, 96, generator=torch.Generator().manual_seed(3)) * torch.logspace(-2, 2, 96)
    with (
        CompressedFeatureStore.build(rows, precision=name, out_dtype=out_dtype, progress=False) as store,
        CompressedFeatureStore.build(rows.cuda(), precision=name, out_dtype=out_dtype, progress=False) as of_gpu,
    ):
        assert store.precision == of_gpu.precision
        ids = torch.randint(5000, (3000,), device="cuda")
        assert_bitwise_equal(store.gather(ids).cpu(), store.gather(ids.cpu()))
        assert_bitwise_equal(of_gpu.gather(ids), store.gather(ids))

"""Store files: every bit comes back, from files of any layout, in bounded memory."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from store_files import NUM_ROWS, an_order, build_to, by_id_or_ordered, environment, make, mixed_rows

from ibp_gnn import Codec, CompressedFeatureStore
from ibp_gnn.codec.values import SUPPORTED_DTYPES
from ibp_gnn.store.file import building, sharing, sorted_reader
from ibp_gnn.testing import assert_bitwise_equal


def assert_same_store(got: CompressedFeatureStore, wanted: CompressedFeatureStore) -> None:
    assert (got.shape, got.dtype, got.slot_bytes, got.lead_bytes) == (
        wanted.shape,
        wanted.dtype,
        wanted.slot_bytes,
        wanted.lead_bytes,
    )
    assert repr(got.codec) == repr(wanted.codec) and got.nbytes == wanted.nbytes
    for name in ("slots", "bitmask", "overflow"):
        assert_bitwise_equal(getattr(got.rows, name), getattr(wanted.rows, name))
    assert (got.slot_of is None) == (wanted.slot_of is None)
    if got.slot_of is not None and wanted.slot_of is not None:
        assert_bitwise_equal(got.slot_of, wanted.slot_of)


@pytest.mark.parametrize("ordered", [False, True], ids=["by_id", "ordered"])
@pytest.mark.parametrize("layout", ["compact", "inplace", "packed"])
@pytest.mark.parametrize("codec", ["ibp", "dict"])
@pytest.mark.parametrize("dtype", SUPPORTED_DTYPES, ids=str)
def test_a_store_comes_back(dtype: torch.dtype, codec: str, layout: str, ordered: bool, tmp_path: Path) -> None:
    rows = mixed_rows(dtype, 33)
    order = an_order() if ordered else None
    store = CompressedFeatureStore.build(rows, codec, layout=layout, order=order, progress=False)
    store.save(tmp_path / "s.ibp")
    assert os.listdir(tmp_path) == ["s.ibp"]
    for options in ({}, {"mmap": False}, {"verify": "read"}):
        with CompressedFeatureStore.load(tmp_path / "s.ibp", **options) as loaded:
            assert_bitwise_equal(loaded.gather(torch.arange(NUM_ROWS)), rows)
            assert_same_store(loaded, store)
    if codec == "ibp" and layout == "compact" and dtype.itemsize >= 4:
        assert store.rows.num_overflow > 0, "the data must exercise the overflow area"


@pytest.mark.parametrize("row_shape", [(), (3, 4), (2, 1, 5)])
def test_row_shapes(row_shape: tuple[int, ...], tmp_path: Path) -> None:
    rows = torch.randn(50, *row_shape, generator=torch.Generator().manual_seed(1))
    with CompressedFeatureStore.load(make(tmp_path / "s.ibp", rows)) as store:
        assert store.shape == rows.shape
        assert_bitwise_equal(store.gather(torch.arange(50)), rows)


def test_rows_longer_than_a_block(tmp_path: Path) -> None:
    rows = mixed_rows(torch.uint8, 2_500_000, 5)
    codec = Codec.fit(rows, codec="ibp", word_bits=64, words_per_chunk=1, threshold=0.9)
    path = make(tmp_path / "s.ibp", rows, codec=codec)
    for ids in ([3], [0], [4, 1]):
        with CompressedFeatureStore.load(path, verify="read") as store:
            assert_bitwise_equal(store.gather(torch.tensor(ids)), rows[ids])


def test_bad_options(tmp_path: Path) -> None:
    path = make(tmp_path / "s.ibp", mixed_rows(torch.float32, 8))
    for options, message in (
        ({"verify": "never"}, "verify: want 'load' or 'read', got 'never'"),
        ({"verify": "read", "mmap": False}, "verify: want 'load' for rows that are read to memory"),
        ({"verify": "read", "shared": True}, "verify: want 'load' for rows that are read to memory"),
        ({"pin": "yes"}, "pin: want True, False or 'auto', got 'yes'"),
    ):
        with pytest.raises(ValueError, match=message):
            CompressedFeatureStore.load(path, **options)
    with pytest.raises(FileNotFoundError):
        CompressedFeatureStore.load(tmp_path / "other.ibp")
    assert not list(sharing.FOLDER.glob("ibp_gnn-*"))


@pytest.mark.parametrize("sort_bytes", [0, 1 << 40], ids=["sorted_on_disk", "picked"])
@pytest.mark.parametrize("ordered", [False, True], ids=["by_id", "ordered"])
@pytest.mark.parametrize("layout", ["compact", "inplace", "packed"])
def test_the_file_builder_makes_the_bytes_of_save(
    layout: str, ordered: bool, sort_bytes: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(building, "_SORT_BYTES", sort_bytes)
    monkeypatch.setattr(sorted_reader, "_PARTITION_BYTES", 96 * 4 * 33)
    rows = mixed_rows(torch.float32, 33, 1000)
    order = an_order(1000) if ordered else None
    np.save(tmp_path / "x.npy", rows.numpy())
    make(tmp_path / "saved.ibp", rows, codec="auto", layout=layout, order=order)
    for chunk_rows in (32, 50, 5000):
        path = tmp_path / f"{chunk_rows}.ibp"
        features = np.load(tmp_path / "x.npy", mmap_mode="r")
        got = build_to(path, features, layout=layout, order=order, chunk_rows=chunk_rows)
        assert got == (tmp_path / "saved.ibp").read_bytes()
    assert sorted(os.listdir(tmp_path)) == ["32.ibp", "50.ibp", "5000.ibp", "saved.ibp", "x.npy"]


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
@by_id_or_ordered
def test_memory_stays_bounded(ordered: bool, tmp_path: Path) -> None:
    """1.5 GB of features, and less than 1 GB of memory, mapped pages and all imports included."""
    features = np.lib.format.open_memmap(tmp_path / "x.npy", "w+", np.float32, (3_000_000, 128))
    part = np.random.default_rng(0).standard_normal((100_000, 128), np.float32)
    for first in range(0, 3_000_000, 100_000):
        features[first : first + 100_000] = part
    features.flush()
    np.save(tmp_path / "hot.npy", np.random.default_rng(0).permutation(3_000_000))
    options = ["--quiet", *(["--order", "hot.npy"] if ordered else [])]
    # Not ru_maxrss, which starts with what the parent process has.
    program = (
        "import re, sys; from ibp_gnn.command.cli import main; status = main(sys.argv[1:]); "
        "print(re.search('VmHWM:\\\\s+([0-9]+) kB', open('/proc/self/status').read())[1]); sys.exit(status)"
    )
    arguments = [sys.executable, "-c", program, "build", "x.npy", "s.ibp", *options]
    done = subprocess.run(
        arguments, cwd=tmp_path, env=environment(), check=True, capture_output=True, text=True, timeout=600
    )
    assert int(done.stdout.split()[-1]) < 1 << 20


@pytest.mark.cuda
@pytest.mark.parametrize("options", [{}, {"mmap": False}, {"shared": True}, {"verify": "read"}], ids=str)
@pytest.mark.parametrize("pin", [True, False, "auto"])
def test_gathers_to_a_gpu(pin: bool | str, options: dict, tmp_path: Path) -> None:
    rows = mixed_rows(torch.float32, 100)
    path = make(tmp_path / "s.ibp", rows, order=an_order())
    with CompressedFeatureStore.load(path, pin=pin, **options) as store:
        ids = torch.randint(0, NUM_ROWS, (1000,), device="cuda")
        assert_bitwise_equal(store.gather(ids).cpu(), rows[ids.cpu()])
        assert store.page_lock() == (pin is not False)

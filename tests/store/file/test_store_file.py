"""Store files: every bit comes back; builds go on after a kill; damage and hostile files are refused, never read."""

from __future__ import annotations

import dataclasses
import errno
import json
import multiprocessing
import os
import pickle
import shutil
import signal
import struct
import subprocess
import sys
import time
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from matrices import EXHAUSTIVE
from page_locking import Registers
from store_files import rewrite

import ibp_gnn
from ibp_gnn import Codec, CompressedFeatureStore, FormatError
from ibp_gnn.codec.values import SUPPORTED_DTYPES, dtype_from_name
from ibp_gnn.store.build import Job
from ibp_gnn.store.file import building, sharing, sorted_reader, writing
from ibp_gnn.store.file.building import build_file
from ibp_gnn.store.file.header import PREAMBLE_BYTES, SECTION_NAMES
from ibp_gnn.store.file.reading import StoreFile
from ibp_gnn.testing import assert_bitwise_equal, special_rows

NUM_ROWS = 333


def mixed_rows(dtype: torch.dtype, width: int, n: int = NUM_ROWS) -> torch.Tensor:
    """Rows that compress, and some that must go to the overflow area."""
    rows = special_rows(dtype, width, "outliers", n, seed=3)
    rows[::9] = special_rows(dtype, width, "random_bits", len(rows[::9]), seed=4)
    return rows


def an_order(n: int = NUM_ROWS) -> torch.Tensor:
    return torch.randperm(n, generator=torch.Generator().manual_seed(7))


def make(path: Path, rows: torch.Tensor, **options: object) -> Path:
    CompressedFeatureStore.build(rows, progress=False, **options).save(path)  # type: ignore[arg-type]
    return path


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
@pytest.mark.parametrize("layout", ["compact", "inplace"])
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


def test_saving_replaces_a_file_in_one_step(tmp_path: Path) -> None:
    path = make(tmp_path / "s.ibp", mixed_rows(torch.float32, 8))
    with CompressedFeatureStore.load(path) as old:
        other = mixed_rows(torch.float16, 50)
        make(path, other)
        assert_bitwise_equal(old.gather(torch.arange(NUM_ROWS)), mixed_rows(torch.float32, 8))
        with CompressedFeatureStore.load(path) as new:
            assert_bitwise_equal(new.gather(torch.arange(NUM_ROWS)), other)


def test_a_mapped_store_is_pickled_by_name(tmp_path: Path) -> None:
    rows = mixed_rows(torch.float32, 300)
    path = make(tmp_path / "s.ibp", rows, order=an_order())
    with CompressedFeatureStore.load(path) as store:
        pickled = pickle.dumps(store)
        assert len(pickled) < 2000
        assert_bitwise_equal(pickle.loads(pickled).gather(torch.arange(NUM_ROWS)), rows)
    make(path, rows[:50])
    with pytest.raises(FormatError, match="want the file that it was when the store was pickled"):
        pickle.loads(pickled)
    with pytest.raises(ValueError, match="closed"):
        pickle.dumps(store)


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


# --- the builder of files -------------------------------------------------------------------------------------------


def build_to(path: Path, features: object, **options: object) -> bytes:
    given = {"codec": "auto", "layout": "compact", "order": None, "chunk_rows": 32, **options}
    build_file(Job.check(features, **given, progress=False), path, {"file": "test"})  # type: ignore[arg-type]
    return path.read_bytes()


@pytest.mark.parametrize("sort_bytes", [0, 1 << 40], ids=["sorted_on_disk", "picked"])
@pytest.mark.parametrize("ordered", [False, True], ids=["by_id", "ordered"])
@pytest.mark.parametrize("layout", ["compact", "inplace"])
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


@pytest.mark.parametrize("fails_at", [1, 2, 7, 30])
@pytest.mark.parametrize("ordered", [False, True], ids=["by_id", "ordered"])
def test_an_interrupted_build_goes_on(
    ordered: bool, fails_at: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stopped after any step, with a torn line at the journal's end."""
    monkeypatch.setattr(building, "_SORT_BYTES", 0)
    monkeypatch.setattr(sorted_reader, "_PARTITION_BYTES", 96 * 4 * 33)
    rows = mixed_rows(torch.float32, 33, 1000)
    np.save(tmp_path / "x.npy", rows.numpy())
    features = np.load(tmp_path / "x.npy", mmap_mode="r")
    options: dict = {"order": an_order(1000) if ordered else None}
    wanted = build_to(tmp_path / "whole.ibp", features, **options)

    class Stop(Exception):
        pass

    count = 0
    write_lines = building.Journal._append

    def append(self: building.Journal, line: dict) -> None:
        nonlocal count
        if (count := count + 1) > fails_at:
            raise Stop
        write_lines(self, line)

    path = tmp_path / "s.ibp"
    with monkeypatch.context() as patch:
        patch.setattr(building.Journal, "_append", append)
        with pytest.raises(Stop):
            build_to(path, features, **options)
    assert not path.exists()
    with open(tmp_path / "s.ibp.journal", "ab") as journal:
        journal.write(b'{"rows": 64, "over')
    assert build_to(path, features, **options) == wanted
    assert sorted(os.listdir(tmp_path)) == ["s.ibp", "whole.ibp", "x.npy"]


def test_another_build_starts_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = mixed_rows(torch.float32, 33, 1000)
    path = tmp_path / "s.ibp"
    with monkeypatch.context() as patch:
        patch.setattr(building.StoreWriter, "finish", lambda self: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            build_to(path, rows)
    other = mixed_rows(torch.float32, 33, 999)
    build_to(path, other)
    with CompressedFeatureStore.load(path) as store:
        assert_bitwise_equal(store.gather(torch.arange(999)), other)


def test_a_file_that_is_there_or_being_built_is_left_alone(tmp_path: Path) -> None:
    rows = mixed_rows(torch.float32, 8)
    path = make(tmp_path / "s.ibp", rows)
    with pytest.raises(FileExistsError, match="want a path where nothing is"):
        build_to(path, rows)
    with building.Journal(tmp_path / "t.ibp.journal", {}):
        with pytest.raises(BlockingIOError, match="another process is building this store"):
            build_to(tmp_path / "t.ibp", rows)


def test_a_full_disk_is_noticed_before_the_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writing, "free_bytes", lambda folder: 1000)
    rows = mixed_rows(torch.float32, 8)
    with pytest.raises(OSError, match="want [0-9]+ bytes of free disk space for s.ibp.partial, got 1000"):
        build_to(tmp_path / "s.ibp", rows)
    with pytest.raises(OSError, match="free disk space"):
        make(tmp_path / "s.ibp", rows)


# Ordered, rows are written to any place; by id, one after the other.
by_id_or_ordered = pytest.mark.parametrize(
    "ordered", [False, True] if EXHAUSTIVE else [True], ids=lambda ordered: "ordered" if ordered else "by_id"
)


def command(*arguments: object) -> list[str]:
    return [sys.executable, "-m", "ibp_gnn.command.cli", *map(str, arguments)]


def environment() -> dict[str, str]:
    paths = [str(Path(ibp_gnn.__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}


@by_id_or_ordered
def test_a_killed_build_run_again_makes_the_same_bytes(ordered: bool, tmp_path: Path) -> None:
    num_rows, chunk_rows = 200_000, 1024
    rows = torch.randn(num_rows, 64, generator=torch.Generator().manual_seed(0))
    np.save(tmp_path / "x.npy", rows.numpy())
    np.save(tmp_path / "hot.npy", np.random.default_rng(0).zipf(1.5, num_rows))
    options = ["--chunk-rows", chunk_rows, "--quiet", *(["--order", "hot.npy"] if ordered else [])]
    run = {"cwd": tmp_path, "env": environment()}
    subprocess.run(command("build", "x.npy", "whole.ibp", *options), **run, check=True, timeout=300)
    building_process = subprocess.Popen(command("build", "x.npy", "s.ibp", *options), **run)
    journal = tmp_path / "s.ibp.journal"
    lines = 0
    while lines < 2 + 0.3 * num_rows / chunk_rows:
        assert building_process.poll() is None, "the build was to be killed before its end"
        lines = journal.read_bytes().count(b"\n") if journal.exists() else 0
        time.sleep(0.002)
    building_process.send_signal(signal.SIGKILL)
    building_process.wait()
    assert (tmp_path / "s.ibp.partial").exists() and not (tmp_path / "s.ibp").exists()
    again = command("build", "x.npy", "s.ibp", *options)
    done = subprocess.run(again, **run, check=True, capture_output=True, text=True, timeout=300)
    assert "went on with an earlier build" in done.stdout
    assert (tmp_path / "s.ibp").read_bytes() == (tmp_path / "whole.ibp").read_bytes()
    assert not list(tmp_path.glob("s.ibp.*"))


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


# --- damage -----------------------------------------------------------------------------------------------------------


def small_file(tmp_path: Path) -> tuple[Path, torch.Tensor]:
    """A file of some 60 KB in which every section has something; and its rows."""
    rows = mixed_rows(torch.float32, 33)
    path = make(tmp_path / "s.ibp", rows, codec="ibp", order=an_order())
    assert CompressedFeatureStore.load(path).rows.num_overflow > 0
    assert path.stat().st_size < 80_000
    return path, rows


def refuse(path: Path, rows: torch.Tensor) -> None:
    """Both ways to load a damaged file must refuse it, one of them perhaps only when all rows are read."""
    with pytest.raises(FormatError, match="s.ibp: "):
        CompressedFeatureStore.load(path)
    with pytest.raises(FormatError, match="s.ibp: "):
        CompressedFeatureStore.load(path, mmap=False)
    with pytest.raises(FormatError, match="s.ibp: "), StoreFile(path) as file:
        file.check()
    try:
        with CompressedFeatureStore.load(path, verify="read") as store:
            got = store.gather(torch.arange(len(rows)))
    except FormatError:
        return
    assert_bitwise_equal(got, rows)  # the damage is where nothing is read: zeros between sections


def test_a_file_cut_off_anywhere_is_refused(tmp_path: Path) -> None:
    path, rows = small_file(tmp_path)
    whole = path.read_bytes()
    places = np.random.default_rng(0).choice(len(whole), 200, replace=False).tolist()
    for place in [0, 1, 7, 8, PREAMBLE_BYTES - 1, PREAMBLE_BYTES, 4095, 4096, len(whole) - 1, *places]:
        path.write_bytes(whole[:place])
        with pytest.raises(FormatError, match="s.ibp: want "):
            CompressedFeatureStore.load(path)
        with pytest.raises(FormatError, match="s.ibp: want "):
            CompressedFeatureStore.load(path, verify="read")
    path.write_bytes(whole + b"\0")
    refuse(path, rows)


def test_any_flipped_bit_is_found(tmp_path: Path) -> None:
    path, rows = small_file(tmp_path)
    whole = path.read_bytes()
    for bit in np.random.default_rng(1).choice(8 * len(whole), 1000, replace=False).tolist():
        damaged = bytearray(whole)
        damaged[bit // 8] ^= 1 << bit % 8
        path.write_bytes(damaged)
        refuse(path, rows)


def test_damage_is_found_where_it_is_read_and_only_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = mixed_rows(torch.float32, 50, 2000)
    store = CompressedFeatureStore.build(rows, "ibp", progress=False)
    header = building.describe(
        store.codec,
        num_rows=2000,
        num_overflow=store.rows.num_overflow,
        slot_bytes=store.slot_bytes,
        lead_bytes=store.lead_bytes,
        ordered=False,
    )
    header = dataclasses.replace(header, block_bytes=4096)
    monkeypatch.setattr("ibp_gnn.store.file.writing.describe", lambda *_, **__: header)
    path = tmp_path / "s.ibp"
    store.save(path)
    at = header.sections["slots"].offset + 1500 * store.slot_bytes
    damaged = bytearray(path.read_bytes())
    damaged[at + 1] ^= 4
    path.write_bytes(damaged)
    with CompressedFeatureStore.load(path, verify="read") as loaded:
        near = torch.arange(1500 - 4096 // store.slot_bytes - 2)
        assert_bitwise_equal(loaded.gather(near), rows[near])
        where = (
            rf"s.ibp: block {1500 * store.slot_bytes // 4096} of section 'slots', bytes [0-9]+ to [0-9]+ of the file"
        )
        for _ in range(2):
            with pytest.raises(FormatError, match=where):
                loaded.gather(torch.tensor([3, 1500]))
        with pytest.raises(IndexError, match="want 0 <= id < 2000, got 2000"):
            loaded.gather(torch.tensor([2000]))
        with pytest.raises(FormatError, match=where):
            _ = loaded.rows  # whoever gets at the rows past `gather`


# --- hostile files ----------------------------------------------------------------------------------------------------


def put(*place: object) -> Callable[[dict], object]:
    """put("a", 0, "b", value) sets members["a"][0]["b"] = value."""

    def change(members: dict) -> None:
        at: dict = members
        for step in place[:-2]:
            at = at[step]  # type: ignore[index]
        at[place[-2]] = place[-1]

    return change


def test_rewriting_alone_does_no_harm(tmp_path: Path) -> None:
    path, rows = small_file(tmp_path)
    rewrite(path, lambda members: None)
    assert_bitwise_equal(CompressedFeatureStore.load(path).gather(torch.arange(NUM_ROWS)), rows)
    rewrite(path, lambda members: json.dumps(members, indent=9).encode())
    assert_bitwise_equal(CompressedFeatureStore.load(path).gather(torch.arange(NUM_ROWS)), rows)


HOSTILE = {
    "rows": (put("num_rows", 10**15), "want [0-9]+ bytes as its description says|num_rows: want"),
    "huge_rows": (put("num_rows", 10**40), "num_rows: want 0 to"),
    "no_rows": (put("num_rows", 0), "num_overflow: want 0 to 0, got"),
    "negative_rows": (put("num_rows", -1), "num_rows: want 0 to .* got -1"),
    "float_rows": (put("num_rows", 333.0), "want num_rows of type int, got float"),
    "bool_rows": (put("num_rows", True), "want num_rows of type int, got bool"),
    "fewer_rows": (put("num_rows", 332), "want"),
    "negative_overflow": (put("num_overflow", -1), "num_overflow: want 0 to"),
    "more_overflow": (put("num_overflow", 334), "num_overflow: want 0 to 333, got 334"),
    "slot_of_2_bytes": (put("slot_bytes", 2), "slot_bytes: want 4 to .* got 2"),
    "huge_slot": (put("slot_bytes", 1 << 62), "slot_bytes: want 4 to|slot_bytes: want 1 to"),
    "lead": (put("lead_bytes", 1 << 40), "lead_bytes: want 0 to"),
    "negative_lead": (put("lead_bytes", -16), "lead_bytes: want 0 to"),
    "block_0": (put("block_bytes", 0), "block_bytes: want 4096 to"),
    "block_odd": (put("block_bytes", 5000), "block_bytes: want a multiple of 4096, got 5000"),
    "block_huge": (put("block_bytes", 1 << 60), "block_bytes: want 4096 to"),
    "shape": (put("row_shape", [1 << 40, 1 << 40]), "row_bytes: want 1 to"),
    "shape_0": (put("row_shape", [0]), r"row_shape: want .* sizes from 1 to [0-9]+, got \[0\]"),
    "shape_negative": (put("row_shape", [-3, -11]), r"row_shape: want .* sizes from 1 to [0-9]+, got \[-3, -11\]"),
    "shape_text": (put("row_shape", ["33"]), r"row_shape: want .* sizes from 1 to [0-9]+, got \['str'\]"),
    "shape_long": (put("row_shape", [1] * 100), "row_shape: want at most 64 sizes"),
    "dtype": (put("dtype", "object"), "dtype: want one of .* got 'object'"),
    "other_dtype": (put("dtype", "int64"), "want|codec"),
    "byte_order": (put("byte_order", "big"), "byte_order: want 'little', got 'big'"),
    "row_format": (put("row_format", 99), "row_format: want [0-9]+, got 99"),
    "member": (put("pickle", "x"), "description: want an object of"),
    "no_codec": (put("codec", None), "want codec of type dict, got NoneType"),
    "codec": (put("codec", "kind", "evil"), r"codec: want one of \[.*'dict', 'ibp'.*\], got 'evil'"),
    "codec_parameter": (put("codec", "parameters", "word_bits", 5), "codec 'ibp': word_bits: want one of"),
    "codec_parameter_list": (put("codec", "parameters", "word_bits", []), "codec parameter 'word_bits': want a number"),
    "codec_more": (put("codec", "parameters", "more", 5), "codec 'ibp': "),
    "table_shape": (put("codec", "tables", 0, "shape", [1 << 44]), "want"),
    "table_negative": (put("codec", "tables", 0, "shape", [-132]), "codec table: want .* sizes"),
    "table_dtype": (put("codec", "tables", 0, "dtype", "object"), "codec table: want one of"),
    "table_type": (put("codec", "tables", 0, "dtype", "float64"), "codec table: want one of"),
    "table_name": (put("codec", "tables", 0, "name", "word_bits"), "codec table: want a name that is no parameter"),
    "table_names": (put("codec", "tables", 0, "name", "self"), "codec 'ibp': "),
    "offset": (put("sections", 3, "offset", 0), "sections: want"),
    "overlap": (put("sections", 4, "offset", 8192), "sections: want"),
    "offset_negative": (put("sections", 3, "offset", -4096), "sections: want"),
    "offset_huge": (put("sections", 3, "offset", 1 << 63), "sections: want"),
    "length": (put("sections", 3, "bytes", 1 << 63), "sections: want"),
    "length_negative": (put("sections", 3, "bytes", -1), "sections: want"),
    "unordered": (put("sections", 1, "bytes", 0), "want"),
    "section_name": (put("sections", 3, "name", "slot_of"), "sections: want"),
    "no_sections": (put("sections", []), "sections: want"),
    "no_json": (lambda members: b"{" * 400, "description: want JSON"),
    "deep_json": (lambda members: b"[" * 100_000, "description: want JSON"),
    "no_text": (lambda members: b"\xff\xfe" * 40, "description: want JSON"),
    "list": (lambda members: b"[1, 2]", "description: want an object"),
    "long": (lambda members: b" " * (1 << 20) + b"{}", "description: want 2 to 1048576 bytes"),
    "digits": (lambda members: b'{"num_rows": ' + b"9" * 10_000 + b"}", "description: want"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_descriptions_are_refused(name: str, tmp_path: Path) -> None:
    change, message = HOSTILE[name]
    path, _ = small_file(tmp_path)
    rewrite(path, change)
    for options in ({}, {"verify": "read"}, {"mmap": False}):
        with pytest.raises(FormatError, match=f"s.ibp: .*({message})"):
            CompressedFeatureStore.load(path, **options)


@pytest.mark.parametrize(
    ("offset", "value", "message"),
    [
        (0, b"PK\3\4", "want a store file, starting with"),
        (8, struct.pack("<I", 2), "want version 1, got 2"),
        (12, struct.pack(">I", 0x01020304), "want little-endian numbers, got big-endian ones"),
        (12, b"\0\0\0\0", "byte order: want 0x01020304, got 0x00000000"),
        (16, struct.pack("<Q", 2**64 - 1), "description: want 2 to"),
        (16, struct.pack("<Q", 0), "description: want 2 to"),
        (24, struct.pack("<Q", 2**64 - 1), "want 18446744073709551615 bytes, got"),
    ],
)
def test_hostile_preambles_are_refused(offset: int, value: bytes, message: str, tmp_path: Path) -> None:
    path, _ = small_file(tmp_path)
    whole = bytearray(path.read_bytes())
    whole[offset : offset + len(value)] = value
    path.write_bytes(whole)
    with pytest.raises(FormatError, match=f"s.ibp: .*{message}"):
        CompressedFeatureStore.load(path)


def test_a_table_of_slots_that_is_no_permutation_is_refused(tmp_path: Path) -> None:
    rows = mixed_rows(torch.float32, 8)
    for slot in (5, -1, NUM_ROWS):
        store = CompressedFeatureStore.build(rows, order=an_order(), progress=False)
        assert store.slot_of is not None
        store.slot_of[store.slot_of == 4] = slot
        store.save(tmp_path / "s.ibp")
        with pytest.raises(FormatError, match="slot_of: want each slot of 0 to 332 once, got no 4"):
            CompressedFeatureStore.load(tmp_path / "s.ibp")


def test_other_files_are_refused(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.zeros(5))
    with pytest.raises(FormatError, match="x.npy: want a store file, starting with"):
        CompressedFeatureStore.load(tmp_path / "x.npy")
    with pytest.raises(OSError):
        CompressedFeatureStore.load(tmp_path)


# --- shared memory ----------------------------------------------------------------------------------------------------


def _load_shared(path: Path, queue: object, wait: object) -> None:
    with CompressedFeatureStore.load(path, shared=True) as store:
        got = store.gather(torch.arange(NUM_ROWS)).numpy().tobytes()
        queue.put((got, os.stat(store._held_file._shared._fd).st_ino))  # type: ignore[attr-defined, union-attr]
        wait.wait(60)  # type: ignore[attr-defined]


def test_processes_share_one_copy(tmp_path: Path) -> None:
    rows = mixed_rows(torch.float32, 33)
    path = make(tmp_path / "s.ibp", rows, order=an_order())
    context = multiprocessing.get_context("spawn")
    queue, wait = context.Queue(), context.Event()
    children = [context.Process(target=_load_shared, args=(path, queue, wait)) for _ in range(2)]
    for child in children:
        child.start()
    answers = [queue.get(timeout=120) for _ in children]
    assert [got for got, _ in answers] == [rows.numpy().tobytes()] * 2
    assert answers[0][1] == answers[1][1]
    with CompressedFeatureStore.load(path, shared=True) as store:
        assert store._held_file is not None and store._held_file._shared is not None
        shared = store._held_file._shared.path
        assert os.stat(shared).st_ino == answers[0][1]
        assert_bitwise_equal(store.gather(torch.arange(NUM_ROWS)), rows)
        wait.set()
        for child in children:
            child.join(timeout=60)
            assert child.exitcode == 0
        assert shared.exists()
        assert_bitwise_equal(pickle.loads(pickle.dumps(store)).gather(torch.arange(NUM_ROWS)), rows)
    assert not shared.exists()


def test_a_copy_left_half_filled_is_filled_again(tmp_path: Path) -> None:
    rows = mixed_rows(torch.float32, 33)
    path = make(tmp_path / "s.ibp", rows)
    store = CompressedFeatureStore.load(path, shared=True)
    assert store._held_file is not None and store._held_file._shared is not None
    shared = store._held_file._shared.path
    size = shared.stat().st_size
    store.close()
    for left in (b"", bytes(size), b"\1" * (size // 2)):
        shared.write_bytes(left)
        shared.chmod(0o600)
        with CompressedFeatureStore.load(path, shared=True) as store:
            assert_bitwise_equal(store.gather(torch.arange(NUM_ROWS)), rows)
    assert not shared.exists()


def test_a_damaged_file_is_not_shared(tmp_path: Path) -> None:
    path, _ = small_file(tmp_path)
    damaged = bytearray(path.read_bytes())
    with StoreFile(path) as file:
        damaged[file.section("slots").offset + 5] ^= 1
    path.write_bytes(damaged)
    for _ in range(2):
        with pytest.raises(FormatError, match="block 0 of section 'slots'"):
            CompressedFeatureStore.load(path, shared=True)
    assert not list(sharing.FOLDER.glob("ibp_gnn-*"))


def test_shared_memory_that_others_fill_meanwhile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """There seemed to be room, and then there is none: an error, not a signal."""
    path = make(tmp_path / "s.ibp", mixed_rows(torch.float32, 33))
    fallocate, asked = os.posix_fallocate, []

    def full(fd: int, offset: int, length: int) -> None:
        asked.append((os.fstat(fd).st_size, offset, length))
        fallocate(fd, offset, 8192)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, "posix_fallocate", full)
        with pytest.raises(OSError, match="want [0-9]+ bytes of shared memory, got [0-9]+ free") as caught:
            CompressedFeatureStore.load(path, shared=True)
        assert caught.value.errno == errno.ENOSPC
    ((size, offset, length),) = asked
    with StoreFile(path) as file:
        assert (size, offset) == (0, 0), "reserved before it is long enough to be written to"
        assert length > sum(file.section(name).nbytes for name in ("bitmask", "slots", "overflow"))
    assert not list(sharing.FOLDER.glob("ibp_gnn-*"))
    with CompressedFeatureStore.load(path, shared=True) as store:
        assert_bitwise_equal(store.gather(torch.arange(NUM_ROWS)), mixed_rows(torch.float32, 33))


def test_a_full_tmpfs_is_an_error_and_no_signal(tmp_path: Path) -> None:
    """In a process of its own, which SIGBUS would kill; its free space is asked for before others fill it."""
    folder = tmp_path / "shm"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=8k", "none", str(folder)]
    if os.geteuid() != 0 or shutil.which("mount") is None or subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("wants to mount a small tmpfs")
    try:
        make(tmp_path / "s.ibp", mixed_rows(torch.float32, 33))
        program = (
            "import sys; from pathlib import Path; import ibp_gnn; from ibp_gnn.store.file import sharing, writing\n"
            "sharing.FOLDER = Path(sys.argv[2]); writing.free_bytes = lambda folder: 1 << 40\n"
            "try: ibp_gnn.CompressedFeatureStore.load(sys.argv[1], shared=True)\n"
            "except OSError as error: print(error)"
        )
        command = [sys.executable, "-c", program, str(tmp_path / "s.ibp"), str(folder)]
        done = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, (done.returncode, done.stderr)
        assert "bytes of shared memory, got " in done.stdout
        assert os.listdir(folder) == []
    finally:
        subprocess.run(["umount", str(folder)], check=True)


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


def test_names_in_the_format(tmp_path: Path) -> None:
    """What version 1 says, spelled out once, so that it does not change unnoticed."""
    path = make(tmp_path / "s.ibp", torch.arange(12.0).reshape(4, 3), codec="dict")
    with StoreFile(path) as file:
        assert tuple(file.header.sections) == SECTION_NAMES == ("tables", "slot_of", "bitmask", "slots", "overflow")
        assert file.header.dtype == dtype_from_name("float32") and isinstance(file.codec(), Codec)
    whole = path.read_bytes()
    assert whole[:16] == b"IBPSTORE" + struct.pack("<II", 1, 0x01020304)
    assert struct.unpack("<Q", whole[24:32])[0] == len(whole)
    assert zlib.crc32(whole[-4 * 4 :]) == struct.unpack("<I", whole[32:36])[0]  # an empty slot_of has no block


@pytest.mark.parametrize("options", [{}, {"mmap": False}, {"shared": True}, {"verify": "read"}], ids=str)
def test_page_locked_rows_are_in_memory_and_checked(options: dict, tmp_path: Path, registers: Registers) -> None:
    path, rows = small_file(tmp_path)
    store = CompressedFeatureStore.load(path, pin=True, **options)
    held = store.rows
    assert registers.locked == {part.data_ptr(): part.numel() for part in (held.slots, held.overflow)}
    assert_bitwise_equal(store.gather(torch.arange(NUM_ROWS)), rows)
    store.close()
    assert registers.locked == {}
    damaged = bytearray(path.read_bytes())
    with StoreFile(path) as file:
        damaged[file.section("slots").offset + 5] ^= 1
    path.write_bytes(damaged)
    with pytest.raises(FormatError, match="block 0 of section 'slots'"):
        CompressedFeatureStore.load(path, pin=True, **options)

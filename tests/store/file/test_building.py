"""Builds whose features change meanwhile, or whose files are lost: an error that says so, or the right file."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from features_to_build import NUM_ROWS, WIDTH, a_codec, an_order, mapped, some_rows
from store_files import stop_building

from ibp_gnn import CompressedFeatureStore
from ibp_gnn.command.cli import main
from ibp_gnn.store import build as build_module
from ibp_gnn.store.build import Job
from ibp_gnn.store.file import building, sorted_reader
from ibp_gnn.store.file.building import build_file
from ibp_gnn.testing import assert_bitwise_equal


def test_which_rows_overflow() -> None:
    codec = a_codec(some_rows())
    compressed = codec.compress(some_rows())
    assert torch.nonzero(compressed.overflows()).flatten().tolist() == list(range(0, NUM_ROWS, 9))


def build_to(path: Path, features: Any, **options: Any) -> str:
    given = {"codec": a_codec(some_rows()), "layout": "compact", "order": None, "chunk_rows": 64, **options}
    return build_file(Job.check(features, **given, progress=False), path, {"file": "test"})


def before_the_second_pass(monkeypatch: pytest.MonkeyPatch, act: Callable[[], object]) -> None:
    second_pass = build_module.placed_chunks

    def hooked(*arguments: Any, **options: Any) -> Any:
        act()
        return second_pass(*arguments, **options)

    monkeypatch.setattr(build_module, "placed_chunks", hooked)


@pytest.mark.parametrize("to_file", [False, True], ids=["memory", "file"])
@pytest.mark.parametrize("ordered", [False, True], ids=["by_id", "ordered"])
@pytest.mark.parametrize("kind", ["mapped", "tensor"])
@pytest.mark.parametrize(("row", "like"), [(500, 504), (504, 500), (999, 998)])
def test_a_row_that_changes_between_the_passes_is_named(
    row: int, like: int, kind: str, ordered: bool, to_file: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It no longer fits its slot, or fits it now."""
    rows = some_rows()
    features: Any = mapped(rows, tmp_path) if kind == "mapped" else rows.clone()
    order = an_order() if ordered else None

    def change() -> None:
        features[row] = features[like]

    path = tmp_path / "s.ibp"
    with monkeypatch.context() as patch:
        before_the_second_pass(patch, change)
        with pytest.raises(ValueError, match=f"features: row {row} changed while the store was built"):
            if to_file:
                build_to(path, features, order=order)
            else:
                CompressedFeatureStore.build(
                    features, a_codec(rows), order=order, chunk_rows=64, progress=False, pin=False
                )
    assert not path.exists()
    if to_file:  # from where it was, or anew
        build_to(path, features, order=order)
        with CompressedFeatureStore.load(path) as store:
            rows[row] = rows[like]
            assert_bitwise_equal(store.gather(torch.arange(NUM_ROWS)), rows)
        assert not list(tmp_path.glob("s.ibp.*"))


def interrupted(path: Path, features: Any, monkeypatch: pytest.MonkeyPatch, after: int, **options: Any) -> None:
    """A build that was stopped when `after` lines of its journal were written."""
    stop_building(monkeypatch, after, lambda: build_to(path, features, **options))
    assert not path.exists() and path.with_name("s.ibp.partial").exists()


def lose(path: Path) -> None:
    path.unlink()


def empty(path: Path) -> None:
    path.write_bytes(b"")


def halve(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def replace_by_zeros(path: Path) -> None:
    size = path.stat().st_size
    path.unlink()
    path.write_bytes(bytes(size))


def replace_by_more(path: Path) -> None:
    size = path.stat().st_size
    path.unlink()
    path.write_bytes(b"\1" * (3 * size + 1_000_000))


def append(path: Path) -> None:
    with open(path, "ab") as file:
        file.write(b"\1" * 1_000_000)


def flip(path: Path) -> None:
    """A bit of a row that the first chunk has written."""
    whole = bytearray(path.read_bytes())
    whole[-(-len(whole) // 4)] ^= 1
    path.write_bytes(whole)


@pytest.mark.parametrize("after", [3, 14])
@pytest.mark.parametrize("what", ["partial", "sorted", "both"])
@pytest.mark.parametrize(
    "harm", [lose, empty, halve, replace_by_zeros, replace_by_more, append], ids=lambda f: f.__name__
)
def test_a_build_that_goes_on_looks_at_what_is_there(
    harm: Callable[[Path], None], what: str, after: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(building, "_SORT_BYTES", 0)
    monkeypatch.setattr(sorted_reader, "_PARTITION_BYTES", 128 * 4 * WIDTH)
    rows, path = some_rows(), tmp_path / "s.ibp"
    np.save(tmp_path / "x.npy", rows.numpy())
    features = np.load(tmp_path / "x.npy", mmap_mode="r")
    options = {"order": an_order() if what != "partial" else None}
    build_to(tmp_path / "whole.ibp", features, **options)
    interrupted(path, features, monkeypatch, after, **options)
    for suffix in ("partial", "sorted") if what == "both" else (what,):
        harm(tmp_path / f"s.ibp.{suffix}")
    said = build_to(path, features, **options)
    assert path.read_bytes() == (tmp_path / "whole.ibp").read_bytes()
    assert sorted(os.listdir(tmp_path)) == ["s.ibp", "whole.ibp", "x.npy"]
    if harm is append:  # all that was written is there
        assert said == "went on with an earlier build"
    else:
        assert said.startswith("started over, for an earlier build's work is lost: ")


def test_a_flipped_bit_of_what_was_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows, path = some_rows(), tmp_path / "s.ibp"
    build_to(tmp_path / "whole.ibp", rows)
    interrupted(path, rows, monkeypatch, 10)
    flip(tmp_path / "s.ibp.partial")
    assert "want bytes 0 to " in build_to(path, rows)
    assert path.read_bytes() == (tmp_path / "whole.ibp").read_bytes()


def test_an_untouched_build_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows, path = some_rows(), tmp_path / "s.ibp"
    assert build_to(tmp_path / "whole.ibp", rows) == ""
    interrupted(path, rows, monkeypatch, 10)
    with monkeypatch.context() as patch:
        patch.setattr(build_module, "size", lambda *_: pytest.fail("measured again"))
        assert build_to(path, rows) == "went on with an earlier build"
    assert path.read_bytes() == (tmp_path / "whole.ibp").read_bytes()


@pytest.mark.parametrize(("row", "like"), [(900, 901), (901, 900), (5, 9)])
def test_features_that_changed_while_nothing_was_built(
    row: int, like: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And nobody could see it: same file, same time. What is built is right for what is there, or for what was."""
    rows, path = some_rows(), tmp_path / "s.ibp"
    features = mapped(rows, tmp_path)
    interrupted(path, features, monkeypatch, 10)
    features[row] = features[like]
    changed = rows.clone()
    changed[row] = rows[like]
    said = build_to(path, features)
    assert said.startswith("started over, for an earlier build's work is lost: want the features as they were") == (
        row > 5
    )
    with CompressedFeatureStore.load(path) as store:
        wanted = changed if row > 5 else rows  # row 5 had been written
        assert_bitwise_equal(store.gather(torch.arange(NUM_ROWS)), wanted)


def test_the_command_says_that_it_started_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    np.save(tmp_path / "x.npy", some_rows().numpy())
    arguments = ["build", str(tmp_path / "x.npy"), str(tmp_path / "s.ibp"), "--quiet", "--chunk-rows", "64"]
    with monkeypatch.context() as patch:
        patch.setattr(building.StoreWriter, "finish", lambda self: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            main(arguments)
    os.unlink(tmp_path / "s.ibp.partial")
    assert main(arguments) == 0
    assert "started over, for an earlier build's work is lost: " in capsys.readouterr().out
    with CompressedFeatureStore.load(tmp_path / "s.ibp") as store:
        assert_bitwise_equal(store.gather(torch.arange(NUM_ROWS)), some_rows())
    assert sorted(os.listdir(tmp_path)) == ["s.ibp", "x.npy"]


def test_a_store_that_another_process_has_built_meanwhile_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, enter = tmp_path / "s.ibp", building.Journal.__enter__

    def late(self: building.Journal) -> building.Journal:
        path.write_bytes(b"of another process")
        return enter(self)

    monkeypatch.setattr(building.Journal, "__enter__", late)
    with pytest.raises(FileExistsError, match="want a path where nothing is, got an existing file"):
        build_file(Job.check(torch.rand(50, 3), "auto", "compact", None, None, False), path, {"file": "test"})
    assert path.read_bytes() == b"of another process" and os.listdir(tmp_path) == ["s.ibp"]

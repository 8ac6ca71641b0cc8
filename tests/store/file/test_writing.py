"""Saving a store: one state of it, whole, whoever updates it or saves to the same path meanwhile."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from store_files import build_to, make, mixed_rows

from ibp_gnn import CompressedFeatureStore
from ibp_gnn.store.file import writing
from ibp_gnn.store.file.reading import StoreFile
from ibp_gnn.testing import assert_bitwise_equal, special_rows

NUM_ROWS = 300


def some_rows(seed: int = 3) -> torch.Tensor:
    """Some of them overflow."""
    rows = special_rows(torch.float32, 33, "outliers", NUM_ROWS, seed=seed)
    rows[::9] = special_rows(torch.float32, 33, "random_bits", len(rows[::9]), seed=seed + 1)
    return rows


def a_store(rows: torch.Tensor, **options: Any) -> CompressedFeatureStore:
    return CompressedFeatureStore.build(rows, "ibp", pin=False, progress=False, **options)


def assert_holds(path: Path, store: CompressedFeatureStore, rows: torch.Tensor) -> None:
    """The file is that of these rows, encoded as the store's are: overflow rows in the order of slots, none unused."""
    with CompressedFeatureStore.load(path) as loaded:
        assert_bitwise_equal(loaded.gather(torch.arange(NUM_ROWS)), rows)
        in_slots = rows if loaded.slot_of is None else rows[torch.argsort(loaded.slot_of)]
        wanted = store.rows
        if wanted.packing is None:
            wanted = store.codec.compress(in_slots, slot_bytes=store.slot_bytes)
        for name in ("slots", "bitmask", "overflow"):
            assert_bitwise_equal(getattr(loaded.rows, name), getattr(wanted, name))


def after_parts(monkeypatch: pytest.MonkeyPatch, act: Callable[[int], None]) -> None:
    """Calls act(1), act(2), ... after each write of 32 rows."""
    count = 0
    write = writing.StoreWriter.write

    def hooked(self: writing.StoreWriter, name: str, data: Any) -> None:
        nonlocal count
        write(self, name, data)
        if name == "overflow":
            count += 1
            act(count)

    monkeypatch.setattr(writing, "_PART_BYTES", 1, raising=False)
    monkeypatch.setattr(writing.StoreWriter, "write", hooked)


@pytest.mark.parametrize("layout", ["compact", "inplace", "packed"])
@pytest.mark.parametrize("ordered", [False, True], ids=["by_id", "ordered"])
def test_parts_make_the_bytes_of_the_whole(ordered: bool, layout: str, tmp_path: Path, monkeypatch: Any) -> None:
    order = torch.randperm(NUM_ROWS, generator=torch.Generator().manual_seed(7)) if ordered else None
    store = a_store(some_rows(), layout=layout, order=order)
    store.save(tmp_path / "whole.ibp")
    monkeypatch.setattr(writing, "_PART_BYTES", 1)
    store.save(tmp_path / "parts.ibp")
    assert (tmp_path / "parts.ibp").read_bytes() == (tmp_path / "whole.ibp").read_bytes()
    assert_holds(tmp_path / "parts.ibp", store, some_rows())
    with StoreFile(tmp_path / "parts.ibp") as file:
        for name in ("slots", "bitmask", "overflow"):
            assert_bitwise_equal(file.read(name), getattr(store.rows, name))


@pytest.mark.parametrize("updates_before", [0, 1])
@pytest.mark.parametrize("at", [{1}, {4}, {4, 5}, {4, 12}, set(range(1, 100))], ids=str)
def test_an_update_between_two_parts(at: set[int], updates_before: int, tmp_path: Path, monkeypatch: Any) -> None:
    """Rows before, rows after, or those of an update between: never some of each."""
    rows = some_rows()
    store = a_store(rows)
    states = [rows.clone()]
    ids = torch.arange(0, NUM_ROWS, 3)

    def change(seed: int) -> None:
        state = states[-1].clone()
        state[ids] = some_rows(100 + seed)[ids]
        store.update(ids, state[ids])
        states.append(state)

    for seed in range(updates_before):
        change(1000 + seed)
    after_parts(monkeypatch, lambda part: change(part) if part in at else None)
    store.save(tmp_path / "s.ibp")
    with CompressedFeatureStore.load(tmp_path / "s.ibp") as loaded:
        got = loaded.gather(torch.arange(NUM_ROWS)).view(torch.int32)
    which = [i for i, state in enumerate(states) if torch.equal(got, state.view(torch.int32))]
    assert which, "the file holds no state of the store"
    assert_holds(tmp_path / "s.ibp", store, states[which[0]])
    assert os.listdir(tmp_path) == ["s.ibp"]


def test_an_update_does_not_wait_for_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = some_rows()
    store = a_store(rows)
    writes, updated = threading.Event(), threading.Event()
    write_all = writing.write_all

    def slow_write(*arguments: Any) -> None:
        writes.set()
        assert updated.wait(60), "the update waits for the disk"
        write_all(*arguments)

    def save() -> None:
        try:
            store.save(tmp_path / "s.ibp")
        except BaseException as error:  # what the thread met is the test's to raise
            errors.append(error)

    errors: list[BaseException] = []
    monkeypatch.setattr(writing, "write_all", slow_write)
    saving = threading.Thread(target=save)
    saving.start()
    assert writes.wait(60)
    updating = threading.Thread(target=lambda: (store.update(torch.arange(10), rows[10:20]), updated.set()))
    updating.start()
    updating.join(20)
    finished, alive = updated.is_set(), saving.is_alive()
    updated.set()
    updating.join(60)
    saving.join(60)
    assert finished, "the update waits for the disk"
    assert alive and not errors, errors
    rows[:10] = rows[10:20]
    assert_holds(tmp_path / "s.ibp", store, rows)


def test_two_saves_to_one_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both from one process, one inside the other: the one that ends last is there, whole."""
    first, second = some_rows(3), some_rows(30)
    inner = a_store(second)
    finish = writing.StoreWriter.finish
    path = tmp_path / "s.ibp"

    def hooked(self: writing.StoreWriter) -> None:
        monkeypatch.setattr(writing.StoreWriter, "finish", finish)
        inner.save(path)
        assert_holds(path, inner, second)
        finish(self)

    monkeypatch.setattr(writing.StoreWriter, "finish", hooked)
    outer = a_store(first)
    outer.save(path)
    assert_holds(path, outer, first)
    assert os.listdir(tmp_path) == ["s.ibp"]


@pytest.mark.parametrize("umask", [0o022, 0o077, 0o007])
def test_a_saved_file_has_the_mode_that_umask_says(umask: int, tmp_path: Path) -> None:
    before = os.umask(umask)
    try:
        a_store(some_rows()).save(tmp_path / "s.ibp")
    finally:
        os.umask(before)
    assert (tmp_path / "s.ibp").stat().st_mode & 0o777 == 0o666 & ~umask


def test_nothing_is_left_after_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old, store = some_rows(30), a_store(some_rows())
    a_store(old).save(tmp_path / "s.ibp")
    before = (tmp_path / "s.ibp").read_bytes()

    def broken(*_: object) -> None:
        raise OSError("the disk is gone")

    monkeypatch.setattr(writing, "write_all", broken)
    with pytest.raises(OSError, match="the disk is gone"):
        store.save(tmp_path / "s.ibp")
    assert os.listdir(tmp_path) == ["s.ibp"] and (tmp_path / "s.ibp").read_bytes() == before


def test_a_full_disk_is_noticed_before_the_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writing, "free_bytes", lambda folder: 1000)
    rows = mixed_rows(torch.float32, 8)
    with pytest.raises(OSError, match="want [0-9]+ bytes of free disk space for s.ibp.partial, got 1000"):
        build_to(tmp_path / "s.ibp", rows)
    with pytest.raises(OSError, match="free disk space"):
        make(tmp_path / "s.ibp", rows)

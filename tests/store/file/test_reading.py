"""Damaged and hostile files are refused, never read."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path

import numpy as np
import pytest
import torch
from store_files import NUM_ROWS, an_order, mixed_rows, small_file

from ibp_gnn import CompressedFeatureStore, FormatError
from ibp_gnn.store.file import building
from ibp_gnn.store.file.header import PREAMBLE_BYTES
from ibp_gnn.store.file.reading import StoreFile
from ibp_gnn.testing import assert_bitwise_equal


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


def test_a_file_that_is_cut_while_it_is_open(tmp_path: Path) -> None:
    path, _ = small_file(tmp_path)
    with StoreFile(path) as file:
        start, end = file.section("slots").block(0)
        os.truncate(path, start + 100)
        wanted = rf"s.ibp: block 0 of section 'slots', .* want {end - start} bytes, got 100: the file was cut off"
        with pytest.raises(FormatError, match=wanted):
            file.read("slots")

"""Reading and writing files whole: the system may do less than it is asked to."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
from store_files import make, mixed_rows

from ibp_gnn import CompressedFeatureStore
from ibp_gnn.store.file import file_io
from ibp_gnn.testing import assert_bitwise_equal


@pytest.mark.parametrize("most", [1000, 4095])
@pytest.mark.parametrize("options", [{}, {"mmap": False}, {"shared": True}, {"verify": "read"}], ids=str)
def test_reads_may_be_short(options: dict, most: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = mixed_rows(torch.float32, 33)
    make(tmp_path / "s.ibp", rows, codec="ibp")
    pread, preadv = os.pread, os.preadv

    def short_preadv(fd: int, buffers: list, *where: int) -> int:
        return preadv(fd, [memoryview(buffers[0])[:most]], *where)

    monkeypatch.setattr(os, "pread", lambda fd, length, offset: pread(fd, min(length, most), offset))
    monkeypatch.setattr(os, "preadv", short_preadv)
    with CompressedFeatureStore.load(tmp_path / "s.ibp", **options) as store:
        assert_bitwise_equal(store.gather(torch.arange(len(rows))), rows)


def test_saving_replaces_a_file_in_one_step(tmp_path: Path) -> None:
    path = make(tmp_path / "s.ibp", mixed_rows(torch.float32, 8))
    with CompressedFeatureStore.load(path) as old:
        other = mixed_rows(torch.float16, 50)
        make(path, other)
        assert_bitwise_equal(old.gather(torch.arange(len(other))), mixed_rows(torch.float32, 8))
        with CompressedFeatureStore.load(path) as new:
            assert_bitwise_equal(new.gather(torch.arange(len(other))), other)


def test_writes_may_be_short(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pwrite, data = os.pwrite, bytes(range(256)) * 5
    monkeypatch.setattr(os, "pwrite", lambda fd, part, offset: pwrite(fd, bytes(part)[:100], offset))
    with open(tmp_path / "x", "wb+", buffering=0) as file:
        file_io.write_all(file.fileno(), memoryview(data), 7)
        assert os.stat(file.fileno()).st_size == 7 + len(data)
        assert file_io.read_at(file.fileno(), len(data), 7) == data


def test_a_file_may_end_before_what_is_asked_for(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"0123456789")
    with open(tmp_path / "x", "rb") as file:
        buffer = bytearray(b"?" * 8)
        assert file_io.read_into(file.fileno(), buffer, 7) == 3
        assert buffer == b"789?????"
        assert file_io.read_at(file.fileno(), 4, 20) == b""


def test_what_is_not_replaced_stays(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_bytes(b"old")
    with pytest.raises(KeyError), file_io.replacing(path) as file:
        file.write(b"new")
        raise KeyError
    assert os.listdir(tmp_path) == ["x"] and path.read_bytes() == b"old"
    with file_io.replacing(path) as one, file_io.replacing(path) as other:  # whoever is last
        one.write(b"one")
        other.write(b"other")
    assert os.listdir(tmp_path) == ["x"] and path.read_bytes() == b"one"

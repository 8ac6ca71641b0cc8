"""The fuzz targets in Python, on their corpora, without a fuzzer; and that they notice what they are there for.
scripts/fuzz.sh runs these and those of csrc/fuzz with one."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import fuzz_oracle
import fuzz_store_file
import pytest
import torch

from ibp_gnn import CompressedFeatureStore, _native
from ibp_gnn.testing import special_rows

CORPUS = Path(__file__).parent / "corpus"


def inputs(target: str) -> list[bytes]:
    found = [path.read_bytes() for path in sorted((CORPUS / target).iterdir())]
    assert len(found) > 20
    return found


@pytest.fixture
def file(tmp_path: Path) -> bytes:
    rows = special_rows(torch.float32, 9, "outliers", 30)
    order = torch.randperm(30, generator=torch.Generator().manual_seed(1))
    CompressedFeatureStore.build(rows, "dict", order=order, progress=False).save(tmp_path / "s.ibp")
    return (tmp_path / "s.ibp").read_bytes()


@pytest.mark.parametrize("target", [fuzz_oracle, fuzz_store_file], ids=["oracle", "store_file"])
def test_corpus(target: Any) -> None:
    for data in inputs(target.__name__.removeprefix("fuzz_")):
        target.test_one_input(data)


def test_an_input_assembles_the_file_that_it_was_made_of(file: bytes) -> None:
    data = fuzz_store_file.as_input(file)
    length = struct.unpack_from("<H", data, fuzz_store_file._CHANGES.size - 2)[0]
    text, contents = data[fuzz_store_file._CHANGES.size :][:length], data[fuzz_store_file._CHANGES.size + length :]
    assert fuzz_store_file._assemble(text, contents) == file
    assert fuzz_store_file._with_sections(text) == text
    fuzz_store_file.test_one_input(data)


def test_every_kind_of_change_to_a_file_is_tried(file: bytes) -> None:
    data = bytearray(fuzz_store_file.as_input(file))
    for where in (0, 50, 5000, len(file) - 1, len(file) // 2):
        struct.pack_into("<BIB", data, 0, 1, where, 0x10)
        fuzz_store_file.test_one_input(bytes(data))


def test_a_wrong_row_of_a_file_is_noticed(file: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    gather = CompressedFeatureStore.gather
    monkeypatch.setattr(CompressedFeatureStore, "gather", lambda self, ids: gather(self, ids).neg())
    with pytest.raises(AssertionError, match="want the oracle's"):
        fuzz_store_file.test_one_input(fuzz_store_file.as_input(file))


def test_a_file_that_is_taken_in_spite_of_a_change_is_noticed(file: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ibp_gnn.store.file.reading.zlib.crc32", lambda data, value=0: 0)
    monkeypatch.setattr("ibp_gnn.store.file.header.zlib.crc32", lambda data, value=0: 0)
    data = bytearray(fuzz_store_file.as_input(file))
    struct.pack_into("<BIB", data, 0, 1, file.index(bytes(64), 4096 + 30), 0x10)
    with pytest.raises(AssertionError):
        fuzz_store_file.test_one_input(bytes(data))


@pytest.mark.parametrize("name", ["decode", "encode", "measure"])
def test_other_bits_than_the_oracles_are_noticed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    real = getattr(_native.cpu, name)
    out_at = {"decode": 6, "encode": 3, "measure": 2}[name]

    def wrong(*arguments: Any) -> None:
        real(*arguments)
        if arguments[out_at].size > 0:
            arguments[out_at].reshape(-1)[0] ^= 1

    fuzz_oracle._paths()
    monkeypatch.setattr(_native.cpu, name, wrong)
    noticed = 0
    for data in inputs("oracle"):
        try:
            fuzz_oracle.test_one_input(data)
        except AssertionError:
            noticed += 1
    assert noticed > 5

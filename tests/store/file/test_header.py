"""Descriptions of store files: what each member may say, and what is refused."""

from __future__ import annotations

import json
import struct
import zlib
from pathlib import Path

import pytest
import torch
from store_files import NUM_ROWS, make, put, rewrite, small_file

from ibp_gnn import Codec, CompressedFeatureStore, FormatError
from ibp_gnn.codec.values import dtype_from_name
from ibp_gnn.store.file.header import SECTION_NAMES
from ibp_gnn.store.file.reading import StoreFile
from ibp_gnn.testing import assert_bitwise_equal


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

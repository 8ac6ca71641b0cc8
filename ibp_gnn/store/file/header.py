"""The format of store files, version 1. This docstring is its one definition.

A store file holds what a CompressedFeatureStore holds. All integers are little endian.

    preamble   40 bytes: magic "IBPSTORE"; uint32 version; uint32 0x01020304 (a reader that finds 0x04030201 has another
               byte order); uint64 length of the description; uint64 length of the file; uint32 CRC-32 of the checksums;
               uint32 CRC-32 of everything before the first section but for these last 4 bytes
    description  JSON in UTF-8, see below; then zeros up to a multiple of 4096
    sections   one after the other, each filled up with zeros to a multiple of 4096, so that each can be memory-mapped:
      tables    the codec's tables, one after the other, in the order of the description
      slot_of   int32 [num_rows], the slot of each node id; a permutation; of length 0 if node i is in slot i
      bitmask   as in csrc/core/format.h; of packed rows, their directory as in csrc/core/packed_rows.h
      slots     as there, with its slack; packed rows take data_bytes and their slack
      overflow  as there, with its slack
    checksums  uint32 [blocks], the CRC-32 (as in zlib) of each block of each section in turn, the zeros after a section
               included. A block is block_bytes long, the last of a section may be shorter.

With that, every bit of the file is under a checksum. The description is an object with these members and no others:

    byte_order "little"; row_format: the version of csrc/core/format.h; dtype: a name as in torch; row_shape: list of
    sizes; num_rows, num_overflow, slot_bytes; lead_bytes: how much of a slot a GPU fetches first; block_bytes;
    codec: {kind, parameters: {name: value}, tables: [{name, dtype, shape}]}, the parts of its form (codec/registry.py);
    sections: [{name, offset, bytes}] in the order above; offset: from the start of the first; bytes: without the zeros
    packed: of packed rows alone: {unit_bytes, least_bytes, data_bytes}
    precision: only of LOSSY stores: {name, scale_exponents}, what values were rounded to (store/precision.py)

A file may come from anyone. No length or offset of it is used before it has been compared with the one that follows
from the other members, which there is exactly one of, and with the length of the file. It holds no code.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import math
import struct
import zlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch

from ... import _native
from ...codec.codec import Codec
from ...codec.compressed_rows import bitmask_bytes
from ...codec.forms import short
from ...codec.packing import Packing
from ...codec.registry import FORMS
from ...codec.values import dtype_from_name
from ..precision import Precision

VERSION = 1
SECTION_NAMES = ("tables", "slot_of", "bitmask", "slots", "overflow")
BLOCK_BYTES = 1 << 20
_MAGIC = b"IBPSTORE"
_BYTE_ORDER, _OTHER_BYTE_ORDER = 0x01020304, 0x04030201
_PREAMBLE = struct.Struct("<8sIIQQII")
PREAMBLE_BYTES = _PREAMBLE.size
_PAGE = 4096
_MAX_DESCRIPTION_BYTES = 1 << 20
_MAX_ROWS = _MAX_SIZE = 1 << 48
_TABLE_DTYPES = ("uint8", "uint16", "uint32", "uint64", "int32", "int64")

FormatError = _native.FormatError


@dataclasses.dataclass(frozen=True)
class Section:
    """Where a part of the file is. end: after the zeros that fill it up; first_block: the number of its first block
    among those of all sections."""

    name: str
    offset: int
    nbytes: int
    first_block: int
    num_blocks: int
    block_bytes: int

    @property
    def end(self) -> int:
        return self.offset + _up_to_page(self.nbytes)

    def block(self, index: int) -> tuple[int, int]:
        """Where in the file the section's block `index` starts and ends."""
        start = self.offset + index * self.block_bytes
        return start, min(start + self.block_bytes, self.end)


@dataclasses.dataclass(frozen=True)
class StoreHeader:
    """All that a store file says before its sections. Made by `describe` or `parse`, which check it."""

    dtype: torch.dtype
    row_shape: tuple[int, ...]
    num_rows: int
    num_overflow: int
    slot_bytes: int
    lead_bytes: int
    ordered: bool
    codec_kind: str
    codec_parameters: dict[str, Any]
    tables: tuple[tuple[str, str, tuple[int, ...]], ...]  # name, dtype, shape
    precision: Precision | None = None
    packing: Packing | None = None
    packed_bytes: int = 0  # of packed rows, without slack
    block_bytes: int = BLOCK_BYTES
    data_offset: int = 0  # where in the file the first section starts

    @property
    def row_bytes(self) -> int:
        return math.prod(self.row_shape) * self.dtype.itemsize

    def members(self) -> dict[str, Any]:
        """The description."""
        tables = [{"name": name, "dtype": dtype, "shape": list(shape)} for name, dtype, shape in self.tables]
        packed = {} if self.packing is None else {**self.packing._asdict(), "data_bytes": self.packed_bytes}
        members = {
            "byte_order": "little",
            "row_format": _native.cpu.FORMAT_VERSION,
            "dtype": str(self.dtype).removeprefix("torch."),
            "row_shape": list(self.row_shape),
            "num_rows": self.num_rows,
            "num_overflow": self.num_overflow,
            "slot_bytes": self.slot_bytes,
            "lead_bytes": self.lead_bytes,
            "block_bytes": self.block_bytes,
            "codec": {"kind": self.codec_kind, "parameters": self.codec_parameters, "tables": tables},
            "sections": [
                {"name": section.name, "offset": section.offset - self.data_offset, "bytes": section.nbytes}
                for section in self.sections.values()
            ],
            **({"packed": packed} if packed else {}),
        }
        if self.precision is not None:
            exponents = list(self.precision.scale_exponents)
            members["precision"] = {"name": self.precision.name, "scale_exponents": exponents}
        return members

    @property
    def table_bytes(self) -> int:
        return sum(math.prod(shape) * np.dtype(dtype).itemsize for _, dtype, shape in self.tables)

    @functools.cached_property
    def sections(self) -> dict[str, Section]:
        return {section.name: section for section in self._sections_from(self.data_offset)}

    def _sections_from(self, offset: int) -> Iterator[Section]:
        slack = _native.cpu.SLACK_BYTES
        slots = self.num_rows * self.slot_bytes if self.packing is None else self.packed_bytes + self.slot_bytes
        lengths = {
            "tables": self.table_bytes,
            "slot_of": 4 * self.num_rows if self.ordered else 0,
            "bitmask": bitmask_bytes(self.num_rows, self.packing),
            "slots": slots + slack,
            "overflow": self.num_overflow * self.row_bytes + slack,
        }
        first_block = 0
        for name in SECTION_NAMES:
            num_blocks = -(-_up_to_page(lengths[name]) // self.block_bytes)
            section = Section(name, offset, lengths[name], first_block, num_blocks, self.block_bytes)
            yield section
            offset, first_block = section.end, first_block + num_blocks

    @property
    def num_blocks(self) -> int:
        last = self.sections[SECTION_NAMES[-1]]
        return last.first_block + last.num_blocks

    @property
    def checksums_offset(self) -> int:
        return self.sections[SECTION_NAMES[-1]].end

    @property
    def file_bytes(self) -> int:
        return self.checksums_offset + 4 * self.num_blocks

    def codec(self, tables: bytes) -> Codec:
        """The codec with these bytes of the section `tables`. Raises FormatError if they make none."""
        cls = FORMS.get(self.codec_kind)
        if cls is None:
            raise FormatError(f"codec: want one of {sorted(FORMS)}, got {short(self.codec_kind)}")
        parts, at = dict(self.codec_parameters), 0
        for name, dtype, shape in self.tables:
            count = math.prod(shape)
            values = np.frombuffer(tables, np.dtype(dtype).newbyteorder("<"), count, at)
            parts[name] = values.reshape(shape).astype(dtype)
            at += values.nbytes
        try:
            return Codec(self.dtype, self.row_shape, cls(**parts))
        except (ValueError, TypeError, OverflowError) as error:
            raise FormatError(f"codec {self.codec_kind!r}: {error}") from error


def describe(
    codec: Codec,
    *,
    num_rows: int,
    num_overflow: int,
    slot_bytes: int,
    lead_bytes: int,
    ordered: bool,
    precision: Precision | None = None,
    packing: Packing | None = None,
    data_bytes: int = 0,
) -> StoreHeader:
    """The header of a store with this codec. data_bytes: of packed rows."""
    tables = tuple((name, table.dtype.name, table.shape) for name, table in codec.form.tables().items())
    header = StoreHeader(
        codec.dtype,
        codec.row_shape,
        num_rows,
        num_overflow,
        slot_bytes,
        lead_bytes,
        ordered,
        codec.kind,
        codec.form.parameters(),
        tables,
        precision,
        packing,
        data_bytes if packing is not None else 0,
    )
    _check(header)
    length = len(_text(header))
    if length > _MAX_DESCRIPTION_BYTES:
        raise ValueError(f"description: want at most {_MAX_DESCRIPTION_BYTES} bytes, got {length}")
    return dataclasses.replace(header, data_offset=_up_to_page(PREAMBLE_BYTES + length))


def table_bytes(codec: Codec) -> bytes:
    """The section `tables`."""
    return b"".join(table.astype(table.dtype.newbyteorder("<")).tobytes() for table in codec.form.tables().values())


def pack(header: StoreHeader, checksums: bytes) -> bytes:
    """Everything before the first section, of a file with these checksums."""
    text = _text(header)
    start = _PREAMBLE.pack(_MAGIC, VERSION, _BYTE_ORDER, len(text), header.file_bytes, zlib.crc32(checksums), 0)[:-4]
    rest = text + bytes(header.data_offset - PREAMBLE_BYTES - len(text))
    return start + struct.pack("<I", zlib.crc32(rest, zlib.crc32(start))) + rest


@dataclasses.dataclass(frozen=True)
class Preamble:
    description_bytes: int
    file_bytes: int
    checksums_crc32: int
    header_crc32: int

    @property
    def data_offset(self) -> int:
        """Where the first section starts, which is how much `parse` wants."""
        return _up_to_page(PREAMBLE_BYTES + self.description_bytes)


def parse_preamble(start: bytes, file_bytes: int) -> Preamble:
    """start: the file's first bytes, PREAMBLE_BYTES if it has as many; file_bytes: its length. Raises FormatError."""
    if start[: len(_MAGIC)] != _MAGIC:
        raise FormatError(f"want a store file, starting with {_MAGIC!r}, got {start[: len(_MAGIC)]!r}")
    if len(start) < PREAMBLE_BYTES:
        raise FormatError(f"want at least {PREAMBLE_BYTES} bytes, got {len(start)}")
    _, version, byte_order, description_bytes, wanted_bytes, checksums_crc32, header_crc32 = _PREAMBLE.unpack(start)
    if byte_order == _OTHER_BYTE_ORDER:
        raise FormatError("want little-endian numbers, got big-endian ones")
    if byte_order != _BYTE_ORDER:
        raise FormatError(f"byte order: want {_BYTE_ORDER:#010x}, got {byte_order:#010x}")
    if version != VERSION:
        raise FormatError(f"want version {VERSION}, got {version}")
    if wanted_bytes != file_bytes:
        raise FormatError(f"want {wanted_bytes} bytes, got {file_bytes}: the file was cut off or appended to")
    if not 2 <= description_bytes <= min(_MAX_DESCRIPTION_BYTES, file_bytes - PREAMBLE_BYTES):
        raise FormatError(
            f"description: want 2 to {_MAX_DESCRIPTION_BYTES} bytes inside the file, got {description_bytes}"
        )
    return Preamble(description_bytes, file_bytes, checksums_crc32, header_crc32)


def parse(preamble: Preamble, start: bytes) -> StoreHeader:
    """start: everything before the first section. Raises FormatError unless the header is whole and says what a store
    can be."""
    found = zlib.crc32(start[PREAMBLE_BYTES:], zlib.crc32(start[: PREAMBLE_BYTES - 4]))
    if len(start) != preamble.data_offset or found != preamble.header_crc32:
        raise FormatError(f"header: want checksum {preamble.header_crc32:#010x}, got {found:#010x}")
    text = start[PREAMBLE_BYTES : PREAMBLE_BYTES + preamble.description_bytes]
    try:
        members = json.loads(text.decode())
    except (ValueError, RecursionError) as error:
        raise FormatError(f"description: want JSON, got {text[:40]!r}...: {error}") from error
    header = dataclasses.replace(_from_members(members), data_offset=preamble.data_offset)
    _check(header)
    if header.file_bytes != preamble.file_bytes:
        raise FormatError(f"want {header.file_bytes} bytes as its description says, got {preamble.file_bytes}")
    if members["sections"] != header.members()["sections"]:
        wanted, got = header.members()["sections"], members["sections"]
        raise FormatError(f"sections: want {wanted} from the other members, got {short(got)}")
    return header


def _from_members(members: Any) -> StoreHeader:
    """Takes the members apart; their types are right then, their values may not be."""
    wanted = {
        "byte_order": str,
        "row_format": int,
        "dtype": str,
        "row_shape": list,
        "num_rows": int,
        "num_overflow": int,
        "slot_bytes": int,
        "lead_bytes": int,
        "block_bytes": int,
        "codec": dict,
        "sections": list,
    }
    packing, packed_bytes = None, 0
    if isinstance(members, dict) and "packed" in members:
        packed = members.pop("packed")
        _check_members("packed", packed, {"unit_bytes": int, "least_bytes": int, "data_bytes": int})
        packing, packed_bytes = Packing(packed["unit_bytes"], packed["least_bytes"]), packed["data_bytes"]
    if isinstance(members, dict) and "precision" in members:
        wanted["precision"] = dict
    _check_members("description", members, wanted)
    codec = members["codec"]
    _check_members("codec", codec, {"kind": str, "parameters": dict, "tables": list})
    for name, value in codec["parameters"].items():
        if type(value) not in (bool, int, float, str):
            got = type(value).__name__
            raise FormatError(f"codec parameter {short(name)}: want a number, a bool or a string, got {got}")
    tables = []
    for table in codec["tables"]:
        _check_members("codec table", table, {"name": str, "dtype": str, "shape": list})
        _check_sizes("codec table", table["shape"], least=0)
        if table["dtype"] not in _TABLE_DTYPES:
            raise FormatError(f"codec table: want one of {list(_TABLE_DTYPES)}, got {short(table['dtype'])}")
        if table["name"] in codec["parameters"]:
            raise FormatError(f"codec table: want a name that is no parameter, got {short(table['name'])}")
        tables.append((table["name"], table["dtype"], tuple(table["shape"])))
    if members["byte_order"] != "little":
        raise FormatError(f"byte_order: want 'little', got {short(members['byte_order'])}")
    if members["row_format"] != _native.cpu.FORMAT_VERSION:
        raise FormatError(f"row_format: want {_native.cpu.FORMAT_VERSION}, got {short(members['row_format'])}")
    _check_sizes("row_shape", members["row_shape"], least=1)
    sections = members["sections"]
    for section in sections:
        _check_members("section", section, {"name": str, "offset": int, "bytes": int})
    if tuple(section["name"] for section in sections) != SECTION_NAMES:
        names = [section["name"] for section in sections]
        raise FormatError(f"sections: want {list(SECTION_NAMES)}, got {short(names)}")
    try:
        dtype = dtype_from_name(members["dtype"])
    except ValueError as error:
        raise FormatError(str(error)) from error
    return StoreHeader(
        dtype,
        tuple(members["row_shape"]),
        members["num_rows"],
        members["num_overflow"],
        members["slot_bytes"],
        members["lead_bytes"],
        sections[SECTION_NAMES.index("slot_of")]["bytes"] != 0,
        codec["kind"],
        codec["parameters"],
        tuple(tables),
        _precision(members, dtype),
        packing,
        packed_bytes,
        members["block_bytes"],
    )


def _precision(members: dict[str, Any], dtype: torch.dtype) -> Precision | None:
    if "precision" not in members:
        return None
    described = members["precision"]
    _check_members("precision", described, {"name": str, "scale_exponents": list})
    exponents = described["scale_exponents"]
    wanted = math.prod(members["row_shape"]) if described["name"].startswith("fp8_") else 0
    if len(exponents) != wanted or not all(type(exponent) is int for exponent in exponents):
        raise FormatError(f"precision: want {wanted} scale_exponents, got {short(exponents)}")
    try:
        return Precision(described["name"], dtype, tuple(exponents))
    except ValueError as error:
        raise FormatError(str(error)) from error


def _check(header: StoreHeader) -> None:
    """Raises FormatError for numbers that no store has."""
    most_bytes = _native.cpu.MAX_ROW_BYTES

    def within(name: str, value: int, low: int, high: int) -> None:
        if not low <= value <= high:
            raise FormatError(f"{name}: want {low} to {high}, got {short(value)}")

    within("row_bytes", header.row_bytes, 1, most_bytes)
    within("num_rows", header.num_rows, 0, (2**31 - 1) if header.ordered else _MAX_ROWS)
    if header.packing is not None:
        _check_packed(header.packing, header, within)
    compact = header.slot_bytes < header.row_bytes and header.packing is None
    within("slot_bytes", header.slot_bytes, _native.cpu.OVERFLOW_INDEX_BYTES if compact else 1, most_bytes)
    within("lead_bytes", header.lead_bytes, 0, header.slot_bytes)
    within("num_overflow", header.num_overflow, 0, min(header.num_rows, 2**32 - 1) if compact else 0)
    within("block_bytes", header.block_bytes, _PAGE, 1 << 26)
    if header.block_bytes % _PAGE:
        raise FormatError(f"block_bytes: want a multiple of {_PAGE}, got {header.block_bytes}")
    most_table_bytes = max(form.most_table_bytes_per_row_byte for form in FORMS.values()) * header.row_bytes
    within("table bytes", header.table_bytes, 0, most_table_bytes)


def _check_packed(packing: Packing, header: StoreHeader, within: Callable[[str, int, int, int], None]) -> None:
    within("slot_bytes", header.slot_bytes, 1, header.row_bytes)
    within("unit_bytes", packing.unit_bytes, 1, header.row_bytes)
    within("least_bytes", packing.least_bytes, 0, header.slot_bytes)
    if packing.unit_bytes & (packing.unit_bytes - 1):
        raise FormatError(f"unit_bytes: want a power of two, got {packing.unit_bytes}")
    if packing.least_bytes % packing.unit_bytes:
        raise FormatError(f"least_bytes: want a multiple of {packing.unit_bytes}, got {packing.least_bytes}")
    most_rows = 1 << _native.cpu.PACKED_START_BITS
    within("num_rows", header.num_rows, 0, most_rows)
    most_bytes = header.num_rows * (header.row_bytes + packing.unit_bytes)
    within("data_bytes", header.packed_bytes, header.num_rows * packing.least_bytes, min(most_bytes, 2 * most_rows))


def _check_members(what: str, members: Any, wanted: dict[str, type]) -> None:
    if not isinstance(members, dict) or set(members) != set(wanted):
        got = short(sorted(members)) if isinstance(members, dict) else type(members).__name__
        raise FormatError(f"{what}: want an object of {sorted(wanted)}, got {got}")
    for name, kind in wanted.items():
        if type(members[name]) is not kind:  # a bool is no int here
            raise FormatError(f"{what}: want {name} of type {kind.__name__}, got {type(members[name]).__name__}")


def _check_sizes(what: str, sizes: list[Any], least: int) -> None:
    if len(sizes) > 64 or not all(type(size) is int and least <= size <= _MAX_SIZE for size in sizes):
        raise FormatError(f"{what}: want at most 64 sizes from {least} to {_MAX_SIZE}, got {_sizes_as_text(sizes)}")


def _sizes_as_text(sizes: list[Any]) -> str:
    """What is no size is named by its type: it may be nested too deep to be shown."""
    return short([size if type(size) is int else type(size).__name__ for size in sizes[:100]])


def _text(header: StoreHeader) -> bytes:
    return json.dumps(header.members()).encode()


def _up_to_page(length: int) -> int:
    return -(-length // _PAGE) * _PAGE

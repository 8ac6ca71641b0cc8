"""Fuzz target: store files of any bytes. Each is refused with FormatError, or its rows are those that the oracle reads
of it. A file of which a bit was changed, and no checksum, gives no wrong row: it is refused, or, where checksums are
compared when a row is read, that row is.

Run it with scripts/fuzz.sh. An input says how to assemble a file, so that it gets past the checksums:

    uint8    number of changes, modulo 4; from 128 on, the sections in the description are what the rest of it wants
    3 times  uint32 where (modulo the file's length) and uint8 bits to flip
    uint16   length of the description
    bytes    the description; then what its sections hold, one after the other
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import struct
import tempfile
import zlib
from collections.abc import Iterator
from typing import Any

import torch

from ibp_gnn import CompressedFeatureStore, FormatError
from ibp_gnn.codec.values import to_bytes
from ibp_gnn.store.file.header import PREAMBLE_BYTES, _from_members
from ibp_gnn.testing import oracle, oracle_dict

MOST_CHANGES, PAGE, MOST_BYTES = 3, 4096, 1 << 17
SECTIONS_FOLLOW = 128
_CHANGES = struct.Struct("<B" + "IB" * MOST_CHANGES + "H")
_PREAMBLE = struct.Struct("<8sIIQQI")


def as_input(file: bytes) -> bytes:
    """The input that assembles this store file, whose description is not longer than 65535 bytes."""
    _, _, _, length, _, _ = _PREAMBLE.unpack_from(file)
    text = file[PREAMBLE_BYTES : PREAMBLE_BYTES + length]
    start = _up_to_page(PREAMBLE_BYTES + length)
    parts = [file[start + at : start + at + size] for at, size in _sections(_parsed(text))]
    return _CHANGES.pack(*[0] * (1 + 2 * MOST_CHANGES), length) + text + b"".join(parts)


def test_one_input(data: bytes) -> None:
    data = data.ljust(_CHANGES.size, b"\0")
    count, *changes, length = _CHANGES.unpack_from(data)
    text, contents = data[_CHANGES.size :][:length], data[_CHANGES.size + length :]
    file = _assemble(_with_sections(text) if count >= SECTIONS_FOLLOW else text, contents)
    changed = bytearray(file)
    for where, bits in list(zip(changes[::2], changes[1::2], strict=True))[: count % (MOST_CHANGES + 1)]:
        changed[where % len(file)] ^= bits
    with _opened(bytes(changed)) as stores:
        if changed == file:
            assert len(stores) in (0, len(_WAYS)), "want all ways to load a file to agree"
            for store in stores.values():
                _compare(store, _Oracle(store))
            return
        assert stores.keys() <= {"later"}, "want a changed file refused, unless its checksums are compared later"
        if stores:
            with _opened(file) as of_file:
                assert of_file, "want no store of a file that is none without the change"
                _compare(stores["later"], _Oracle(of_file["mapped"]), may_refuse=True)


_WAYS: dict[str, dict[str, Any]] = {
    "mapped": {},
    "read": {"mmap": False},
    "shared": {"shared": True},
    "later": {"verify": "read"},
}


@contextlib.contextmanager
def _opened(file: bytes) -> Iterator[dict[str, CompressedFeatureStore]]:
    """Of the ways to load it, those that do not refuse it."""
    with tempfile.NamedTemporaryFile(dir=_scratch()) as written, contextlib.ExitStack() as closed:
        written.write(file)
        written.flush()
        stores = {}
        for name, options in _WAYS.items():
            with contextlib.suppress(FormatError):
                store = CompressedFeatureStore.load(written.name, progress=False, pin=False, **options)
                stores[name] = closed.enter_context(store)
        yield stores


class _Oracle:
    """Reads a store's rows with the oracle."""

    def __init__(self, store: CompressedFeatureStore) -> None:
        rows, form = store.rows, store.codec.form
        parts = [part.numpy().copy() for part in (rows.slots, rows.bitmask, rows.overflow)]
        slot_of = None if store.slot_of is None else store.slot_of.tolist()
        if store.codec.kind == "dict":
            decode = functools.partial(oracle_dict.decode, *parts, rows.slot_bytes, rows.num_rows, form)
        else:
            chunk_bits = form.word_bits * form.words_per_chunk  # type: ignore[attr-defined]
            masks = form.mask_bytes, form.bitval_bytes  # type: ignore[attr-defined]
            decode = functools.partial(oracle.decode, *parts, rows.slot_bytes, rows.num_rows, *masks, chunk_bits)
        self._decode, self._slot_of = decode, slot_of

    def row(self, index: int) -> bytes | None:
        """None if it is damaged."""
        slot = index if self._slot_of is None else self._slot_of[index]
        try:
            return self._decode(ids=torch.tensor([slot]).numpy()).tobytes()
        except FormatError:
            return None


def _compare(store: CompressedFeatureStore, wanted: _Oracle, may_refuse: bool = False) -> None:
    count = len(store)
    for index in {*range(min(count, 12)), *range(max(0, count - 4), count)}:
        try:
            got = to_bytes(store.gather(torch.tensor([index]))).numpy().tobytes()
        except FormatError:
            assert may_refuse or wanted.row(index) is None, f"row {index} was refused"
            continue
        assert got == wanted.row(index), f"row {index}: want the oracle's"


def _assemble(text: bytes, contents: bytes) -> bytes:
    """A file with this description, and right checksums as far as the description says where they are."""
    members = _parsed(text)
    sections = _sections(members)
    end = _up_to_page(max((at + size for at, size in sections), default=len(contents)))
    data = bytearray(contents[:MOST_BYTES].ljust(end, b"\0") if not sections else bytes(end))
    for at, size in sections:
        data[at : at + size] = contents[:size].ljust(size, b"\0")
        contents = contents[size:]
    block_bytes = members.get("block_bytes") if isinstance(members, dict) else None
    if type(block_bytes) is not int or not 1 <= block_bytes <= 1 << 26:
        block_bytes = 1 << 20
    sums = [
        zlib.crc32(data[first : min(first + block_bytes, _up_to_page(at + size))])
        for at, size in sections or [(0, end)]
        for first in range(at, _up_to_page(at + size), block_bytes)
    ]
    checksums = struct.pack(f"<{len(sums)}I", *sums)
    start = _up_to_page(PREAMBLE_BYTES + len(text))
    file_bytes = start + len(data) + len(checksums)
    preamble = _PREAMBLE.pack(b"IBPSTORE", 1, 0x01020304, len(text), file_bytes, zlib.crc32(checksums))
    rest = text.ljust(start - PREAMBLE_BYTES, b"\0")
    return preamble + struct.pack("<I", zlib.crc32(rest, zlib.crc32(preamble))) + rest + data + checksums


def _with_sections(text: bytes) -> bytes:
    try:
        header = _from_members(_parsed(text))
        return json.dumps(header.members()).encode()
    except FormatError:
        return text


def _sections(members: Any) -> list[tuple[int, int]]:
    """Where sections start, and their lengths, of those that are not too long for a test."""
    found = members.get("sections") if isinstance(members, dict) else None
    numbers = [
        (section.get("offset"), section.get("bytes"))
        for section in (found if isinstance(found, list) else [])
        if isinstance(section, dict)
    ]
    return [
        (at, size)
        for at, size in numbers
        if type(at) is int
        and type(size) is int
        and at % PAGE == 0
        and 0 <= at <= MOST_BYTES
        and 0 <= size <= MOST_BYTES
    ]


def _parsed(text: bytes) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _up_to_page(length: int) -> int:
    return -(-length // PAGE) * PAGE


def _scratch() -> str | None:
    """In memory, if the system has such a folder."""
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else None

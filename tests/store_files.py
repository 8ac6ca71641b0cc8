"""Store files that say what none should say."""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Callable
from pathlib import Path

from ibp_gnn.store.file.header import PREAMBLE_BYTES


def rewrite(path: Path, change: Callable[[dict], object]) -> None:
    """Changes the description, and makes all checksums right again."""
    whole = path.read_bytes()
    magic, version, order, length, size, checksums_crc, _ = struct.unpack("<8sIIQQII", whole[:PREAMBLE_BYTES])
    members = json.loads(whole[PREAMBLE_BYTES : PREAMBLE_BYTES + length])
    text = change(members)
    text = text if isinstance(text, bytes) else json.dumps(members).encode()
    old_offset = -(-(PREAMBLE_BYTES + length) // 4096) * 4096
    offset = -(-(PREAMBLE_BYTES + len(text)) // 4096) * 4096
    size += offset - old_offset
    start = struct.pack("<8sIIQQI", magic, version, order, len(text), size, checksums_crc)
    rest = text + bytes(offset - PREAMBLE_BYTES - len(text))
    crc = zlib.crc32(rest, zlib.crc32(start))
    path.write_bytes(start + struct.pack("<I", crc) + rest + whole[old_offset:])

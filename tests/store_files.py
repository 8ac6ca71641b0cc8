"""Store files, builds of them, and files that say what none should say."""

from __future__ import annotations

import json
import os
import struct
import sys
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from matrices import EXHAUSTIVE

import ibp_gnn
from ibp_gnn import CompressedFeatureStore
from ibp_gnn.store.build import Job
from ibp_gnn.store.file.building import build_file
from ibp_gnn.store.file.header import PREAMBLE_BYTES
from ibp_gnn.store.file.journal import Journal
from ibp_gnn.testing import special_rows

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


def build_to(path: Path, features: object, **options: object) -> bytes:
    given = {"codec": "auto", "layout": "compact", "order": None, "chunk_rows": 32, **options}
    build_file(Job.check(features, **given, progress=False), path, {"file": "test"})  # type: ignore[arg-type]
    return path.read_bytes()


# Ordered, rows are written to any place; by id, one after the other.
by_id_or_ordered = pytest.mark.parametrize(
    "ordered", [False, True] if EXHAUSTIVE else [True], ids=lambda ordered: "ordered" if ordered else "by_id"
)


def command(*arguments: object) -> list[str]:
    return [sys.executable, "-m", "ibp_gnn.command.cli", *map(str, arguments)]


def environment() -> dict[str, str]:
    paths = [str(Path(ibp_gnn.__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}


def small_file(tmp_path: Path) -> tuple[Path, torch.Tensor]:
    """A file of some 60 KB in which every section has something; and its rows."""
    rows = mixed_rows(torch.float32, 33)
    path = make(tmp_path / "s.ibp", rows, codec="ibp", order=an_order())
    assert CompressedFeatureStore.load(path).rows.num_overflow > 0
    assert path.stat().st_size < 80_000
    return path, rows


def put(*place: object) -> Callable[[dict], object]:
    """put("a", 0, "b", value) sets members["a"][0]["b"] = value."""

    def change(members: dict) -> None:
        at: dict = members
        for step in place[:-2]:
            at = at[step]  # type: ignore[index]
        at[place[-2]] = place[-1]

    return change


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


def build(features: object, **options: object) -> CompressedFeatureStore:
    return CompressedFeatureStore.build(features, progress=False, **options)  # type: ignore[arg-type]


def stop_building(monkeypatch: pytest.MonkeyPatch, after: int, build: Callable[[], object]) -> None:
    """build: builds a store file, and is stopped when `after` lines of its journal were written."""

    class Stop(Exception):
        pass

    count, append = 0, Journal._append

    def limited(self: Journal, line: dict) -> None:
        nonlocal count
        if (count := count + 1) > after:
            raise Stop
        append(self, line)

    with monkeypatch.context() as patch:
        patch.setattr(Journal, "_append", limited)
        with pytest.raises(Stop):
            build()

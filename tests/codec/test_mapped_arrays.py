"""Pages of memory-mapped files do not stay in memory once they were read."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import numpy as np
import pytest

from ibp_gnn.codec.mapped_arrays import page_releaser

ROWS, WIDTH = 4096, 1024


def resident_bytes(path: Path) -> int:
    """Of all mappings of this file."""
    parts = re.split(r"^(?=[0-9a-f]+-[0-9a-f]+ )", Path("/proc/self/smaps").read_text(), flags=re.MULTILINE)
    ours = [part for part in parts if part.split("\n")[0].endswith(str(path))]
    assert ours, "the file is to be mapped"
    return sum(1024 * int(re.search(r"^Rss:\s+(\d+) kB", part, re.MULTILINE)[1]) for part in ours)  # type: ignore[index]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    np.save(tmp_path / "x.npy", np.arange(ROWS * WIDTH, dtype=np.uint8).reshape(ROWS, WIDTH))
    return tmp_path / "x.npy"


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_pages_of_the_rows_go(path: Path) -> None:
    array = np.load(path, mmap_mode="r")
    total, release = int(array.sum(dtype=np.int64)), page_releaser(array)
    assert resident_bytes(path) >= array.nbytes
    release(slice(0, ROWS // 2))
    assert resident_bytes(path) < 0.6 * array.nbytes  # a system may let go of more
    assert int(array.sum(dtype=np.int64)) == total and resident_bytes(path) >= array.nbytes
    release(slice(ROWS, ROWS + 50))  # none
    assert resident_bytes(path) >= array.nbytes
    page_releaser(array[ROWS // 2 :])(None)
    assert resident_bytes(path) < 0.6 * array.nbytes
    release(None)
    assert resident_bytes(path) < 0.1 * array.nbytes
    assert int(array.sum(dtype=np.int64)) == total


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_changes_of_a_private_mapping_stay(path: Path) -> None:
    array = np.load(path, mmap_mode="c")
    array += 1
    wanted = array.copy()
    page_releaser(array)(None)
    assert np.array_equal(array, wanted)


@pytest.mark.parametrize("kind", ["array", "columns", "list"])
def test_other_arrays_stay_as_they_are(kind: str, path: Path) -> None:
    mapped = np.load(path, mmap_mode="r")
    array = {"array": np.array(mapped), "columns": mapped[:, ::2], "list": [1, 2, 3]}[kind]
    before = np.array(array)
    for rows in (slice(0, 2), None):
        page_releaser(array)(rows)
    assert np.array_equal(array, before)

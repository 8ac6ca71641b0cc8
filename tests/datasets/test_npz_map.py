"""One array of a .npz file without reading the file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import ogb_folders as folders
import pytest

from ibp_gnn.datasets import npz_map

pytestmark = pytest.mark.usefixtures("no_questions")


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
@pytest.mark.parametrize("order", ["C", "F"])
def test_map_npz_array(tmp_path: Path, save: Any, order: str) -> None:
    array = np.asarray(folders.rows(), order=order)
    save(tmp_path / "data.npz", first=np.arange(3), array=array, empty=np.empty((0, 2)))
    extracted = tmp_path / "out" / "array.npy"
    mapped = npz_map.map_npz_array(tmp_path / "data.npz", "array", extracted)
    assert isinstance(mapped, np.memmap) and not mapped.flags.writeable
    np.testing.assert_array_equal(mapped, array)
    assert mapped.flags.f_contiguous == (order == "F")
    assert extracted.exists() == (save is np.savez_compressed)
    assert npz_map.map_npz_array(tmp_path / "data.npz", "empty", tmp_path / "out" / "empty.npy").shape == (0, 2)
    with pytest.raises(KeyError):
        npz_map.map_npz_array(tmp_path / "data.npz", "other", extracted)


def test_an_older_unpacked_array_is_replaced(tmp_path: Path) -> None:
    path, extracted = tmp_path / "data.npz", tmp_path / "array.npy"
    np.savez_compressed(path, array=np.zeros(5))
    npz_map.map_npz_array(path, "array", extracted)
    np.savez_compressed(path, array=np.ones(6))
    np.testing.assert_array_equal(npz_map.map_npz_array(path, "array", extracted), np.ones(6))


def test_objects_are_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "data.npz", array=np.array([{}], dtype=object))
    with pytest.raises(ValueError, match="want an array of numbers, got object"):
        npz_map.map_npz_array(tmp_path / "data.npz", "array", tmp_path / "array.npy")

"""How users say how big a cache is."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from ibp_gnn.gpu.capacity import parse_capacity


@pytest.mark.parametrize(
    ("capacity", "wanted"),
    [
        (1000, (1000, 50)),
        ("1000 b", (1000, 50)),
        ("4GB", (4 * 10**9, 50)),
        ("1.5 GiB", (3 * 2**29, 50)),
        ("512mib", (2**29, 50)),
        (0.25, (200, 50)),
        (1.0, (800, 50)),
        (np.int64(1000), (1000, 50)),
        (np.uint8(200), (200, 50)),
        (np.float32(0.5), (400, 50)),
        (np.float64(0.25), (200, 50)),
        ("50%", (400, 50)),
        ("12.5 %", (100, 50)),
        ("100%", (800, 50)),
        ("4G", (4 * 10**9, 50)),
        ("512M", (512 * 10**6, 50)),
        ("1.5k", (1500, 50)),
        ("2 t", (2 * 10**12, 50)),
        ("4 GiB", (2**32, 50)),
        ("30 rows", (None, 30)),
        ("50 rows", (None, 50)),
        ("1 row", (None, 1)),
    ],
)
def test_capacity_is_understood(capacity: int | float | str, wanted: tuple) -> None:
    got = parse_capacity(capacity, num_rows=50, store_bytes=800, device=torch.device("cuda", 0))
    assert got == wanted


BAD = [0, -1, 0.0, 1.01, float("nan"), "0GB", "4 gallons", "", "-4GB", "GB", "1e3"]
BAD += [
    np.int64(0),
    np.int32(-5),
    np.float32(1.5),
    np.float64("nan"),
    "0%",
    "101%",
    "%",
    "-5%",
    "50%%",
    "0.0G",
    "4",
    "4 g b",
]


@pytest.mark.parametrize("capacity", BAD)
def test_bad_capacities_are_refused(capacity: int | float | str) -> None:
    with pytest.raises(ValueError, match="capacity: want bytes .* got "):
        parse_capacity(capacity, num_rows=50, store_bytes=800, device=torch.device("cuda", 0))


@pytest.mark.parametrize("capacity", ["0 rows", "51 rows", "1.5 rows", "0 row", "0.5 row"])
def test_bad_row_counts_are_refused(capacity: str) -> None:
    with pytest.raises(ValueError, match=rf"capacity: want 1 to 50 rows, got '{capacity}'"):
        parse_capacity(capacity, num_rows=50, store_bytes=800, device=torch.device("cuda", 0))


@pytest.mark.parametrize("capacity", [None, True, [4], np.bool_(True), 1j, torch.tensor(4)])
def test_capacities_of_the_wrong_type_are_refused(capacity: object) -> None:
    with pytest.raises(TypeError, match="capacity: want bytes"):
        parse_capacity(capacity, num_rows=50, store_bytes=800, device=torch.device("cuda", 0))  # type: ignore[arg-type]

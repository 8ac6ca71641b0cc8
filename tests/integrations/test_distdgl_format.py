"""What the config of compressed partitions says."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ibp_gnn import FormatError
from ibp_gnn.integrations.distdgl_format import KEY, FeatureLayout, first_ids, layouts, read_config

MEMBERS: dict[str, Any] = dict(codec="x.ibp", slot_bytes=32, piece_bytes=3, num_rows=7, row_bytes=40, nbytes=99)


def config(**changed: Any) -> dict[str, Any]:
    ranges = {"_N": [[0, 4], [4, 4], [4, 7]]}
    features = {"version": 1, "features": {"_N/feat": MEMBERS}}
    parts = {f"part-{number}": {"node_feats": "x.dgl"} for number in range(3)}
    return {"num_parts": 3, "node_map": ranges, KEY: features, **parts} | changed


def test_layouts_by_type_and_feature() -> None:
    layout = layouts(config())["_N", "feat"]
    assert layout == FeatureLayout(**MEMBERS) and layout.pieces_per_row == 14
    assert FeatureLayout(**{**MEMBERS, "piece_bytes": 0}).pieces_per_row == 0
    assert layouts({"num_parts": 1, "node_map": {}}) == {}
    assert first_ids(config(), "_N") == [0, 4, 4, 7]


def test_ids_of_a_type_start_at_zero() -> None:
    """DGL numbers all nodes of a partition, type after type."""
    ranges = {"a": [[0, 4], [10, 12]], "b": [[4, 10], [12, 13]]}
    two = config(num_parts=2, node_map=ranges)
    assert first_ids(two, "a") == [0, 4, 6] and first_ids(two, "b") == [0, 6, 7]


@pytest.mark.parametrize(
    ("described", "message"),
    [
        ({"version": 2, "features": {}}, "ibp_gnn: want version 1, got"),
        ("all", "ibp_gnn: want version 1, got 'all'"),
        ({"version": 1}, "ibp_gnn: want features by name, got None"),
        ({"version": 1, "features": {"_N/x": [1]}}, "ibp_gnn: _N/x: "),
        ({"version": 1, "features": {"_N/x": {**MEMBERS, "codec": 3}}}, "codec: want a file's name, got 3"),
        ({"version": 1, "features": {"_N/x": {"codec": "x"}}}, "ibp_gnn: _N/x: .*missing"),
        ({"version": 1, "features": {"_N/x": {**MEMBERS, "slot_bytes": 0}}}, "slot_bytes: want an int of at least 1"),
        ({"version": 1, "features": {"_N/x": {**MEMBERS, "piece_bytes": 41}}}, "piece_bytes: want 0 to 40, got 41"),
        ({"version": 1, "features": {"_N/x": {**MEMBERS, "num_rows": "7"}}}, "num_rows: want an int .* got '7'"),
    ],
)
def test_bad_layouts(described: Any, message: str) -> None:
    with pytest.raises(FormatError, match=message):
        layouts(config(**{KEY: described}))


@pytest.mark.parametrize(
    "text",
    [
        *("", "[1]", "{}"),
        *(json.dumps(config(**{key: value})) for key in ("num_parts", "part-2", "node_map") for value in ("2", 0)),
    ],
)
def test_other_files(tmp_path: Path, text: str) -> None:
    path = tmp_path / "x.json"
    path.write_text(text)
    with pytest.raises(FormatError, match=r"x\.json: want a partition config"):
        read_config(path)
    with pytest.raises(OSError):
        read_config(tmp_path / "none.json")


@pytest.mark.parametrize(
    "node_map", [{"_N": "map.npy"}, {"_N": [[0, 7]]}, {"_N": [[0, 4], [4], 7]}, {"_N": [[0, 4], [4, 3], [3, 7]]}, {}]
)
def test_partitions_that_are_no_ranges(node_map: Any) -> None:
    with pytest.raises(FormatError, match="node_map: want a range of ids of '_N' in each partition"):
        first_ids(config(node_map=node_map), "_N")

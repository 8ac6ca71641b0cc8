"""How a compressed feature lies in the partitions of DistDGL.

Each is two ordinary node tensors of a partition, which DGL's servers load and DGL's clients pull like any others:

    NAME.slots     uint8 [num_nodes, slot_bytes + 1]: a row's slot (csrc/core/format.h), and 1 if it holds a payload, 0
                   if the number of its overflow row in this partition, or, in slots as long as a row, the row itself
    NAME.overflow  uint8 [num_nodes, piece_bytes]: the partition's overflow rows, one after the other, in pieces, since
                   a partition's tensors have as many rows as it has nodes. Row i is pieces i * pieces_per_row and on.
                   Not there if no row overflows, in any partition.

Slots, pieces and codec are the same in all partitions. What they are is in the partition config, under "ibp_gnn"; the
codec is in a store file without rows beside it.
"""

from __future__ import annotations

import dataclasses
import json
import os
from pathlib import Path
from typing import Any

from .._native import FormatError

KEY = "ibp_gnn"
VERSION = 1


def slots_name(feature: str) -> str:
    return f"{feature}.slots"


def overflow_name(feature: str) -> str:
    return f"{feature}.overflow"


@dataclasses.dataclass(frozen=True)
class FeatureLayout:
    """What the partition config says of a feature."""

    codec: str
    """The store file with the codec, relative to the config."""
    slot_bytes: int
    piece_bytes: int
    """0: no row overflows."""
    num_rows: int
    row_bytes: int
    nbytes: int
    """Of all partitions."""

    def __post_init__(self) -> None:
        if not isinstance(self.codec, str):
            raise FormatError(f"codec: want a file's name, got {self.codec!r}")
        for name in ("slot_bytes", "num_rows", "row_bytes"):
            if type(getattr(self, name)) is not int or getattr(self, name) < 1:
                raise FormatError(f"{name}: want an int of at least 1, got {getattr(self, name)!r}")
        if type(self.piece_bytes) is not int or not 0 <= self.piece_bytes <= self.row_bytes:
            raise FormatError(f"piece_bytes: want 0 to {self.row_bytes}, got {self.piece_bytes!r}")

    @property
    def pieces_per_row(self) -> int:
        return -(-self.row_bytes // self.piece_bytes) if self.piece_bytes else 0


def read_config(path: str | os.PathLike[str]) -> dict[str, Any]:
    """A partition config of `dgl.distributed.partition_graph`. Raises FormatError for another file, and OSError."""
    try:
        config = json.loads(Path(path).read_text(encoding="utf-8"))
    except ValueError as error:
        raise FormatError(f"{path}: want a partition config, which is JSON: {error}") from error
    if isinstance(config, dict) and type(config.get("num_parts")) is int and isinstance(config.get("node_map"), dict):
        parts = [config.get(f"part-{number}") for number in range(config["num_parts"])]
        if parts and all(isinstance(part, dict) and isinstance(part.get("node_feats"), str) for part in parts):
            return config
    raise FormatError(f"{path}: want a partition config of dgl.distributed.partition_graph, got another file")


def layouts(config: dict[str, Any]) -> dict[tuple[str, str], FeatureLayout]:
    """By node type and feature: what is compressed. Raises FormatError."""
    described = config.get(KEY, {"version": VERSION, "features": {}})
    if not isinstance(described, dict) or described.get("version") != VERSION:
        raise FormatError(f"{KEY}: want version {VERSION}, got {described!r:.80}")
    if not isinstance(described.get("features"), dict):
        raise FormatError(f"{KEY}: want features by name, got {described.get('features')!r:.80}")
    found = {}
    for name, members in described["features"].items():
        node_type, _, feature = name.partition("/")
        try:
            found[node_type, feature] = FeatureLayout(**members)
        except TypeError as error:
            raise FormatError(f"{KEY}: {name}: {error}") from error
    return found


def first_ids(config: dict[str, Any], node_type: str) -> list[int]:
    """The first id, among those of this node type, of each partition, and the number of its nodes. Raises FormatError
    if partitions are no ranges of ids."""
    ranges = config["node_map"].get(node_type)
    is_range = isinstance(ranges, list) and len(ranges) == config["num_parts"]
    if not is_range or not all(
        isinstance(one, list) and len(one) == 2 and all(type(bound) is int for bound in one) and 0 <= one[0] <= one[1]
        for one in ranges
    ):
        raise FormatError(
            f"node_map: want a range of ids of {node_type!r} in each partition, as partition_graph writes"
        )
    first = [0]
    for start, end in ranges:
        first.append(first[-1] + end - start)
    return first

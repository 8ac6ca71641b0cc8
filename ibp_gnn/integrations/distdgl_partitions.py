"""Compresses node features in the partitions that `dgl.distributed.partition_graph` has written."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from tqdm import tqdm

from ..codec.codec import Codec, sample_rows
from ..codec.compressed_rows import CompressedRows
from ..codec.slot_length import count_overflow, payload_histogram
from ..store.build import choose_slot_bytes, fit_codec
from ..store.feature_store import CompressedFeatureStore
from .dgl_compat import import_dgl
from .distdgl_format import KEY, VERSION, FeatureLayout, layouts, overflow_name, read_config, slots_name

_CHUNK_BYTES = 32 << 20  # of rows that are compressed at a time


def compress_partitions(
    part_config: str | os.PathLike[str],
    features: Sequence[str] | Mapping[str, Sequence[str]],
    *,
    codec: str | Codec = "auto",
    progress: bool = True,
) -> Path:
    """Writes beside each partition's node features a file with these ones compressed, and beside the config another one
    that names these files. The graph, other features and the files that were there stay as they are. One partition is
    in memory at a time.

    Args:
        part_config: the JSON file that `dgl.distributed.partition_graph` wrote.
        features: names of node features; by node type where there are several.
        codec: a name, fitted on rows of all partitions, or a fitted Codec.
        progress: show a progress bar.

    Returns:
        The new config, NAME.ibp.json, for DGL's servers and for `attach`. Beside it lies NAME.TYPE.FEATURE.ibp, the
        codec, which clients need, too.

    Raises:
        OSError: a file cannot be read or written.
        FormatError: another kind of config.
        ValueError: a feature that is not there, or of a dtype that is not supported.
        TypeError: another codec.

    Example:
        >>> config = ibp_gnn.distdgl.compress_partitions("parts/papers.json", ["feat"], progress=False)
        >>> config.name
        'papers.ibp.json'
    """
    path = Path(part_config)
    config = read_config(path)
    if layouts(config):
        raise ValueError(f"part_config: want one with uncompressed features, got {path}")
    names = _names(config, features)
    parts = _Parts(path.parent, config, names, progress)
    made = {name: _Feature(name, rows, codec, config["graph_name"]) for name, rows in parts.samples().items()}
    for rows in parts.each("measuring"):
        for name, feature in made.items():
            feature.measure(rows[name])
    new_path = path.with_suffix(".ibp.json")
    new_path.unlink(missing_ok=True)  # of an earlier call, whose files are written over from here on
    for feature in made.values():
        feature.choose(path.parent)
    new_config = {**config, KEY: {"version": VERSION, "features": {}}}
    for number, rows in enumerate(parts.each("compressing")):
        tensors = {name: tensor for name, tensor in rows.items() if name not in names}
        for name, feature in made.items():
            tensors |= feature.compress(rows[name])
        new_config[f"part-{number}"] = {**config[f"part-{number}"], "node_feats": parts.write(number, tensors)}
    for name, feature in made.items():
        new_config[KEY]["features"][name] = dataclasses.asdict(feature.layout)
    partial = new_path.with_name(new_path.name + ".partial")
    partial.write_text(json.dumps(new_config, indent=4), encoding="utf-8")
    partial.replace(new_path)  # last: a config names files that are there
    return new_path


def _names(config: dict[str, Any], features: Sequence[str] | Mapping[str, Sequence[str]]) -> list[str]:
    """As DGL's files have them: TYPE/FEATURE."""
    node_types = list(config["node_map"])
    if isinstance(features, str):
        raise TypeError(f"features: want a list of names, got {features!r}")
    if not isinstance(features, Mapping):
        if len(node_types) != 1:
            raise ValueError(f"features: want names by node type, of {sorted(node_types)}, got {list(features)}")
        features = {node_types[0]: features}
    unknown = features.keys() - set(node_types)
    if unknown:
        raise ValueError(f"features: want node types of {sorted(node_types)}, got {sorted(unknown)}")
    names = [f"{node_type}/{name}" for node_type, of_type in features.items() for name in of_type]
    if not names:
        raise ValueError("features: want at least one, got none")
    return names


class _Parts:
    """The node features of all partitions, one partition after the other."""

    def __init__(self, folder: Path, config: dict[str, Any], names: list[str], progress: bool) -> None:
        self._folder, self._names, self._progress = folder, names, progress
        self._files = [folder / config[f"part-{number}"]["node_feats"] for number in range(config["num_parts"])]

    def each(self, what: str) -> Iterator[dict[str, torch.Tensor]]:
        """Raises ValueError if a feature is missing."""
        for file in tqdm(self._files, desc=what, unit="part", disable=not self._progress):
            tensors = import_dgl().data.utils.load_tensors(str(file))
            # Old files have no node types in the names.
            tensors = {name if "/" in name else f"_N/{name}": tensor for name, tensor in tensors.items()}
            missing = [name for name in self._names if name not in tensors]
            if missing:
                raise ValueError(f"features: want some of {sorted(tensors)}, got {missing} in {file}")
            yield tensors

    def samples(self) -> dict[str, torch.Tensor]:
        """Rows of each feature, from all partitions that have some."""
        picked: dict[str, list[torch.Tensor]] = {name: [] for name in self._names}
        for tensors in self.each("sampling"):
            for name in self._names:
                rows = tensors[name]
                if len(rows):
                    # Clones: a sample of all rows would keep the whole partition.
                    picked[name].append(sample_rows(rows).clone())
        return {
            name: torch.cat(rows) if rows else tensors[name]  # no partition has nodes of this type
            for name, rows in picked.items()
        }

    def write(self, number: int, tensors: dict[str, torch.Tensor]) -> str:
        """Returns the file's name relative to the config."""
        file = self._files[number].with_suffix(".ibp.dgl")
        partial = file.with_name(file.name + ".partial")
        import_dgl().data.utils.save_tensors(str(partial), tensors)
        partial.replace(file)
        return os.path.relpath(file, self._folder)


class _Feature:
    """One feature: first all of its rows are measured, then compressed."""

    def __init__(self, name: str, sample: torch.Tensor, codec: str | Codec, graph_name: str) -> None:
        """Raises TypeError or ValueError for rows or a codec that cannot be used."""
        if not isinstance(codec, (str, Codec)):
            raise TypeError(f"codec: want a name or a Codec, got {type(codec).__name__}")
        self._name = name
        self._codec = fit_codec(sample, codec, "compact") if isinstance(codec, str) else codec
        self._codec.check_rows(sample)
        self._codec_file = f"{graph_name}.{name.replace('/', '.')}.ibp"
        self._histograms: list[torch.Tensor] = []  # one for each partition

    def measure(self, rows: torch.Tensor) -> None:
        """rows: of the next partition."""
        histogram = torch.zeros(self._codec.row_bytes + 1, dtype=torch.int64, device="cpu")
        for chunk in self._chunks(rows):
            histogram += payload_histogram(self._codec.measure(chunk), self._codec.row_bytes)
        self._histograms.append(histogram)

    def choose(self, folder: Path) -> None:
        """All are measured: chooses the layout, and writes the codec's file."""
        total, row_bytes = torch.stack(self._histograms).sum(0), self._codec.row_bytes
        slot_bytes = choose_slot_bytes(total, "compact")
        counts = [(int(part.sum()), count_overflow(part, slot_bytes)) for part in self._histograms]
        # Each partition has to have as many pieces as its overflow rows take.
        most_pieces = min((nodes // overflow for nodes, overflow in counts if overflow), default=0)
        piece_bytes = -(-row_bytes // most_pieces) if most_pieces else 0
        num_rows = int(total.sum())
        nbytes = num_rows * (slot_bytes + 1 + piece_bytes) + self._codec.nbytes
        self.layout = FeatureLayout(self._codec_file, slot_bytes, piece_bytes, num_rows, row_bytes, nbytes)
        no_rows = CompressedRows.empty(0, row_bytes, slot_bytes, 0)
        CompressedFeatureStore(self._codec, no_rows, slot_bytes, pin=False).save(folder / self._codec_file)

    def compress(self, rows: torch.Tensor) -> dict[str, torch.Tensor]:
        """rows: of a partition. Returns its tensors, by name."""
        layout, first, overflowed = self.layout, 0, 0
        slots = torch.empty(len(rows), layout.slot_bytes + 1, dtype=torch.uint8, device="cpu")
        pieces = torch.zeros(len(rows), layout.piece_bytes, dtype=torch.uint8, device="cpu")
        for chunk in self._chunks(rows):
            part = self._codec.compress(chunk, slot_bytes=layout.slot_bytes)
            part = part.select(torch.arange(part.num_rows, device="cpu"), first_overflow=overflowed)
            slots[first : first + part.num_rows, :-1] = part.slot_matrix()
            slots[first : first + part.num_rows, -1] = part.is_compressed()
            if part.num_overflow:
                in_pieces = pieces.new_zeros(part.num_overflow, layout.pieces_per_row * layout.piece_bytes)
                in_pieces[:, : layout.row_bytes] = part.overflow_matrix()
                start = overflowed * layout.pieces_per_row
                in_pieces = in_pieces.view(-1, layout.piece_bytes)
                pieces[start : start + len(in_pieces)] = in_pieces
            first, overflowed = first + part.num_rows, overflowed + part.num_overflow
        return {slots_name(self._name): slots} | ({overflow_name(self._name): pieces} if layout.piece_bytes else {})

    def _chunks(self, rows: torch.Tensor) -> Iterator[torch.Tensor]:
        yield from rows.split(max(1, _CHUNK_BYTES // self._codec.row_bytes))

"""The files of one OGB node-prediction data set as arrays, the large ones memory-mapped.

A folder has raw/, split/ and RELEASE_v*.txt. raw/ comes in two forms, and each for one or several node types:

    binary (ogbn-papers100M, and whatever DatasetSaver writes): .npz files, read in place
    text (ogbn-arxiv, ogbn-products, ogbn-mag): .csv.gz files, which ogb parses, once, into processed/ibp_gnn/*.npy

ogb itself keeps what it parsed as one pickle, which needs the features twice in memory when it is written and once
whenever it is read, and which torch.load has refused since 2.6; it is neither read nor written here.
"""

from __future__ import annotations

import json
import secrets
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from .hetero_dataset import EdgeType
from .node_dataset import DatasetError
from .npz_map import map_npz_array
from .ogb_package import import_ogb, load_torch_file, quiet_ogb

# How the one node type and the one edge type of a homogeneous graph are called here.
NODE = "node"
EDGE: EdgeType = (NODE, "to", NODE)

_TRIPLET_SEPARATOR = "___"
_PARTS = ("train", "valid", "test")


@dataclass(frozen=True, eq=False)
class OgbFiles:
    """Arrays by node type or edge type; features may be memory-mapped and read-only."""

    num_nodes: dict[str, int]
    edges: dict[EdgeType, np.ndarray]
    """int64 [2, num_edges]: sources, destinations."""
    features: dict[str, np.ndarray]
    """[num_nodes, d]"""
    labels: dict[str, np.ndarray]
    """[num_nodes, num_tasks]"""


def read_files(folder: Path, meta: dict[str, Any]) -> OgbFiles:
    """folder: of the data set; meta: its row of ogb's master.csv, or DatasetSaver's meta_dict.

    Raises DatasetError for files that are missing or are not what ogb writes, and OSError where what is parsed or
    unpacked cannot be written beside them.
    """
    binary, hetero = meta["binary"] == "True", meta["is hetero"] == "True"
    if not binary:
        return _read_text(folder, meta, hetero)
    return _checked(folder, lambda: (_read_binary_hetero if hetero else _read_binary)(folder))


def read_split(folder: Path, meta: dict[str, Any]) -> dict[str, dict[str, np.ndarray]]:
    """Returns the node ids of "train", "valid" and "test", each by node type. Raises DatasetError."""
    path = folder / "split" / str(meta["split"])
    if not path.is_dir():
        raise DatasetError(f"{path}: want the folder of the split, got no such folder")
    parts = _checked(path, lambda: _read_split(path, meta["is hetero"] == "True"))
    if not isinstance(parts, dict) or not all(part in parts for part in _PARTS):
        raise DatasetError(f"{path}: want a split into {', '.join(_PARTS)}, got {_describe(parts)}")
    return {part: _by_type(parts[part]) for part in _PARTS}


def raw_file(meta: dict[str, Any]) -> Path:
    """The file without which the data set is not there, relative to its folder."""
    hetero = meta["is hetero"] == "True"
    if meta["binary"] == "True":
        return Path("raw", "edge_index_dict.npz" if hetero else "data.npz")
    return Path("raw", "triplet-type-list.csv.gz" if hetero else "edge.csv.gz")


def _checked(folder: Path, read: Callable[[], Any]) -> Any:
    """What `read` returns; what goes wrong in it is the files' fault."""
    try:
        return read()
    except DatasetError:
        raise
    except FileNotFoundError as error:
        raise DatasetError(f"{folder}: want {error.filename}, got no such file") from error
    except Exception as error:  # of NumPy, zipfile, pandas and ogb, which all have their own
        raise DatasetError(f"{folder}: want the files of an OGB data set; reading them failed: {error!r}") from error


def _read_binary(folder: Path) -> OgbFiles:
    path = folder / "raw" / "data.npz"
    with np.load(path, allow_pickle=False) as arrays:
        num_nodes = _one_graph(path, arrays["num_nodes_list"])
        edges = arrays["edge_index"]
        has_features = "node_feat" in arrays.files
    features = {}
    if has_features:
        features[NODE] = map_npz_array(path, "node_feat", _parsed(folder) / "node_feat.npy")
    with np.load(folder / "raw" / "node-label.npz", allow_pickle=False) as arrays:
        labels = arrays["node_label"]
    return OgbFiles({NODE: num_nodes}, {EDGE: edges}, features, {NODE: labels})


def _read_binary_hetero(folder: Path) -> OgbFiles:
    raw = folder / "raw"
    with np.load(raw / "num_nodes_dict.npz", allow_pickle=False) as arrays:
        num_nodes = {name: _one_graph(raw / "num_nodes_dict.npz", arrays[name]) for name in arrays.files}
    with np.load(raw / "edge_index_dict.npz", allow_pickle=False) as arrays:
        edges = {_edge_type(name): arrays[name] for name in arrays.files}
    features, path = {}, raw / "node_feat_dict.npz"
    if path.exists():
        with np.load(path, allow_pickle=False) as arrays:
            names = arrays.files
        features = {
            name: map_npz_array(path, name, _parsed(folder) / f"node_feat{i}.npy") for i, name in enumerate(names)
        }
    with np.load(raw / "node-label.npz", allow_pickle=False) as arrays:
        labels = {name: arrays[name] for name in arrays.files}
    return OgbFiles(num_nodes, edges, features, labels)


def _read_text(folder: Path, meta: dict[str, Any], hetero: bool) -> OgbFiles:
    parsed = _parsed(folder)
    source = [
        [str(path.relative_to(folder)), path.stat().st_size] for path in sorted((folder / "raw").rglob("*.csv.gz"))
    ]
    if not _was_parsed_from(parsed, source):
        # Not `_checked`: a folder that cannot be written to is no fault of the files.
        arrays = _checked(folder, lambda: (_parse_hetero if hetero else _parse)(folder / "raw", meta))
        _write_parsed(parsed, arrays, source)
        del arrays  # what is returned is memory-mapped
    return _checked(folder, lambda: _read_parsed(parsed))


def _parse(raw: Path, meta: dict[str, Any]) -> OgbFiles:
    import pandas as pd

    with quiet_ogb(f"{raw} is being parsed", None):
        (graph,) = import_ogb("ogb.io.read_graph_raw").read_csv_graph_raw(str(raw), meta["add_inverse_edge"] == "True")
    labels = pd.read_csv(raw / "node-label.csv.gz", header=None).to_numpy()
    features = {} if graph["node_feat"] is None else {NODE: graph["node_feat"]}
    return OgbFiles({NODE: int(graph["num_nodes"])}, {EDGE: graph["edge_index"]}, features, {NODE: labels})


def _parse_hetero(raw: Path, meta: dict[str, Any]) -> OgbFiles:
    reader = import_ogb("ogb.io.read_graph_raw")
    with quiet_ogb(f"{raw} is being parsed", None):
        (graph,) = reader.read_csv_heterograph_raw(str(raw), meta["add_inverse_edge"] == "True")
        labels = reader.read_node_label_hetero(str(raw))
    num_nodes = {name: int(count) for name, count in graph["num_nodes_dict"].items()}
    return OgbFiles(num_nodes, graph["edge_index_dict"], graph["node_feat_dict"] or {}, labels)


def _write_parsed(parsed: Path, arrays: OgbFiles, source: list[list[Any]]) -> None:
    """The folder `parsed` is there as a whole or not at all, whoever else parses the same files."""
    partial = parsed.with_name(f"{parsed.name}.{secrets.token_hex(8)}.partial")
    partial.mkdir(parents=True)
    try:
        _write_arrays(partial, arrays, source)
        if not _was_parsed_from(parsed, source):  # by somebody else meanwhile
            shutil.rmtree(parsed, ignore_errors=True)
            partial.rename(parsed)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _write_arrays(partial: Path, arrays: OgbFiles, source: list[list[Any]]) -> None:
    for kind, by_type in (("edges", arrays.edges), ("features", arrays.features), ("labels", arrays.labels)):
        for i, array in enumerate(by_type.values()):
            np.save(partial / f"{kind}{i}.npy", array)
    contents = {
        "source": source,
        "num_nodes": arrays.num_nodes,
        "edges": [_TRIPLET_SEPARATOR.join(name) for name in arrays.edges],
        "features": list(arrays.features),
        "labels": list(arrays.labels),
    }
    (partial / "contents.json").write_text(json.dumps(contents), encoding="utf-8")


def _was_parsed_from(parsed: Path, source: list[list[Any]]) -> bool:
    try:
        contents = json.loads((parsed / "contents.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return isinstance(contents, dict) and contents.get("source") == source


def _read_parsed(parsed: Path) -> OgbFiles:
    contents = json.loads((parsed / "contents.json").read_text(encoding="utf-8"))

    def arrays(kind: str) -> list[np.ndarray]:
        files = (parsed / f"{kind}{i}.npy" for i in range(len(contents[kind])))
        return [np.load(file, mmap_mode="r", allow_pickle=False) for file in files]

    return OgbFiles(
        contents["num_nodes"],
        dict(zip(map(_edge_type, contents["edges"]), arrays("edges"), strict=True)),
        dict(zip(contents["features"], arrays("features"), strict=True)),
        dict(zip(contents["labels"], arrays("labels"), strict=True)),
    )


def _read_split(path: Path, hetero: bool) -> Any:
    if (path / "split_dict.pt").exists():
        return load_torch_file(path / "split_dict.pt")
    if hetero:
        return dict(
            zip(_PARTS, import_ogb("ogb.io.read_graph_raw").read_nodesplitidx_split_hetero(str(path)), strict=True)
        )
    import pandas as pd

    return {part: pd.read_csv(path / f"{part}.csv.gz", header=None)[0].to_numpy() for part in _PARTS}


def _by_type(ids: Any) -> dict[str, np.ndarray]:
    """A split part is an array, or arrays by node type; of NumPy or of torch."""
    return {name: np.asarray(part) for name, part in (ids if isinstance(ids, dict) else {NODE: ids}).items()}


def _parsed(folder: Path) -> Path:
    return folder / "processed" / "ibp_gnn"


def _edge_type(name: str) -> EdgeType:
    source, relation, destination = name.split(_TRIPLET_SEPARATOR)
    return source, relation, destination


def _one_graph(path: Path, counts: np.ndarray) -> int:
    if counts.shape != (1,):
        raise DatasetError(f"{path}: want the number of nodes of one graph, got {counts.tolist()[:10]}")
    return int(counts[0])


def _describe(value: Any) -> str:
    return f"{sorted(map(str, value))}" if isinstance(value, dict) else type(value).__name__

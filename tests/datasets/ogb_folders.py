"""Small data sets in OGB's formats, written by ogb's own DatasetSaver or in the layout that ogb unpacks."""

from __future__ import annotations

import contextlib
import gzip
import io
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ibp_gnn.datasets.ogb_package import import_ogb

NUM_NODES, NUM_EDGES, WIDTH, NUM_CLASSES = 400, 2400, 12, 5


def rows(num_nodes: int = NUM_NODES, width: int = WIDTH, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(0, 0.1, (num_nodes, width)).astype(np.float32)


def edge_index(num_src: int = NUM_NODES, num_dst: int = NUM_NODES, num_edges: int = NUM_EDGES, seed: int = 1):
    generator = np.random.default_rng(seed)
    return np.stack([generator.integers(0, num_src, num_edges), generator.integers(0, num_dst, num_edges)])


def labels(num_nodes: int = NUM_NODES) -> np.ndarray:
    return np.random.default_rng(2).integers(0, NUM_CLASSES, (num_nodes, 1))


def split(num_nodes: int = NUM_NODES) -> dict[str, np.ndarray]:
    ids = np.random.default_rng(3).permutation(num_nodes)
    train, valid = num_nodes // 2, num_nodes * 3 // 4
    return {"train": ids[:train], "valid": ids[train:valid], "test": ids[valid:]}


NUM_NODES_OF = {"author": 300, "paper": NUM_NODES, "field": 20}
HETERO_EDGES = {
    ("author", "writes", "paper"): edge_index(300, NUM_NODES, 900, 4),
    ("paper", "cites", "paper"): edge_index(seed=5),
    ("paper", "has_topic", "field"): edge_index(NUM_NODES, 20, 800, 6),
}


def save_homogeneous(folder: Path, **changed: Any) -> Path:
    """Returns the submission folder. changed: other values of the graph's dict, None to leave one out."""
    graph = {"edge_index": edge_index(), "num_nodes": NUM_NODES, "node_feat": rows(), **changed}
    return _save(folder, graph, labels(), split(), is_hetero=False)


def save_hetero(folder: Path, **changed: Any) -> Path:
    graph = {
        "edge_index_dict": HETERO_EDGES,
        "num_nodes_dict": NUM_NODES_OF,
        "node_feat_dict": {"paper": rows()},
        **changed,
    }
    return _save(folder, graph, {"paper": labels()}, {p: {"paper": i} for p, i in split().items()}, is_hetero=True)


def _save(folder: Path, graph: dict[str, Any], targets: Any, parts: Any, *, is_hetero: bool) -> Path:
    (folder / "map").mkdir(parents=True)
    (folder / "map" / "README.md").write_text("Node ids are as in the arrays.")
    with contextlib.redirect_stdout(io.StringIO()):
        saver = import_ogb("ogb.io").DatasetSaver("ogbn-small", is_hetero, version=1, root=str(folder / "submission"))
        saver.save_graph_list([graph])
        saver.save_target_labels(targets)
        saver.save_split(parts, "random")
        saver.save_task_info("multiclass classification", "acc", num_classes=NUM_CLASSES)
        saver.copy_mapping_dir(str(folder / "map"))
        saver.get_meta_dict()
    return folder / "submission_ogbn_small"


def write_text_homogeneous(folder: Path) -> None:
    """`folder`: as ogb unpacks ogbn-arxiv or ogbn-products."""
    (folder / "split" / "time").mkdir(parents=True)
    (folder / "raw").mkdir()
    (folder / "RELEASE_v1.txt").write_text("")
    write_csv(folder / "raw" / "edge.csv.gz", edge_index().T)
    write_csv(folder / "raw" / "num-node-list.csv.gz", [[NUM_NODES]])
    write_csv(folder / "raw" / "num-edge-list.csv.gz", [[NUM_EDGES]])
    write_csv(folder / "raw" / "node-feat.csv.gz", rows())
    write_csv(folder / "raw" / "node-label.csv.gz", labels())
    for part, ids in split().items():
        write_csv(folder / "split" / "time" / f"{part}.csv.gz", ids[:, None])


def write_text_hetero(folder: Path) -> None:
    """`folder`: as ogb unpacks ogbn-mag."""
    raw, parts = folder / "raw", folder / "split" / "time"
    for path in (raw / "node-feat" / "paper", raw / "node-label" / "paper", parts / "paper"):
        path.mkdir(parents=True)
    (folder / "RELEASE_v2.txt").write_text("")
    write_csv(raw / "num-node-dict.csv.gz", [list(NUM_NODES_OF), list(NUM_NODES_OF.values())])
    write_csv(raw / "triplet-type-list.csv.gz", list(HETERO_EDGES))
    for triplet, edges in HETERO_EDGES.items():
        relation = raw / "relations" / "___".join(triplet)
        relation.mkdir(parents=True)
        write_csv(relation / "edge.csv.gz", edges.T)
        write_csv(relation / "num-edge-list.csv.gz", [[edges.shape[1]]])
    write_csv(raw / "node-feat" / "paper" / "node-feat.csv.gz", rows())
    write_csv(raw / "nodetype-has-label.csv.gz", [list(NUM_NODES_OF), [name == "paper" for name in NUM_NODES_OF]])
    write_csv(raw / "node-label" / "paper" / "node-label.csv.gz", labels())
    write_csv(parts / "nodetype-has-split.csv.gz", [list(NUM_NODES_OF), [name == "paper" for name in NUM_NODES_OF]])
    for part, ids in split().items():
        write_csv(parts / "paper" / f"{part}.csv.gz", ids[:, None])


def write_mag240m(root: Path) -> None:
    """`root`: as ogb.lsc leaves it; test labels are NaN."""
    folder = root / "mag240m_kddcup2021"
    papers, citations = folder / "processed" / "paper", folder / "processed" / "paper___cites___paper"
    papers.mkdir(parents=True)
    citations.mkdir()
    np.save(papers / "node_feat.npy", rows().astype(np.float16))
    numbers = labels().reshape(-1).astype(np.float32)
    numbers[split()["test"]] = np.nan
    np.save(papers / "node_label.npy", numbers)
    np.save(citations / "edge_index.npy", edge_index())
    torch.save({"paper": NUM_NODES, "author": 3, "institution": 2, "num_classes": NUM_CLASSES}, folder / "meta.pt")
    torch.save(split(), folder / "split_dict.pt")


def write_arrays(folder: Path, **changed: Any) -> None:
    """`folder`: features.npy and graph.npz; changed: other arrays of the latter, None to leave one out."""
    folder.mkdir(parents=True)
    np.save(folder / "features.npy", rows())
    parts = split()
    graph = dict(
        edge_index=edge_index(),
        labels=labels()[:, 0],
        train=parts["train"],
        val=parts["valid"],
        test=parts["test"],
    )
    graph |= changed
    np.savez(folder / "graph.npz", **{name: array for name, array in graph.items() if array is not None})


def write_csv(path: Path, lines: Any) -> None:
    with gzip.open(path, "wt", encoding="utf-8") as file:
        for line in lines:
            # repr of a float32 as float64 has all of its digits.
            file.write(",".join(str(value.item() if isinstance(value, np.generic) else value) for value in line) + "\n")

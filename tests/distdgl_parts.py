"""Partitions of small graphs, and their tensors as a client sees them, without servers."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from update_rows import fitting, raw

import ibp_gnn
from ibp_gnn.integrations.dgl_compat import import_dgl
from ibp_gnn.integrations.distdgl_format import read_config

NODES = 600


def rows_with_overflow(dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """[NODES, 33]: most fit their slots, some do not."""
    rows = torch.cat([fitting(NODES - 20, dtype=dtype), raw(20, dtype=dtype)])
    return rows[torch.randperm(NODES, generator=torch.Generator().manual_seed(0))]


def partition(folder: Path, rows: torch.Tensor, num_parts: int = 2, name: str = "small") -> Path:
    """A random graph whose nodes have `rows` as "feat". Returns the config."""
    dgl = import_dgl()
    graph = dgl.rand_graph(len(rows), 4 * len(rows))
    graph.ndata["feat"], graph.ndata["label"] = rows, torch.arange(len(rows))
    dgl.distributed.partition_graph(graph, name, num_parts, str(folder), part_method="random")
    return folder / f"{name}.json"


class PartTensor:
    """A DistTensor's rows, of the files of all partitions; counts what is asked for."""

    def __init__(self, folder: Path, config: dict[str, Any], name: str, here: int = 0) -> None:
        load = import_dgl().data.utils.load_tensors
        parts = [load(str(folder / config[f"part-{i}"]["node_feats"]))[name] for i in range(config["num_parts"])]
        self.rows = torch.cat(parts)
        self.shape, self.dtype = tuple(self.rows.shape), self.rows.dtype
        self.part_policy = SimpleNamespace(part_id=here)
        self.asked = 0

    def __getitem__(self, ids: torch.Tensor) -> torch.Tensor:
        self.asked += len(ids)
        return self.rows[ids]


class PartGraph:
    """A DistGraph's node data, of one node type."""

    def __init__(self, path: Path, here: int = 0) -> None:
        config = read_config(path)
        names = import_dgl().data.utils.load_tensors(str(path.parent / config["part-0"]["node_feats"]))
        self.ndata: dict[str, Any] = {
            name.partition("/")[2]: PartTensor(path.parent, config, name, here) for name in names
        }
        self.nodes = {"_N": SimpleNamespace(data=self.ndata)}


def attached(folder: Path, rows: torch.Tensor, num_parts: int = 2, here: int = 0, **options: Any) -> Any:
    """The feature, and the rows as its ids number them."""
    path = partition(folder, rows, num_parts)
    config = ibp_gnn.distdgl.compress_partitions(path, ["feat"], progress=False, **options)
    graph = ibp_gnn.distdgl.attach(PartGraph(config, here), config)
    return graph.ndata["feat"], rows[graph.ndata["label"].rows]

"""What a data set with several types of nodes is: typed edges, features of some types, labels of one."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch import Tensor

from .node_dataset import check_edges, check_int64, check_split

if TYPE_CHECKING:
    import dgl

EdgeType = tuple[str, str, str]
"""(source node type, relation, destination node type)"""

REVERSE_PREFIX = "rev_"


@dataclass(frozen=True, eq=False)
class HeteroNodeDataset:
    """Classification of the nodes of one type in a heterograph; every tensor is on the CPU.

    num_nodes_of: of each node type. edges: (src, dst) of each edge type, int64 [num_edges of it]. features: [num_nodes
    of the type, d of the type], of at least one type; never to be written to, as in NodeDataset. target: the type with
    labels; labels, train_ids, val_ids, test_ids: as in NodeDataset, of the nodes of `target`.
    Raises ValueError when a tensor has another dtype or shape, or holds what it must not.
    """

    name: str
    num_classes: int
    num_nodes_of: Mapping[str, int]
    edges: Mapping[EdgeType, tuple[Tensor, Tensor]]
    features: Mapping[str, Tensor]
    target: str
    labels: Tensor
    train_ids: Tensor
    val_ids: Tensor
    test_ids: Tensor
    synthetic: bool = False

    def __post_init__(self) -> None:
        types = sorted(self.num_nodes_of)
        if self.target not in types:
            raise ValueError(f"target: want one of the node types {types}, got {self.target!r}")
        for edge_type, (src, dst) in self.edges.items():
            if edge_type[0] not in types or edge_type[2] not in types:
                raise ValueError(f"edges: want edges between {types}, got {edge_type}")
            where = f"edges {edge_type} "
            check_int64(f"{where}src", src)
            check_int64(f"{where}dst", dst)
            check_edges(where, src, dst, self.num_nodes_of[edge_type[0]], self.num_nodes_of[edge_type[2]])
        if not self.features:
            raise ValueError("features: want those of at least one node type, got none")
        for node_type, rows in self.features.items():
            if node_type not in types:
                raise ValueError(f"features: want those of {types}, got {node_type!r}")
            if rows.dim() != 2 or len(rows) != self.num_nodes_of[node_type]:
                wanted = f"[{self.num_nodes_of[node_type]}, d]"
                raise ValueError(f"features of {node_type!r}: want {wanted}, got {list(rows.shape)}")
        for field in ("labels", "train_ids", "val_ids", "test_ids"):
            check_int64(field, getattr(self, field))
        if len(self.labels) != self.num_nodes_of[self.target]:
            raise ValueError(f"labels: want [{self.num_nodes_of[self.target]}], got {list(self.labels.shape)}")
        check_split(self.labels, self.num_classes, self.train_ids, self.val_ids, self.test_ids)

    @property
    def num_nodes(self) -> int:
        return sum(self.num_nodes_of.values())

    @property
    def num_edges(self) -> int:
        return sum(len(src) for src, _ in self.edges.values())

    def with_reverse_edges(self) -> HeteroNodeDataset:
        """The same with a reversed relation beside each: "writes" gets a "rev_writes" the other way."""
        edges = dict(self.edges)
        for (src_type, relation, dst_type), (src, dst) in self.edges.items():
            edges[dst_type, REVERSE_PREFIX + relation, src_type] = (dst, src)
        return dataclasses.replace(self, edges=edges)

    def to_dgl(self) -> dgl.DGLGraph:
        """Returns the graph on the CPU, without features, labels or masks. Raises ImportError without DGL."""
        from ..integrations.dgl_compat import import_dgl

        return import_dgl().heterograph(dict(self.edges), num_nodes_dict=dict(self.num_nodes_of))

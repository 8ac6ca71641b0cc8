"""What every data set of this package is: one graph, labels, a split and one feature matrix."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    import dgl


# eq=False: comparing tensors field by field has no single truth value.
@dataclass(frozen=True, eq=False)
class NodeDataset:
    """Node classification on one homogeneous graph; every tensor is on the CPU.

    src, dst: int64 [num_edges], both directions of every undirected edge. features: [num_nodes, d].
    labels: int64 [num_nodes], in [0, num_classes). train_ids, val_ids, test_ids: int64, disjoint node ids.
    Raises ValueError when a tensor has another dtype or shape.
    """

    name: str
    num_classes: int
    src: Tensor
    dst: Tensor
    features: Tensor
    labels: Tensor
    train_ids: Tensor
    val_ids: Tensor
    test_ids: Tensor

    def __post_init__(self) -> None:
        for field in ("src", "dst", "labels", "train_ids", "val_ids", "test_ids"):
            tensor = getattr(self, field)
            if tensor.dim() != 1 or tensor.dtype != torch.int64:
                raise ValueError(f"{field}: want 1-d torch.int64, got {list(tensor.shape)} {tensor.dtype}")
        if self.src.shape != self.dst.shape:
            raise ValueError(f"dst: want {list(self.src.shape)} as src, got {list(self.dst.shape)}")
        if self.features.dim() != 2 or len(self.features) != len(self.labels):
            raise ValueError(f"features: want [{len(self.labels)}, d], got {list(self.features.shape)}")

    @property
    def num_nodes(self) -> int:
        return len(self.labels)

    def to_dgl(self) -> dgl.DGLGraph:
        """Returns the graph on the CPU, without features, labels or masks. Raises ImportError without DGL."""
        # Imported here, so that reading a data set never needs DGL.
        from ibp_gnn.integrations.dgl_compat import import_dgl

        return import_dgl().graph((self.src, self.dst), num_nodes=self.num_nodes)

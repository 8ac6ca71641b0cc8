"""What a data set with one kind of nodes is: one graph, labels, a split and one feature matrix."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    import dgl

UNLABELED = -1


class DatasetError(ValueError):
    """A data set that cannot be used; the message says what was wanted and what was got."""


# eq=False: comparing tensors field by field has no single truth value.
@dataclass(frozen=True, eq=False)
class NodeDataset:
    """Node classification on one homogeneous graph; every tensor is on the CPU.

    src, dst: int64 [num_edges]; an edge that goes both ways is there twice. features: [num_nodes, d], possibly a
    read-only memory-mapped file: never write to it. labels: int64 [num_nodes], in [0, num_classes), or UNLABELED for
    nodes outside the split. train_ids, val_ids, test_ids: int64, disjoint node ids; test_ids is empty where the test
    labels are not public. synthetic: made by a generator, not measured.
    Raises ValueError when a tensor has another dtype or shape, or holds what it must not.
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
    synthetic: bool = False

    def __post_init__(self) -> None:
        for field in ("src", "dst", "labels", "train_ids", "val_ids", "test_ids"):
            check_int64(field, getattr(self, field))
        if self.features.dim() != 2 or len(self.features) != len(self.labels):
            raise ValueError(f"features: want [{len(self.labels)}, d], got {list(self.features.shape)}")
        check_edges("", self.src, self.dst, self.num_nodes, self.num_nodes)
        check_split(self.labels, self.num_classes, self.train_ids, self.val_ids, self.test_ids)

    @property
    def num_nodes(self) -> int:
        return len(self.labels)

    @property
    def num_edges(self) -> int:
        return len(self.src)

    def with_reverse_edges(self) -> NodeDataset:
        """The same with every edge a second time, turned round."""
        src, dst = torch.cat([self.src, self.dst]), torch.cat([self.dst, self.src])
        return dataclasses.replace(self, src=src, dst=dst)

    def to_dgl(self) -> dgl.DGLGraph:
        """Returns the graph on the CPU, without features, labels or masks. Raises ImportError without DGL."""
        # Imported here, so that reading a data set never needs DGL.
        from ..integrations.dgl_compat import import_dgl

        return import_dgl().graph((self.src, self.dst), num_nodes=self.num_nodes)


def check_int64(name: str, tensor: Tensor) -> None:
    if tensor.dim() != 1 or tensor.dtype != torch.int64:
        raise ValueError(f"{name}: want 1-d torch.int64, got {list(tensor.shape)} {tensor.dtype}")


def check_edges(where: str, src: Tensor, dst: Tensor, num_src: int, num_dst: int) -> None:
    """where: put in front of `src` and `dst` in messages."""
    if src.shape != dst.shape:
        raise ValueError(f"{where}dst: want {list(src.shape)} as src, got {list(dst.shape)}")
    check_range(f"{where}src", src, num_src)
    check_range(f"{where}dst", dst, num_dst)


def check_split(labels: Tensor, num_classes: int, train_ids: Tensor, val_ids: Tensor, test_ids: Tensor) -> None:
    """Raises ValueError unless the ids exist and are labelled with a class, with some to train and to validate on."""
    for name, ids in (("train_ids", train_ids), ("val_ids", val_ids), ("test_ids", test_ids)):
        if len(ids) == 0 and name != "test_ids":
            raise ValueError(f"{name}: want at least 1 node, got none")
        check_range(name, ids, len(labels))
        check_range(f"labels of {name}", labels[ids], num_classes)


def check_range(name: str, values: Tensor, end: int) -> None:
    if len(values) == 0:
        return
    low, high = (int(bound) for bound in torch.aminmax(values))
    if low < 0 or high >= end:
        raise ValueError(f"{name}: want values in [0, {end}), got {low if low < 0 else high}")

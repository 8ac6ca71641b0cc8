"""GraphSAGE (mean) with interchangeable aggregations: DGL's, one from a block's CSC tensors, and PyG's.

DGL's Linux wheel has no CUDA code, so its layers cannot run on a GPU; the CSC form needs torch alone. These two
name their parameters alike and draw the same initial values, so one's checkpoint loads into the other.
"""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

import torch
from torch import nn
from torch.nn import functional

from ..integrations.csc_block import CscBlock
from ..integrations.dgl_compat import import_dgl

Aggregation = Literal["dgl", "csc", "pyg"]


class EdgeBlock(NamedTuple):
    """A sampled block as PyG's layers take it: the edges into the first `num_dst` nodes of the batch."""

    edge_index: torch.Tensor
    """int64 [2, num_edges]: positions of sources and destinations."""
    num_dst: int


def choose_aggregation(device: torch.device) -> Aggregation:
    """For the blocks of DGL and GraphBolt: `dgl` where DGL can compute on `device`, else `csc`."""
    if device.type == "cpu":
        return "dgl"
    dgl = import_dgl()
    try:
        # DGL has no switch to ask; a CPU-only build refuses to move a graph.
        dgl.graph(([0], [0])).to(device)
    except dgl.DGLError:
        return "csc"
    return "dgl"


def to_csc(block: Any, device: torch.device) -> CscBlock:
    """The CSC tensors of a DGL block (on the CPU), copied to `device` without waiting for the copy."""
    indptr, indices, _ = block.adj_tensors("csc")
    return CscBlock(copy_async(indptr, device), copy_async(indices, device))


def copy_async(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Enqueue a copy of a CPU tensor to `device` on the current stream, and return at once.

    A copy from pageable memory would make the host wait for the GPU. torch reuses the pinned buffer only
    after the copy is done.
    """
    if device.type == "cpu" or tensor.device.type != "cpu":
        return tensor.to(device)
    return tensor.pin_memory().to(device, non_blocking=True)


def mean_of_neighbors(block: CscBlock, x: torch.Tensor) -> torch.Tensor:
    """x: [num_src, d]. Returns [num_dst, d]: the mean over each destination's sources, zeros if it has none.

    No host sync. Forward adds each segment in order; backward is index_add, which
    torch.use_deterministic_algorithms(True) makes deterministic on CUDA.
    """
    if block.indices.shape[0] == 0:
        # segment_reduce refuses empty data.
        return x.new_zeros(block.num_dst, x.shape[1])
    messages = x.index_select(0, block.indices)
    # Sum and divide, not reduce="mean": its empty segments are NaN. unsafe=True: the check of indptr syncs.
    total = torch.segment_reduce(messages, "sum", offsets=block.indptr, axis=0, initial=0, unsafe=True)
    degree = block.indptr.diff().clamp_(min=1)
    return total / degree.unsqueeze(1)


class CscSageConv(nn.Module):
    """`dgl.nn.SAGEConv(in_feats, out_feats, "mean")` on a CscBlock instead of a DGL block."""

    def __init__(self, in_feats: int, out_feats: int) -> None:
        super().__init__()
        # The order in which dgl.nn.SAGEConv makes and fills them: the same seed gives the same weights.
        self.fc_neigh = nn.Linear(in_feats, out_feats, bias=False)
        self.fc_self = nn.Linear(in_feats, out_feats)
        gain = nn.init.calculate_gain("relu")
        nn.init.xavier_uniform_(self.fc_self.weight, gain=gain)
        nn.init.xavier_uniform_(self.fc_neigh.weight, gain=gain)

    def forward(self, block: CscBlock, x: torch.Tensor) -> torch.Tensor:
        """x: [num_src, in_feats]. Returns [num_dst, out_feats]."""
        if self.fc_neigh.in_features > self.fc_neigh.out_features:
            # Narrow the rows before they are gathered.
            neighbors = mean_of_neighbors(block, self.fc_neigh(x))
        else:
            neighbors = self.fc_neigh(mean_of_neighbors(block, x))
        return self.fc_self(x[: block.num_dst]) + neighbors


class PyGSageConv(nn.Module):
    """`torch_geometric.nn.SAGEConv(in_feats, out_feats, "mean")` on an EdgeBlock."""

    def __init__(self, in_feats: int, out_feats: int) -> None:
        from torch_geometric.nn import SAGEConv

        super().__init__()
        self.conv = SAGEConv(in_feats, out_feats, aggr="mean")

    def forward(self, block: EdgeBlock, x: torch.Tensor) -> torch.Tensor:
        """x: [num_src, in_feats]. Returns [num_dst, out_feats]."""
        return self.conv((x, x[: block.num_dst]), block.edge_index)


class InputNorm(nn.BatchNorm1d):
    """Batch normalisation that normalises no or one row, which has no statistics, with the running ones."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        if len(input) > 1:
            return super().forward(input)
        return functional.batch_norm(input, self.running_mean, self.running_var, self.weight, self.bias, eps=self.eps)


class GraphSAGE(nn.Module):
    """Mean-aggregating GraphSAGE; `aggregation` says which kind of blocks `forward` takes."""

    def __init__(
        self,
        in_feats: int,
        num_classes: int,
        *,
        hidden: int,
        layers: int,
        dropout: float,
        input_norm: bool,
        aggregation: Aggregation,
    ) -> None:
        super().__init__()
        self.aggregation: Aggregation = aggregation
        self.settings: dict[str, int | float] = {
            "in_feats": in_feats,
            "num_classes": num_classes,
            "hidden": hidden,
            "layers": layers,
            "dropout": dropout,
            "input_norm": input_norm,
        }
        """What another GraphSAGE is to be made with, to take this one's state; whatever its aggregation."""
        self.norm = InputNorm(in_feats) if input_norm else nn.Identity()
        self.dropout = nn.Dropout(dropout)
        widths = [in_feats, *[hidden] * (layers - 1), num_classes]
        if aggregation == "dgl":
            sage_conv = import_dgl().nn.SAGEConv
            convs = [sage_conv(i, o, "mean") for i, o in zip(widths, widths[1:], strict=False)]
        else:
            conv = CscSageConv if aggregation == "csc" else PyGSageConv
            convs = [conv(i, o) for i, o in zip(widths, widths[1:], strict=False)]
        self.convs = nn.ModuleList(convs)

    def forward(self, blocks: list[Any], x: torch.Tensor) -> torch.Tensor:
        """blocks: one DGL block, CscBlock or EdgeBlock a layer; x: [num_src of blocks[0], in_feats], any float dtype.

        Returns logits [num_dst of blocks[-1], num_classes].
        """
        for i, block in zip(range(len(self.convs)), blocks, strict=True):
            x = self.layer(i, block, x)
        return x

    def layer(self, i: int, block: Any, x: torch.Tensor) -> torch.Tensor:
        """x: [num_src, d], the input features (i == 0) or the output of layer i - 1. Returns [num_dst, hidden], or the
        logits [num_dst, num_classes] of the last layer."""
        if i == 0:
            x = self.norm(x.to(next(self.convs.parameters()).dtype))
        x = self.convs[i](block, x)
        return self.dropout(torch.relu(x)) if i + 1 < len(self.convs) else x

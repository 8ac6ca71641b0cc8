"""GraphSAGE on heterographs, in the manner of R-GCN: each relation its own mean and weights, added up per node type.

Node types without features have learned embeddings, one vector a node, as in OGB's examples for ogbn-mag.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import torch
from torch import nn

from ..datasets.hetero_dataset import EdgeType
from ..integrations.csc_block import CscBlock
from .sage import InputNorm, copy_async, mean_of_neighbors


class HeteroBlock(NamedTuple):
    """A sampled block of a heterograph as tensors."""

    relations: dict[EdgeType, CscBlock]
    num_dst: dict[str, int]
    """By node type; the first num_dst sources of a type are its destinations."""


def to_hetero_csc(block: Any, device: torch.device) -> HeteroBlock:
    """The CSC tensors of a DGL block (on the CPU), copied to `device` without waiting for the copies."""
    relations = {}
    for edge_type in block.canonical_etypes:
        indptr, indices, _ = block.adj_tensors("csc", etype=edge_type)
        relations[edge_type] = CscBlock(copy_async(indptr, device), copy_async(indices, device))
    return HeteroBlock(relations, {name: block.num_dst_nodes(name) for name in block.dsttypes})


class HeteroSageConv(nn.Module):
    """For each node type in `dst_types`: its own rows through one linear map, plus, for each relation into it, the mean
    of the neighbours' rows through another."""

    def __init__(
        self, in_feats: Mapping[str, int], out_feats: int, edge_types: Iterable[EdgeType], dst_types: Iterable[str]
    ) -> None:
        """in_feats: of each node type."""
        super().__init__()
        self._out_feats, self._dst_types = out_feats, sorted(dst_types)
        self._edge_types = sorted(edge_type for edge_type in edge_types if edge_type[2] in self._dst_types)
        # Lists, since names of types may have dots, which names of modules may not.
        self.fc_self = nn.ModuleList(nn.Linear(in_feats[name], out_feats) for name in self._dst_types)
        self.fc_neigh = nn.ModuleList(
            nn.Linear(in_feats[src_type], out_feats, bias=False) for src_type, _, _ in self._edge_types
        )

    def forward(self, block: HeteroBlock, x: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """x: [num_src, in_feats] of each node type. Returns [num_dst, out_feats] of each of `dst_types`."""
        out = {name: fc(x[name][: block.num_dst[name]]) for name, fc in zip(self._dst_types, self.fc_self, strict=True)}
        for edge_type, fc in zip(self._edge_types, self.fc_neigh, strict=True):
            src_type, _, dst_type = edge_type
            relation, rows = block.relations[edge_type], x[src_type]
            if rows.shape[1] > self._out_feats:
                # Narrow the rows before they are gathered.
                neighbors = mean_of_neighbors(relation, fc(rows))
            else:
                neighbors = fc(mean_of_neighbors(relation, rows))
            out[dst_type] = out[dst_type] + neighbors
        return out


class HeteroGraphSAGE(nn.Module):
    """Classifies nodes of the type `target`."""

    def __init__(
        self,
        in_feats: Mapping[str, int],
        num_embeddings: Mapping[str, int],
        edge_types: Iterable[EdgeType],
        target: str,
        num_classes: int,
        *,
        hidden: int,
        layers: int,
        dropout: float,
        input_norm: bool,
    ) -> None:
        """in_feats: of the node types with features; num_embeddings: the number of nodes of each other type, whose
        embeddings have `hidden` values."""
        super().__init__()
        self._target = target
        self._featured, self._embedded = sorted(in_feats), sorted(num_embeddings)
        self.norms = nn.ModuleList(
            InputNorm(in_feats[name]) if input_norm else nn.Identity() for name in self._featured
        )
        # Sparse gradients: a batch touches few of them, and a dense update would read and write all.
        embeddings = [nn.Embedding(num_embeddings[name], hidden, sparse=True) for name in self._embedded]
        for embedding in embeddings:
            nn.init.xavier_uniform_(embedding.weight)
        self.embeddings = nn.ModuleList(embeddings)
        self.dropout = nn.Dropout(dropout)
        edge_types, types = list(edge_types), [*self._featured, *self._embedded]
        widths = {**in_feats, **dict.fromkeys(num_embeddings, hidden)}
        convs = []
        for layer in range(layers):
            is_last = layer + 1 == layers
            out_feats, dst_types = (num_classes, [target]) if is_last else (hidden, types)
            convs.append(HeteroSageConv(widths, out_feats, edge_types, dst_types))
            widths = dict.fromkeys(types, hidden)
        self.convs = nn.ModuleList(convs)

    def forward(self, blocks: list[HeteroBlock], x: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """blocks: one a layer; x: by node type [num_src of blocks[0], d], any float dtype, or int64 [num_src], node
        ids, of a type without features. Returns logits [num_dst of the target type in blocks[-1], num_classes]."""
        dtype = next(self.convs.parameters()).dtype
        rows = {name: norm(x[name].to(dtype)) for name, norm in zip(self._featured, self.norms, strict=True)}
        for name, embedding in zip(self._embedded, self.embeddings, strict=True):
            rows[name] = embedding(x[name])
        for i, (conv, block) in enumerate(zip(self.convs, blocks, strict=True)):
            rows = conv(block, rows)
            if i + 1 < len(self.convs):
                rows = {name: self.dropout(torch.relu(part)) for name, part in rows.items()}
        return rows[self._target]

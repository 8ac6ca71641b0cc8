"""A sampled block as plain tensors, which no graph library is needed for."""

from __future__ import annotations

from typing import NamedTuple

import torch


class CscBlock(NamedTuple):
    """A sampled block as tensors: destination i has the sources `indices[indptr[i] : indptr[i + 1]]`.

    Example:
        >>> from ibp_gnn.integrations.csc_block import CscBlock
        >>> CscBlock(torch.tensor([0, 2, 3]), torch.tensor([2, 1, 3])).edge_index()
        tensor([[2, 1, 3],
                [0, 0, 1]])
    """

    indptr: torch.Tensor
    """[num_dst + 1] int32/int64."""
    indices: torch.Tensor
    """[num_edges] int32/int64, numbers of source nodes; the first num_dst sources are the destinations."""

    @property
    def num_dst(self) -> int:
        """Number of destination nodes."""
        return self.indptr.shape[0] - 1

    def edge_index(self) -> torch.Tensor:
        """The edges as PyG's layers take them. No host sync.

        Returns:
            int64 [2, num_edges]: numbers of source and destination nodes.
        """
        destinations = torch.arange(self.num_dst, device=self.indices.device)
        repeats = self.indptr.diff().to(torch.int64)
        return torch.stack(
            [
                self.indices.to(torch.int64),
                torch.repeat_interleave(destinations, repeats, output_size=self.indices.shape[0]),
            ]
        )

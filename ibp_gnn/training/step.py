"""What every kind of loop gives to the training step, and how it is asked for it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, Protocol

import torch


class Step(NamedTuple):
    """One mini-batch on the training device."""

    x: Any
    """[num_src, d]; in a heterograph by node type, and int64 [num_src], node ids, of a type without features."""
    labels: torch.Tensor
    """[num_dst]"""
    blocks: list[Any]
    """One a layer, input layer first; of the kind that the run's aggregation takes."""


Mark = Callable[[str], None]
"""Called with the name of a phase, "sample" or "fetch", when it ends."""


class Loop(Protocol):
    """The mini-batches of one graph, made by a library's own loader."""

    def steps(self, ids: torch.Tensor, *, mark: Mark) -> Iterator[Step]:
        """One pass over the nodes `ids` ([n] int64, CPU) in their order, in batches of `train.batch_size`.

        The same seeds (`seed_everything`) give the same batches for one number of workers. No host sync.
        """

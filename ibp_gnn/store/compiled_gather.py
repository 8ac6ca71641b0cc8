"""Gathers inside of torch.compile: a custom operator, which a graph holds as one node.

An operator takes tensors and plain values. So a source has a name here, under which the operator finds it again, while
the graph is traced and whenever it runs.
"""

from __future__ import annotations

import itertools
import weakref
from typing import Any

import numpy as np
import torch

from .row_source import RowSource

_sources: weakref.WeakValueDictionary[str, Any] = weakref.WeakValueDictionary()
_numbers = itertools.count()
_NAME = "ibp_gnn::gather"
_SCHEMA = "(Tensor ids, str source, Device? device) -> Tensor"

# torch 2.2 has no public name for it: there a gather breaks the graph.
is_compiling = getattr(torch.compiler, "is_compiling", lambda: False)


def name_source(source: RowSource) -> str:
    """A name for `gather_by_name`, as long as the source lives. Not the same in another process."""
    name = str(next(_numbers))
    _sources[name] = source
    return name


def gather_by_name(ids: torch.Tensor | np.ndarray, source: str, device: torch.device | str | None) -> torch.Tensor:
    """As `gather` of the source with this name. Called where torch.compile traces."""
    wanted = ids if isinstance(ids, torch.Tensor) else torch.as_tensor(ids, device="cpu")
    target = None if device is None else torch.device(device)
    gathered: torch.Tensor = torch.ops.ibp_gnn.gather(wanted, source, target)
    return gathered


def _find(name: str) -> Any:
    source = _sources.get(name)
    if source is None:
        raise ValueError("gather in a compiled graph: want a source that is there, got one that was dropped")
    return source


def _gather(ids: torch.Tensor, source: str, device: torch.device | None) -> torch.Tensor:
    rows: torch.Tensor = _find(source).gather(ids, device)
    return rows


def _gather_fake(ids: torch.Tensor, source: str, device: torch.device | None) -> torch.Tensor:
    """What comes out, without its values."""
    found = _find(source)
    return torch.empty(
        (ids.shape[0], *found.shape[1:]), dtype=found.dtype, device=ids.device if device is None else device
    )


torch.library.define(_NAME, _SCHEMA)
torch.library.impl(_NAME, "default", _gather)
_register_fake = getattr(torch.library, "register_fake", None) or torch.library.impl_abstract
_register_fake(_NAME, _gather_fake)

"""Fixtures of the integration tests."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from exact_sources import CountingSource, TensorSource

from ibp_gnn import CompressedFeatureStore
from ibp_gnn.integrations import dgl_compat
from ibp_gnn.store.row_source import RowSource

dgl_compat.install()  # before any test module imports dgl

# Every test that asks for make_source runs once with each of these.
SOURCE_KINDS: dict[str, Callable[[torch.Tensor], RowSource]] = {
    "tensor": TensorSource,
    "store": lambda rows: CompressedFeatureStore.build(rows, progress=False),
}


@pytest.fixture(params=SOURCE_KINDS)
def make_source(request: pytest.FixtureRequest) -> Callable[..., CountingSource]:
    """make_source(tensor, picklable=True): a CountingSource with the rows of `tensor`, bit for bit."""
    build = SOURCE_KINDS[request.param]

    def make(tensor: torch.Tensor, *, picklable: bool = True) -> CountingSource:
        return CountingSource(build(tensor), picklable=picklable)

    return make

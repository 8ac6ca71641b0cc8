"""The contract of a RowSource: who has it, and that it can be asked for at run time."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from ibp_gnn import CompressedFeatureStore, RowSource
from ibp_gnn.store.row_source import is_row_source
from ibp_gnn.store.tensor_source import TensorSource

MEMBERS: dict[str, Any] = {"shape": (4, 3), "dtype": torch.float32, "gather": lambda self, ids, **options: ids}


def test_a_store_and_any_class_of_the_users_have_it() -> None:
    store = CompressedFeatureStore.build(torch.ones(4, 3), progress=False)
    assert isinstance(store, RowSource) and isinstance(type("Mine", (), MEMBERS)(), RowSource)


@pytest.mark.parametrize("missing", MEMBERS)
def test_a_class_that_lacks_a_member_has_it_not(missing: str) -> None:
    members = {name: member for name, member in MEMBERS.items() if name != missing}
    assert not isinstance(type("Mine", (), members)(), RowSource)


def test_what_is_a_row_source() -> None:
    rows = torch.ones(4, 3)
    store = CompressedFeatureStore.build(rows, progress=False)
    for source in (store, TensorSource(rows), type("Mine", (), MEMBERS)()):
        assert is_row_source(source)
    for other in (rows, rows.numpy(), CompressedFeatureStore, TensorSource, [1.0], None, object()):
        assert not is_row_source(other)
    assert not is_row_source(TensorSource(torch.tensor(1.0))), "it has no rows"
    assert not is_row_source(type("Mine", (), MEMBERS | {"dtype": "float32"})())

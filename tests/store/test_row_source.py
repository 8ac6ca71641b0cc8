"""The contract of a RowSource: who has it, and that it can be asked for at run time."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from ibp_gnn import CompressedFeatureStore, RowSource

MEMBERS: dict[str, Any] = {"shape": (4, 3), "dtype": torch.float32, "gather": lambda self, ids, **options: ids}


def test_a_store_and_any_class_of_the_users_have_it() -> None:
    store = CompressedFeatureStore.build(torch.ones(4, 3), progress=False)
    assert isinstance(store, RowSource) and isinstance(type("Mine", (), MEMBERS)(), RowSource)


@pytest.mark.parametrize("missing", MEMBERS)
def test_a_class_that_lacks_a_member_has_it_not(missing: str) -> None:
    members = {name: member for name, member in MEMBERS.items() if name != missing}
    assert not isinstance(type("Mine", (), members)(), RowSource)

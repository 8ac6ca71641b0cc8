"""Old public names: they warn, and are the new ones."""

from __future__ import annotations

import warnings

import pytest
import torch

import ibp_gnn


def test_graphbolt_names():
    pytest.importorskip("dgl")
    pytest.importorskip("torchdata")
    new = ibp_gnn.GraphBoltFeatureStore
    with pytest.warns(FutureWarning, match=r"^ibp_gnn\.FeatureStore is now ibp_gnn\.GraphBoltFeatureStore") as seen:
        assert ibp_gnn.FeatureStore is new
    assert seen[0].filename == __file__
    with pytest.warns(FutureWarning, match=r"ibp_gnn\.graphbolt\.FeatureStore is now") as seen:
        assert ibp_gnn.graphbolt.FeatureStore is new
    assert seen[0].filename == __file__
    with pytest.warns(FutureWarning):
        assert ibp_gnn.FeatureStore is new, "each time, not only the first"


def test_pyg_names():
    pytest.importorskip("torch_geometric")
    new = ibp_gnn.pyg.PyGFeatureStore
    with pytest.warns(FutureWarning, match=r"ibp_gnn\.pyg\.CompressedFeatureStore is now .*PyGFeatureStore") as seen:
        assert ibp_gnn.pyg.CompressedFeatureStore is new
    assert seen[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert ibp_gnn.CompressedFeatureStore is not new


def test_page_locking_is_a_verb():
    store = ibp_gnn.CompressedFeatureStore.build(torch.zeros(3, 4), pin=False, progress=False)
    with pytest.warns(FutureWarning, match=r"CompressedFeatureStore\.can_map is now .*page_lock\(\)") as seen:
        assert store.can_map is False
    assert seen[0].filename == __file__


def test_names_that_never_were():
    with pytest.raises(AttributeError, match="has no attribute 'Features'"):
        ibp_gnn.Features  # noqa: B018
    assert "FeatureStore" not in dir(ibp_gnn), "only names to use are shown"

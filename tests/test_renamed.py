"""Old public names: they warn, and are the new ones; pickles that have them load."""

from __future__ import annotations

import pickle
import warnings

import pytest

import ibp_gnn


def class_named_in_a_pickle(module: str, name: str) -> object:
    return pickle.loads(f"c{module}\n{name}\n.".encode())


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
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert class_named_in_a_pickle("ibp_gnn.integrations.graphbolt", "FeatureStore") is new
        assert class_named_in_a_pickle("ibp_gnn.integrations.graphbolt", "GraphBoltFeatureStore") is new


def test_pyg_names():
    pytest.importorskip("torch_geometric")
    new = ibp_gnn.pyg.PyGFeatureStore
    with pytest.warns(FutureWarning, match=r"ibp_gnn\.pyg\.CompressedFeatureStore is now .*PyGFeatureStore") as seen:
        assert ibp_gnn.pyg.CompressedFeatureStore is new
    assert seen[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert class_named_in_a_pickle("ibp_gnn.integrations.pyg", "CompressedFeatureStore") is new
    assert ibp_gnn.CompressedFeatureStore is not new


def test_names_that_never_were():
    with pytest.raises(AttributeError, match="has no attribute 'Features'"):
        ibp_gnn.Features  # noqa: B018
    assert "FeatureStore" not in dir(ibp_gnn), "only names to use are shown"

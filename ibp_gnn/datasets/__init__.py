"""Real data sets that need no network: a graph, labels, a fixed split and node features.

>>> from ibp_gnn.datasets import load_dataset
>>> dataset = load_dataset("wordnet", features="glove")
>>> graph = dataset.to_dgl()  # structure only; compress dataset.features with ibp_gnn
"""

from __future__ import annotations

from collections.abc import Callable

from ibp_gnn.datasets.node_dataset import NodeDataset
from ibp_gnn.datasets.wordnet import load_wordnet

__all__ = ["NodeDataset", "load_dataset", "load_wordnet"]

_LOADERS: dict[str, Callable[[str], NodeDataset]] = {"wordnet": load_wordnet}


def load_dataset(name: str, features: str) -> NodeDataset:
    """Loads data set `name` with the node features `features`, on the CPU.

    name: "wordnet". features: see the loader of the data set (`load_wordnet`: "glove" or "bow").
    Raises ValueError for a name or features that do not exist; never falls back to another data set.
    """
    if name not in _LOADERS:
        raise ValueError(f"data set: want one of {sorted(_LOADERS)}, got {name!r}")
    return _LOADERS[name](features)

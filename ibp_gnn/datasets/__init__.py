"""Data sets by name: a graph, labels, a split and node features, from files, from ogb, from this package or generated.

>>> from ibp_gnn.datasets import load_dataset
>>> dataset = load_dataset("ogbn-products", root="dataset")
>>> graph = dataset.to_dgl()  # structure only; compress dataset.features with ibp_gnn
"""

from __future__ import annotations

import difflib
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from .array_files import load_rows
from .arrays import load_arrays
from .as_tensors import share_memory
from .hetero_dataset import HeteroNodeDataset
from .mag240m import load_mag240m
from .node_dataset import DatasetError, NodeDataset
from .ogb import OGB_NAMES, load_ogb, load_ogb_folder
from .synthetic import SHAPES, load_synthetic
from .wordnet import WORDNET_FEATURES, load_wordnet

__all__ = [
    "DATASET_NAMES",
    "DatasetError",
    "HeteroNodeDataset",
    "NodeDataset",
    "load_arrays",
    "load_dataset",
    "load_mag240m",
    "load_ogb",
    "load_ogb_folder",
    "load_synthetic",
    "load_wordnet",
]


def _load_synthetic(shape: str, features: str = "glove", **settings: Any) -> NodeDataset:
    if features in WORDNET_FEATURES:
        return load_synthetic(shape, load_wordnet(features).features, **settings)
    try:
        rows = load_rows(features)
    except (OSError, ValueError) as error:
        wanted = f"one of {sorted(WORDNET_FEATURES)} or a file with a real matrix"
        raise DatasetError(f"features of synthetic-{shape}: want {wanted}: {error}") from error
    return load_synthetic(shape, share_memory(rows) if isinstance(rows, np.ndarray) else rows, **settings)


# What loads it, and which settings it has; `root` is needed where there is one.
_LOADERS: dict[str, tuple[Callable[..., NodeDataset | HeteroNodeDataset], tuple[str, ...]]] = {
    "wordnet": (load_wordnet, ("features",)),
    **{name: (partial(load_ogb, name), ("root", "allow_large_download")) for name in OGB_NAMES},
    "ogb-folder": (load_ogb_folder, ("root",)),
    "mag240m": (load_mag240m, ("root",)),
    "arrays": (load_arrays, ("root", "features")),
    **{
        f"synthetic-{shape}": (partial(_load_synthetic, shape), ("features", "scale", "dtype", "seed"))
        for shape in SHAPES
    },
}
DATASET_NAMES = tuple(_LOADERS)


def load_dataset(
    name: str,
    features: str | None = None,
    *,
    root: str | Path | None = None,
    reverse_edges: bool = False,
    allow_large_download: bool | None = None,
    scale: float | None = None,
    dtype: str | None = None,
    seed: int | None = None,
) -> NodeDataset | HeteroNodeDataset:
    """Loads a data set on the CPU; features are memory-mapped where they can be.

    name: one of DATASET_NAMES.
      "wordnet"     in this package. features: "glove" (default) or "bow". See `load_wordnet`.
      "ogbn-..."    through ogb, from root, downloaded if it is not there; allow_large_download. See `load_ogb`.
      "ogb-folder"  root: what ogb's DatasetSaver wrote. See `load_ogb_folder`.
      "mag240m"     root: where ogb.lsc put it. See `load_mag240m`.
      "arrays"      root: a folder with features.npy, or the file `features`, and graph.npz. See datasets/arrays.py.
      "synthetic-products", "synthetic-papers"
                    generated. features: the real matrix whose exponents they follow, "glove" (default), "bow" or a
                    file; scale, dtype, seed. See `load_synthetic`.
    reverse_edges: add every edge of the data set once more, turned round (in a heterograph as a relation of its own).
    For the citation graphs, so that messages go both ways; wordnet and products have both directions already.
    Raises ValueError for a name or setting that does not exist, for one that the data set does not have, and for data
    that cannot be used; never falls back to another data set, and never asks on stdin.
    """
    settings = check_settings(
        name,
        features=features,
        root=root,
        allow_large_download=allow_large_download,
        scale=scale,
        dtype=dtype,
        seed=seed,
    )
    dataset = _LOADERS[name][0](**settings)
    return dataset.with_reverse_edges() if reverse_edges else dataset


def check_settings(name: str, **given: Any) -> dict[str, Any]:
    """given: settings of `load_dataset`, None for the data set's own choice. Returns those that were given. Raises
    DatasetError, which starts with the setting to change, for those that this data set cannot have; loads nothing."""
    if name not in _LOADERS:
        near = difflib.get_close_matches(name, DATASET_NAMES, n=1, cutoff=0.75)
        advice = f"; did you mean {near[0]!r}?" if near else ""
        raise DatasetError(f"name: want one of {list(DATASET_NAMES)}, got {name!r}{advice}")
    known = _LOADERS[name][1]
    settings = {setting: value for setting, value in given.items() if value is not None}
    for setting, value in settings.items():
        if setting not in known:
            raise DatasetError(
                f"{setting}: want none for {name}, whose settings are {', '.join(known)} and reverse_edges, "
                f"got {value!r}; set it to null"
            )
    if "root" in known and "root" not in settings:
        raise DatasetError(f"root: want the folder that holds {name}, got none")
    features = settings.get("features")
    if name == "wordnet" and features is not None and features not in WORDNET_FEATURES:
        raise DatasetError(f"features: want one of {sorted(WORDNET_FEATURES)} for wordnet, got {features!r}")
    if name == "arrays" and features in WORDNET_FEATURES:
        raise DatasetError(
            f"features: want a file in root for arrays, got {features!r}, which are wordnet's; set it to null for "
            "features.npy, or to a file"
        )
    return settings

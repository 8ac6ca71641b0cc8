"""Data sets by name: which settings each takes."""

from __future__ import annotations

import pytest

from ibp_gnn.datasets import DATASET_NAMES, DatasetError, load_dataset

pytestmark = pytest.mark.usefixtures("no_questions")


def test_settings() -> None:
    with pytest.raises(DatasetError, match=r"^name: want one of \['wordnet', 'ogbn-arxiv'.*\], got 'cora'$"):
        load_dataset("cora")
    with pytest.raises(
        DatasetError, match="^root: want none for wordnet, whose settings are features .*, got 'x'; set it to null"
    ):
        load_dataset("wordnet", root="x")
    with pytest.raises(DatasetError, match="^features: want none for mag240m, .* root and reverse_edges, got 'glove'"):
        load_dataset("mag240m", "glove", root="x")
    for name in DATASET_NAMES:
        if name.startswith(("ogb", "mag", "arrays")):
            with pytest.raises(DatasetError, match=f"^root: want the folder that holds {name}, got none"):
                load_dataset(name)


def test_the_setting_to_change_is_named() -> None:
    with pytest.raises(
        DatasetError, match="^features: want a file in root for arrays, got 'glove', which are wordnet's"
    ):
        load_dataset("arrays", "glove", root="x")
    with pytest.raises(DatasetError, match="^features: want one of .*'bow', 'glove'.* for wordnet, got 'tfidf'"):
        load_dataset("wordnet", "tfidf")
    with pytest.raises(DatasetError, match="; did you mean 'wordnet'\\?$"):
        load_dataset("wordnets")

"""Data sets by name: which settings each takes."""

from __future__ import annotations

import pytest

from ibp_gnn.datasets import DATASET_NAMES, DatasetError, load_dataset

pytestmark = pytest.mark.usefixtures("no_questions")


def test_settings() -> None:
    with pytest.raises(DatasetError, match=r"want one of \['wordnet', 'ogbn-arxiv'.*\], got 'cora'"):
        load_dataset("cora")
    with pytest.raises(DatasetError, match="wordnet: want no setting but features and reverse_edges, got root='x'"):
        load_dataset("wordnet", root="x")
    with pytest.raises(DatasetError, match="mag240m: want no setting but root and reverse_edges, got features='glove'"):
        load_dataset("mag240m", "glove", root="x")
    for name in DATASET_NAMES:
        if name.startswith(("ogb", "mag", "arrays")):
            with pytest.raises(DatasetError, match=f"{name}: want root, the folder that holds it, got none"):
                load_dataset(name)

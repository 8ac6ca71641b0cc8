"""Chunks of rows in the order of slots: copies, from arrays of every kind."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from features_to_build import an_order, mapped, some_rows

from ibp_gnn import Codec
from ibp_gnn.store.row_readers import ArrayReader, chunk_length
from ibp_gnn.testing import assert_bitwise_equal


@pytest.mark.parametrize("ordered", [False, True], ids=["by_id", "ordered"])
@pytest.mark.parametrize("kind", ["mapped", "array", "read_only", "tensor", "columns", "bfloat16"])
def test_chunks_do_not_change_with_the_features(kind: str, ordered: bool, tmp_path: Path) -> None:
    rows = some_rows()
    written: Any = {"mapped": lambda: mapped(rows, tmp_path), "array": rows.numpy().copy, "tensor": rows.clone}.get(
        kind, rows.clone
    )()
    features = written
    if kind == "read_only":
        written = rows.numpy().copy()
        features = written[:]
        features.flags.writeable = False
    elif kind == "columns":
        features, rows = written[:, :7], rows[:, :7]
    elif kind == "bfloat16":
        written, rows = written.bfloat16(), rows.bfloat16()
        features = written
    order = an_order().to(torch.int32) if ordered else None
    codec = Codec.fit(rows, codec="ibp")
    for at, chunk in ArrayReader(features, codec, 64, order).chunks():
        ids = torch.arange(at, at + len(chunk)) if order is None else order[at : at + len(chunk)].long()
        kept = written[ids] if isinstance(written, torch.Tensor) else torch.from_numpy(written[ids.numpy()])
        written[ids.numpy() if isinstance(written, np.ndarray) else ids] = 0
        assert_bitwise_equal(chunk.view(rows.dtype), rows[ids].reshape(len(ids), -1))
        written[ids.numpy() if isinstance(written, np.ndarray) else ids] = kept  # the next chunk may be read already


def test_chunks_are_whole_words_of_the_bitmask() -> None:
    assert [chunk_length(rows, 100) for rows in (1, 32, 33, 1000)] == [32, 32, 64, 1024]
    assert chunk_length(None, 1) == 24 << 20 and chunk_length(None, 1 << 30) == 32
    for bad in (0, -1, 2.0):
        with pytest.raises(ValueError, match=f"chunk_rows: want at least 1, got {bad}"):
            chunk_length(bad, 100)  # type: ignore[arg-type]

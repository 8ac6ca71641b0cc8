"""A store written in parts, of a number of rows that is known beforehand."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import ibp_gnn
from ibp_gnn.testing import assert_bitwise_equal
from ibp_gnn.training.store_builder import StoreBuilder


def relu_rows(count: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(count, 24, generator=torch.Generator().manual_seed(seed)).relu_()


@pytest.mark.parametrize("layout", ["compact", "inplace"])
@pytest.mark.parametrize("codec", ["ibp", "dict", "auto"])
def test_a_store_written_in_parts(codec: str, layout: Any) -> None:
    rows = relu_rows(1000)
    rows[500:] = (
        torch.randint(-(2**31), 2**31 - 1, (500, 24)).to(torch.int32).view(torch.float32)
    )  # all of these overflow
    writer = StoreBuilder(1000, rows[:200], codec=codec, layout=layout)
    first = 0
    for count in (0, 1, 31, 32, 33, 403, 500):
        writer.append(rows[first : first + count])
        first += count
    with writer.finish() as store:
        assert store.layout == layout and store.shape == (1000, 24)
        assert_bitwise_equal(store.gather(torch.arange(1000)), rows)
        assert_bitwise_equal(store.gather(torch.tensor([999, 0, 499, 500])), rows[[999, 0, 499, 500]])
        if layout == "compact":
            assert store.rows.num_overflow == int(store.rows.overflows().sum()) >= 490


def test_a_store_written_in_parts_equals_one_that_is_built() -> None:
    rows = relu_rows(777)
    writer = StoreBuilder(777, rows, codec="dict")
    for part in rows.split(100):
        writer.append(part)
    written, built = writer.finish(), ibp_gnn.CompressedFeatureStore.build(rows, "dict", progress=False)
    assert (written.nbytes, written.lead_bytes) == (built.nbytes, built.lead_bytes)
    assert_bitwise_equal(written.rows.slots, built.rows.slots)
    assert_bitwise_equal(written.rows.overflow, built.rows.overflow)


@pytest.mark.parametrize("layout", ["compact", "inplace"])
def test_a_gpu_fetches_the_longest_payload_whether_or_not_the_sample_has_it(layout: Any) -> None:
    sample = 1 + torch.rand(64, 128)
    later = sample.clone()
    later[5, :3] = torch.tensor([1e-9, 1e9, 1e-20])  # exponents that the sample's dictionary does not have
    writer = StoreBuilder(128, sample, codec="dict", layout=layout)
    writer.append(sample)
    writer.append(later)
    store = writer.finish()
    payload_bytes = store.codec.measure(later)
    assert payload_bytes.max() > store.codec.measure(sample).max()
    fitting = payload_bytes[payload_bytes <= min(store.slot_bytes, store.codec.row_bytes - 1)]
    assert store.lead_bytes == int(fitting.max())
    assert_bitwise_equal(store.gather(torch.arange(64, 128)), later)


def test_too_many_or_too_few_rows() -> None:
    writer = StoreBuilder(40, relu_rows(40))
    writer.append(relu_rows(39))
    with pytest.raises(ValueError, match="rows: want 40 in all, got 39"):
        writer.finish()
    with pytest.raises(ValueError, match="rows: want 40 in all, got 41 so far"):
        writer.append(relu_rows(2))
    with pytest.raises(ValueError, match=r"rows: want \[n, 24\] torch.float32, got \[1, 5\]"):
        writer.append(torch.zeros(1, 5))
    writer.append(relu_rows(1))
    writer.finish().close()

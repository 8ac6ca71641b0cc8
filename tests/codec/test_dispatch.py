"""The same operations on every backend, with the same results."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from codec_cases import byte_matrix, some_dtypes_and_kinds
from ibp_cases import fit, forced_codec

from ibp_gnn import FormatError, _native
from ibp_gnn.codec import dispatch
from ibp_gnn.codec.values import to_bytes
from ibp_gnn.testing import assert_bitwise_equal, oracle, special_rows


@some_dtypes_and_kinds
def test_measure_and_count_ones_as_the_oracle(dtype, kind, backend):
    for width in (1, 3, 33, 602):
        rows = special_rows(dtype, width, kind)
        matrix = byte_matrix(rows)
        ones = dispatch.count_ones(to_bytes(rows.to(backend)))
        assert_bitwise_equal(ones, oracle.count_ones(matrix))
        for chunk_bits in (8, 32, 128):
            codec = forced_codec(rows, chunk_bits)
            lengths = codec.measure(rows.to(backend))
            assert lengths.device == backend
            assert_bitwise_equal(
                lengths, oracle.measure(matrix, codec.form.mask_bytes, codec.form.bitval_bytes, chunk_bits)
            )


def test_threads_do_not_change_bytes(monkeypatch, cpu_path):
    """Enough rows to be shared out, and not a multiple of the 32 that share a bitmask word."""
    monkeypatch.setattr(_native, "cpu_path", cpu_path)
    rows = special_rows(torch.float32, 50, "outliers", n=20_011)
    ids = torch.from_numpy(np.random.default_rng(0).integers(0, len(rows), 30_000))
    results = []
    before = torch.get_num_threads()
    try:
        for threads in (1, 2, 5):
            torch.set_num_threads(threads)
            codec = fit(rows)
            compressed = codec.compress(rows)
            buffers = compressed.slots, compressed.bitmask, compressed.overflow
            results.append(
                (*buffers, codec.measure(rows), dispatch.count_ones(to_bytes(rows)), codec.decompress(compressed, ids))
            )
            damaged = compressed.slots.clone()
            damaged[: compressed.slot_bytes * (len(rows) - 1)] = 0
            with pytest.raises(FormatError, match="row "):
                codec.decompress(dataclasses.replace(compressed, slots=damaged))
    finally:
        torch.set_num_threads(before)
    assert results[0][2].numel() > 64
    for other in results[1:]:
        for one, two in zip(results[0], other, strict=True):
            assert_bitwise_equal(one, two)
    assert_bitwise_equal(results[0][-1], rows[ids])

"""Any bit pattern of any dtype comes back, whatever the codec was fitted on.

IBP_GNN_LONG_VALUES=100000000 makes it the long run: so many new random values for each code path, instead of 100,000
that are the same in every run.
"""

from __future__ import annotations

import os
from typing import NamedTuple

import hypothesis
import numpy as np
import pytest
import torch
from backends import dict_backend
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ibp_gnn import Codec
from ibp_gnn.codec.values import SUPPORTED_DTYPES
from ibp_gnn.testing import assert_bitwise_equal

LONG_VALUES = int(os.environ.get("IBP_GNN_LONG_VALUES", "0"))
VALUES = LONG_VALUES or 100_000
VALUES_PER_EXAMPLE = 50_000 if LONG_VALUES else 800
EXAMPLES = -(-VALUES // (len(SUPPORTED_DTYPES) * VALUES_PER_EXAMPLE))


class Case(NamedTuple):
    """rows: uint8 [n, width * value_bytes]. The rest: what the codec is fitted on and where rows go."""

    words: np.ndarray
    fit_rows: int
    slot_share: float
    seed: int


@st.composite
def cases(draw: st.DrawFn, bits: int) -> Case:
    """Values that agree with their column in so many high bits, but for a few; some zeros, columns and rows of zeros,
    trailing zeros; and any bytes at the start."""
    width = draw(st.integers(1, 400))
    n = max(1, VALUES_PER_EXAMPLE // width)
    seed = draw(st.integers(0, 2**32))
    rng = np.random.default_rng(seed)

    def below(share: float, *shape: int) -> np.ndarray:
        return rng.random(shape) < share

    def noise(*shape: int) -> np.ndarray:
        return rng.integers(0, 1 << bits, shape, np.uint64, endpoint=False)

    high = np.uint64((1 << bits) - (1 << draw(st.integers(0, bits))))
    few = st.sampled_from([0, 0.001, 0.05, 0.5])
    values = np.where(below(draw(few), n, width), noise(n, width), noise(n, width) & ~high | noise(1, width) & high)
    trailing = np.uint64(draw(st.integers(0, bits - 1)) if draw(st.booleans()) else 0)
    values[below(draw(st.sampled_from([0.9, 1])), n)] &= ~((np.uint64(1) << trailing) - np.uint64(1))
    values[below(draw(st.sampled_from([0, 0.3, 0.97])), n, width)] = 0
    values[:, below(draw(few), width)] = 0
    values[below(draw(few), n)] = 0
    words = values.astype(f"<u{bits // 8}")
    hostile = np.frombuffer(draw(st.binary(max_size=64)), np.uint8)
    flat = words.reshape(-1).view(np.uint8)
    flat[: len(hostile)] = hostile[: len(flat)]
    return Case(words, draw(st.integers(1, min(n, 64))), draw(st.floats(0, 1.1)), seed)


backend = dict_backend  # with AVX-512


@pytest.mark.parametrize("dtype", SUPPORTED_DTYPES, ids=lambda dtype: str(dtype)[6:])
def test_any_bits_come_back(dtype, backend):
    @settings(
        max_examples=EXAMPLES,
        derandomize=not LONG_VALUES,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
        phases=set(hypothesis.Phase) - {hypothesis.Phase.shrink} if LONG_VALUES else tuple(hypothesis.Phase),
    )
    @given(case=cases(8 * dtype.itemsize))
    def check(case: Case) -> None:
        words = case.words & 1 if dtype is torch.bool else case.words
        rows = torch.from_numpy(words.view(f"<i{words.itemsize}")).view(dtype).to(backend)
        ids = torch.from_numpy(np.random.default_rng(case.seed).permutation(len(rows))).to(backend)
        for name in ("dict", "ibp", "auto"):
            codec = Codec.fit(rows, codec=name, max_rows=case.fit_rows)
            slot_bytes = max(min(4, codec.row_bytes), int(case.slot_share * codec.row_bytes))
            for compressed in (codec.compress(rows), codec.compress(rows, slot_bytes=slot_bytes)):
                # Rows of bytes: torch has no index operation for 8-bit floats everywhere.
                expected = torch.from_numpy(words.view(np.uint8)).to(backend)[ids]
                assert_bitwise_equal(codec.decompress(compressed, ids).view(torch.uint8).flatten(1), expected)

    check()

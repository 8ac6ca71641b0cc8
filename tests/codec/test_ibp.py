"""Codec "ibp": fits find the masks and chunks that the oracle finds; forms of other parts are refused."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
import torch
from backends import ask_oracle_once
from codec_cases import byte_matrix, every_dtype, every_kind
from ibp_cases import fit, make_codec

from ibp_gnn.testing import assert_bitwise_equal, oracle, special_rows


def assert_fit_is_the_oracles(rows: torch.Tensor, device: torch.device) -> None:
    matrix, bits, codec = byte_matrix(rows), 8 * rows.dtype.itemsize, fit(rows.to(device))
    found = codec.form.mask_bytes, codec.form.bitval_bytes, codec.word_bits, codec.words_per_chunk, codec.threshold

    def compare() -> None:
        wanted = oracle.fit(matrix, bits)
        assert_bitwise_equal(found[0], wanted.mask)
        assert_bitwise_equal(found[1], wanted.bitval)
        assert found[2:] == wanted[2:]

    ask_oracle_once(("fit ibp", matrix, bits), found, compare)


@every_dtype
@every_kind
def test_fit_finds_what_the_oracle_finds(dtype, kind, backend):
    for width, n in ((1, 40), (3, 7), (33, 40)):
        assert_fit_is_the_oracles(special_rows(dtype, width, kind, n=n), backend)


@pytest.mark.parametrize(
    ("word_bits", "words_per_chunk", "threshold"),
    [(16, None, None), (None, 4, None), (None, None, 0.7), (64, 2, None), (8, 1, 1.0), (32, None, 0.5), (64, 64, 0.9)],
)
def test_fit_keeps_what_it_is_given(backend, word_bits, words_per_chunk, threshold):
    rows = special_rows(torch.float32, 33, "powers_of_two")
    rows[:20] = special_rows(torch.float32, 33, "outliers")[:20]
    given_parts = dict(word_bits=word_bits, words_per_chunk=words_per_chunk, threshold=threshold)
    codec = fit(rows.to(backend), **given_parts)
    wanted = oracle.fit(byte_matrix(rows), 32, **given_parts)
    assert_bitwise_equal(codec.form.mask_bytes, wanted.mask)
    assert (codec.word_bits, codec.words_per_chunk, codec.threshold) == wanted[2:]
    for name, value in given_parts.items():
        assert value is None or getattr(codec, name) == value


def test_fit_stops_at_chunks_of_4096_bits(backend):
    """Equal rows of 8 KiB: longer chunks are better, 2 bytes of participation bits with the longest that is tried."""
    rows = torch.full((3, 8192), 7, dtype=torch.uint8, device=backend)
    codec = fit(rows)
    assert (codec.word_bits, codec.words_per_chunk, codec.threshold) == (8, 512, 0.5)
    assert codec.measure(rows).tolist() == [2, 2, 2]


def test_fit_looks_at_a_sample_of_max_rows(backend, tmp_path):
    rows = special_rows(torch.float32, 6, "outliers", n=500)
    rows[::2] = special_rows(torch.float32, 6, "powers_of_two", n=250)
    np.save(tmp_path / "rows.npy", rows.numpy())
    for seed in (0, 5):
        codec = fit(rows.to(backend), max_rows=60, seed=seed)
        picked = np.sort(np.random.default_rng(seed).choice(500, 60, replace=False))
        wanted = oracle.fit(byte_matrix(rows)[picked], 32)
        assert_bitwise_equal(codec.form.mask_bytes, wanted.mask)
        assert_bitwise_equal(codec.form.bitval_bytes, wanted.bitval)
        mapped = fit(np.load(tmp_path / "rows.npy", mmap_mode="r"), max_rows=60, seed=seed)
        assert mapped.form.mask_bytes.tobytes() == codec.form.mask_bytes.tobytes()


@every_dtype
def test_fit_samples_every_dtype(dtype, backend):
    rows = special_rows(dtype, 4, "outliers", n=100).to(backend)
    codec = fit(rows, max_rows=50)
    assert_bitwise_equal(codec.decompress(codec.compress(rows)), rows)


def test_fit_is_repeatable(backend):
    rows = special_rows(torch.float32, 64, "outliers", n=3000).to(backend)
    one, two = (fit(rows, max_rows=1000, seed=3) for _ in range(2))
    assert pickle.dumps(one) == pickle.dumps(two)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (dict(codec="zip"), r"codec: want one of \[.*'ibp'.*\], got 'zip'"),
        (dict(word_bits=24), r"word_bits: want one of \[8, 16, 32, 64\], got 24"),
        (dict(word_bits=0), r"word_bits: want one of \[8, 16, 32, 64\], got 0"),
        (dict(words_per_chunk=3), "words_per_chunk: want a power of two, got 3"),
        (dict(words_per_chunk=0), "words_per_chunk: want a power of two, got 0"),
        (dict(words_per_chunk=-2), "words_per_chunk: want a power of two, got -2"),
        (dict(words_per_chunk=2.0), "words_per_chunk: want a power of two, got 2.0"),
        (dict(words_per_chunk=1 << 40), "words_per_chunk: want at most 134217728, got 1099511627776"),
        (dict(threshold=0.49), "threshold: want 0.5 to 1, got 0.49"),
        (dict(threshold=1.01), "threshold: want 0.5 to 1, got 1.01"),
        (dict(threshold=float("nan")), "threshold: want 0.5 to 1, got nan"),
        (dict(max_rows=0), "max_rows: want at least 1, got 0"),
    ],
)
def test_fit_refuses_arguments(arguments, message):
    with pytest.raises(ValueError, match=message):
        fit(torch.ones(4, 3), **arguments)


def test_mask_and_bitval_are_words():
    rows = torch.tensor([[1.0, -1.0, 0.5], [1.0, -1.0, 0.5]])
    codec = fit(rows, word_bits=32, words_per_chunk=1)
    assert codec.mask.dtype == np.uint32 and codec.mask.tolist() == [0xFFFFFFFF] * 3
    assert codec.bitval.tolist() == [0x3F800000, 0xBF800000, 0x3F000000]
    codec = fit(rows, word_bits=64, words_per_chunk=1)
    assert codec.mask.tolist() == [0xFFFFFFFFFFFFFFFF, 0x00000000FFFFFFFF], "a row may end inside a word"
    assert codec.bitval.tolist() == [0xBF8000003F800000, 0x3F000000]
    assert codec.nbytes == 24


def test_codecs_refuse_inconsistent_parts():
    rows = torch.zeros(1, 2)
    ones, zeros = np.full(8, 255, np.uint8), np.zeros(8, np.uint8)
    with pytest.raises(ValueError, match="form: want one for rows of 8 bytes, got one for 7"):
        make_codec(rows, ones[:7], zeros[:7], 8)
    with pytest.raises(ValueError, match="bitval bytes: want 8, got 7"):
        make_codec(rows, ones, zeros[:7], 8)
    with pytest.raises(ValueError, match="bitval: want 0 wherever mask is 0, got 255 under mask 0 at byte 0"):
        make_codec(rows, zeros, ones, 8)

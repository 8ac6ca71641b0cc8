"""Codecs "ibp" with given masks, and the oracle to compare them with."""

from __future__ import annotations

import functools

import numpy as np
import torch
from backends import ask_oracle_once
from codec_cases import byte_matrix

from ibp_gnn import Codec, CompressedRows
from ibp_gnn.codec.ibp import IbpForm
from ibp_gnn.testing import assert_bitwise_equal, oracle

fit = functools.partial(Codec.fit, codec="ibp")


def make_codec(rows: torch.Tensor, mask: np.ndarray, bitval: np.ndarray, chunk_bits: int) -> Codec:
    return Codec(rows.dtype, tuple(rows.shape[1:]), IbpForm(mask, bitval, 8, chunk_bits // 8, threshold=0.7))


def forced_codec(rows: torch.Tensor, chunk_bits: int) -> Codec:
    matrix = byte_matrix(rows)
    mask, bitval = oracle.invariant_bits(oracle.count_ones(matrix), len(matrix), 0.7)
    return make_codec(rows, mask, bitval, chunk_bits)


def assert_as_the_oracle(codec: Codec, rows: torch.Tensor, compressed: CompressedRows) -> None:
    form = codec.form.mask_bytes, codec.form.bitval_bytes, codec.form.chunk_bits
    question = byte_matrix(rows), *form, compressed.slot_bytes
    buffers = compressed.slots, compressed.bitmask, compressed.overflow

    def compare() -> None:
        for buffer, wanted in zip(buffers, oracle.encode(*question), strict=True):
            assert_bitwise_equal(buffer, wanted)

    ask_oracle_once(("ibp", *question), buffers, compare)

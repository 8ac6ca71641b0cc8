"""What codec "dict" saves on real data."""

from __future__ import annotations

import functools

import torch
from backends import dict_backend
from codec_cases import needs_glove

from ibp_gnn import Codec, CodecReport, CompressedRows
from ibp_gnn.datasets import load_dataset
from ibp_gnn.testing import assert_bitwise_equal

backend = dict_backend  # with AVX-512


@functools.cache
def glove() -> torch.Tensor:
    return load_dataset("wordnet", "glove").features


@needs_glove
def test_savings_on_glove(backend):
    rows = glove().to(backend)

    def round_trip(rows: torch.Tensor, minimize: str) -> tuple[CodecReport, CompressedRows]:
        codec = Codec.fit(rows, codec="auto", minimize=minimize)
        assert codec.kind == "dict"
        compressed = codec.compress(rows)
        assert_bitwise_equal(codec.decompress(compressed), rows)
        return codec.report(rows), compressed

    assert round_trip(rows, "payloads")[0].savings >= 0.15
    compressed = round_trip(rows, "slots")[1]
    assert compressed.nbytes <= 0.88 * compressed.raw_nbytes
    assert round_trip(rows.bfloat16(), "payloads")[0].savings >= 0.305
    half = rows.half()
    assert round_trip(half, "payloads")[0].savings > Codec.fit(half, codec="ibp").report(half).savings


def test_savings_on_bags_of_words(backend):
    rows = load_dataset("wordnet", "bow").features[::16].to(backend)
    codec = Codec.fit(rows, codec="auto", minimize="payloads", max_rows=2000)
    assert codec.report(rows).savings >= 0.96
    assert_bitwise_equal(codec.decompress(codec.compress(rows)), rows)


def test_savings_on_rectified_values(backend):
    rows = torch.relu(torch.randn(10_000, 128, generator=torch.Generator().manual_seed(0))).to(backend)
    codec = Codec.fit(rows)  # "auto"
    assert codec.kind == "dict" and codec.form.zero_code and codec.report(rows).savings >= 0.51
    assert_bitwise_equal(codec.decompress(codec.compress(rows)), rows)

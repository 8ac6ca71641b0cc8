"""float32 rows that end with zeros, of narrower floats: a GPU's kernels for them give what the CPU gives."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from ibp_gnn import Codec, FormatError
from ibp_gnn.codec.dict import DictForm
from ibp_gnn.testing import assert_bitwise_equal

NARROW = {"e5m2": (torch.float8_e5m2, 3), "e4m3": (torch.float8_e4m3fn, 4), "bfloat16": (torch.bfloat16, 8),
          "float16": (torch.float16, 11)}  # fmt: skip
WIDTHS = [31, 50, 128, 300, 768, 1500]
KINDS = ["normal", "columns", "relu", "signed zeros", "wild"]


def rows_of(kind: str, width: int, dtype: torch.dtype, count: int = 400) -> torch.Tensor:
    generator = torch.Generator().manual_seed(width)
    x = torch.randn(count, width, generator=generator)
    if kind == "columns":  # a dictionary for each
        x = (x.sign() + x / 16) * 2.0 ** (-torch.arange(width) % 13 - 6.0)
    elif kind == "relu":
        x = torch.relu(x)
    elif kind == "signed zeros":
        x = torch.where(torch.rand(x.shape, generator=generator) < 0.6, 0.0, x)
    elif kind == "wild":  # escape codes and plain symbols
        x = x * 2.0 ** torch.randint(-9, 8, x.shape, generator=generator)
        x[::7] *= 2.0 ** torch.randint(-6, 6, x[::7].shape, generator=generator)
        x[1] = float("nan")
    return x.to(dtype).to(torch.float32)


@pytest.mark.cuda
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", NARROW)
def test_on_a_gpu(name: str, kind: str, width: int) -> None:
    dtype, low_bits = NARROW[name]
    x = rows_of(kind, width, dtype)
    codec = Codec.fit(x, codec="dict")
    form = codec.form
    assert isinstance(form, DictForm) and form.trim_bits >= 24 - low_bits - form.sign_low - 1
    for slot_bytes in (None, x.shape[1] * 4, max(4, codec.compress(x).slot_bytes * 3 // 16 * 4)):
        rows = codec.compress(x, slot_bytes=slot_bytes).to("cuda")
        assert_bitwise_equal(codec.decompress(rows), x.cuda())
        out = torch.empty(x.numel() + 1, device="cuda")[1:].view(x.shape)  # at a multiple of 4 bytes
        assert_bitwise_equal(codec.decompress(rows, out=out), x.cuda())


@pytest.mark.cuda
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", NARROW)
def test_damaged_payloads_on_a_gpu(name: str, kind: str) -> None:
    """Whatever is in them: nothing is read outside, others stay right, and what no payload says is reported."""
    for width in (50, 128, 300, 1500):
        x = rows_of(kind, width, NARROW[name][0])
        codec = Codec.fit(x, codec="dict")
        rows = codec.compress(x).to("cuda")
        damaged = dataclasses.replace(rows, slots=rows.slots.clone())
        hit = torch.arange(0, len(x), 3, device="cuda")
        noise = torch.randint(0, 256, (len(hit), rows.slot_bytes), dtype=torch.uint8, device="cuda")
        damaged.slot_matrix()[hit] = noise
        out = torch.empty(x.shape, device="cuda")
        try:
            codec.decompress(damaged, out=out)
            torch.cuda.synchronize()
        except FormatError:
            pass
        whole = torch.ones(len(x), dtype=torch.bool, device="cuda")
        whole[hit] = False
        assert_bitwise_equal(out[whole], x.cuda()[whole])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", NARROW)
def test_on_the_cpu(name: str, kind: str) -> None:
    x = rows_of(kind, 100, NARROW[name][0])
    codec = Codec.fit(x, codec="dict")
    assert_bitwise_equal(codec.decompress(codec.compress(x)), x)
    if kind == "normal":
        assert codec.report(x).bits_per_value < NARROW[name][1] + 3 + 0.6

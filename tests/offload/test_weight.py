from __future__ import annotations

import pytest
import torch
from offload_models import DEVICES

from ibp_gnn.offload.weight import BLOCK_VALUES, RowLayout, compress_weight
from ibp_gnn.testing import assert_bitwise_equal

DTYPES = [torch.bfloat16, torch.float16, torch.float32, torch.float8_e4m3fn, torch.float8_e5m2]


def hostile(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """Mostly normal; some rows of random bits, NaN payloads and -0.0 among them."""
    generator = torch.Generator().manual_seed(1)
    values = (torch.randn(shape, generator=generator) * 0.02).to(dtype)
    bits = values.view(torch.uint8)
    bits[::7] = torch.randint(0, 256, bits[::7].shape, generator=generator, dtype=torch.uint8)
    return values


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(64, 768), (33, 100), (1, 5), (130, 2048)], ids=str)
@pytest.mark.parametrize("by_row", [False, True])
def test_bits_come_back(device: str, dtype: torch.dtype, shape: tuple[int, ...], by_row: bool) -> None:
    want = hostile(shape, dtype)
    weight = compress_weight(want, by_row=by_row, device=torch.device(device))
    assert weight.buffer.device.type == "cpu" and weight.shape == shape and weight.dtype == dtype
    assert_bitwise_equal(weight.decompress(), want)
    assert_bitwise_equal(weight.decompress(torch.device(device)).cpu(), want)
    if by_row:
        assert weight.blocks_per_row is not None and weight.blocks_per_row * weight.codec.row_shape[0] == shape[1]


def test_bfloat16_of_normal_weights_takes_less_than_seven_tenths() -> None:
    want = (torch.randn(1024, 1024, generator=torch.Generator().manual_seed(2)) * 0.02).bfloat16()
    weight = compress_weight(want, by_row=False, device=torch.device("cpu"))
    assert weight.codec.row_shape == (BLOCK_VALUES,)
    assert weight.nbytes < 0.71 * want.nbytes
    assert weight.raw_nbytes == want.nbytes <= weight.padded_nbytes < want.nbytes + 2 * BLOCK_VALUES


def test_rows_lie_in_one_buffer() -> None:
    layout = RowLayout(num_rows=100, row_bytes=64, slot_bytes=48, num_overflow=3)
    buffer = torch.arange(layout.nbytes).to(torch.uint8)
    rows = layout.rows_in(buffer)
    assert RowLayout.of(rows) == layout
    starts = [part.data_ptr() - buffer.data_ptr() for part in (rows.slots, rows.overflow, rows.bitmask)]
    assert starts == sorted(starts) and all(start % 256 == 0 for start in starts)
    assert starts[2] + rows.bitmask.numel() <= layout.nbytes


def test_non_contiguous_weights() -> None:
    want = torch.randn(300, 200).bfloat16().t()
    assert_bitwise_equal(compress_weight(want, by_row=True, device=torch.device("cpu")).decompress(), want)

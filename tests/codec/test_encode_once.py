"""Rows that a GPU encodes in one pass: the payloads are those of the other encoder."""

from __future__ import annotations

import pytest
import torch

from ibp_gnn import Codec, CompressedRows, _native
from ibp_gnn.codec import dispatch
from ibp_gnn.codec.values import to_bytes
from ibp_gnn.testing import assert_bitwise_equal

pytestmark = pytest.mark.cuda
DTYPES = [torch.bfloat16, torch.float16, torch.float32]


def rows_of(width: int, dtype: torch.dtype, count: int = 1000, columns: bool = False) -> torch.Tensor:
    """Normal rows; with exponents that differ by column if `columns`; some of random bits, some with rare symbols."""
    generator = torch.Generator().manual_seed(width)
    rows = torch.randn(count, width, generator=generator)
    if columns:
        rows *= 2.0 ** (torch.arange(width) % 9 * 3 - 12)
    rows[::10, 0] = float("inf")
    rows[3::50, -1] = 1e-30
    rows = rows.to(dtype)
    bits = rows.view(torch.uint8)
    bits[5::37] = torch.randint(0, 256, bits[5::37].shape, generator=generator, dtype=torch.uint8)
    return rows


def encode_once(codec: Codec, rows: torch.Tensor, slot_bytes: int, room: int) -> tuple[CompressedRows, int]:
    out = CompressedRows.empty(len(rows), codec.row_bytes, slot_bytes, room, rows.device)
    for buffer in (out.slots, out.bitmask, out.overflow):
        buffer.fill_(0xA5)
    count = torch.empty(1, dtype=torch.int64, device=rows.device)
    dispatch.encode_once(codec.form, to_bytes(rows), out, count)
    return out, int(count)


@pytest.mark.parametrize("columns", [False, True])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("width", [16, 64, 80, 96, 128, 129, 255, 256, 768, 1024, 1500, 2048, 4096])
def test_payloads_are_those_of_encode(width: int, dtype: torch.dtype, columns: bool) -> None:
    rows = rows_of(width, dtype, columns=columns).cuda()
    codec = Codec.fit(rows, codec="dict")
    lengths = codec.measure(rows)
    for slot_bytes in {int(torch.quantile(lengths.float(), share)) // 4 * 4 + 4 for share in (0.02, 0.5, 0.9)}:
        form = codec.form.on_device(rows.device, encoder=True)
        if not _native.cuda().can_encode_once(form.native, slot_bytes):
            too_long = 8 * slot_bytes > 96 << 10  # shared memory of a block
            of_others = codec.form.zero_code or codec.form.code_bits > 3
            assert too_long or of_others or slot_bytes >= codec.row_bytes, repr(codec)
            continue
        want = codec.compress(rows, slot_bytes=slot_bytes)
        got, count = encode_once(codec, rows, slot_bytes, len(rows))
        assert count == want.num_overflow
        assert torch.equal(got.bitmask, want.bitmask)
        kept = want.is_compressed()
        assert torch.equal(got.slot_matrix()[kept], want.slot_matrix()[kept])
        spilled = torch.nonzero(~kept).flatten()
        assert_bitwise_equal(got.overflow_matrix()[got.overflow_indices(spilled)], to_bytes(rows)[spilled])
        assert sorted(got.overflow_indices(spilled).tolist()) == list(range(count))
        assert_bitwise_equal(codec.decompress(got), rows)


def test_rows_without_room_are_counted_and_written_nowhere() -> None:
    rows = rows_of(256, torch.bfloat16).cuda()
    codec = Codec.fit(rows[:1], codec="dict")
    slot_bytes = int(codec.measure(rows).median()) // 4 * 4
    _, want = encode_once(codec, rows, slot_bytes, len(rows))
    got, count = encode_once(codec, rows, slot_bytes, 3)
    assert count == want > 3
    assert (got.overflow[3 * codec.row_bytes :] == 0xA5).all()


def test_bad_arguments() -> None:
    rows = rows_of(256, torch.bfloat16).cuda()
    codec = Codec.fit(rows, codec="dict")
    form = codec.form.on_device(rows.device, encoder=True).native
    assert not _native.cuda().can_encode_once(form, codec.row_bytes)
    assert not _native.cuda().can_encode_once(form, 301)
    for slot_bytes in (codec.row_bytes, 301):
        with pytest.raises(ValueError, match="one pass"):
            encode_once(codec, rows, slot_bytes, 1)
    ibp = Codec.fit(rows, codec="ibp")
    with pytest.raises(ValueError, match="one pass"):
        encode_once(ibp, rows, 300, 1)

"""Dispatch by device: the same operations on the CPU and the CUDA extension, with identical results.

Rows are uint8 [n, row_bytes], contiguous. CUDA work is enqueued on the current stream of the rows' device.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from . import _native
from .compressed_rows import CompressedRows

if TYPE_CHECKING:
    from .codec import Codec


def count_ones(rows: torch.Tensor) -> torch.Tensor:
    """Returns int64 [8 * row_bytes] on the rows' device: how many rows have bit k set."""
    ones = torch.zeros(8 * rows.shape[1], dtype=torch.int64, device=rows.device)
    if rows.is_cuda:
        with torch.cuda.device(rows.device):
            _native.cuda().count_ones(rows, ones, _stream(rows.device))
    else:
        _native.cpu.count_ones(rows, ones, _native.threads())
    return ones


def measure(codec: Codec, rows: torch.Tensor) -> torch.Tensor:
    """Returns int32 [n] on the rows' device: payload lengths in bytes."""
    return _measure(rows, codec.native if rows.device.type == "cpu" else codec.tables(rows.device), codec.chunk_bits)


def measure_candidate(rows: torch.Tensor, mask: np.ndarray, bitval: np.ndarray, chunk_bits: int) -> torch.Tensor:
    """The same for a codec that is not made yet; mask, bitval: uint8 [row_bytes]."""
    if rows.is_cuda:
        return _measure(rows, make_tables(mask, bitval, chunk_bits).to(rows.device), chunk_bits)
    return _measure(rows, _native.cpu.IbpCodec(mask, bitval, chunk_bits), chunk_bits)


def _measure(rows: torch.Tensor, codec: Any, chunk_bits: int) -> torch.Tensor:
    payload_bytes = torch.empty(len(rows), dtype=torch.int32, device=rows.device)
    if rows.is_cuda:
        with torch.cuda.device(rows.device):
            _native.cuda().measure(codec, chunk_bits, rows, payload_bytes, _stream(rows.device))
    else:
        _native.cpu.measure(codec, rows, payload_bytes, _native.threads(), _native.cpu_path)
    return payload_bytes


def encode(codec: Codec, rows: torch.Tensor, overflow_index: torch.Tensor, out: CompressedRows) -> None:
    """overflow_index: int64 [n], read for rows that do not fit their slot."""
    where = (out.slots, out.slot_bytes, out.bitmask, out.overflow)
    if rows.is_cuda:
        with torch.cuda.device(rows.device):
            cuda = _native.cuda()
            scratch = torch.empty(
                cuda.encode_scratch_bytes(codec.row_bytes, codec.chunk_bits), dtype=torch.uint8, device=rows.device
            )
            tables = codec.tables(rows.device)
            cuda.encode(tables, codec.chunk_bits, rows, overflow_index, *where, scratch, _stream(rows.device))
    else:
        _native.cpu.encode(codec.native, rows, overflow_index, *where, _native.threads(), _native.cpu_path)


def decode_on_cpu(codec: Codec, rows: CompressedRows, ids: torch.Tensor, out: torch.Tensor) -> None:
    """ids: int32/int64 [n] on the CPU; out: uint8 [n, row_bytes]. Raises IndexError and FormatError."""
    _native.cpu.decode(
        codec.native,
        rows.slots,
        rows.slot_bytes,
        rows.bitmask,
        rows.overflow,
        rows.num_rows,
        ids.to(torch.int64),
        out,
        _native.threads(),
        _native.cpu_path,
    )


def make_tables(mask: np.ndarray, bitval: np.ndarray, chunk_bits: int) -> torch.Tensor:
    """What GPU kernels need to know of a codec: int32 [tables, units] on the CPU (csrc/core/ibp_tables.h)."""
    tables = np.zeros((_native.cpu.NUM_TABLES, -(-len(mask) // 4)), np.uint32)
    _native.cpu.make_tables(mask, bitval, chunk_bits, tables)
    return torch.from_numpy(tables.view(np.int32))


def _stream(device: torch.device) -> int:
    return torch.cuda.current_stream(device).cuda_stream

"""Dispatch by device: the same operations on the CPU and the CUDA extension, with identical results.

Rows are uint8 [n, row_bytes], contiguous. CUDA work is enqueued on the current stream of the rows' device.
"""

from __future__ import annotations

import torch
from torch.utils.dlpack import to_dlpack

from .. import _native
from .compressed_rows import CompressedRows
from .forms import Form


def count_ones(rows: torch.Tensor) -> torch.Tensor:
    """Returns int64 [8 * row_bytes] on the rows' device: how many rows have bit k set."""
    ones = torch.zeros(8 * rows.shape[1], dtype=torch.int64, device=rows.device)
    if rows.is_cuda:
        with torch.cuda.device(rows.device):
            _native.cuda().count_ones(rows, ones, _stream(rows.device))
    else:
        _native.cpu.count_ones(rows, ones, _native.threads())
    return ones


def measure(form: Form, rows: torch.Tensor) -> torch.Tensor:
    """Returns int32 [n] on the rows' device: payload lengths in bytes, also where they are not below row_bytes."""
    payload_bytes = torch.empty(len(rows), dtype=torch.int32, device=rows.device)
    if rows.is_cuda:
        with torch.cuda.device(rows.device):
            tables = form.on_device(rows.device, encoder=True)
            _native.cuda().measure(tables.native, rows, payload_bytes, _stream(rows.device))
            tables.record_stream(torch.cuda.current_stream(rows.device))
    else:
        _native.cpu.measure(form.native, rows, payload_bytes, _native.threads(), _native.cpu_path)
    return payload_bytes


def stored_bytes(form: Form, rows: torch.Tensor) -> int:
    """Bytes of all payloads, raw rows where they are not longer."""
    return int(measure(form, rows).clamp(max=rows.shape[1]).sum(dtype=torch.int64))


def encode(
    form: Form,
    rows: torch.Tensor,
    overflow_index: torch.Tensor,
    out: CompressedRows,
    first_overflow: int = 0,
    first_row: int = 0,
    first_start: int = 0,
) -> None:
    """Writes the rows to `out`.

    overflow_index: int64 [n] on the rows' device. Where slots are shorter than rows: the index in the overflow area of
    each row that did not fit its slot when it was measured, -1 for every other row. Otherwise ignored.
    first_overflow: the index of the first row in the overflow area of `out`; not 0 on the CPU only.
    first_row: the number of the first row, for messages.
    first_start: of packed rows, which are on the CPU, that of `CompressedRows.packed`.

    Raises ValueError naming a row that fits now and did not when it was measured, or the other way round, since another
    thread or process wrote to it; `out` is then not to be used."""
    where = (out.slots, out.slot_bytes, out.bitmask, out.overflow)
    if rows.is_cuda:
        if out.packing is not None:
            raise ValueError(f"rows: want them on the CPU, where rows are packed, got {rows.device}")
        with torch.cuda.device(rows.device):
            cuda, tables = _native.cuda(), form.on_device(rows.device, encoder=True)
            scratch = torch.empty(cuda.encode_scratch_bytes(tables.native), dtype=torch.uint8, device=rows.device)
            changed = torch.full((1,), len(rows), dtype=torch.int64, device=rows.device)
            cuda.encode(tables.native, rows, overflow_index, *where, scratch, changed, _stream(rows.device))
            tables.record_stream(torch.cuda.current_stream(rows.device))
            row = int(changed)
        if row < len(rows):
            raise ValueError(
                f"row {first_row + row}: its payload has another length than when it was measured: the rows changed "
                "meanwhile"
            )
    else:
        how = _native.threads(), _native.cpu_path, first_overflow, first_row, *(out.packing or (0, 0)), first_start
        _native.cpu.encode(form.native, rows, overflow_index, *where, *how)


def encode_once(form: Form, rows: torch.Tensor, out: CompressedRows, overflow_count: torch.Tensor) -> None:
    """Writes rows on a GPU, which nobody has measured, to `out`, for forms and slots of which the extension's
    can_encode_once says so. Does not wait. overflow_count: int64 [1], becomes how many do not fit their slots. These
    are in the overflow area in any order, as far as it has room."""
    with torch.cuda.device(rows.device):
        tables = form.on_device(rows.device, encoder=True)
        where = (out.slots, out.slot_bytes, out.bitmask, out.overflow)
        _native.cuda().encode_once(tables.native, rows, *where, overflow_count, _stream(rows.device))
        tables.record_stream(torch.cuda.current_stream(rows.device))


def decode_on_cpu(
    form: Form, rows: CompressedRows, ids: torch.Tensor, out: torch.Tensor, slot_of: torch.Tensor | None = None
) -> None:
    """ids: int32/int64 [n] on the CPU; out: uint8 [n, row_bytes]; slot_of: int32 [num_rows], the slot of each id (None:
    id i is in slot i). Raises IndexError and FormatError."""
    # As capsules: a tensor's own __dlpack__ takes 8 microseconds.
    _native.cpu.decode(
        form.native,
        to_dlpack(rows.slots),
        rows.slot_bytes,
        to_dlpack(rows.bitmask),
        to_dlpack(rows.overflow),
        rows.num_rows,
        to_dlpack(ids.to(torch.int64)),
        to_dlpack(out),
        _native.threads(),
        _native.cpu_path,
        None if slot_of is None else to_dlpack(slot_of),
        *(rows.packing or (0, 0)),
    )


def _stream(device: torch.device) -> int:
    return torch.cuda.current_stream(device).cuda_stream

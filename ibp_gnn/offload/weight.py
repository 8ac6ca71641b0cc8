"""One weight as compressed rows: blocks of its values, in one buffer that goes over the link in one piece."""

from __future__ import annotations

import dataclasses
import math

import torch

from .. import _native
from ..codec import dispatch
from ..codec.codec import Codec
from ..codec.compressed_rows import CompressedRows
from ..codec.gather import GpuGather, MappedRows
from ..codec.values import resolve_device

# Of values. GPUs decode rows of up to 768 bfloat16 values fastest (docs/llm.md).
BLOCK_VALUES = 768
_FIT_BLOCKS = 2048  # that the dictionary is fitted to
_ALIGN_BYTES = 256  # of parts in a buffer: more than any kernel asks for


@dataclasses.dataclass(frozen=True)
class RowLayout:
    """Where slots, overflow rows and bitmask of compressed rows lie in one buffer."""

    num_rows: int
    row_bytes: int
    slot_bytes: int
    num_overflow: int

    @classmethod
    def of(cls, rows: CompressedRows) -> RowLayout:
        return cls(rows.num_rows, rows.row_bytes, rows.slot_bytes, rows.num_overflow)

    @property
    def _parts(self) -> dict[str, int]:
        slack = _native.cpu.SLACK_BYTES
        return {
            "slots": self.num_rows * self.slot_bytes + slack,
            "overflow": self.num_overflow * self.row_bytes + slack,
            "bitmask": _native.cpu.bitmask_bytes(self.num_rows),
        }

    @property
    def nbytes(self) -> int:
        """Of the buffer."""
        return sum(_aligned(length) for length in self._parts.values())

    def rows_in(self, buffer: torch.Tensor) -> CompressedRows:
        """The rows in a buffer of at least `nbytes` bytes, sharing its memory."""
        parts, first = {}, 0
        for name, length in self._parts.items():
            parts[name] = buffer[first : first + length]
            first += _aligned(length)
        buffers = parts["slots"], parts["bitmask"], parts["overflow"]
        return CompressedRows(self.num_rows, self.row_bytes, self.slot_bytes, *buffers)


@dataclasses.dataclass(frozen=True, eq=False)
class CompressedWeight:
    """A tensor, losslessly compressed, in CPU memory or on a GPU.

    codec: of blocks of `codec.row_shape` values. The values of the tensor follow one another in them; the last block is
    filled up with zeros.
    buffer: uint8 [layout.nbytes]: slots, overflow rows and bitmask (RowLayout).
    """

    shape: tuple[int, ...]
    codec: Codec
    layout: RowLayout
    buffer: torch.Tensor

    @property
    def dtype(self) -> torch.dtype:
        return self.codec.dtype

    @property
    def numel(self) -> int:
        return math.prod(self.shape)

    @property
    def raw_nbytes(self) -> int:
        return self.numel * self.dtype.itemsize

    @property
    def padded_nbytes(self) -> int:
        """Of all blocks, the last one whole: what decoding writes."""
        return self.layout.num_rows * self.layout.row_bytes

    @property
    def nbytes(self) -> int:
        """Of buffer and codec."""
        return self.buffer.numel() + self.codec.nbytes

    @property
    def rows(self) -> CompressedRows:
        return self.layout.rows_in(self.buffer)

    @property
    def blocks_per_row(self) -> int | None:
        """How many blocks a row of the tensor is, [rows, ...]; None if blocks do not end with rows."""
        row_values = math.prod(self.shape[1:])
        return row_values // self.codec.row_shape[0] if row_values % self.codec.row_shape[0] == 0 else None

    def moved_to(self, buffer: torch.Tensor) -> CompressedWeight:
        """A copy in another buffer of layout.nbytes bytes."""
        return dataclasses.replace(self, buffer=buffer.copy_(self.buffer))

    def to(self, device: torch.device) -> CompressedWeight:
        """The same weight with its buffer on this device."""
        return dataclasses.replace(self, buffer=self.buffer.to(device))

    def without_buffer(self) -> CompressedWeight:
        """What is known of it, for one whose values are elsewhere."""
        return dataclasses.replace(self, buffer=self.buffer[:0].clone())

    def shaped(self, raw: torch.Tensor) -> torch.Tensor:
        """raw: uint8, at least raw_nbytes bytes, decoded. Returns them as the tensor, sharing memory."""
        return raw[: self.raw_nbytes].view(self.dtype).view(self.shape)

    def decode_on_cpu(self, raw: torch.Tensor) -> torch.Tensor:
        """raw: uint8 in CPU memory, at least padded_nbytes bytes. Returns the tensor in it."""
        out = raw[: self.padded_nbytes].view(self.layout.num_rows, self.layout.row_bytes)
        dispatch.decode_on_cpu(self.codec.form, self.rows, torch.arange(self.layout.num_rows, device="cpu"), out)
        return self.shaped(raw)

    def decompress(self, device: torch.device | None = None) -> torch.Tensor:
        """The tensor in new memory, of the CPU or of a GPU, to which it goes compressed. Enqueued on the current
        stream, which on a GPU is waited for once."""
        with torch.inference_mode(False):
            if device is None or device.type == "cpu":
                here = dataclasses.replace(self, buffer=self.buffer.cpu())
                return here.decode_on_cpu(torch.empty(self.padded_nbytes, dtype=torch.uint8, device="cpu"))
            device = resolve_device(device, device)
            raw = torch.empty(self.padded_nbytes, dtype=torch.uint8, device=device)
            landed = self.layout.rows_in(self.buffer.to(device))
            gather = GpuGather(self.codec.form, device, MappedRows.on_device(landed), lead_bytes=landed.slot_bytes)
            gather.gather(range(self.layout.num_rows), raw, ordered=False, max_blocks=0)
            return self.shaped(raw)


def compress_weight(weight: torch.Tensor, *, by_row: bool, device: torch.device) -> CompressedWeight:
    """Compresses a tensor of a supported dtype, on `device`.

    Args:
        weight: any shape but a scalar's, on any device.
        by_row: whether single rows of it will be read: then blocks end with rows.
        device: which does the work. Its memory is needed for the tensor, twice if it is a GPU.

    Returns:
        The compressed tensor, in CPU memory.
    """
    with torch.inference_mode(False):
        values = weight.detach().to(device).contiguous().flatten()
        block = _largest_divisor(math.prod(weight.shape[1:])) if by_row else BLOCK_VALUES
        if values.numel() % block:
            filled = values.new_zeros(-(-values.numel() // block) * block)
            filled[: values.numel()] = values
            values = filled
        blocks = values.view(-1, block)
        codec = Codec.fit(blocks, codec="dict", max_rows=_FIT_BLOCKS)
        rows = codec.compress(blocks)
        layout = RowLayout.of(rows)
        buffer = torch.zeros(layout.nbytes, dtype=torch.uint8, device="cpu")
        there = layout.rows_in(buffer)
        for name in ("slots", "overflow", "bitmask"):
            getattr(there, name).copy_(getattr(rows, name))
        return CompressedWeight(tuple(weight.shape), codec, layout, buffer)


def _largest_divisor(values: int) -> int:
    """Of a row's values, up to BLOCK_VALUES; whole vectors of 8 values where there is one."""
    divisors = [size for size in range(1, min(values, BLOCK_VALUES) + 1) if values % size == 0]
    whole = [size for size in divisors if size % 8 == 0]
    return max(whole or divisors)


def _aligned(length: int) -> int:
    return -(-length // _ALIGN_BYTES) * _ALIGN_BYTES

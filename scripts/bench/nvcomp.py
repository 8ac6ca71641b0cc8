"""nvCOMP's batch API (version 6, C) through ctypes: all chunks in one call, without a Python object for each.

The library is that of the wheel nvidia-libnvcomp-cu13 (or -cu12), 30 MB; it is optional.
"""

from __future__ import annotations

import ctypes
import functools
import importlib.util
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from ibp_gnn.codec.values import to_bytes

from .peer import OFFSET_BYTES, Peer

_MAJOR_VERSION = 6  # whose structs and signatures are these
_LIBRARY = f"lib64/libnvcomp.so.{_MAJOR_VERSION}"
_OPTIONS_BYTES = 64
_ALIGNMENT = 16  # of chunks, for every algorithm here
# nvcompType_t
_CHAR, _USHORT, _UINT, _FLOAT16, _FLOAT32 = 0, 3, 5, 10, 11
_TYPE_IS_IN_STREAM = 0xFF


class _Options(ctypes.Structure):
    """Any of the option structs, which are 64 bytes each and passed by value."""

    _fields_ = [("words", ctypes.c_uint64 * (_OPTIONS_BYTES // 8))]

    @classmethod
    def of(cls, *integers: int) -> _Options:
        """Starts with these 32-bit integers; the rest is 0."""
        return cls.from_buffer_copy(struct.pack(f"{len(integers)}i", *integers).ljust(_OPTIONS_BYTES, b"\0"))


@functools.cache
def find_nvcomp() -> Any:
    """Returns the loaded library, or why there is none, as a str."""
    command = "install it with: pip install nvidia-libnvcomp-cu13"
    try:
        spec = importlib.util.find_spec("nvidia.libnvcomp")
    except ModuleNotFoundError:
        spec = None
    if spec is None or not spec.submodule_search_locations:
        return f"not installed; {command}"
    path = Path(spec.submodule_search_locations[0]) / _LIBRARY
    if not path.exists():
        return f"want {_LIBRARY} (nvCOMP {_MAJOR_VERSION}), got another version; {command}=={_MAJOR_VERSION}.*"
    try:
        return ctypes.CDLL(str(path))
    except OSError as error:
        return f"cannot load {path.name}: {error}"


class NvComp:
    """One algorithm on rows in GPU memory."""

    def __init__(
        self, library: Any, name: str, label: str, raw_chunks: torch.Tensor, options: _Options, undo: _Options
    ) -> None:
        self.library, self.name, self.options, self.undo = library, name, options, undo
        self.raw_chunks, self.chunk_bytes = raw_chunks, raw_chunks.shape[1]
        self.method = f"nvCOMP {label} (GPU)"

    def compress(self) -> None:
        raw, device = self.raw_chunks, self.raw_chunks.device
        count, most = len(raw), ctypes.c_size_t()
        self._call("CompressGetMaxOutputChunkSize", ctypes.c_size_t(self.chunk_bytes), self.options, ctypes.byref(most))
        stride = -(-most.value // _ALIGNMENT) * _ALIGNMENT
        self.compressed = torch.empty(count, stride, dtype=torch.uint8, device=device)
        self.compressed_lengths = torch.zeros(count, dtype=torch.int64, device=device)
        # All of them live until the GPU is done.
        raw_at, raw_lengths, to = _addresses(raw), self._raw_lengths(count), _addresses(self.compressed)
        scratch, statuses = self._scratch("Compress", count, self.options), torch.zeros_like(raw_lengths)
        self._call(
            "CompressAsync",
            *_pointers(raw_at, raw_lengths),
            ctypes.c_size_t(self.chunk_bytes),
            ctypes.c_size_t(count),
            *_pointers(scratch),
            ctypes.c_size_t(len(scratch)),
            *_pointers(to, self.compressed_lengths),
            self.options,
            *_pointers(statuses),
            _stream(),
        )
        self._check(statuses)

    def compressed_bytes(self) -> int:
        return int(self.compressed_lengths.sum()) + OFFSET_BYTES * len(self.raw_chunks)

    def decoder(self, chunks: torch.Tensor) -> Callable[[], torch.Tensor]:
        chunks = chunks.to(self.raw_chunks.device)
        count = len(chunks)
        out = torch.empty(count, self.chunk_bytes, dtype=torch.uint8, device=chunks.device)
        compressed_at, to = _addresses(self.compressed)[chunks], _addresses(out)
        compressed_lengths, raw_lengths = self.compressed_lengths[chunks], self._raw_lengths(count)
        written, statuses = torch.zeros_like(raw_lengths), torch.zeros_like(raw_lengths)
        scratch = self._scratch("Decompress", count, self.undo)

        def decode() -> torch.Tensor:
            self._call(
                "DecompressAsync",
                *_pointers(compressed_at, compressed_lengths, raw_lengths, written),
                ctypes.c_size_t(count),
                *_pointers(scratch),
                ctypes.c_size_t(len(scratch)),
                *_pointers(to),
                self.undo,
                *_pointers(statuses),
                _stream(),
            )
            return out

        decode()
        self._check(statuses)
        return decode

    def raw_of(self, decoded: torch.Tensor) -> torch.Tensor:
        return decoded

    def _scratch(self, direction: str, count: int, options: _Options) -> torch.Tensor:
        needed = ctypes.c_size_t()
        self._call(
            f"{direction}GetTempSize",
            ctypes.c_size_t(count),
            ctypes.c_size_t(self.chunk_bytes),
            options,
            ctypes.byref(needed),
            ctypes.c_size_t(count * self.chunk_bytes),
            _stream(),
        )
        return torch.empty(max(1, needed.value), dtype=torch.uint8, device=self.raw_chunks.device)

    def _raw_lengths(self, count: int) -> torch.Tensor:
        return torch.full((count,), self.chunk_bytes, dtype=torch.int64, device=self.raw_chunks.device)

    def _call(self, function: str, *arguments: Any) -> None:
        name = f"nvcompBatched{self.name}{function}"
        status = getattr(self.library, name)(*arguments)
        if status:
            raise RuntimeError(f"{name}: want status 0, got {status}")

    def _check(self, statuses: torch.Tensor) -> None:
        """Waits for the GPU. statuses: one 32-bit status per chunk, then unused memory."""
        bad = statuses.view(torch.int32)[: len(statuses)]
        bad = bad[bad != 0]
        if len(bad):
            raise RuntimeError(f"{self.method}: want status 0 for each chunk, got {int(bad[0])} for {len(bad)} chunks")


def nvcomp_peers(rows: torch.Tensor, chunk_bytes: int) -> list[Peer]:
    """rows: [n, d] on a GPU, a whole number of chunks. Each algorithm gets the type of the values that suits it."""
    library = find_nvcomp()
    wide = rows.element_size() == 4
    raw_chunks = to_bytes(rows).view(-1, chunk_bytes)
    as_float, as_unsigned = (_FLOAT32, _UINT) if wide else (_FLOAT16, _USHORT)
    plain = _Options.of(0)
    return [
        NvComp(library, "ANS", "ANS", raw_chunks, _Options.of(0, as_float), _Options.of(0, _TYPE_IS_IN_STREAM)),
        NvComp(library, "ANS", "ANS, bytes", raw_chunks, _Options.of(0, _CHAR), _Options.of(0, _TYPE_IS_IN_STREAM)),
        NvComp(library, "Bitcomp", "Bitcomp", raw_chunks, _Options.of(0, as_unsigned), plain),
        NvComp(library, "LZ4", "LZ4", raw_chunks, plain, plain),
    ]


def _addresses(chunks: torch.Tensor) -> torch.Tensor:
    """int64 [n] on the GPU: where each chunk starts."""
    return chunks.data_ptr() + torch.arange(len(chunks), device=chunks.device) * chunks.shape[1]


def _pointers(*tensors: torch.Tensor) -> list[ctypes.c_void_p]:
    return [ctypes.c_void_p(tensor.data_ptr()) for tensor in tensors]


def _stream() -> ctypes.c_void_p:
    return ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)

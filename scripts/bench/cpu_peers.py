"""zstd and Blosc2, on the CPU. Both are optional packages."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from .peer import OFFSET_BYTES, Peer

_ZSTD_LEVEL, _BLOSC2_LEVEL = 3, 5
_MIN_THREADED_BYTES = 1 << 15
_ZSTD_MAGIC_BYTES = 4  # of every frame; the same everywhere, so that nobody has to keep them


class Zstd:
    """One frame per chunk, with the library's own calls for many frames at once."""

    def __init__(self, raw_chunks: torch.Tensor) -> None:
        import zstandard

        self.zstandard, self.raw_chunks = zstandard, raw_chunks
        self.chunk_bytes, self.threads = raw_chunks.shape[1], torch.get_num_threads()
        self.method = f"zstd -{_ZSTD_LEVEL} ({self.threads} threads)"
        parameters = zstandard.ZstdCompressionParameters.from_level(_ZSTD_LEVEL, write_content_size=0)
        self.compressor = zstandard.ZstdCompressor(compression_params=parameters)
        self.decompressor = zstandard.ZstdDecompressor()
        self.raw_segments = _segments(np.full(len(raw_chunks), self.chunk_bytes))
        self.frames: Any = None
        self.joined = b""

    def compress(self) -> None:
        raw = self.zstandard.BufferWithSegments(self.raw_chunks.numpy().data, self.raw_segments.view(np.uint8).data)
        self.frames = self.compressor.multi_compress_to_buffer(raw, threads=self.threads)
        self.joined = b""

    def compressed_bytes(self) -> int:
        return self.frames.size() + (OFFSET_BYTES - _ZSTD_MAGIC_BYTES) * len(self.frames)

    def decoder(self, chunks: torch.Tensor) -> Callable[[], Any]:
        if not self.joined:
            parts = [self.frames[i].tobytes() for i in range(len(self.frames))]
            self.joined = b"".join(parts)
            self.segments = _segments(np.array([len(part) for part in parts])).reshape(-1, 2)
        wanted = self.segments[chunks.numpy()].reshape(-1).tobytes()
        frames = self.zstandard.BufferWithSegments(self.joined, wanted)
        lengths = np.full(len(chunks), self.chunk_bytes, np.uint64).tobytes()
        decompress = self.decompressor.multi_decompress_to_buffer
        return lambda: decompress(frames, decompressed_sizes=lengths, threads=self.threads)

    def raw_of(self, decoded: Any) -> torch.Tensor:
        raw = bytearray().join(decoded[i].tobytes() for i in range(len(decoded)))
        return torch.frombuffer(raw, dtype=torch.uint8).view(-1, self.chunk_bytes)


class Blosc2:
    """One Blosc2 chunk per chunk, one call from Python each."""

    def __init__(self, raw_chunks: torch.Tensor, value_bytes: int, codec: str, shuffle: str) -> None:
        import blosc2

        self.raw_chunks, self.chunk_bytes = raw_chunks, raw_chunks.shape[1]
        # It cannot divide a short chunk among threads, but would start them for each.
        threads = torch.get_num_threads() if self.chunk_bytes >= _MIN_THREADED_BYTES else 1
        self.method = f"Blosc2 {codec} {shuffle.lower()} ({threads} thread{'s' * (threads > 1)})"
        self.use_threads = functools.partial(blosc2.set_nthreads, threads)
        self.decompress = blosc2.decompress2
        self.compress_one = lambda chunk: blosc2.compress2(
            chunk,
            typesize=value_bytes,
            clevel=_BLOSC2_LEVEL,
            codec=getattr(blosc2.Codec, codec),
            filters=[getattr(blosc2.Filter, shuffle)],
        )

    def compress(self) -> None:
        self.use_threads()
        self.compressed = [self.compress_one(chunk) for chunk in self.raw_chunks.numpy()]

    def compressed_bytes(self) -> int:
        return sum(OFFSET_BYTES + len(chunk) for chunk in self.compressed)

    def decoder(self, chunks: torch.Tensor) -> Callable[[], torch.Tensor]:
        out = torch.empty(len(chunks), self.chunk_bytes, dtype=torch.uint8)
        pairs = [(self.compressed[i], chunk) for i, chunk in zip(chunks.tolist(), out.numpy(), strict=True)]

        def decode() -> torch.Tensor:
            self.use_threads()
            for compressed, chunk in pairs:
                self.decompress(compressed, dst=chunk)
            return out

        return decode

    def raw_of(self, decoded: torch.Tensor) -> torch.Tensor:
        return decoded


def zstd_peers(raw_chunks: torch.Tensor) -> list[Peer]:
    return [Zstd(raw_chunks)]


def blosc2_peers(raw_chunks: torch.Tensor, value_bytes: int) -> list[Peer]:
    return [Blosc2(raw_chunks, value_bytes, *how) for how in (("LZ4", "BITSHUFFLE"), ("ZSTD", "SHUFFLE"))]


def _segments(lengths: np.ndarray) -> np.ndarray:
    """Returns uint64 [2 * n]: where each segment starts, and its length."""
    return np.stack([np.cumsum(lengths) - lengths, lengths], axis=1).astype(np.uint64).reshape(-1)

"""What bench_codec.py asks of a compressor that codecs are compared with."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import torch

OFFSET_BYTES = 8
"""Counted for each chunk, to say where it starts."""


class Peer(Protocol):
    """A compressor and its chunks. Work on a GPU is enqueued.

    raw_chunks: uint8 [n, chunk_bytes], on the device that it works on.
    """

    method: str
    chunk_bytes: int
    raw_chunks: torch.Tensor

    def compress(self) -> None:
        """Compresses all chunks and keeps them. Raises RuntimeError if it does not take such chunks."""

    def compressed_bytes(self) -> int:
        """Of the chunks that `compress` made and of what says where each starts."""

    def decoder(self, chunks: torch.Tensor) -> Callable[[], Any]:
        """chunks: int64 [n] on the CPU. Returns a call, as lean as can be, that decodes these; what it returns is for
        `raw_of`."""

    def raw_of(self, decoded: Any) -> torch.Tensor:
        """Returns uint8 [n, chunk_bytes]."""

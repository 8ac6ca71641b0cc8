"""General compressors on the same rows: one chunk per row, and larger chunks, of which a random row costs a whole one.

Sizes count OFFSET_BYTES for each chunk to say where it starts; those of codec "auto", all of a compact store's slots.
Bits are checked before anything is timed; times are medians.
"""

from __future__ import annotations

import importlib.util
import statistics
import time
from collections.abc import Callable
from typing import Any, Protocol

import torch

from ibp_gnn.codec.values import to_bytes

from .config import Peers
from .data import tile

OFFSET_BYTES = 8
_NDZIP = "no package on PyPI: C++ sources to build by hand, so it cannot be a dependency"


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


def missing_peers() -> dict[str, str]:
    """Peers that are not measured here, and why."""
    from .nvcomp import find_nvcomp

    missing = {"ndzip": _NDZIP}
    for package, module in (("zstandard", "zstandard"), ("blosc2", "blosc2")):
        if importlib.util.find_spec(module) is None:
            missing[package] = f"not installed; install it with: pip install {package}"
    if not torch.cuda.is_available():
        missing["nvcomp"] = "want a CUDA device, got none"
    elif isinstance(reason := find_nvcomp(), str):
        missing["nvcomp"] = reason
    return missing


def measure_peers(name: str, rows: torch.Tensor, config: Peers, seed: int) -> list[dict[str, Any]]:
    """rows: [n, d] on the CPU. One result for each peer that is installed and each length of its chunks, and one for
    codec "auto" on the CPU and, where there is one, on the GPU."""
    from .general_peers import OwnCodec, blosc2_peers, zstd_peers
    from .nvcomp import nvcomp_peers

    missing = missing_peers()
    row_bytes = rows.shape[1] * rows.element_size()
    rows_per_chunk = max(1, round(config.chunk_kb * 1024 / row_bytes))
    peers: list[Peer] = []
    for device, megabytes in (("cpu", config.cpu_mb), ("cuda", config.gpu_mb)):
        if device == "cuda" and not torch.cuda.is_available():
            continue
        raw = tile(rows, megabytes, device)
        raw = raw[: max(1, len(raw) // rows_per_chunk) * rows_per_chunk]
        peers.append(OwnCodec(raw))
        for chunk_bytes in (row_bytes, rows_per_chunk * row_bytes):
            if device == "cuda":
                peers += nvcomp_peers(raw, chunk_bytes) if "nvcomp" not in missing else []
                continue
            chunks = to_bytes(raw).view(-1, chunk_bytes)
            peers += zstd_peers(chunks) if "zstandard" not in missing else []
            peers += blosc2_peers(chunks, raw.element_size()) if "blosc2" not in missing else []
    shown = {"data": name, "dtype": str(rows.dtype).removeprefix("torch."), "width": rows.shape[1]}
    results = []
    while peers:  # each is dropped once it is measured, with its memory
        results.append({**shown, **_measure(peers.pop(0), row_bytes, config, seed)})
    return results


def _measure(peer: Peer, row_bytes: int, config: Peers, seed: int) -> dict[str, Any]:
    rows_per_chunk = peer.chunk_bytes // row_bytes
    shown = {"method": peer.method, "chunk_bytes": peer.chunk_bytes, "rows_per_chunk": rows_per_chunk}
    try:
        peer.compress()
    except RuntimeError as error:
        return {**shown, "failed": str(error)}
    num_chunks = len(peer.raw_chunks)
    all_chunks = torch.arange(num_chunks)
    generator = torch.Generator().manual_seed(seed)
    num_ids = config.gpu_ids if peer.raw_chunks.is_cuda else config.cpu_ids
    random_chunks = torch.randint(num_chunks * rows_per_chunk, (num_ids,), generator=generator) // rows_per_chunk
    for chunks in (all_chunks, random_chunks):
        raw = peer.raw_chunks[chunks.to(peer.raw_chunks.device)]
        if not torch.equal(peer.raw_of(peer.decoder(chunks)()), raw):
            raise AssertionError(f"{peer.method}: want the raw bytes back, got others")
    raw_bytes = num_chunks * peer.chunk_bytes
    compress_s = _median_seconds(peer.compress, config.repeats)
    decode_s = _median_seconds(peer.decoder(all_chunks), config.repeats)
    random_s = _median_seconds(peer.decoder(random_chunks), config.repeats)
    return {
        **shown,
        "size_to_raw": peer.compressed_bytes() / raw_bytes,
        "compress_gb_per_s": raw_bytes / compress_s / 1e9,
        "decode_gb_per_s": raw_bytes / decode_s / 1e9,
        "random_rows_gb_per_s": num_ids * row_bytes / random_s / 1e9,
    }


def _median_seconds(call: Callable[[], Any], repeats: int) -> float:
    """Until the GPU is done, where there is one."""
    wait = torch.cuda.synchronize if torch.cuda.is_available() else lambda: None
    seconds = []
    for _ in range(repeats):
        wait()
        start = time.perf_counter()
        call()
        wait()
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds)

"""General compressors on the same rows: one chunk per row, and larger chunks, of which a random row costs a whole one.

Sizes count what says where each chunk starts; those of codec "auto", all of a compact store's slots. Bits are checked
before anything is timed; times are medians.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import statistics
from collections.abc import Callable
from typing import Any

import torch

from ibp_gnn import Codec
from ibp_gnn.codec.gather import GpuGather, MappedRows
from ibp_gnn.codec.values import to_bytes
from ibp_gnn.config import setting

from .cpu_peers import blosc2_peers, zstd_peers
from .nvcomp import find_nvcomp, nvcomp_peers
from .peer import Peer
from .rows import Data, tile
from .timing import timed

_NDZIP = "no package on PyPI: C++ sources to build by hand, so it cannot be a dependency"


@dataclasses.dataclass(frozen=True)
class Peers:
    """General compressors. cpu_mb, gpu_mb: raw bytes that they compress. chunk_kb: of the larger chunks; the smaller
    ones are one row each. cpu_ids, gpu_ids: rows that are decoded by random ids."""

    data: Data = dataclasses.field(default_factory=Data)
    cpu_mb: float = setting(16.0, gt=0)
    gpu_mb: float = setting(256.0, gt=0)
    chunk_kb: int = setting(64, ge=1)
    cpu_ids: int = setting(4096, ge=1)
    gpu_ids: int = setting(50_000, ge=1)
    repeats: int = setting(3, ge=1)


class OwnCodec:
    """Codec "auto" with compact slots, as in a CompressedFeatureStore. chunk_bytes: one row."""

    def __init__(self, rows: torch.Tensor) -> None:
        self.rows = rows
        self.raw_chunks = to_bytes(rows)
        self.chunk_bytes = self.raw_chunks.shape[1]
        self.codec = Codec.fit(rows, codec="auto")
        where = "GPU" if rows.is_cuda else f"{torch.get_num_threads()} threads"
        self.method = f"ibp_gnn {self.codec.kind} ({where})"

    def compress(self) -> None:
        self.compressed = self.codec.compress(self.rows)

    def compressed_bytes(self) -> int:
        return self.compressed.nbytes + self.codec.nbytes

    def decoder(self, chunks: torch.Tensor) -> Callable[[], torch.Tensor]:
        device = self.rows.device
        ids = chunks.to(device)
        out = torch.empty(len(ids), self.rows.shape[1], dtype=self.rows.dtype, device=device)
        if device.type == "cpu":
            return lambda: self.codec.decompress(self.compressed, ids, out)
        gather = GpuGather(
            self.codec.form, device, MappedRows.on_device(self.compressed), lead_bytes=self.compressed.slot_bytes
        )

        def decode() -> torch.Tensor:
            gather.gather(ids, to_bytes(out))
            return out

        return decode

    def raw_of(self, decoded: torch.Tensor) -> torch.Tensor:
        return to_bytes(decoded)


def missing_peers() -> dict[str, str]:
    """Peers that are not measured here, and why."""
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
    calls = (peer.compress, peer.decoder(all_chunks), peer.decoder(random_chunks))
    compress_s, decode_s, random_s = (_median_seconds(call, peer, config.repeats) for call in calls)
    return {
        **shown,
        "size_to_raw": peer.compressed_bytes() / raw_bytes,
        "compress_gb_per_s": raw_bytes / compress_s / 1e9,
        "decode_gb_per_s": raw_bytes / decode_s / 1e9,
        "random_rows_gb_per_s": num_ids * row_bytes / random_s / 1e9,
    }


def _median_seconds(call: Callable[[], Any], peer: Peer, repeats: int) -> float:
    return statistics.median(timed(call, peer.raw_chunks.device)[0] for _ in range(repeats))

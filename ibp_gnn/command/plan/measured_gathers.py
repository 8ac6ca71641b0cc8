"""`ibp-gnn plan --measure`: gathers of these features on this machine, raw beside compressed, bits before times."""

from __future__ import annotations

import contextlib
import dataclasses
import statistics
import time
from collections.abc import Callable, Iterator

import torch

from ... import _native
from ...codec.values import to_bytes
from ...store.feature_store import CompressedFeatureStore

_MOST_BYTES = 1 << 30  # of rows: beyond any cache of a processor, and soon compressed
_IDS, _REPEATS = 200_000, 7
_WORD_OF = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


@dataclasses.dataclass(frozen=True)
class Measured:
    """GB/s of uncompressed bytes that arrive on the device, medians. raw: on the CPU `torch.index_select`, on a GPU the
    rows read in place from page-locked memory. plain_loop: on a GPU `index_select` on the CPU and a copy, else None."""

    device: str
    rows: int
    ids: int
    raw_gb_per_s: float
    compressed_gb_per_s: float
    plain_loop_gb_per_s: float | None


def measure_gathers(rows: torch.Tensor, device: torch.device, seed: int = 0) -> Measured:
    """rows: [n, *row_shape] on the CPU; the first GB of them is gathered by random ids, compressed as `build` does.

    Raises RuntimeError if gathers give other bits than the rows have; PinError where a GPU cannot read them in place.
    """
    row_bytes = to_bytes(rows[:1]).shape[1]
    rows = rows[: max(1, _MOST_BYTES // row_bytes)].contiguous()
    if device.type == "cuda":
        rows = rows.clone()  # in memory of its own: a file that is mapped to be read cannot be page-locked
    ids = torch.randint(len(rows), (_IDS,), generator=torch.Generator().manual_seed(seed), device="cpu")
    on_device = ids.to(device)
    out = torch.empty((len(ids), *rows.shape[1:]), dtype=rows.dtype, device=device)
    in_bytes = to_bytes(rows)
    words = rows.view(_WORD_OF[rows.dtype.itemsize])  # index_select does not take every dtype
    picked = torch.empty(
        (len(ids), *words.shape[1:]), dtype=words.dtype, device="cpu", pin_memory=device.type == "cuda"
    )

    def plain() -> torch.Tensor:
        return torch.index_select(words, 0, ids, out=picked).to(device, non_blocking=True)

    with contextlib.ExitStack() as stack:
        store = stack.enter_context(CompressedFeatureStore.build(rows, pin=device.type == "cuda", progress=False))
        calls: dict[str, Callable[[], object]] = {
            "plain_loop": plain,
            "compressed": lambda: store.gather(on_device, device=device, out=out),
        }
        if device.type == "cuda":
            address = stack.enter_context(_page_locked(in_bytes))
            copied = torch.empty(len(ids), row_bytes, dtype=torch.uint8, device=device)

            def in_place() -> None:
                ordered = torch.sort(on_device)  # as the compressed gather does, so that PCIe reads rows in a row
                stream = torch.cuda.current_stream(device).cuda_stream
                _native.cuda().copy_rows(address, ordered.values, ordered.indices, copied, 0, stream)

            calls["raw"] = in_place
            in_place()
            _check(copied, to_bytes(plain()), "raw rows read in place")
        store.gather(on_device, device=device, out=out)
        _check(to_bytes(out), to_bytes(plain()), "compressed rows")
        seconds = {name: _median_seconds(call, device) for name, call in calls.items()}
    speeds = {name: len(ids) * row_bytes / each / 1e9 for name, each in seconds.items()}
    on_cpu = device.type == "cpu"
    return Measured(
        str(device),
        len(rows),
        len(ids),
        speeds["plain_loop" if on_cpu else "raw"],
        speeds["compressed"],
        None if on_cpu else speeds["plain_loop"],
    )


@contextlib.contextmanager
def _page_locked(rows: torch.Tensor) -> Iterator[int]:
    """rows: uint8, on the CPU. The address at which GPUs read them."""
    address = _native.cuda().register_host_memory(rows.data_ptr(), rows.numel())
    try:
        yield address
    finally:
        torch.cuda.synchronize()
        _native.cuda().unregister_host_memory(rows.data_ptr())


def _check(got: torch.Tensor, wanted: torch.Tensor, what: str) -> None:
    if not torch.equal(got, wanted):
        raise RuntimeError(f"{what}: want the bits of the raw rows, got others")


def _median_seconds(call: Callable[[], object], device: torch.device) -> float:
    times = []
    for _ in range(_REPEATS):
        begin = time.perf_counter()
        call()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        times.append(time.perf_counter() - begin)
    return statistics.median(times[1:])  # the first warms up

"""Rows in GPU memory at many widths: decoding random rows, small batches of them, and all rows in order, beside copying
the same raw rows; and whole bfloat16 matrices, beside NWC where it is installed.

Bits are checked before anything is timed. Many launches make one timing, methods take turns, times are medians.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib.metadata
import importlib.util
import itertools
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal

import torch
from tqdm import tqdm

from ibp_gnn import Codec
from ibp_gnn.codec.gather import GpuGather, MappedRows
from ibp_gnn.codec.values import dtype_from_name, to_bytes
from ibp_gnn.config import setting
from ibp_gnn.testing import assert_bitwise_equal

from .timing import check_rows, in_turns, medians, queued_ms
from .uncompressed import copy_rows

Kind = Literal["normal", "relu", "words"]
Call = Callable[[int], object]  # the i-th launch
Results = dict[str, Any]
_WORDS_SHARE = 0.01
_WEIGHTS_DEVIATION = 0.02
_NWC = "neural-weight-compression"


@dataclasses.dataclass(frozen=True)
class Sweep:
    """widths: values of a row, for each kind and dtype of random rows: normal, N(0, 0.1); relu, the positive part of
    N(0, 1), else 0; words, 1 with a probability of 0.01, else 0, in float32 alone. raw_mb: raw rows in GPU memory (1e6
    bytes). A gather has at least `ids` ids, and returns at least out_mb. small_ids: of gathers of few rows, kind normal
    alone. matrices: shapes [rows, width] of bfloat16 weights that are decoded whole. launches: in one timing."""

    widths: tuple[int, ...] = setting((), ge=1)
    kinds: tuple[Kind, ...] = ("normal", "relu", "words")
    dtypes: tuple[Literal["float32", "bfloat16", "float16"], ...] = ("float32", "bfloat16", "float16")
    matrices: tuple[tuple[int, ...], ...] = ()
    raw_mb: float = setting(1000.0, gt=0)
    ids: int = setting(200_000, ge=1)
    out_mb: float = setting(250.0, gt=0)
    small_ids: tuple[int, ...] = setting((1_000, 10_000, 50_000), ge=1)
    id_sets: int = setting(4, ge=1)
    launches: int = setting(8, ge=1)
    repeats: int = setting(5, ge=1)

    def cases(self) -> list[tuple[Kind, str, int]]:
        """(kind, dtype, width)."""
        all_cases = itertools.product(self.kinds, self.dtypes, self.widths)
        return [case for case in all_cases if case[0] != "words" or case[1] == "float32"]


def measure_sweep(config: Sweep, seed: int) -> Iterator[Results]:
    """A result for each case."""
    for kind, dtype, width in (bar := tqdm(config.cases(), leave=False)):
        bar.set_description(f"{kind} {width} x {dtype}")
        to = dtype_from_name(dtype)
        shape = max(2, round(config.raw_mb * 1e6 / (width * to.itemsize))), width
        yield {"kind": kind, "dtype": dtype, "width": width} | _measure(kind, _make(kind, shape, seed).to(to), config)


def measure_matrices(config: Sweep, seed: int) -> Iterator[Results]:
    """A result for each matrix."""
    for shape in config.matrices:
        yield {"shape": list(shape)} | _measure_matrix(_make("weights", shape, seed).to(torch.bfloat16), config)


def _make(kind: str, shape: tuple[int, ...], seed: int) -> torch.Tensor:
    """float32 on the GPU."""
    generator = torch.Generator("cuda").manual_seed(seed)
    if kind == "words":
        return (torch.rand(shape, generator=generator, device="cuda") < _WORDS_SHARE).to(torch.float32)
    values = torch.randn(shape, generator=generator, device="cuda")
    return torch.relu(values) if kind == "relu" else values * (_WEIGHTS_DEVIATION if kind == "weights" else 0.1)


class _Compressed:
    """raw: [n, d] on the GPU."""

    def __init__(self, raw: torch.Tensor) -> None:
        self.raw, self.codec = raw, Codec.fit(raw)
        self.rows = self.codec.compress(raw)
        mapped, lead = MappedRows.on_device(self.rows), self.rows.slot_bytes
        # All of them cached: hits, as of a CompressedGPUCache.
        self._gather = GpuGather(self.codec.form, raw.device, mapped, lead_bytes=lead, cache=self.rows)

    def gather(self, ids: torch.Tensor | range, out: torch.Tensor) -> torch.Tensor:
        self._gather.gather(ids, to_bytes(out))
        return out

    def all_calls(self, out: torch.Tensor) -> dict[str, Call]:
        """All rows in order."""
        ids = range(len(self.raw))
        return {"copy": lambda i: out.copy_(self.raw), "ours": lambda i: self.gather(ids, out)}

    def described(self) -> Results:
        return {
            "codec": self.codec.kind,
            "parameters": repr(self.codec),
            "slot_bytes": self.rows.slot_bytes,
            "size_to_raw": self.rows.nbytes / self.raw.nbytes,
        }


def _measure(kind: Kind, raw: torch.Tensor, config: Sweep) -> Results:
    """raw: [n, d] on the GPU."""
    compressed = _Compressed(raw)
    row_bytes = raw.shape[1] * raw.element_size()
    methods: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
        "copy": functools.partial(copy_rows, raw.data_ptr()),
        "index_select": lambda ids, out: torch.index_select(raw, 0, ids, out=out),
        "ours": compressed.gather,
    }

    def calls(count: int, out: torch.Tensor) -> dict[str, Call]:
        id_sets = [torch.randint(len(raw), (count,), device="cuda") for _ in range(config.id_sets)]
        for name, method in methods.items():
            check_rows(name, functools.partial(method, id_sets[0]), out, raw[id_sets[0]])
        return {
            name: lambda i, method=method: method(id_sets[i % config.id_sets], out) for name, method in methods.items()
        }

    batch = max(config.ids, round(config.out_mb * 1e6 / row_bytes))
    out = torch.empty(batch, raw.shape[1], dtype=raw.dtype, device="cuda")
    times = _launch_ms(calls(batch, out), config)
    small: dict[str, dict[str, float]] = {}
    for count in config.small_ids if kind == "normal" else ():
        graphs = {name: _captured(call, config.launches) for name, call in calls(count, out[:count]).items()}
        ms = medians(in_turns(graphs, range(config.repeats + 1), warm_up=1))
        small[str(count)] = {name: 1e3 * of_name for name, of_name in ms.items()}
    all_out = torch.empty_like(raw)
    check_rows("all rows", lambda out: compressed.codec.decompress(compressed.rows, out=out), all_out, raw)
    all_times = _launch_ms(compressed.all_calls(all_out), config)
    return {
        **compressed.described(),
        "ids": batch,
        "ms": times,
        "gb_per_s": batch * row_bytes / times["ours"] / 1e6,
        "to_best": min(times["copy"], times["index_select"]) / times["ours"],
        "small_us": small,
        "small_to_best": {n: us["ours"] / min(us["copy"], us["index_select"]) for n, us in small.items()},
        "all_ms": all_times,
        "all_to_copy": all_times["copy"] / all_times["ours"],
    }


def _measure_matrix(raw: torch.Tensor, config: Sweep) -> Results:
    """raw: bfloat16 [n, d] on the GPU. Whole, and by random rows."""
    compressed = _Compressed(raw)
    out = torch.empty_like(raw)
    check_rows("all rows", lambda out: compressed.codec.decompress(compressed.rows, out=out), out, raw)
    calls = compressed.all_calls(out)
    id_sets = [torch.randint(len(raw), (config.ids,), device="cuda") for _ in range(config.id_sets)]
    rows_out = torch.empty(config.ids, raw.shape[1], dtype=raw.dtype, device="cuda")
    row_calls: dict[str, Call] = {
        "copy": lambda i: copy_rows(raw.data_ptr(), id_sets[i % config.id_sets], rows_out),
        "ours": lambda i: compressed.gather(id_sets[i % config.id_sets], rows_out),
    }
    nwc: Results = {"nwc": f"not installed; install it with: pip install --no-deps {_NWC}"}
    if importlib.util.find_spec("nwc"):
        from nwc import NWCWeight

        weight = NWCWeight(raw)
        assert_bitwise_equal(weight.dequant(), raw)
        assert_bitwise_equal(weight.gather(id_sets[0]), raw[id_sets[0]])
        calls["nwc"] = lambda i: weight.dequant()
        row_calls["nwc"] = lambda i: weight.gather(id_sets[i % config.id_sets])
        nwc = {"nwc": importlib.metadata.version(_NWC), "nwc_to_raw": weight.bytes / raw.nbytes}
    all_times, row_times = _launch_ms(calls, config), _launch_ms(row_calls, config)
    return {
        **compressed.described(),
        **nwc,
        "ids": config.ids,
        "all_gb_per_s": {name: raw.nbytes / ms / 1e6 for name, ms in all_times.items()},
        "rows_gb_per_s": {name: rows_out.nbytes / ms / 1e6 for name, ms in row_times.items()},
        "all_to_copy": all_times["copy"] / all_times["ours"],
    }


def _launch_ms(calls: Mapping[str, Call], config: Sweep) -> dict[str, float]:
    """Median milliseconds of a launch, of `launches` that follow one another."""

    def launch(call: Call) -> None:
        for i in range(config.launches):
            call(i)

    measures = {name: functools.partial(queued_ms, functools.partial(launch, call)) for name, call in calls.items()}
    times = medians(in_turns(measures, range(config.repeats + 1), warm_up=1))
    return {name: ms / config.launches for name, ms in times.items()}


def _captured(call: Call, launches: int, replays: int = 4) -> Callable[[], float]:
    """Returns what measures the milliseconds of a launch in a CUDA graph, which needs no host in between."""
    call(0)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for i in range(launches):
            call(i)

    def replay() -> None:
        for _ in range(replays):
            graph.replay()

    return lambda: queued_ms(replay) / (launches * replays)

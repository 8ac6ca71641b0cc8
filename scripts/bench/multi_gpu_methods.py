"""What each process of bench_multi_gpu.py does: the same measurements as all others, at the same time."""

from __future__ import annotations

import dataclasses
import functools
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import distributed

from ibp_gnn.integrations import wholegraph
from ibp_gnn.integrations.wholegraph import Location, SharedTensor
from ibp_gnn.testing import assert_bitwise_equal
from ibp_gnn.training.distributed import Ranks
from ibp_gnn.training.loop import run
from ibp_gnn.wholegraph import DistributedFeatureStore, ShardedGPUCache

from .dlrm_data import power_law
from .multi_gpu_rows import Case, Config, Rows, Training, open_rows
from .timing import in_turns, medians, queued_ms

_WARM_UP = 2  # repeats that are not counted
_MATRIX_ROWS, _MATRIX_WIDTH = 16_384, 128
_LOCATIONS: tuple[Location, ...] = ("cuda", "cpu")


class Method(NamedTuple):
    """gather: takes int64 ids [n] on the GPU, returns their rows there. draw: new ids each time."""

    gather: Callable[[torch.Tensor], torch.Tensor]
    draw: Callable[[], torch.Tensor]


def measure_case(case: Case, config: Config) -> dict[str, Any]:
    """Of one number of GPUs. Raises AssertionError in all processes if a method returns other bits than the rows have
    in one of them."""
    ranks = Ranks.start("cuda", config.timeout)
    with open_rows(case, config, ranks) as rows:
        store = rows.store
        result = {
            "name": case.name,
            "dim": case.dim,
            "dtype": case.dtype,
            "rows": len(store),
            "codec": store.codec.kind,
            "raw_bytes_per_row": rows.row_bytes,
            "slot_bytes": store.slot_bytes,
            "store_bytes": store.nbytes,
            "hits": _hits(rows, config),
            "placements": _placements(rows, config),
            "misses": _misses(rows, config),
            "machines": [_machines(rows, config, location) for location in _LOCATIONS],
        }
    ranks.close()
    return result


def train(training: Training, batch_size: int, timeout: float, seed: int) -> dict[str, Any]:
    """batch_size: of all processes together. Seconds of every epoch, the first one too."""
    config = training.run
    with tempfile.TemporaryDirectory() as folder:
        dataset = config.dataset
        if dataset.name.startswith("synthetic") and dataset.features is None:
            path = Path(folder) / "normal.npy"
            draw = np.random.default_rng(seed)
            np.save(path, 0.1 * draw.standard_normal((_MATRIX_ROWS, _MATRIX_WIDTH), np.float32))
            dataset = dataclasses.replace(dataset, features=str(path))
        config = dataclasses.replace(
            config,
            dataset=dataset,
            train=dataclasses.replace(config.train, batch_size=batch_size, rank_timeout=timeout),
        )
        record = run(config, log=lambda line: None)
    epochs = record["epochs"]
    return {
        "dataset": record["dataset"],
        "nodes": record["num_nodes"],
        "edges": record["num_edges"],
        "batch_size": batch_size,
        "seeds": sum(rank["seeds"] for rank in epochs[0]["ranks"]),
        "cache": record["cache"],
        "miss_rate": epochs[-1]["miss_rate"],
        "losses": [epoch["loss"] for epoch in epochs],
        "epoch_seconds": [sum(epoch[f"{part}_seconds"] for part in ("sample", "fetch", "compute")) for epoch in epochs],
        "waits_seconds": [epoch["sample_seconds"] + epoch["fetch_seconds"] for epoch in epochs],
    }


def measure(methods: Mapping[str, Method], rows: Rows, config: Config) -> dict[str, Any]:
    """A collective call. By method: ms of a gather, of each process, while all of them gather; GB/s of uncompressed
    bytes that arrive at the slowest one."""
    ranks = rows.ranks
    for name, method in methods.items():
        # Of all ranks: one that left alone would leave the others waiting.
        wrong = [error for error in ranks.gather(_other_bits(method, rows)) if error]
        if wrong:
            raise AssertionError(f"{name}: {'; '.join(wrong)}")
    measures = {name: functools.partial(_ms_together, method, config.calls) for name, method in methods.items()}
    times = medians(in_turns(measures, range(_WARM_UP + config.repeats), _WARM_UP))
    found = {}
    for name in methods:
        ms = ranks.gather(times[name])
        found[name] = {"ms": ms, "gb_per_s": config.ids * rows.row_bytes / max(ms) / 1e6}
    return found


def _other_bits(method: Method, rows: Rows) -> str:
    """What differs from the rows; empty if nothing does."""
    ids = method.draw()
    try:
        assert_bitwise_equal(method.gather(ids), rows.raw[ids])
    except AssertionError as error:
        return f"rank {rows.ranks.rank}: {error}"
    return ""


def _ms_together(method: Method, calls: int) -> float:
    """Of one gather of several, which all processes begin at once."""
    batches = [method.draw() for _ in range(calls)]
    torch.cuda.synchronize()
    distributed.barrier(device_ids=[torch.cuda.current_device()])

    def gather_all() -> None:
        for ids in batches:
            method.gather(ids)

    return queued_ms(gather_all) / calls


def draw_places(share: float, rank: int, size: int, rows_each: int, count: int, device: str) -> torch.Tensor:
    """int64 [2, count]: on which of `size` GPUs each row is, and its number there, below rows_each. share: of the rows,
    as far as chance goes, on GPU `rank`; the others are anywhere else."""
    others = torch.randint(max(1, size - 1), (count,), device=device)
    is_own = torch.rand(count, device=device) < share
    owners = torch.where(is_own, rank, (rank + 1 + others) % size)
    return torch.stack([owners, torch.randint(rows_each, (count,), device=device)])


def _hits(rows: Rows, config: Config) -> list[dict[str, Any]]:
    """All rows in the memory of all GPUs together; by the share of ids whose row is in the own GPU's."""
    size, rank = rows.ranks.size, rows.ranks.rank

    def draw(share: float, first_rows: torch.Tensor, step: int) -> torch.Tensor:
        """GPU i has every `step`-th row from first_rows[i] on."""
        owners, numbers = draw_places(share, rank, size, len(rows.raw) // size, config.ids, "cuda")
        return first_rows[owners] + numbers * step

    found = []
    with _shared(rows, "cuda") as table, _sharded(rows) as cache:
        in_turn = torch.arange(size, device="cuda")
        in_parts = torch.tensor(rows.ranks.gather(_first_row(table)), device="cuda")
        for share in [1.0] if size == 1 else [1.0, 1 / size, 0.0]:
            methods = {
                "ours": Method(cache.gather, functools.partial(draw, share, in_turn, size)),
                "wholegraph": Method(table.tensor.gather, functools.partial(draw, share, in_parts, 1)),
            }
            found.append({"local_share": share, "methods": measure(methods, rows, config)})
        for one in found:  # when all are timed: the cache counts from now on
            one["tiers"] = _tiers(cache, draw(one["local_share"], in_turn, size))
    return found


def _placements(rows: Rows, config: Config) -> list[dict[str, Any]]:
    """Caches of the same bytes a GPU, whose ids follow the hotness that they were made with."""
    hotness = torch.arange(1, len(rows.raw) + 1).double() ** -config.skew

    def draw() -> torch.Tensor:
        return power_law(len(rows.raw), config.ids, config.skew, torch.default_generator).cuda()

    found = []
    for placement in ("replicate", "shard", "auto"):
        with ShardedGPUCache(rows.store, config.cache_share, placement=placement, hotness=hotness) as cache:
            measured = measure({"ours": Method(cache.gather, draw)}, rows, config)
            found.append(
                {
                    "placement": placement,
                    "replicated": cache.split.replicated,
                    "sharded": cache.split.sharded,
                    "rows": cache.num_cached,
                    "bytes_of_each": rows.ranks.gather(cache.nbytes),
                    "tiers": _tiers(cache, draw()),
                    "methods": measured,
                }
            )
    return found


def _misses(rows: Rows, config: Config) -> dict[str, Any]:
    """All rows in CPU memory, once for all processes."""
    with _shared(rows, "cpu") as table:
        draw = functools.partial(torch.randint, len(rows.raw), (config.ids,), device="cuda")
        methods = {"ours": Method(rows.store.gather, draw), "wholegraph": Method(table.tensor.gather, draw)}
        return measure(methods, rows, config)


def _machines(rows: Rows, config: Config, location: Location) -> dict[str, Any]:
    """Each process as a machine of its own, which reads the others' rows through NCCL."""
    draw = functools.partial(torch.randint, len(rows.raw), (config.ids,), device="cuda")
    with _distributed_table(rows, location) as table, DistributedFeatureStore(rows.store, location=location) as store:
        measured = measure({"ours": Method(store.gather, draw), "raw": Method(table.gather, draw)}, rows, config)
        stats = store.stats()
    return {
        "location": location,
        "bytes_per_row": {"ours": stats.pcie_bytes / stats.misses, "raw": rows.row_bytes},
        "methods": measured,
    }


def _sharded(rows: Rows) -> ShardedGPUCache:
    """A collective call. A cache of all rows."""
    return ShardedGPUCache(rows.store, f"{-(-len(rows.raw) // rows.ranks.size)} rows", placement="shard")


def _tiers(cache: ShardedGPUCache, ids: torch.Tensor) -> dict[str, int]:
    """A collective call. From now on the cache counts, which takes time."""
    cache.count_tiers()
    cache.gather(ids)
    return cache.tiers()._asdict()


@contextmanager
def _shared(rows: Rows, location: Location) -> Iterator[SharedTensor]:
    """A collective call. The raw rows in memory that all GPUs of this machine read."""
    with SharedTensor(list(rows.raw.shape), rows.raw.dtype, location=location) as table:
        table.fill(rows.raw)
        yield table


def _first_row(table: SharedTensor) -> int:
    """Of this process's part."""
    _, first = table.tensor.get_local_tensor()
    return int(first)


@contextmanager
def _distributed_table(rows: Rows, location: Location) -> Iterator[Any]:
    """A collective call. The raw rows shared out; WholeGraph's own gather goes through NCCL."""
    module, communicator = wholegraph.library(), wholegraph.of_all()
    table = module.create_wholememory_tensor(
        communicator, "distributed", location, list(rows.raw.shape), rows.raw.dtype, None
    )
    part, first = table.get_local_tensor(host_view=location == "cpu")
    part.copy_(rows.raw[first : first + len(part)])
    torch.cuda.synchronize()
    communicator.barrier()
    try:
        yield table
    finally:
        torch.cuda.synchronize()
        communicator.barrier()
        module.destroy_wholememory_tensor(table)

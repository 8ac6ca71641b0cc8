"""The ways to fetch features, all of the same bits, and training steps on them: first compared, then timed."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
import statistics
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch.nn import functional

from ibp_gnn import CompressedFeatureStore, CompressedGPUCache, Prefetcher, PrefetchTrial, RowSource
from ibp_gnn.testing import assert_bitwise_equal
from ibp_gnn.training.features import HostSource
from ibp_gnn.training.sage import GraphSAGE, copy_async
from ibp_gnn.training.timing import PhaseTimer
from ibp_gnn.wholegraph import Graph

from .epoch_data import Batch, Config, Data, SampledOnGpu, live_batches
from .timing import in_turns, medians, timed
from .uncompressed import RawCache, RowsOnGpu, registered
from .wholegraph import Gather, Unavailable, WholeGraph

NEEDS_GPU = ("raw_cache", "raw_cache_prefetch", "wholegraph", "wholegraph_cached", "on_gpu")


@dataclasses.dataclass(frozen=True)
class Method:
    """lookahead: 0 = each batch is fetched when it is its turn; else of a Prefetcher. measures: whether that measures
    its first steps, as `train.prefetch` of a training does, and goes on in the faster way."""

    key: str
    """One of epoch_report.LABELS."""
    source: RowSource
    lookahead: int = 0
    measures: bool = False

    def steps(
        self, batches: Iterable[Batch], device: torch.device, trial: PrefetchTrial | None = None
    ) -> Iterable[tuple[Batch, torch.Tensor]]:
        if self.lookahead:
            return Prefetcher(batches, self.source, device=device, lookahead=self.lookahead, trial=trial)
        return ((batch, self._fetch(batch.ids, device)) for batch in batches)

    @property
    def takes_ids_on_gpu(self) -> bool:
        """Whether a sampler on the GPU can feed it, which has batches made ahead as it is."""
        return self.lookahead == 0 and not isinstance(self.source, HostSource)

    def _fetch(self, ids: torch.Tensor, device: torch.device) -> torch.Tensor:
        if not isinstance(self.source, HostSource):
            ids = copy_async(ids, device)
        return self.source.gather(ids, device=device)


class _WholeGraphRows:
    """A RowSource over WholeGraph's own feature store."""

    def __init__(self, rows: torch.Tensor, gather: Gather) -> None:
        self.shape, self.dtype, self._gather = tuple(rows.shape), rows.dtype, gather

    def gather(self, ids: torch.Tensor, *, device: Any = None, out: torch.Tensor | None = None) -> torch.Tensor:
        """ids: int32/int64 [n] on the GPU."""
        return self._gather(ids)


@contextlib.contextmanager
def open_methods(
    rows: torch.Tensor,
    store: CompressedFeatureStore,
    config: Config,
    device: torch.device,
    batches: list[Batch],
    skipped: dict[str, str],
) -> Iterator[list[Method]]:
    """rows: [n, d] on the CPU, hottest first; store: of these. batches: of an epoch. All caches take at most
    config.cache_share of the bytes of `rows`, everything counted. skipped: by the key of a method that is not
    measured, the reason is put here."""
    raw = Method("raw", HostSource(rows))
    if device.type == "cpu":
        skipped |= dict.fromkeys(NEEDS_GPU, "needs a CUDA device")
        yield [raw, *_ours(store, config)]
        return
    cache_bytes = round(config.cache_share * rows.numel() * rows.element_size())
    capacity: int | float = cache_bytes if cache_bytes < store.nbytes else 1.0  # more than all rows take
    cache = CompressedGPUCache(store, capacity, device=device)
    with registered(rows) as address, contextlib.ExitStack() as stack:
        raw_cache = RawCache(rows, cache_bytes, device, address)
        raw_cache.choose_blocks(functools.partial(next, itertools.cycle(batch.ids for batch in batches)))
        yield [
            raw,
            Method("raw_cache", raw_cache),
            Method("raw_cache_prefetch", raw_cache, lookahead=1),
            *_ours(cache, config),
            *_wholegraph(rows, config, stack, skipped),
            Method("on_gpu", RowsOnGpu(rows, device)),
        ]


def _wholegraph(
    rows: torch.Tensor, config: Config, stack: contextlib.ExitStack, skipped: dict[str, str]
) -> list[Method]:
    peer, found = WholeGraph(), []
    tables = {"wholegraph": peer.table(rows, "cpu"), "wholegraph_cached": peer.cached_table(rows, config.cache_share)}
    for key, table in tables.items():
        try:
            found.append(Method(key, _WholeGraphRows(rows, stack.enter_context(table))))
        except Unavailable as error:
            skipped[key] = str(error)
    return found


def _ours(source: RowSource, config: Config) -> list[Method]:
    return [
        Method("ours", source),
        Method("ours_ahead", source, lookahead=1),
        Method("ours_prefetch", source, lookahead=1, measures=True),
        Method("ours_lookahead", source, lookahead=config.lookahead),
    ]


class Trainer:
    """GraphSAGE, from the same weights each time that it is made."""

    def __init__(self, data: Data, config: Config, device: torch.device) -> None:
        torch.manual_seed(config.seed)
        self.model = GraphSAGE(
            data.rows.shape[1],
            data.num_classes,
            hidden=config.hidden,
            layers=len(config.fanouts),
            dropout=0.2,
            input_norm=False,
            aggregation="csc",
        ).to(device)
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=3e-3, fused=device.type == "cuda")

    def step(self, batch: Batch, x: torch.Tensor) -> torch.Tensor:
        """Returns the loss, on the device. No host sync."""
        loss = functional.cross_entropy(self.model(batch.blocks, x), batch.labels)
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        self.optimizer.step()
        return loss.detach()


def verify(methods: list[Method], batches: list[Batch], data: Data, config: Config, device: torch.device) -> list[str]:
    """Trains on each method's features, with deterministic kernels. Returns the losses as hexadecimal floats, equal for
    all methods, or raises AssertionError (other features) or RuntimeError (other losses)."""
    wanted: list[str] = []
    torch.use_deterministic_algorithms(True)
    try:
        for method in methods:
            trainer, losses = Trainer(data, config, device), []
            for number, (batch, x) in enumerate(method.steps(batches[: config.verify_batches], device)):
                losses.append(trainer.step(batch, x))
                if number == 0:
                    assert_bitwise_equal(x.cpu(), data.rows[batch.ids])
            got = [float(loss).hex() for loss in losses]
            wanted = wanted or got
            if got != wanted:
                raise RuntimeError(f"{method.key}: want losses {wanted} as {methods[0].key}, got {got}")
    finally:
        torch.use_deterministic_algorithms(False)
    return wanted


def verify_sampled(methods: list[Method], graph: Graph, data: Data, config: Config, device: torch.device) -> list[str]:
    """As `verify`, with the same batches sampled on the GPU for each method that takes them."""
    wanted: list[str] = []
    torch.use_deterministic_algorithms(True)
    try:
        for method in methods:
            made = SampledOnGpu(graph, data, method.source, config, device).batches()
            trainer, losses = Trainer(data, config, device), []
            torch.manual_seed(config.seed)
            for batch, x in itertools.islice(made, config.verify_batches):
                losses.append(trainer.step(batch, x))
                assert_bitwise_equal(x.cpu(), data.rows[batch.ids.cpu()])
            got = [float(loss).hex() for loss in losses]
            wanted = wanted or got
            if got != wanted:
                raise RuntimeError(f"{method.key}: want losses {wanted} as {methods[0].key}, got {got}")
    finally:
        torch.use_deterministic_algorithms(False)
    return wanted


def measure_sampled(
    methods: list[Method],
    graph: Graph,
    data: Data,
    config: Config,
    device: torch.device,
    results: list[dict[str, Any]],
) -> None:
    """Adds to the results, as `with_gpu_sampling_ms`: milliseconds by the clock for an epoch whose batches are sampled
    on the GPU as they are needed; medians over epochs, in which the methods take turns."""

    def epoch_of(made: SampledOnGpu, trainer: Trainer) -> float:
        def train() -> None:
            for batch, x in made.batches():
                trainer.step(batch, x)

        return 1e3 * timed(train, device)[0]

    measures = {
        method.key: functools.partial(
            epoch_of, SampledOnGpu(graph, data, method.source, config, device), Trainer(data, config, device)
        )
        for method in methods
    }
    times = medians(in_turns(measures, range(config.epochs + 1), warm_up=1))
    for result in results:
        if result["method"] in times:
            result["with_gpu_sampling_ms"] = times[result["method"]]


def measure(
    methods: list[Method],
    batches: list[Batch],
    data: Data,
    config: Config,
    device: torch.device,
    sampling_seconds: float,
) -> list[dict[str, Any]]:
    """Times in milliseconds for one epoch of the kept batches, medians over epochs: fetch + train without sampling, its
    parts, fetches alone, and, of methods without lookahead, with sampling. Methods take turns, epoch by epoch.

    A phase is the time that the training stream spends in it (PhaseTimer), so with prefetch `fetch` is the wait that
    training does not hide.
    """
    trainers = [Trainer(data, config, device) for _ in methods]
    trials = [
        _settled(method, lambda: batches, trainer, device) for method, trainer in zip(methods, trainers, strict=True)
    ]
    epochs: list[list[dict[str, float]]] = [[] for _ in methods]
    results: list[dict[str, Any]] = [{"method": method.key} for method in methods]
    for epoch in range(config.epochs + 1):
        for method, trainer, trial, of_method, result in zip(methods, trainers, trials, epochs, results, strict=True):
            has_stats = device.type == "cuda" and hasattr(method.source, "stats")
            if has_stats:
                method.source.reset_stats()  # type: ignore[attr-defined]
            seconds = _epoch(method, batches, trainer, device, trial)
            if has_stats:
                stats = method.source.stats()  # type: ignore[attr-defined]
                result |= {"rows_read": stats.hits + stats.misses, "hits": stats.hits, "pcie_bytes": stats.pcie_bytes}
            seconds["alone"] = _epoch(method, batches, None, device)["fetch"]
            if epoch:  # the first one warms up
                of_method.append(seconds)
    for method, trainer, trial, of_method, result in zip(methods, trainers, trials, epochs, results, strict=True):
        result |= {
            "epoch_ms": _median_ms(of_method, "fetch", "train"),
            "fetch_ms": _median_ms(of_method, "fetch"),
            "train_ms": _median_ms(of_method, "train"),
            "fetch_alone_ms": _median_ms(of_method, "alone"),
            "with_sampling_ms": None,
            "with_gpu_sampling_ms": None,
            "fetches_ahead": trial.fetches_ahead if trial is not None else method.lookahead > 0,
        }
        if method.lookahead <= 1:  # a lookahead would not have filled up in so few batches
            seconds_live = _live(method, trainer, data, config, device)
            result["with_sampling_ms"] = 1e3 * seconds_live * config.batches / config.live_batches
            result["sampling_share"] = sampling_seconds * 1e3 / result["with_sampling_ms"]
    return results


def _median_ms(epochs: list[dict[str, float]], *phases: str) -> float:
    return 1e3 * statistics.median(sum(seconds[phase] for phase in phases) for seconds in epochs)


def _settled(
    method: Method, batches: Callable[[], Iterable[Batch]], trainer: Trainer, device: torch.device
) -> PrefetchTrial | None:
    """Trains as long as the method measures; what it has found."""
    if not method.measures:
        return None
    trial = PrefetchTrial()
    while device.type == "cuda" and not trial.is_over:
        for batch, x in method.steps(batches(), device, trial):
            trainer.step(batch, x)
            if trial.is_over:
                break
    return trial


def _epoch(
    method: Method,
    batches: Iterable[Batch],
    trainer: Trainer | None,
    device: torch.device,
    trial: PrefetchTrial | None = None,
) -> dict[str, float]:
    """Seconds by phase. Without a trainer: of fetches that nothing else keeps waiting."""
    if device.type == "cuda":
        torch.cuda.synchronize()
    timer = PhaseTimer(device)
    for batch, x in method.steps(batches, device, trial):
        if trainer is not None:
            timer.mark("fetch")
            trainer.step(batch, x)
            timer.mark("train")
    if trainer is None:
        timer.mark("fetch")
    return timer.seconds()


def _live(method: Method, trainer: Trainer, data: Data, config: Config, device: torch.device) -> float:
    """Seconds, by the clock, for config.live_batches that are sampled as they are needed."""

    def sampled() -> Iterator[Batch]:
        return live_batches(data, config, device, config.live_batches)

    trial = _settled(method, sampled, trainer, device)

    def train() -> None:
        for batch, x in method.steps(sampled(), device, trial):
            trainer.step(batch, x)

    return timed(train, device)[0]

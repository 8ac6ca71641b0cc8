"""Training steps on the features of each method: first compared, then timed."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterable
from typing import Any

import torch
from torch.nn import functional

from ibp_gnn.testing import assert_bitwise_equal
from ibp_gnn.training.sage import GraphSAGE
from ibp_gnn.training.timing import PhaseTimer

from .config import Config
from .data import Batch, Data, live_batches
from .methods import Method


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
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=3e-3)

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


def measure(
    method: Method, batches: list[Batch], data: Data, config: Config, device: torch.device, sampling_seconds: float
) -> dict[str, Any]:
    """Times in milliseconds for one epoch of the kept batches, medians over epochs: fetch + train without sampling, its
    parts, and, of methods without lookahead, with sampling.

    A phase is the time that the training stream spends in it (PhaseTimer), so with prefetch `fetch` is the wait that
    training does not hide.
    """
    trainer = Trainer(data, config, device)
    epochs = []
    has_stats = device.type == "cuda" and hasattr(method.source, "stats")
    for epoch in range(config.epochs + 1):
        if has_stats:
            method.source.reset_stats()  # type: ignore[attr-defined]
        if device.type == "cuda":
            torch.cuda.synchronize()
        seconds = _epoch(method, batches, trainer, device)
        if epoch:  # the first one warms up
            epochs.append(seconds)
    result: dict[str, Any] = {
        "method": method.key,
        "epoch_ms": 1e3 * statistics.median(sum(seconds.values()) for seconds in epochs),
        "fetch_ms": 1e3 * statistics.median(seconds["fetch"] for seconds in epochs),
        "train_ms": 1e3 * statistics.median(seconds["train"] for seconds in epochs),
        "with_sampling_ms": None,
    }
    if has_stats:
        stats = method.source.stats()  # type: ignore[attr-defined]
        # Of one epoch, the last. With lookahead, ids that several batches have are read once.
        result |= {"rows_read": stats.hits + stats.misses, "hits": stats.hits, "pcie_bytes": stats.pcie_bytes}
    if method.lookahead <= 1:  # a lookahead would not have filled up in so few batches
        seconds_live = _live(method, trainer, data, config, device)
        result["with_sampling_ms"] = 1e3 * seconds_live * config.batches / config.live_batches
        result["sampling_share"] = sampling_seconds * 1e3 / result["with_sampling_ms"]
    return result


def _epoch(method: Method, batches: Iterable[Batch], trainer: Trainer, device: torch.device) -> dict[str, float]:
    timer = PhaseTimer(device)
    for batch, x in method.steps(batches, device):
        timer.mark("fetch")
        trainer.step(batch, x)
        timer.mark("train")
    return timer.seconds()


def _live(method: Method, trainer: Trainer, data: Data, config: Config, device: torch.device) -> float:
    """Seconds, by the clock, for config.live_batches that are sampled as they are needed."""
    begin = time.perf_counter()
    for batch, x in method.steps(live_batches(data, config, device, config.live_batches), device):
        trainer.step(batch, x)
    if device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - begin

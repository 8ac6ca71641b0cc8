"""PrefetchTrial: which way the loop goes on, by a clock that tests set."""

from __future__ import annotations

import logging

import pytest
import torch

from ibp_gnn import CompressedFeatureStore, Prefetcher, PrefetchTrial
from ibp_gnn.testing import assert_bitwise_equal


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def run(trial: PrefetchTrial, clock: Clock, ahead: float, in_turn: float, steps: int = 100) -> list[bool]:
    ways = []
    for _ in range(steps):
        ways.append(trial.step())
        clock.now += ahead if ways[-1] else in_turn
    return ways


@pytest.mark.parametrize(
    ("ahead", "in_turn", "goes_on_ahead"), [(1.0, 2.0, True), (2.0, 1.0, False), (1.0, 0.99, True), (1.0, 0.97, False)]
)
def test_the_faster_way_is_taken(ahead: float, in_turn: float, goes_on_ahead: bool, caplog: object) -> None:
    clock = Clock()
    trial = PrefetchTrial(clock)
    with caplog.at_level(logging.INFO, "ibp_gnn.gpu.prefetch_trial"):  # type: ignore[attr-defined]
        ways = run(trial, clock, ahead, in_turn)
    assert trial.is_over and trial.fetches_ahead == goes_on_ahead
    assert ways[0] and False in ways[:40] and ways[40:] == [goes_on_ahead] * 60
    said = "ahead from now on" if goes_on_ahead else "prefetch has switched itself off"
    assert said in caplog.text and f"takes {1e3 * ahead:.2f} ms a step" in caplog.text  # type: ignore[attr-defined]


def test_what_is_between_iterations_is_no_step() -> None:
    clock = Clock()
    trial = PrefetchTrial(clock)
    for _ in range(30):
        trial.begin()
        run(trial, clock, 1.0, 2.0, steps=7)
        clock.now += 1e6
    assert trial.is_over and trial.fetches_ahead


def test_single_slow_steps_decide_nothing() -> None:
    clock = Clock()
    trial = PrefetchTrial(clock)
    for number in range(100):
        ahead = trial.step()
        clock.now += (1.0 if ahead else 1.5) + (50.0 if number % 17 == 8 else 0.0)
    assert trial.fetches_ahead


@pytest.mark.cuda
@pytest.mark.parametrize("lookahead", [1, 3])
def test_batches_while_it_measures(lookahead: int) -> None:
    """Each batch once, in the loader's order, with its rows, whichever way it is fetched."""
    raw = torch.randn(500, 12)
    batches = [torch.randint(0, 500, (n % 13,)) for n in range(90)]
    clock = Clock()

    def slower_ahead() -> float:
        clock.now += 2.0 if trial.fetches_ahead else 1.0
        return clock.now

    trial = PrefetchTrial(slower_ahead)
    with CompressedFeatureStore.build(raw, progress=False) as store:
        for _ in range(2):
            prefetcher = Prefetcher(batches, store, device="cuda", lookahead=lookahead, trial=trial)
            got = list(prefetcher)
            assert [id(batch) for batch, _ in got] == [id(batch) for batch in batches]
            for batch, rows in got:
                assert_bitwise_equal(rows.cpu(), raw[batch])
    assert trial.is_over and not trial.fetches_ahead

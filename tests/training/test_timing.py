"""Seconds by phase."""

from __future__ import annotations

import time

import torch

from ibp_gnn.training.timing import PhaseTimer

CPU = torch.device("cpu")


def test_phases_add_up() -> None:
    timer = PhaseTimer(CPU)
    for _ in range(2):
        time.sleep(0.02)
        timer.mark("a")
        timer.mark("b")
    seconds = timer.seconds()
    assert seconds.keys() == {"a", "b"}
    assert seconds["a"] >= 0.04 > seconds["b"] >= 0

"""Seeds: every generator gives the same numbers again, and others for another seed, stream or worker."""

from __future__ import annotations

import importlib.util
import os
import random
from collections.abc import Iterator

import numpy as np
import pytest
import torch

from ibp_gnn.integrations.dgl_compat import import_dgl
from ibp_gnn.training.seeding import one_dgl_thread, seed_everything, seed_worker, use_deterministic_algorithms

needs_dgl = pytest.mark.skipif(importlib.util.find_spec("dgl") is None, reason="DGL is not installed")


def draws() -> tuple[float, float, float]:
    return random.random(), float(np.random.random()), float(torch.rand(()))


def test_each_generator_repeats_with_its_seed_and_stream() -> None:
    drawn = {}
    for seed in ((7,), (7, 0), (7, 1), (8, 1), (7, 1, 0)):
        seed_everything(*seed)
        drawn[seed] = draws()
        seed_everything(*seed)
        assert draws() == drawn[seed]
    for numbers in zip(*(drawn[seed] for seed in ((7, 0), (7, 1), (8, 1))), strict=True):
        assert len(set(numbers)) == 3


def test_workers_differ_and_repeat() -> None:
    """torch gives each of them a seed of its own before it calls this."""
    drawn = []
    for seed in (2**62, 2**62 + 1, 2**62):
        torch.manual_seed(seed)
        seed_worker(0)
        drawn.append(draws())
    assert drawn[0] == drawn[2] and all(one != other for one, other in zip(drawn[0], drawn[1], strict=True))


@needs_dgl
def test_dgl_works_on_one_thread_within() -> None:
    utils = import_dgl().utils
    before = utils.get_num_threads()
    utils.set_num_threads(2)
    try:
        with pytest.raises(KeyError), one_dgl_thread():
            assert utils.get_num_threads() == 1
            raise KeyError
        assert utils.get_num_threads() == 2
    finally:
        utils.set_num_threads(before)


@pytest.fixture
def algorithms() -> Iterator[None]:
    benchmark = torch.backends.cudnn.benchmark
    yield
    torch.use_deterministic_algorithms(False)
    torch.backends.cudnn.benchmark = benchmark


def test_kernels_that_vary_are_refused(algorithms: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":16:8")
    use_deterministic_algorithms()
    assert torch.are_deterministic_algorithms_enabled() and not torch.backends.cudnn.benchmark
    assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":16:8", "what the user says stays"

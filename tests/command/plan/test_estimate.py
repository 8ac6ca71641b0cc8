"""What `plan` estimates: costs of rows against a real store, hits against counted ones, and its verdicts."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import pytest
import torch

from ibp_gnn import CompressedFeatureStore
from ibp_gnn.command.analysis import analyze
from ibp_gnn.command.plan.estimate import (
    RowCosts,
    Sampled,
    Traffic,
    compressed_costs,
    make_plan,
    plan_cache,
    raw_costs,
    sample_graph,
    seconds_text,
)


def normal(count: int, width: int) -> torch.Tensor:
    return torch.randn(count, width, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("sparse", [False, True])
def test_rows_cost_what_a_store_of_them_takes(sparse):
    rows = torch.relu(normal(5000, 48) - 1) if sparse else normal(5000, 48)
    costs = compressed_costs(analyze(rows), rows)
    with CompressedFeatureStore.build(rows, pin=False, progress=False) as store:
        assert costs.num_rows * costs.store_bytes == pytest.approx(store.nbytes, rel=0.01)
        assert costs.rows_in(store.nbytes + 4 * 5000 + 5000) == pytest.approx(5000, abs=60)
    assert costs.cached_bytes <= 48 * 4 and 0 < costs.fetched_bytes <= costs.cached_bytes + 1
    assert costs.rows_in(0) == 0 and costs.rows_in(10**9) == 5000


def test_raw_rows_cost_their_bytes():
    costs = raw_costs(100, 64)
    assert costs.rows_in(4 * 100 + 64 * 7) == 7 and costs.rows_in(4 * 100 + 64 * 7 - 1) == 6
    assert costs.fetched_bytes == 64


def sampled(counts: list[int], orders: dict[str, list[int]], epochs: float = 1.0) -> Sampled:
    return Sampled(Traffic(torch.tensor(counts), epochs), {name: torch.tensor(ids) for name, ids in orders.items()})


def test_hits_are_those_of_the_rows_that_are_cached():
    graph = sampled([5, 0, 3, 2], {"good": [0, 2, 3, 1], "bad": [1, 3, 2, 0]}, epochs=0.5)
    assert graph.hit_rates(2) == {"good": 0.8, "bad": 0.2} and graph.measured.accesses == 20
    plan = plan_cache(RowCosts(4, 8, 8, 6, 10), graph, 10 + 16, 60.0)
    assert (plan.cached_rows, plan.policy, plan.fits) == (2, "good", False)
    assert plan.pcie_bytes == 20 * 0.2 * 6 and plan.fetch_seconds == pytest.approx(24 / 60)
    assert plan_cache(RowCosts(4, 8, 8, 6, 10), graph, 100, 60.0).fits


def power_law(num_nodes: int, num_edges: int) -> tuple[torch.Tensor, torch.Tensor]:
    rng = np.random.default_rng(0)
    weight = rng.pareto(1.3, num_nodes) + 1
    src = rng.choice(num_nodes, num_edges, p=weight / weight.sum())
    return torch.from_numpy(src), torch.from_numpy(rng.integers(0, num_nodes, num_edges))


def test_hit_rates_are_those_of_other_epochs():
    src, dst = power_law(4000, 30_000)
    train = torch.arange(0, 4000, 2)
    one, other = (
        sample_graph(src, dst, 4000, train, [5, 5], batch_size=100, batches=None, seed=seed) for seed in (0, 1)
    )
    assert one.measured.epochs == 1 and one.orders.keys() == {"degree", "reverse_pagerank", "presample"}
    for rows in (100, 400, 1600):
        rates = one.hit_rates(rows)
        for name, rate in other.hit_rates(rows).items():
            assert abs(rates[name] - rate) < 0.02
        assert rates["degree"] > 1.2 * rows / 4000
    part = sample_graph(src, dst, 4000, train, [5, 5], batch_size=100, batches=5, seed=0)
    assert part.measured.epochs == 0.25
    assert part.measured.accesses == pytest.approx(one.measured.accesses, rel=0.05)


def a_plan(capacity: int, rows: torch.Tensor | None = None):
    rows = normal(4000, 64) if rows is None else rows
    src, dst = power_law(4000, 30_000)
    graph = sample_graph(src, dst, 4000, torch.arange(4000), [5], batch_size=100, batches=None)
    return make_plan(analyze(rows), rows, graph, capacity, 25e9)


def test_verdicts():
    noise = torch.randint(-(2**31), 2**31, (4000, 64), generator=torch.Generator().manual_seed(0)).to(torch.int32)
    pays = a_plan(300_000)
    assert pays.times_as_fast is not None and pays.times_as_fast > 1.1
    assert pays.verdict.startswith("It pays where fetching is what training waits for: fetching takes ")
    assert a_plan(10**7).verdict.startswith("It does not pay: all rows fit in this GPU memory uncompressed")
    assert a_plan(950_000).verdict.startswith("It pays: compressed, all rows fit in this GPU memory, and the ")
    assert a_plan(300_000, noise).verdict == "It does not pay: no codec makes these rows smaller."
    hardly = dataclasses.replace(
        pays,
        compressed=dataclasses.replace(pays.raw, fetch_seconds=0.95),
        raw=dataclasses.replace(pays.raw, fetch_seconds=1.0),
    )
    assert hardly.verdict == (
        "It hardly pays: fetching takes 950 ms an epoch instead of 1 s, 1.05 times as fast; measure before you use it."
    )
    loses = dataclasses.replace(hardly, compressed=dataclasses.replace(pays.raw, fetch_seconds=1.1))
    assert loses.verdict.startswith("It does not pay: fetching takes 1.1 s an epoch instead of 1 s, 0.91 times")
    record = json.loads(json.dumps(pays.to_dict()))
    assert record["verdict"] == pays.verdict and record["raw"]["cached_rows"] < record["compressed"]["cached_rows"]


def test_the_curve_goes_from_nothing_to_all():
    plan = a_plan(300_000)
    sizes, raw, ours = zip(*plan.curve, strict=True)
    assert list(sizes) == sorted(sizes) and raw[0] == ours[0] == 0 and raw[-1] == ours[-1] == 1
    assert all(mine >= theirs for mine, theirs in zip(ours[1:], raw[1:], strict=True))


def test_seconds():
    assert [seconds_text(each) for each in (0, 0.0012, 0.5, 1, 12.345)] == ["0 s", "1.2 ms", "500 ms", "1 s", "12.3 s"]

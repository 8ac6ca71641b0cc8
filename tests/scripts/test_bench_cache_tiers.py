"""The simulation of where many GPUs read rows from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from ibp_gnn.config import ConfigError, load
from ibp_gnn.integrations.wholegraph_cache import Split

CONFIG = Path(__file__).resolve().parents[2] / "configs" / "bench_cache_tiers.yaml"
NODES = 400


@pytest.fixture
def tiers(part: Any) -> Any:
    return part("bench.cache_tiers")


def batches(count: int = 24) -> list[np.ndarray]:
    """Low ids are read more often."""
    rng = np.random.default_rng(0)
    return [np.unique((NODES * rng.random(60) ** 3).astype(np.int32)) for _ in range(count)]


def rows(part: Any, overflow_every: int = 10) -> Any:
    overflows = torch.arange(100) % overflow_every == 0
    return part("bench.cache_bytes").RowBytes(NODES, 128, 96, overflows, "dict", 64, 90.0)


@pytest.mark.parametrize(("gpus", "machines"), [(1, 1), (2, 1), (8, 1), (16, 4)])
@pytest.mark.parametrize("split", [Split(0, 0), Split(50, 0), Split(0, 130), Split(40, 100), Split(0, NODES)])
def test_each_access_is_in_the_tier_where_its_row_lies(tiers: Any, gpus: int, machines: int, split: Split) -> None:
    position = np.random.default_rng(1).permutation(NODES)
    wanted = dict.fromkeys(tiers.TIERS, 0)
    per_machine = gpus // machines
    for number, ids in enumerate(batches()):
        gpu = number % gpus
        for node in ids:
            at = position[node]
            if at < split.replicated:
                tier = "local"
            elif at < sum(split):
                tier = "local" if (at - split.replicated) % per_machine == gpu % per_machine else "peer"
            else:
                tier = "host" if int(node) * machines // NODES == gpu // per_machine else "network"
            wanted[tier] += 1
    got = tiers.count_tiers(batches(), position, split, tiers.Cluster(gpus, machines))
    assert got == wanted and sum(got.values()) == sum(map(len, batches()))
    if machines == 1:
        assert got["network"] == 0
    if gpus == machines:
        assert got["peer"] == 0


def test_placements_and_kinds(tiers: Any, part: Any) -> None:
    accesses = torch.zeros(NODES, dtype=torch.int64)
    for batch in batches():
        accesses[batch] += 1
    order = torch.argsort(accesses, descending=True, stable=True)
    clusters = [tiers.Cluster(4, 1), tiers.Cluster(8, 2)]
    results = tiers.simulate(batches(), order, accesses, rows(part), [0.05, 0.2], clusters)
    assert len(results) == 2 * 2 * 3 * 2
    of = {(one["gpus"], one["share"], one["placement"], one["cache"]): one for one in results}
    for gpus, share in ((4, 0.05), (4, 0.2), (8, 0.05), (8, 0.2)):
        for kind in tiers.KINDS:
            replicate, shard, auto = (of[gpus, share, placement, kind] for placement in tiers.PLACEMENTS)
            assert replicate["peer"] == replicate["sharded"] == shard["replicated"] == 0
            if share == 0.2 or kind == "uncompressed":
                assert 3 * replicate["replicated"] < shard["sharded"] <= 4 * (replicate["replicated"] + 1)
                assert shard["local"] + shard["peer"] > replicate["local"]
            hits = [one["local"] + one["peer"] for one in (replicate, shard, auto)]
            assert min(hits[:2]) <= hits[2] <= max(hits[:2])
    for placement in tiers.PLACEMENTS:
        raw, ours = (of[4, 0.2, placement, kind] for kind in tiers.KINDS)
        assert sum(ours[name] for name in ("replicated", "sharded")) > sum(
            raw[name] for name in ("replicated", "sharded")
        )
        assert ours["host"] < raw["host"]
    assert of[8, 0.2, "replicate", "compressed"]["network"] > 0


def test_gpus_fill_machines(part: Any) -> None:
    config = part("bench_cache_hit").Config
    found = load(config, CONFIG, ["gpus=[2, 8, 64]"]).clusters()
    assert [(one.gpus, one.machines, one.gpus_of_machine) for one in found] == [(2, 1, 2), (8, 1, 8), (64, 8, 8)]
    with pytest.raises(ConfigError, match="gpus: want multiples of gpus_of_machine 8, got 12"):
        load(config, CONFIG, ["gpus=[12]"])

from __future__ import annotations

import threading

import pytest
import torch
from pool_cases import bags, table

from ibp_gnn.codec import pool_gpu
from ibp_gnn.codec.pool import Bags
from ibp_gnn.embedding.lookup import Feature, Lookup
from ibp_gnn.embedding.table import Table
from ibp_gnn.testing import oracle_pool
from ibp_gnn.testing.bits import assert_bitwise_equal

CPU = torch.device("cpu")
HOW = {"hotness": None, "codec": "auto", "pin": "auto", "progress": False}


def make(rows, capacity=None, **options) -> Table:
    return Table.open(rows, capacity=capacity, device=None, **{**HOW, **options})


def two_features(rows, tables):
    one, two = bags(300, 50, 1), bags(300, 50, 2)
    both = Bags(torch.cat([one.ids, two.ids]), torch.cat([one.offsets, two.offsets + len(one.ids)]), 0, 50)
    features = [Feature(tables[0], 1, "mean", 5, 0), Feature(tables[1], 0, "max", -1, tables[0].embedding_dim)]
    expected = [
        oracle_pool.pool(rows[0], two.ids, two.bounds(), mode="mean", padding_id=5),
        oracle_pool.pool(rows[1], one.ids, one.bounds(), mode="max"),
    ]
    return Lookup(features), both, torch.cat(expected, dim=1)


def test_columns_of_several_features():
    rows = [table(torch.float32, width, 300, width) for width in (8, 24)]
    lookup, both, expected = two_features(rows, [make(of) for of in rows])
    assert_bitwise_equal(lookup.pool(both, CPU), expected)
    assert lookup.width == 32 and lookup.versions() == (0, 0) and lookup.is_current()


def test_one_store_for_several_features_counts_once():
    rows = table(torch.float32, 8, 300)
    one = make(rows)
    lookup = Lookup([Feature(one, 0, "sum", -1, 0), Feature(one, 1, "sum", -1, 8)])
    one.store.update(torch.tensor([1]), rows[:1])
    assert lookup.versions() == (1,)
    one.set_extra_state(one.get_extra_state())
    assert not lookup.is_current()


def test_updates_are_seen_whole():
    """Every bag is of two rows that are updated together."""
    rows = torch.zeros(64, 16)
    one = make(rows)
    lookup = Lookup([Feature(one, 0, "max", -1, 0)])
    ids, stop, failures = Bags(torch.tensor([0, 63] * 8), None, 2, 8), threading.Event(), []

    def look_up() -> None:
        while not stop.is_set():
            got = lookup.pool(ids, CPU)
            if not bool((got == got[0, 0]).all()):
                failures.append(got)

    threads = [threading.Thread(target=look_up) for _ in range(2)]
    for thread in threads:
        thread.start()
    for number in range(60):
        one.store.update(torch.arange(64), torch.full((64, 16), float(number)))
    stop.set()
    for thread in threads:
        thread.join()
    assert not failures


@pytest.mark.cuda
@pytest.mark.filterwarnings("ignore:capacity")
@pytest.mark.parametrize("pin", ["auto", False])
def test_on_a_gpu(pin, monkeypatch):
    monkeypatch.setattr(pool_gpu, "STAGE_MIN_IDS", 1)
    gpu = torch.device("cuda", 0)
    rows = [table(torch.float32, width, 300, width, hostile=False) for width in (8, 64)]
    options = {"pin": pin, "codec": "dict"}  # which is decoded and pooled at once
    tables = [make(rows[0], **options), make(rows[1], None if pin is False else "50%", **options)]
    lookup, both, expected = two_features(rows, tables)
    assert_bitwise_equal(lookup.pool(both, gpu), expected)
    staged = lookup.stage(lookup.on_gpu(both, gpu), gpu)
    assert (staged is None) == (pin is False)
    assert_bitwise_equal(lookup.pool(both, gpu, staged), expected)
    empty = Bags(both.ids[:0], both.offsets[:0], 0, 0)
    assert lookup.pool(empty, gpu).shape == (0, 72)

"""share_budget: which rows of several features are cached under one limit. Plans need no GPU."""

from __future__ import annotations

import itertools

import pytest
import torch
from matrices import EXHAUSTIVE

import ibp_gnn
from ibp_gnn import CompressedFeatureStore, CompressedGPUCache, share_budget
from ibp_gnn.gpu.budget import CachePlan, plan_caches
from ibp_gnn.gpu.cache import bytes_of_each, fixed_bytes, rows_that_fit
from ibp_gnn.store.order import hottest_first
from ibp_gnn.testing import assert_bitwise_equal, special_rows

Stores = dict[str, CompressedFeatureStore]
Hotness = dict[str, torch.Tensor]


def mixed_rows(width: int, num_rows: int, seed: int = 0) -> torch.Tensor:
    """Every third row overflows a slot of the others."""
    rows = special_rows(torch.float32, width, "outliers", num_rows, seed)
    rows[1::3] = special_rows(torch.float32, width, "random_bits", len(rows[1::3]), seed)
    return rows


def build(rows: torch.Tensor, **options: object) -> CompressedFeatureStore:
    return CompressedFeatureStore.build(rows, progress=False, **options)  # type: ignore[arg-type]


def nbytes_of(store: CompressedFeatureStore, ids: torch.Tensor, is_prefix: bool) -> int:
    """What a cache of these rows takes, by making its rows."""
    return fixed_bytes(store, is_prefix) + store.rows.select(store.to_slots(ids)).nbytes


def saved_by(stores: Stores, hotness: Hotness, ids: dict[str, torch.Tensor]) -> float:
    return sum(float((hotness[key][of] * bytes_of_each(stores[key], of)).sum()) for key, of in ids.items())


def ids_of(plans: dict[str, CachePlan]) -> dict[str, torch.Tensor]:
    return {key: plan.ids for key, plan in plans.items()}


def check_plan(plans: dict[str, CachePlan], stores: Stores, limit: int) -> None:
    for key, plan in plans.items():
        wanted = nbytes_of(stores[key], plan.ids, plan.is_prefix) if len(plan.ids) else 0
        assert plan.nbytes == wanted
    assert 0 < sum(plan.nbytes for plan in plans.values()) <= limit


def total_bytes(stores: Stores, hotness: Hotness, ids: dict[str, torch.Tensor]) -> int:
    total = 0
    for key, of in ids.items():
        is_prefix = bool((hotness[key].diff() <= 0).all())
        total += nbytes_of(stores[key], of, is_prefix) if len(of) else 0
    return total


def all_subsets(stores: Stores) -> list[dict[str, torch.Tensor]]:
    """Every choice of rows of every store."""
    masks = [itertools.product([False, True], repeat=len(store)) for store in stores.values()]
    return [
        {key: torch.nonzero(torch.tensor(mask)).flatten() for key, mask in zip(stores, chosen, strict=True)}
        for chosen in itertools.product(*masks)
    ]


def random_hotness(stores: Stores, generator: torch.Generator) -> Hotness:
    """Highest for the last id."""
    scores = {key: torch.randint(0, 20, (len(store),), generator=generator) for key, store in stores.items()}
    return {key: part.sort().values * torch.randint(1, 9, (1,), generator=generator) for key, part in scores.items()}


def limits(stores: Stores, hotness: Hotness) -> list[int]:
    """Around where nothing, one feature and everything fits."""
    smallest = min(
        nbytes_of(store, torch.tensor([row]), True) for store in stores.values() for row in range(len(store))
    )
    everything = total_bytes(stores, hotness, {key: torch.arange(len(store)) for key, store in stores.items()})
    return [int(limit) for limit in torch.linspace(smallest, everything + 10, 12)]


@pytest.mark.parametrize("seed", range(3 if EXHAUSTIVE else 1))
def test_of_rows_of_one_size_no_other_choice_saves_more(seed: int) -> None:
    rows = special_rows(torch.float32, 6, "all_equal", 5, seed)
    stores = {"a": build(rows), "b": build(rows[:3]), "c": build(rows[:2])}
    assert len({store.slot_bytes for store in stores.values()}) == 1
    assert not any(bool(store.rows.overflows().any()) for store in stores.values())
    choices = all_subsets(stores)
    hotness = random_hotness(stores, torch.Generator().manual_seed(seed))
    costs = [total_bytes(stores, hotness, choice) for choice in choices]
    values = [saved_by(stores, hotness, choice) for choice in choices]
    seen = set()
    for limit in limits(stores, hotness):
        best = max((value for value, cost in zip(values, costs, strict=True) if 0 < cost <= limit), default=None)
        if best is None:
            continue
        plans = plan_caches(stores, limit, 10, hotness=hotness)
        check_plan(plans, stores, limit)
        assert saved_by(stores, hotness, ids_of(plans)) == best
        seen.add(best)
    assert len(seen) > 2


@pytest.mark.parametrize("seed", range(3 if EXHAUSTIVE else 1))
def test_of_rows_of_any_size_no_set_of_features_saves_more(seed: int) -> None:
    """Rows are taken in order, so that less than one row's bytes may be left over; never more is lost."""
    stores = {"a": build(mixed_rows(6, 5, seed)), "b": build(mixed_rows(17, 4, seed)), "c": build(mixed_rows(2, 3))}
    hotness = random_hotness(stores, torch.Generator().manual_seed(seed))
    ranked = sorted(
        ((-int(score), number, row) for number, key in enumerate(stores) for row, score in enumerate(hotness[key]))
    )
    keys, choices = list(stores), all_subsets(stores)
    costs = [total_bytes(stores, hotness, choice) for choice in choices]
    values = [saved_by(stores, hotness, choice) for choice in choices]
    most_of_a_row = max(
        float((hotness[key] * bytes_of_each(store, torch.arange(len(store)))).max()) for key, store in stores.items()
    )
    for limit in limits(stores, hotness):
        in_order = []
        for chosen in itertools.product([False, True], repeat=len(keys)):
            for count in range(len(ranked) + 1):
                ids = {
                    key: torch.tensor([row for _, of, row in ranked[:count] if of == number and chosen[of]]).long()
                    for number, key in enumerate(keys)
                }
                if 0 < total_bytes(stores, hotness, ids) <= limit:
                    in_order.append(saved_by(stores, hotness, ids))
        if not in_order:
            continue
        plans = plan_caches(stores, limit, len(ranked), hotness=hotness)
        check_plan(plans, stores, limit)
        got = saved_by(stores, hotness, ids_of(plans))
        assert got == max(in_order)
        best = max(value for value, cost in zip(values, costs, strict=True) if cost <= limit)
        assert got > best - most_of_a_row


def test_of_many_features_the_set_is_found_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where there are too many sets to try all; here every feature either pays for its table or does not."""
    sizes = {"a": 100, "large": 9000, "b": 120, "larger": 9100, "c": 140}
    stores = {key: build(mixed_rows(5, size)) for key, size in sizes.items()}
    hotness = {key: torch.arange(size) / size + (1 if size < 1000 else 0) for key, size in sizes.items()}
    hotness["large"][7], hotness["larger"][9] = 4, 4
    limit = sum(nbytes_of(stores[key], torch.arange(sizes[key]), False) for key in "abc") * 9 // 10
    wanted = plan_caches(stores, limit, 20_000, hotness=hotness)
    assert [len(plan.ids) > 0 for plan in wanted.values()] == [True, False, True, False, True]
    monkeypatch.setattr("ibp_gnn.gpu.budget._MOST_TO_TRY_ALL_SETS", 0)
    got = plan_caches(stores, limit, 20_000, hotness=hotness)
    for key in stores:
        assert torch.equal(got[key].ids, wanted[key].ids) and got[key].nbytes == wanted[key].nbytes


def test_one_feature_gets_the_rows_of_a_single_cache() -> None:
    rows = mixed_rows(20, 500)
    scores = torch.randint(0, 50, (500,), generator=torch.Generator().manual_seed(1))
    order = hottest_first(scores, 500)
    for store, is_prefix in ((build(rows), False), (build(rows, order=order), True)):
        fixed = fixed_bytes(store, is_prefix)
        for limit in (fixed + 1000, fixed + 20_000, 10**9):
            (plan,) = plan_caches({"x": store}, limit, 500, hotness={"x": scores}).values()
            count = min(500, len(plan.ids))
            assert torch.equal(plan.ids, order[:count]) and plan.is_prefix == is_prefix
            assert count == rows_that_fit(store, order, limit, 1.0, fixed)
            check_plan({"x": plan}, {"x": store}, limit)


def test_ties_and_a_number_of_rows() -> None:
    stores = {"b": build(mixed_rows(4, 5)), "a": build(mixed_rows(4, 5))}
    hotness = {"b": torch.tensor([1, 3, 2, 3, 0]), "a": torch.tensor([3, 3, 0, 2, 9])}
    plans = plan_caches(stores, None, 4, hotness=hotness)
    assert (plans["b"].ids.tolist(), plans["a"].ids.tolist()) == ([1, 3], [4, 0])
    plans = plan_caches(stores, None, 7, hotness=hotness)
    assert (plans["b"].ids.tolist(), plans["a"].ids.tolist()) == ([1, 3, 2], [4, 0, 1, 3])
    plans = plan_caches(stores, None, 1, hotness=hotness)
    assert (plans["b"].ids.tolist(), plans["b"].nbytes) == ([], 0)
    assert list(plans) == ["b", "a"]


def test_a_feature_that_is_not_worth_its_table_has_no_cache() -> None:
    """Its hottest row is the hottest of all, but the table of places of its many rows leaves room for no other row."""
    stores = {"large": build(mixed_rows(4, 5000)), "small": build(mixed_rows(30, 200))}
    hotness = {"large": torch.zeros(5000), "small": torch.full((200,), 90)}
    hotness["large"][4000], hotness["small"][:5] = 100, 80
    limit = fixed_bytes(stores["large"], False) + 2000
    plans = plan_caches(stores, limit, 5200, hotness=hotness)
    assert len(plans["large"].ids) == 0 and len(plans["small"].ids) > 50
    check_plan(plans, stores, limit)


def test_rows_that_are_never_read_fill_what_is_left() -> None:
    stores = {"a": build(mixed_rows(4, 50)), "b": build(mixed_rows(4, 50))}
    plans = plan_caches(stores, 10**6, 100, hotness={"a": torch.ones(50), "b": torch.zeros(50)})
    assert [len(plan.ids) for plan in plans.values()] == [50, 50]


def test_without_hotness_each_store_is_cached_from_its_start() -> None:
    order = torch.arange(299, -1, -1)
    stores = {"ordered": build(mixed_rows(8, 300), order=order), "plain": build(mixed_rows(8, 100))}
    plans = plan_caches(stores, None, 200)
    assert torch.equal(plans["ordered"].ids, order[:150]) and torch.equal(plans["plain"].ids, torch.arange(50))
    assert plans["ordered"].is_prefix and plans["plain"].is_prefix
    check_plan(plans, stores, 10**9)


def test_errors_of_a_plan() -> None:
    stores = {"a": build(mixed_rows(4, 5)), "b": build(mixed_rows(4, 6))}
    good = torch.ones(6)
    smallest = min(nbytes_of(store, torch.tensor([0]), True) for store in stores.values())
    with pytest.raises(ValueError, match=f"capacity: want at least {smallest} bytes .one row., got {smallest - 1} "):
        plan_caches(stores, smallest - 1, 11, hotness={"a": torch.ones(5), "b": good})
    assert sum(len(plan.ids) for plan in plan_caches(stores, smallest, 11).values()) == 1
    for scores, message in (
        ({"a": torch.ones(4), "b": good}, r"hotness of 'a': want shape \[5\], got \[4\]"),
        ({"b": good}, r"hotness: want the keys of stores, \['a', 'b'\], got \['b'\]"),
        ({"a": torch.tensor([1, 1, -2, 1, 1]), "b": good}, "hotness of 'a': want finite numbers >= 0, got -2.0"),
        ({"a": torch.full((5,), float("nan")), "b": good}, "hotness of 'a': want finite numbers >= 0, got nan"),
        ({"a": torch.full((5,), float("inf")), "b": good}, "hotness of 'a': want finite numbers >= 0, got inf"),
    ):
        with pytest.raises(ValueError, match=message):
            plan_caches(stores, 10**6, 11, hotness=scores)
    with pytest.raises(ValueError, match="stores: want at least 1, got none"):
        plan_caches({}, 10**6, 0)
    with pytest.raises(ValueError, match="device: want cuda, got cpu"):
        share_budget(stores, 0.5, device="cpu")


def test_it_is_public() -> None:
    assert "share_budget" in ibp_gnn.__all__ and ibp_gnn.share_budget is share_budget


@pytest.mark.cuda
@pytest.mark.parametrize("in_order", [False, True])
@pytest.mark.parametrize("capacity", [0.1, 0.5, "60KB", "800 rows", "auto"])
def test_caches_are_as_planned(capacity: float | str, in_order: bool) -> None:
    generator = torch.Generator().manual_seed(3)
    rows = {"a": mixed_rows(50, 1000), "b": mixed_rows(16, 700), ("a", "to", "b"): mixed_rows(3, 2000)}
    hotness = {key: torch.rand(len(part), generator=generator) for key, part in rows.items()}
    stores = {
        key: build(part, order=hottest_first(hotness[key], len(part)) if in_order else None)
        for key, part in rows.items()
    }
    total = sum(store.nbytes for store in stores.values())
    limit = {"60KB": 60_000, "800 rows": None, "auto": 10**9}.get(capacity, None)  # type: ignore[call-overload]
    if isinstance(capacity, float):
        limit = round(capacity * total)
    plans = plan_caches(stores, limit, 800 if capacity == "800 rows" else 3700, hotness=hotness)
    sources = share_budget(stores, capacity, hotness=hotness)
    assert list(sources) == list(stores)
    caches = {key: source for key, source in sources.items() if isinstance(source, CompressedGPUCache)}
    assert sum(cache.num_cached for cache in caches.values()) > 0
    assert limit is None or sum(cache.nbytes for cache in caches.values()) <= limit
    for key, source in sources.items():
        ids = torch.randint(0, len(rows[key]), (3000,), generator=generator)
        assert_bitwise_equal(source.gather(ids.cuda()).cpu(), rows[key][ids])
        cache = caches.get(key)
        if cache is None:
            assert source is stores[key] and len(plans[key].ids) == 0
        else:
            assert (cache.num_cached, cache.nbytes) == (len(plans[key].ids), plans[key].nbytes)
            assert cache.stats().hits == int(torch.isin(ids, plans[key].ids).sum())
        stores[key].close()


@pytest.mark.cuda
def test_more_than_all_of_them_need() -> None:
    stores = {"a": build(mixed_rows(8, 100)), "b": build(mixed_rows(8, 100))}
    with pytest.warns(UserWarning, match="is more than the .* bytes that caching 200 rows takes"):
        sources = share_budget(stores, "1GB")
    for source in sources.values():
        assert isinstance(source, CompressedGPUCache) and source.num_cached == 100
    with pytest.raises(ValueError, match="capacity: want bytes .* got 1.5"):
        share_budget(stores, 1.5)
    for store in stores.values():
        store.close()

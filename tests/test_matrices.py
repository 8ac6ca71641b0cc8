"""Leaving cases out leaves no value of an axis out."""

from __future__ import annotations

import itertools

import pytest
from matrices import pairs, part_of


@pytest.mark.parametrize("of", [2, 3, 4])
def test_every_value_meets_some_of_every_other_axis(of: int) -> None:
    dtypes, kinds, widths = range(12), range(8), range(13)
    chosen = {
        (dtype, kind, width)
        for dtype, kind in itertools.product(dtypes, kinds)
        for width in part_of(widths, dtype, kind, of=of, exhaustive=False)
    }
    assert len(chosen) == pytest.approx(12 * 8 * 13 / of, rel=0.1)
    for one, other in itertools.combinations(range(3), 2):
        met = {(case[one], case[other]) for case in chosen}
        assert met == set(itertools.product(*(((dtypes, kinds, widths)[axis]) for axis in (one, other))))


@pytest.mark.parametrize("of", [2, 4])
def test_pairs(of: int) -> None:
    some = pairs(range(12), range(8), of=of, exhaustive=False)
    assert len(some) == len(set(some)) == 12 * 8 // of
    assert {one for one, _ in some} == set(range(12)) and {other for _, other in some} == set(range(8))


def test_all_of_it() -> None:
    assert part_of(range(5), 3, of=4, exhaustive=True) == range(5)
    assert pairs("ab", "cd", of=2, exhaustive=True) == list(itertools.product("ab", "cd"))

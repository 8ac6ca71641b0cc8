"""How much of a matrix of cases to run: a part in which every value of every axis is met, or, with
IBP_TEST_EXHAUSTIVE=1, all of it."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TypeVar

Value = TypeVar("Value")

EXHAUSTIVE = os.environ.get("IBP_TEST_EXHAUSTIVE", "0") not in ("", "0")


def part_of(values: Sequence[Value], *places: int, of: int, exhaustive: bool = EXHAUSTIVE) -> Sequence[Value]:
    """One of `of` parts of the values of an axis. places: where the case stands on the other axes.

    Neighbours on another axis get different parts, so that `of` of them in a row meet all values.
    """
    return values if exhaustive else values[sum(places) % of :: of]


def pairs(
    first: Sequence[Value], second: Sequence[Value], *, of: int, exhaustive: bool = EXHAUSTIVE
) -> list[tuple[Value, Value]]:
    """One of `of` parts of the product of two axes, as evenly as on a chessboard."""
    return [
        (one, other)
        for place, one in enumerate(first)
        for other in part_of(second, place, of=of, exhaustive=exhaustive)
    ]

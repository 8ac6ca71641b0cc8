"""Markdown tables."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def markdown(names: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """names: of the columns. rows: a cell for each column."""
    lines = [f"| {' | '.join(map(str, cells))} |" for cells in (names, *rows)]
    return "\n".join([lines[0], "|" + "---|" * len(names), *lines[1:]])

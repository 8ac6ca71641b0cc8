"""Headers that say anything at all, with right checksums: refused at once, before memory is taken for what they say."""

from __future__ import annotations

import copy
import json
import multiprocessing
import resource
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from store_files import rewrite

from ibp_gnn import CompressedFeatureStore, FormatError
from ibp_gnn.testing import special_rows

MOST_SECONDS = 1.0
MOST_BYTES = 256 << 20  # that a process may take more than it had


def nested(depth: int, value: Any = 0) -> Any:
    for _ in range(depth):
        value = [value]
    return value


VALUES: list[Any] = [
    *(0, 1, -1, 8, 2**31, 2**33, 2**48 + 1, 2**63, 2**64, 10**300, -(10**300), 10**4000),
    *(0.5, 1e308, float("nan"), float("-inf")),
    *("", "x" * 10_000, "\ud800", "float64"),
    *(None, True, False, [], {}, [2**33], [2**47] * 64, [1] * 65, nested(900), {"x": nested(500)}),
]


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Of every member of every object and list."""
    steps = value if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
    for step in steps:
        yield (*path, step)
        yield from places(value[step], (*path, step))


def changed(members: dict[str, Any], path: tuple[Any, ...], value: Any) -> dict[str, Any]:
    result = copy.deepcopy(members)
    at: Any = result
    for step in path[:-1]:
        at = at[step]
    at[path[-1]] = value
    return result


def fuzz(path: str, below: tuple[Any, ...], answers: Any) -> None:
    """Loads the store file with each member of its header below that place replaced by each value. Puts how many they
    were, and what went wrong."""
    file = Path(path)
    members: dict[str, Any] = {}
    rewrite(file, lambda found: members.update(copy.deepcopy(found)))
    whole = file.read_bytes()
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + MOST_BYTES, resource.RLIM_INFINITY))
    wrong, count = [], 0
    for place in (place for place in places(members) if place[: len(below)] == below):
        for value in VALUES:
            file.write_bytes(whole)
            text = json.dumps(changed(members, place, value)).encode()
            rewrite(file, lambda _, text=text: text)  # type: ignore[misc]
            start = time.perf_counter()
            try:
                with CompressedFeatureStore.load(file, pin=False):
                    outcome = "was loaded"
            except FormatError as error:
                outcome = "" if len(str(error)) < 20_000 else f"a message of {len(str(error))} characters"
            except BaseException as error:
                outcome = f"{type(error).__name__}: {str(error)[:200]}"
            seconds = time.perf_counter() - start
            if outcome == "was loaded" and (value == at(members, place) or is_legal(place, value)):
                outcome = ""
            if seconds > MOST_SECONDS:
                outcome += f" after {seconds:.1f} s"
            if outcome:
                wrong.append(f"{place} = {str(value)[:40]}: {outcome}")
            count += 1
    answers.put((count, wrong))


def at(members: Any, path: tuple[Any, ...]) -> Any:
    for step in path:
        members = members[step]
    return members


def is_legal(path: tuple[Any, ...], value: Any) -> bool:
    """Whether a store could say this, too, if its rows were others."""
    if path[:2] != ("codec", "parameters"):
        lengths = ("lead_bytes",), ("packed", "unit_bytes"), ("packed", "least_bytes")
        return path in lengths and type(value) is int
    if path[2] in ("sign_low", "zero_code"):
        return type(value) is bool
    if path[2] == "threshold":
        return type(value) in (int, float)
    return path[2] in ("trim_bits", "word_bits", "words_per_chunk") and type(value) is int


@pytest.mark.parametrize(
    ("codec", "layout", "below"),
    [("dict", "compact", ()), ("ibp", "compact", ("codec", "parameters")), ("dict", "packed", ("packed",))],
)
def test_any_value_of_any_member(codec: str, layout: Any, below: tuple[Any, ...], tmp_path: Path) -> None:
    rows = special_rows(torch.float32, 33, "outliers", 100, seed=3)
    rows[::9] = special_rows(torch.float32, 33, "random_bits", 12, seed=4)
    store = CompressedFeatureStore.build(rows, codec, layout=layout, order=torch.arange(99, -1, -1), progress=False)
    store.save(tmp_path / "s.ibp")
    context = multiprocessing.get_context("spawn")
    answers = context.SimpleQueue()
    process = context.Process(target=fuzz, args=(str(tmp_path / "s.ibp"), below, answers))
    process.start()
    process.join(120)
    assert process.exitcode == 0, process.exitcode
    count, wrong = answers.get()
    assert count >= 3 * len(VALUES)
    assert not wrong, "\n".join(wrong)

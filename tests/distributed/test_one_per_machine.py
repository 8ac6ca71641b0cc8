"""One store for all ranks of a machine."""

from __future__ import annotations

import os
from datetime import timedelta
from pathlib import Path

import pytest
import rank_processes

from ibp_gnn.distributed.one_per_machine import one_per_machine

PROGRAM = str(Path(__file__).parent / "sharing_ranks.py")


@pytest.mark.parametrize(
    ("machines", "said"),
    [
        ([2], [["made", "0"], ["0"]]),
        ([1, 2], [["made", "0"], ["made", "1"], ["1"]]),
        ([2, 1], [["made", "0"], ["0"], ["made", "2"]]),
    ],
)
def test_one_makes_it_and_all_read_it(tmp_path: Path, machines: list[int], said: list[list[str]]) -> None:
    before = set(os.listdir("/dev/shm"))
    done = rank_processes.run([[PROGRAM, "rows"]] * sum(machines), tmp_path, machines=machines)
    assert [status for status, *_ in done] == [0] * len(done), done
    assert [output.split() for _, output, _ in done] == said
    assert rank_processes.left_in_shared_memory(before) == set()


def test_machines_with_other_numbers_of_processes(tmp_path: Path) -> None:
    done = rank_processes.run([[PROGRAM, "uneven"]] * 3, tmp_path)
    assert [status for status, *_ in done] == [0] * 3, done
    assert [output.splitlines() for _, output, _ in done] == [[f"made by {i}", "[0, 1, 2]"] for i in (0, 0, 2)]


def test_what_it_raises_is_raised_by_all(tmp_path: Path) -> None:
    done = rank_processes.run([[PROGRAM, "error"]] * 2, tmp_path)
    assert [(status, output) for status, output, _ in done] == [(0, "store: there is none\n")] * 2, done


def test_the_one_that_makes_it_dies(tmp_path: Path) -> None:
    done = rank_processes.run([[PROGRAM, "maker dies"]] * 2, tmp_path)
    assert [status for status, *_ in done] == [9, 1]
    assert "RuntimeError: the process of this machine that makes the store has ended before" in done[1][2]


def test_another_one_dies(tmp_path: Path) -> None:
    done = rank_processes.run([[PROGRAM, "other dies"]] * 2, tmp_path)
    assert [status for status, *_ in done] == [1, 9]
    assert "RuntimeError: want 1 other processes of this machine, got 0 after 2 s" in done[0][2]


def test_a_process_that_is_alone_makes_it() -> None:
    assert one_per_machine(lambda: "made", local_rank=0, local_size=1, timeout=timedelta(0)) == "made"

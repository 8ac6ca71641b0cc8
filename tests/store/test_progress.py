"""Progress bars: where they are drawn, from when on, and that they count bytes."""

from __future__ import annotations

import io
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from ibp_gnn import CompressedFeatureStore
from ibp_gnn.store import build, progress
from ibp_gnn.store.build import Job
from ibp_gnn.store.file import reading
from ibp_gnn.store.file.building import build_file
from ibp_gnn.store.progress import progress_bar


class Terminal(io.StringIO):
    def __init__(self, is_terminal: bool = True) -> None:
        super().__init__()
        self._is_terminal = is_terminal

    def isatty(self) -> bool:
        return self._is_terminal


def on_terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """stderr, from now on. (Not a fixture: pytest has its own stderr back when the test starts.)"""
    made = Terminal()
    monkeypatch.setattr(sys, "stderr", made)
    return made


@pytest.fixture
def bars(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """All that are made, as they are."""
    made: list[Any] = []

    def keeping(*args: Any, **options: Any) -> Any:
        made.append(progress_bar(*args, **options))
        return made[-1]

    for module in (build, reading):
        monkeypatch.setattr(module, "progress_bar", keeping)
    return made


def test_none_draws_on_a_terminal_after_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = on_terminal(monkeypatch)
    with progress_bar("work", 100, None) as bar:
        bar.update(50)
    assert terminal.getvalue() == "", "want nothing of what takes less"
    monkeypatch.setattr(progress, "_DELAY_SECONDS", 1e-9)
    with progress_bar("work", 3 << 20, None) as bar:
        bar.update(3 << 20)
    assert "work: 100%" in terminal.getvalue() and "3.00M/3.00M" in terminal.getvalue()
    assert "B/s]" in terminal.getvalue(), "want bytes a second"


@pytest.mark.parametrize("stderr", [Terminal(is_terminal=False), None])
def test_none_draws_nowhere_else(stderr: Terminal | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", stderr)
    monkeypatch.setattr(progress, "_DELAY_SECONDS", 1e-9)
    with progress_bar("work", 100, None) as bar:
        bar.update(100)
    assert stderr is None or stderr.getvalue() == ""


def test_true_and_false_decide(monkeypatch: pytest.MonkeyPatch) -> None:
    for show in (True, False):
        pipe = Terminal(is_terminal=False)
        monkeypatch.setattr(sys, "stderr", pipe)
        with progress_bar("work", 100, show) as bar:
            bar.update(100)
        assert ("work: 100%" in pipe.getvalue()) is show


def test_a_build_has_one_bar_over_both_passes(bars: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = on_terminal(monkeypatch)
    rows = torch.randn(3000, 8)
    CompressedFeatureStore.build(rows, progress=True, chunk_rows=64)
    order = torch.randperm(3000)
    job = Job.check(rows, "auto", "compact", order, 64, True)
    build_file(job, tmp_path / "store.ibp", {})
    assert [(bar.desc, bar.n, bar.total) for bar in bars] == [("compressing", 2 * rows.nbytes, 2 * rows.nbytes)] * 2
    bars.clear()
    CompressedFeatureStore.load(tmp_path / "store.ibp", progress=True).close()
    assert [(bar.desc, bar.n, bar.total) for bar in bars] == [("verifying", bars[0].total, bars[0].total)]
    assert bars[0].total > 0.5 * rows.nbytes
    assert "compressing: 100%" in terminal.getvalue() and "verifying: 100%" in terminal.getvalue()


def test_a_build_that_goes_on_counts_what_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    job = Job.check(torch.zeros(1000, 8), "auto", "compact", None, 64, True)
    with job.bar(is_sized=True, rows_done=640) as bar:
        assert (bar.n, bar.total) == ((1000 + 640) * 32, 2 * 1000 * 32)


def test_by_default_short_work_is_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = on_terminal(monkeypatch)
    CompressedFeatureStore.build(torch.zeros(500, 8))
    assert terminal.getvalue() == ""

"""scripts/soak.py: it runs, and it notices wrong rows, growth, and updates that leave something behind."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from ibp_gnn import CompressedFeatureStore

REPOSITORY = Path(__file__).resolve().parents[2]
Part = Callable[[str], Any]


class NoReader:
    """In the place of the spawned process: answers itself."""

    def ask(self, request: Any) -> Any:
        if isinstance(request, CompressedFeatureStore):
            self.store = request
        return self.store.gather(request) if isinstance(request, torch.Tensor) else None


@pytest.fixture
def run_round(part: Part) -> Callable[[int], Any]:
    rounds = part("soaks.rounds")

    def run(index: int) -> Any:
        one = rounds.Round(7, index, 2, "cpu", NoReader())
        one.run()
        return one

    return run


@pytest.mark.slow
def test_it_runs_and_says_how_to_run_it_again(tmp_path: Path) -> None:
    command = [sys.executable, "scripts/soak.py", "--minutes", "0.05", "--seed", "5", "--device", "cpu"]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONSAFEPATH"}
    done = subprocess.run(
        [*command, "--json", str(tmp_path / "out.json")],
        cwd=REPOSITORY,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    record = json.loads((tmp_path / "out.json").read_text())
    assert record["seed"] == 5 and record["rounds"] >= 1 and record["values_compared"] > 0
    assert record["failures"] == [] and done.stdout.startswith("seed 5\n")


def test_bad_arguments_are_refused(part: Part, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        part("soak").main(["--threads", "0"])
    assert "--threads: want at least 1, got 0" in capsys.readouterr().err


def test_a_wrong_row_is_noticed(run_round: Callable[[int], Any], monkeypatch: pytest.MonkeyPatch, part: Part) -> None:
    truth = part("soaks.truth")
    gather = CompressedFeatureStore.gather

    def wrong(self: CompressedFeatureStore, ids: Any, *rest: Any, **named: Any) -> torch.Tensor:
        rows = gather(self, ids, *rest, **named)
        if rows.numel() > 0:
            rows.view(-1).view(torch.uint8)[0] ^= 1
        return rows

    monkeypatch.setattr(CompressedFeatureStore, "gather", wrong)
    with pytest.raises(truth.Difference, match="of 1 versions none has these rows|of [0-9]+ versions none"):
        for index in range(3):
            run_round(index)


def test_an_update_that_fails_half_way_is_noticed(part: Part) -> None:
    truth = part("soaks.truth")
    rows = torch.zeros(10, 2)
    known = truth.Truth(rows)
    ids = torch.tensor([4])
    known.begin(ids, torch.ones(1, 2))
    after = rows.clone()
    after[4] = 1
    known.compare(after[ids], ids, 0, "meanwhile")  # either is right
    known.compare(rows[ids], ids, 0, "meanwhile")
    known.take_back()
    known.compare(rows[ids], ids, known.committed, "after")
    with pytest.raises(truth.Difference):
        known.compare(after[ids], ids, known.committed, "after")
    known.begin(ids, torch.ones(1, 2))
    known.commit()
    known.compare(after[ids], ids, known.committed, "after")
    with pytest.raises(truth.Difference):
        known.compare(rows[ids], ids, known.committed, "after")


def test_growth_is_noticed(part: Part, monkeypatch: pytest.MonkeyPatch) -> None:
    ceilings = part("soaks.ceilings")
    now = {"rss": 100, "page_locks": 0, "gpu": 0, "descriptors": 5, "mappings": 0}
    monkeypatch.setattr(ceilings, "held", lambda: dict(now))
    checked = ceilings.Ceilings(most_rss=50, settles_after=1)
    checked.check()
    now["rss"] = 150
    checked.check()
    now["mappings"] = 1
    with pytest.raises(ceilings.Growth, match="mappings: want at most 0 more than 0, got 1"):
        checked.check()
    now.update(mappings=0, rss=151)
    with pytest.raises(ceilings.Growth, match="rss: want at most 50 more than 100, got 151"):
        checked.check()


def test_what_is_held_is_measured(part: Part) -> None:
    held = part("soaks.ceilings").held()
    assert held["rss"] > 1 << 20 and held["descriptors"] > 2 and held["page_locks"] >= 0


def test_random_rows_are_of_one_dtype_and_shape(part: Part) -> None:
    make = part("soaks.make")
    rng = random.Random(3)
    for dtype in make.DTYPES:
        rows = make.some_rows(rng, dtype, 5, 40)
        assert rows.shape == (40, 5) and rows.dtype == dtype
    assert len(make.some_ids(rng, 5, 100)) <= 100

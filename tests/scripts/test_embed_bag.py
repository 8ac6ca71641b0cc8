"""scripts/embed_bag.py: neighbours are those of the raw table; a missing package is named with its command."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch

from ibp_gnn.config import load

REPOSITORY = Path(__file__).resolve().parents[2]
SCRIPT, CONFIG = REPOSITORY / "scripts" / "embed_bag.py", REPOSITORY / "configs" / "wordllama_bag.yaml"
needs_table = pytest.mark.skipif(find_spec("wordllama") is None, reason="wordllama is not installed")


def test_a_missing_package_is_named(part: Any, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    script = part("embed_bag")
    monkeypatch.setattr(script.importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(sys, "argv", ["embed_bag.py", "--config", str(CONFIG)])
    assert script.main() == 2
    assert "pip install wordllama==0.4.0.post1" in capsys.readouterr().err


def test_neighbours_leave_the_query_out(part: Any) -> None:
    pooled = torch.tensor([[1.0, 0], [0.9, 0.1], [0, 1], [0.1, 0.9], [1, 0.05]])
    assert part("embed_bag").neighbours(pooled, 4, [0, 4], 2) == [[1, 3], [0, 1]]


def test_the_config_is_one(part: Any) -> None:
    config = load(part("embed_bag").Config, CONFIG)
    assert len(config.texts) == 3 and config.neighbours == 4


@needs_table
def test_the_real_table() -> None:
    settings = ["log.progress=false", "check_queries=20", "device=cpu"]
    command = [sys.executable, str(SCRIPT), "--config", str(CONFIG), "--set", *settings]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=REPOSITORY)
    result = json.loads(done.stdout.splitlines()[-1])
    assert result["queries"] == result["queries_with_same_neighbours"] == 25
    assert result["max_difference"] == 0 and 0.05 < result["savings"] < 0.15
    assert "differs" not in done.stdout and "a small domestic animal" in done.stdout

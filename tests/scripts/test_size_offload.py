"""scripts/size_offload.py, and the table in docs/llm.md, which it wrote."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "llm.md"


@pytest.fixture(scope="module")
def script(part: Any) -> ModuleType:
    return part("size_offload")


def run(script: ModuleType, *arguments: str) -> int:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["size_offload.py", *arguments])
        status: int = script.main()
        return status


def test_the_table_in_the_document(script: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(script) == 0
    (shown,) = re.findall(r"<!-- sizes of offload -->\n(.*?)<!-- end -->", DOCUMENT.read_text("utf-8"), re.DOTALL)
    assert capsys.readouterr().out == shown, "run scripts/size_offload.py, and put what it prints there"


def test_other_models_and_links(script: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shape = "{name: tiny, hidden: 1024, intermediate: 2048, layers: 10, heads: 16, kv_heads: 16, vocab: 1000}"
    path = tmp_path / "out.json"
    cases = f"cases=[{{shape: {shape}, gpu_gb: 0.1, reserve_gb: 0}}]"
    assert run(script, "--set", cases, "links_gb_s=[10]", "ratio=0.5", "--json", str(path)) == 0
    (record,) = json.loads(path.read_text())
    values = 10 * (4 * 1024 * 1024 + 3 * 1024 * 2048) + 2 * 1024 * 1000
    assert record["ours"]["raw_gb"] == pytest.approx(2 * values / 1e9)
    assert record["ours"]["compressed_gb"] == pytest.approx(values / 1e9, rel=1e-6)
    assert 0 < record["ours"]["crossing_gb"] < record["raw"]["crossing_gb"] / 2
    assert record["ours"]["tokens_s"] == [pytest.approx(10 / record["ours"]["crossing_gb"])]
    assert "tiny" in capsys.readouterr().out


def test_a_gpu_that_is_too_small(script: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    shape = "{name: tiny, hidden: 1024, intermediate: 2048, layers: 10, heads: 16, kv_heads: 16, vocab: 1000}"
    assert run(script, "--set", f"cases=[{{shape: {shape}, gpu_gb: 0.001, reserve_gb: 0}}]") == 2
    assert "gpu_budget: want at least" in capsys.readouterr().err

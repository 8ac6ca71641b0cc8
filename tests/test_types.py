"""What a type checker outside of the repository sees of the package."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

import ibp_gnn

PROGRAM = Path(__file__).parent / "typed_program.py"
WRONG = """
import torch
import ibp_gnn

store = ibp_gnn.CompressedFeatureStore.build("features.npy")
store.gather([1, 2])
store.gathr(torch.tensor([1]))
ibp_gnn.CompressedFeatureStor
rows: int = store[3]
ibp_gnn.CompressedFeatureStore.build(torch.zeros(3, 2), layout="dense")
"""


@pytest.fixture(scope="module")
def errors(tmp_path_factory: pytest.TempPathFactory) -> dict[str, set[str]]:
    """What mypy --strict says of both programs, by name of the file. It runs in a folder without settings; the package
    under test is an installed one there."""
    if importlib.util.find_spec("mypy") is None:
        pytest.skip("mypy is not installed")
    folder = tmp_path_factory.mktemp("types")
    (folder / "wrong.py").write_text(WRONG)
    environment = {**os.environ, "PYTHONPATH": str(Path(ibp_gnn.__file__).parents[1])}
    command = [sys.executable, "-m", "mypy", "--strict", str(PROGRAM), "wrong.py"]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=500)
    assert "in 1 file (checked 2 source files)" in done.stdout, done.stdout + done.stderr
    found: dict[str, set[str]] = {PROGRAM.name: set(), "wrong.py": set()}
    for line in done.stdout.splitlines()[:-1]:
        path, number, what = line.split(":", 2)
        found[Path(path).name].add(f"{number}:{what}")
    return found


def test_a_program_passes_strict(errors: dict[str, set[str]]) -> None:
    assert errors[PROGRAM.name] == set()


def test_mistakes_are_found(errors: dict[str, set[str]]) -> None:
    assert {int(error.split(":")[0]) for error in errors["wrong.py"]} == {5, 6, 7, 8, 9, 10}, errors


def test_the_program_runs(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(Path(ibp_gnn.__file__).parents[1])}
    done = subprocess.run(
        [sys.executable, str(PROGRAM)], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120
    )
    assert done.stdout.startswith("CompressedFeatureStore([100, 4] torch.float32, compact"), done.stderr

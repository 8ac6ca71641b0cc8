"""scripts/quickstart.sh and scripts/test.sh: a Python that cannot work is refused at once, before anything is made."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """Nothing of it but the two scripts: whatever else they reach for fails."""
    folder = tmp_path / "repository"
    (folder / "scripts").mkdir(parents=True)
    for name in ("_env.sh", "quickstart.sh", "test.sh"):
        shutil.copy(REPOSITORY / "scripts" / name, folder / "scripts")
    return folder


def make_python(path: Path, version: str) -> Path:
    """A Python that answers all questions with its version."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\necho {version}\n")
    path.chmod(0o755)
    return path


def call(repository: Path, script: str, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHON", "IBP_TEST_ENVS")}
    return subprocess.run(
        ["bash", str(repository / "scripts" / script)],
        env=environment | variables,
        capture_output=True,
        text=True,
        timeout=60,
    )


@pytest.mark.parametrize("script", ["quickstart.sh", "test.sh"])
@pytest.mark.parametrize(
    ("version", "reason"),
    [
        ("3.13", "want Python 3.10 to 3.12, since DGL has no wheel for later ones, got 3.13 (python3)"),
        ("3.20", "want Python 3.10 to 3.12, since DGL has no wheel for later ones, got 3.20 (python3)"),
        ("3.9", "want Python 3.10 to 3.12, got 3.9 (python3)"),
        ("2.7", "want Python 3.10 to 3.12, got 2.7 (python3)"),
    ],
)
def test_a_python_that_cannot_work(tmp_path: Path, repository: Path, script: str, version: str, reason: str) -> None:
    python = make_python(tmp_path / "bin" / "python3", version)
    done = call(repository, script, PATH=f"{python.parent}:{os.environ['PATH']}")
    assert done.returncode == 1
    assert done.stderr == f"error: {reason}; set PYTHON to another one\n"
    assert [entry.name for entry in repository.iterdir()] == ["scripts"] and done.stdout == ""


def test_a_python_that_is_not_there(repository: Path) -> None:
    done = call(repository, "quickstart.sh", PYTHON="/no/python")
    assert done.returncode == 1
    assert "error: want Python 3.10 to 3.12, but /no/python does not run" in done.stderr


def test_an_environment_of_another_python(tmp_path: Path, repository: Path) -> None:
    make_python(repository / ".venv" / "bin" / "python", "3.11")
    python = make_python(tmp_path / "python3.12", "3.12")
    done = call(repository, "quickstart.sh", PYTHON=str(python))
    assert done.returncode == 1
    wanted = f"error: want {python} in .venv, which was made with Python 3.11: remove that folder, or unset PYTHON\n"
    assert done.stderr == wanted

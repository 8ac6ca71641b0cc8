"""Fixtures of the data set tests."""

from __future__ import annotations

import builtins
import shutil
import socket
from pathlib import Path

import feature_files
import ogb_folders as folders
import pytest

rows, npy = feature_files.rows, feature_files.npy


@pytest.fixture
def no_questions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails a test in which something asks on stdin or looks up a name on the network."""

    def ask(prompt: object = "") -> str:
        pytest.fail(f"asked on stdin: {prompt}")

    def look_up(host: object, *_: object, **__: object) -> object:
        pytest.fail(f"looked up {host} on the network")

    monkeypatch.setattr(builtins, "input", ask)
    monkeypatch.setattr(socket, "getaddrinfo", look_up)


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Submission folders of DatasetSaver; not to be changed."""
    base = tmp_path_factory.mktemp("saved")
    return {
        "homogeneous": folders.save_homogeneous(base / "homogeneous"),
        "hetero": folders.save_hetero(base / "hetero"),
    }


@pytest.fixture
def submission(saved: dict[str, Path], tmp_path: Path) -> Path:
    """A homogeneous one of your own, not where it was written."""
    return Path(shutil.copytree(saved["homogeneous"], tmp_path / "moved"))

"""The record of a run: written whole or not at all, where the path was checked before the run."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest
import torch

import ibp_gnn
from ibp_gnn.config import ConfigError
from ibp_gnn.training import record


def test_a_path_is_prepared_and_written(tmp_path: Path) -> None:
    path = record.prepare(str(tmp_path / "a" / "run.json"))
    assert os.listdir(tmp_path) == [], "a run that fails leaves no file, and no folder"
    for content in ({"x": 1}, {"y": [2.5, None]}):
        record.write(path, content)
        assert json.loads(path.read_text(encoding="utf-8")) == content
        assert os.listdir(path.parent) == ["run.json"]


def test_an_older_record_stays_when_writing_fails(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    record.write(path, {"x": 1})
    with pytest.raises(TypeError):
        record.write(path, {"x": object()})
    assert json.loads(path.read_text()) == {"x": 1}


def test_paths_where_nothing_can_be_written(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=f"^log.json: want a file, got the folder {tmp_path}"):
        record.prepare(tmp_path)
    with pytest.raises(ConfigError, match="^log.json: want a file in a folder that exists, or in a new one of it, got"):
        record.prepare(tmp_path / "a" / "b" / "run.json")
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="^output.logits: cannot write .*file/x.npy: "):
        record.prepare(tmp_path / "file" / "x.npy", "output.logits")


def test_the_commit_of_a_checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("IBP_GNN_COMMIT", raising=False)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert record.git_commit(tmp_path) is None
    for arguments in (
        ["init", "-q"],
        ["add", "."],
        ["-c", "user.name=x", "-c", "user.email=x@x", "commit", "-q", "-m", "x"],
    ):
        (tmp_path / "x").write_text("1")
        if subprocess.run(["git", *arguments], cwd=tmp_path, capture_output=True).returncode:
            pytest.skip("wants git")
    commit = record.git_commit(tmp_path)
    assert commit is not None and len(commit) == 40
    (tmp_path / "x").write_text("2")
    assert record.git_commit(tmp_path) == f"{commit}-dirty"
    monkeypatch.setenv("IBP_GNN_COMMIT", "told")
    assert record.git_commit(tmp_path) == "told"


def test_what_ran_and_on_what() -> None:
    assert record.versions()["torch"] == torch.__version__
    assert record.versions()["ibp_gnn"] == ibp_gnn.__version__, "in a source tree, too"
    found = record.hardware(torch.device("cpu"))
    assert found["gpu"] is None and found["torch_threads"] == torch.get_num_threads()
    assert found["cpu"] and 1 <= found["cores"] <= (os.cpu_count() or 1)

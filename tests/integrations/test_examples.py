"""The scripts of docs/examples run as they are; each compares bits itself."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import ibp_gnn

REPOSITORY = Path(__file__).parents[2]
FOLDER = REPOSITORY / "docs" / "examples"


def needs(library: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(importlib.util.find_spec(library) is None, reason=f"{library} is not installed")


# What the last line says.
EXAMPLES = {
    "first_store.py": (r"features.ibp: 4\.\d MB, the same rows", ()),
    "train_dgl.py": (r"epoch 3: accuracy (0\.[89]\d|1\.00)", (needs("dgl"),)),
    "train_pyg.py": (r"epoch 3: accuracy (0\.[89]\d|1\.00)", (needs("torch_geometric"),)),
    "gpu_cache.py": (r"misses: \d+\.\d%; .* MB over PCIe, raw .* MB", (pytest.mark.cuda,)),
}


@pytest.mark.parametrize("name", [pytest.param(name, marks=marks) for name, (_, marks) in EXAMPLES.items()])
def test_example(name: str, tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(Path(ibp_gnn.__file__).parents[1])}
    done = subprocess.run(
        [sys.executable, str(FOLDER / name)], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    assert re.fullmatch(EXAMPLES[name][0], done.stdout.splitlines()[-1]), done.stdout
    assert list(tmp_path.iterdir()) == [], "want no files left"


def test_all_are_tested_and_linked() -> None:
    assert sorted(path.name for path in FOLDER.iterdir() if path.suffix == ".py") == sorted(EXAMPLES)
    adapters = (REPOSITORY / "docs" / "adapters.md").read_text(encoding="utf-8")
    for name in EXAMPLES:
        text = (FOLDER / name).read_text(encoding="utf-8")
        assert f"python docs/examples/{name}" in text and f"(examples/{name})" in adapters
        assert len(text.splitlines()) <= 60, name

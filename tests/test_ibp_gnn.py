"""The package's public names, which are resolved on first use."""

from __future__ import annotations

import importlib
import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

import ibp_gnn

NEED_DGL = ("attach", "detach", "fetch", "GraphBoltFeatureStore")


@pytest.mark.parametrize("name", ibp_gnn.__all__)
def test_a_public_name_is_that_of_its_module(name: str) -> None:
    if name in NEED_DGL and importlib.util.find_spec("dgl") is None:
        pytest.skip("DGL is not installed")
    module = importlib.import_module(ibp_gnn._LAZY_NAMES[name], "ibp_gnn")
    assert getattr(ibp_gnn, name) is getattr(module, name)


def test_what_dir_lists() -> None:
    assert {*ibp_gnn.__all__, "graphbolt", "hotness", "offload", "pyg"} <= set(dir(ibp_gnn))
    assert ibp_gnn.hotness is importlib.import_module("ibp_gnn.hotness")
    with pytest.raises(AttributeError, match="module 'ibp_gnn' has no attribute 'compress'"):
        _ = ibp_gnn.compress


def run_python(code: str, folder: Path) -> str:
    environment = {**os.environ, "PYTHONPATH": str(Path(ibp_gnn.__file__).parents[1])}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=folder, env=environment, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_importing_the_package_imports_neither_torch_nor_dgl(tmp_path: Path) -> None:
    code = "import sys, ibp_gnn; print({'torch', 'dgl', 'torch_geometric', 'numpy'} & set(sys.modules))"
    assert run_python(code, tmp_path) == "set()\n"


def test_without_torch_the_error_says_what_to_install(tmp_path: Path) -> None:
    code = """
import sys
sys.modules["torch"] = None
import ibp_gnn
try:
    ibp_gnn.Codec
except ModuleNotFoundError as error:
    print(error.name, error)
"""
    assert run_python(code, tmp_path).startswith("torch ibp_gnn needs torch, which is not installed here. Run: pip ")

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
from ibp_gnn._install import install_command

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


WITHOUT = "import sys; sys.modules.update(dict.fromkeys({missing!r})); import ibp_gnn\n"
ASKS = """
import inspect, pydoc
print("CompressedFeatureStore" in pydoc.render_doc(ibp_gnn))
print({name for name, _ in inspect.getmembers(ibp_gnn)} >= {"hotness", "Codec"})
print([name for name in ("attach", "GraphBoltFeatureStore", "FeatureStore", "graphbolt", "pyg", "hotness")
       if hasattr(ibp_gnn, name)])
from ibp_gnn import *
print(CompressedFeatureStore.__name__, "attach" in globals())
"""


def test_asking_for_names_goes_on_without_dgl_and_pyg(tmp_path: Path) -> None:
    code = WITHOUT.format(missing=["dgl", "torch_geometric"]) + ASKS
    assert run_python(code, tmp_path).splitlines() == ["True", "True", "['hotness']", "CompressedFeatureStore False"]


@pytest.mark.skipif(importlib.util.find_spec("dgl") is None, reason="DGL is not installed")
def test_all_names_with_dgl(tmp_path: Path) -> None:
    said = run_python("import ibp_gnn" + ASKS.replace('"pyg", ', ""), tmp_path).splitlines()
    assert said[2:] == [
        "['attach', 'GraphBoltFeatureStore', 'FeatureStore', 'graphbolt', 'hotness']",
        "CompressedFeatureStore True",
    ]


@pytest.mark.parametrize(
    ("missing", "name", "reason"),
    [
        ("dgl", "attach", f"ibp_gnn.attach: DGL is not installed. Run: {install_command('dgl')}"),
        ("dgl", "GraphBoltFeatureStore", f"GraphBoltFeatureStore: DGL is not installed. Run: {install_command('dgl')}"),
        ("dgl", "graphbolt", f"DGL is not installed. Run: {install_command('dgl')}"),
        ("torch_geometric", "pyg", f"torch_geometric, which is not installed. Run: {install_command('pyg')}"),
        ("torch", "Codec", "ibp_gnn.Codec: ibp_gnn needs torch, which is not installed here. Run: pip install torch"),
        ("torch", "hotness", "ibp_gnn needs torch"),
    ],
)
def test_a_missing_library_is_named(missing: str, name: str, reason: str, tmp_path: Path) -> None:
    """As an AttributeError of the attribute, and as an ImportError of the import."""
    code = (
        WITHOUT.format(missing=[missing])
        + f"""
try:
    ibp_gnn.{name}
except AttributeError as error:
    print(error)
try:
    from ibp_gnn import {name}
except ImportError as error:
    print(error)
"""
    )
    of_attribute, of_import = run_python(code, tmp_path).splitlines()
    assert reason in of_attribute
    assert reason in of_import or (missing, name) == ("torch", "hotness")


def test_python_m_is_the_command(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(Path(ibp_gnn.__file__).parents[1]), "COLUMNS": "80"}
    for arguments, status, wanted in ((["--help"], 0, "usage: ibp-gnn "), (["info", "no.ibp"], 1, "no.ibp")):
        command = [sys.executable, "-m", "ibp_gnn", *arguments]
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120)
        assert done.returncode == status, done.stderr
        assert wanted in done.stdout + done.stderr
        assert max(map(len, done.stdout.splitlines() or [""])) <= 80


def test_types_are_declared() -> None:
    assert (Path(ibp_gnn.__file__).parent / "py.typed").is_file()

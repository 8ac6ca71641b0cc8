"""`ibp-gnn doctor`: on environments that really lack a package, on machines described by facts, on broken packages.

An environment without a package is a folder of links to everything else that is installed, for a Python that sees
nothing but that folder (-S).
"""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest
import torch

import ibp_gnn
from ibp_gnn.command import doctor
from ibp_gnn.command.doctor.advice import Check

HAS_DGL = importlib.util.find_spec("dgl") is not None
OF_GRAPHBOLT = torch.__version__.startswith("2.2.")
# The environments below do not know what the package was installed from.
INSTALL = "pip install '.[{}]' in the sources of ibp_gnn"
INSTALL_DGL = INSTALL.format("graphbolt" if OF_GRAPHBOLT else "dgl")

needs_dgl = pytest.mark.skipif(not HAS_DGL, reason="DGL is not installed")


def environment_without(folder: Path, *packages: str) -> Path:
    """A folder of packages, as this environment has them, but for some."""
    folder.mkdir()
    for installed in {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}:
        for entry in Path(installed).iterdir():
            name = entry.name.split("-")[0].lower()
            if name not in ("ibp_gnn", *packages) and not (folder / entry.name).exists():
                (folder / entry.name).symlink_to(entry)
    (folder / "ibp_gnn").symlink_to(Path(ibp_gnn.__file__).parent)
    return folder


def run(environment: Path, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    hidden = ("CUDACXX", "IBP_GNN_CPU", "DGLBACKEND")
    clean = {name: value for name, value in os.environ.items() if name not in hidden}
    return subprocess.run(
        [sys.executable, "-S", "-m", "ibp_gnn.command.cli", *arguments],
        cwd=environment.parent,
        env=clean | {"PYTHONPATH": str(environment), "HOME": str(environment.parent)} | variables,
        capture_output=True,
        text=True,
        timeout=300,
    )


def examine(environment: Path, **variables: str) -> tuple[dict[str, Check], int]:
    """The checks of a doctor run there, by name, and its exit status."""
    done = run(environment, "doctor", "--json", **variables)
    assert done.stderr == ""
    record = json.loads(done.stdout)
    assert record["exit_status"] == done.returncode
    return {check["name"]: Check(**check) for check in record["checks"]}, done.returncode


def test_this_machine(tmp_path):
    found, status = examine(environment_without(tmp_path / "site"))
    for name in ("Python", "torch", "numpy", "CPU extension", "round trip"):
        assert found[name].severity == "ok", found[name]
    assert torch.__version__ in found["torch"].found
    assert found["CPU extension"].found == f"decodes with {ibp_gnn._native.cpu.default_path().upper()}"
    if not torch.cuda.is_available():
        assert status == 0, found
        assert found["CUDA device"].severity == "note" and "decoded on the CPU" in found["CUDA device"].found
    if HAS_DGL:
        assert found["DGL"].severity == found["torchdata"].severity == "ok"
    if HAS_DGL and OF_GRAPHBOLT:
        assert found["GraphBolt"] == Check("GraphBolt", "ok", "with its native library: `loop: graphbolt` works")
    elif HAS_DGL:
        assert found["GraphBolt"].severity == "note"
        assert f"in another environment: {INSTALL.format('graphbolt')}" in found["GraphBolt"].fix


def test_without_torch(tmp_path):
    environment = environment_without(tmp_path / "site", "torch", "torch_geometric")
    found, status = examine(environment)
    assert status == 2
    assert found["torch"] == Check(
        "torch", "error", "not installed; ibp_gnn cannot work without it", "pip install torch"
    )
    assert found["CPU extension"].severity == "ok"
    assert [check.name for check in found.values() if check.severity in ("warning", "error")] == ["torch"]
    text = run(environment, "doctor").stdout
    assert "-> pip install torch\n" in text and text.endswith("1 error\n")

    done = run(environment, "analyze", "x.npy")
    assert (done.returncode, done.stdout) == (1, "")
    assert "No module named 'torch'" in done.stderr and done.stderr.count("\n") == 1


@needs_dgl
def test_without_dgl(tmp_path):
    found, status = examine(environment_without(tmp_path / "site", "dgl"))
    assert status == 0
    assert found["DGL"].severity == "note" and found["DGL"].fix == INSTALL_DGL
    assert found["GraphBolt"].severity == "note" and found["torchdata"].severity == "ok"


@needs_dgl
def test_torchdata_without_datapipes(tmp_path):
    environment = environment_without(tmp_path / "site", "torchdata")
    (environment / "torchdata").mkdir()
    (environment / "torchdata/__init__.py").touch()
    (environment / "torchdata-0.11.0.dist-info").mkdir()
    metadata = "Metadata-Version: 2.1\nName: torchdata\nVersion: 0.11.0\n"
    (environment / "torchdata-0.11.0.dist-info/METADATA").write_text(metadata)
    found, status = examine(environment)
    assert status == 1
    assert found["torchdata"].severity == "warning"
    assert found["torchdata"].found.startswith("0.11.0 has no datapipes")
    assert found["torchdata"].fix == f"pip install torchdata=={'0.7.1' if OF_GRAPHBOLT else '0.9.0'}"
    if OF_GRAPHBOLT:
        assert found["GraphBolt"].severity == "warning" and "torchdata" in found["GraphBolt"].found


@needs_dgl
def test_without_something_that_dgl_needs(tmp_path):
    found, status = examine(environment_without(tmp_path / "site", "networkx"))
    assert status == 1
    assert found["DGL"].severity == "warning" and "needs networkx, which is not installed" in found["DGL"].found
    assert found["DGL"].fix == f"pip install networkx (or all that DGL needs: {INSTALL_DGL})"


def test_without_nvcc(tmp_path):
    environment = environment_without(tmp_path / "site", "torch", "dgl", "torch_geometric")
    (tmp_path / "bin").mkdir()
    found, _ = examine(environment, PATH=str(tmp_path / "bin"))
    assert found["nvcc"].severity == "note" and "only to build" in found["nvcc"].found
    assert found["nvcc"].fix == "install the CUDA toolkit, and put nvcc on PATH or its path into CUDACXX"
    for version, severity in (("11.8", "ok"), ("11.2", "note")):
        nvcc = tmp_path / "bin/nvcc"
        nvcc.write_text(f"#!/bin/sh\necho 'Cuda compilation tools, release {version}, V{version}.1'\n")
        nvcc.chmod(0o755)
        found, _ = examine(environment, PATH=str(tmp_path / "bin"))
        assert found["nvcc"].severity == severity and version in found["nvcc"].found


def test_forced_code_path(tmp_path):
    environment = environment_without(tmp_path / "site", "torch", "dgl", "torch_geometric")
    for path, severity in (("scalar", "note"), ("avx1024", "error")):
        check = examine(environment, IBP_GNN_CPU=path)[0]["CPU extension"]
        assert (check.severity, check.fix) == (severity, "unset IBP_GNN_CPU") and path in check.found


def test_package_that_was_not_built(tmp_path):
    environment = environment_without(tmp_path / "site", "torch", "dgl", "torch_geometric")
    package = (environment / "ibp_gnn").resolve()
    (environment / "ibp_gnn").unlink()
    (environment / "ibp_gnn").mkdir()
    for entry in package.iterdir():
        if not entry.name.endswith(".so"):
            (environment / "ibp_gnn" / entry.name).symlink_to(entry)
    found, status = examine(environment)
    assert status == 2 and found["CPU extension"].severity == "error"
    assert "-m pip install --force-reinstall --no-deps ." in found["CPU extension"].fix
    assert found["CUDA extension"].severity == "note" or torch.cuda.is_available()


def test_exit_status_and_text():
    checks = [Check("a", "ok", "fine"), Check("bcd", "note", "absent", "pip install bcd")]
    assert doctor.exit_status(checks) == 0
    assert doctor.exit_status([*checks, Check("e", "warning", "slow")]) == 1
    assert doctor.exit_status([*checks, Check("e", "error", "broken"), Check("f", "warning", "slow")]) == 2
    assert doctor.as_text(checks).splitlines() == [
        "ok       a    fine",
        "note     bcd  absent",
        "              -> pip install bcd",
        "",
        "1 ok, 1 note, 0 warning, 0 error",
    ]
    assert json.loads(doctor.as_json(checks)) == {
        "exit_status": 0,
        "checks": [dataclasses.asdict(check) for check in checks],
    }


@pytest.mark.cuda
def test_on_a_gpu():
    checks = {check.name: check for check in doctor.diagnose()}
    for name in ("CUDA device", "CUDA extension", "architectures", "round trip", "pinned memory"):
        assert checks[name].severity == "ok", checks[name]
    assert "on the GPU" in checks["round trip"].found and "256 MiB can be page-locked" in checks["pinned memory"].found

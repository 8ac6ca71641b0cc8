"""`ibp-gnn doctor`: on environments that really lack a package, on machines described by facts, on broken packages.

An environment without a package is a folder of links to everything else that is installed, for a Python that sees
nothing but that folder (-S).
"""

from __future__ import annotations

import copy
import dataclasses
import importlib.util
import json
import os
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

import pytest
import torch

import ibp_gnn
from ibp_gnn.command import doctor
from ibp_gnn.command.doctor import machine, probes
from ibp_gnn.command.doctor.advice import Check, advise, runs_on

HAS_DGL = importlib.util.find_spec("dgl") is not None
OF_GRAPHBOLT = torch.__version__.startswith("2.2.")
EXTRA = "ibp-gnn[graphbolt]" if OF_GRAPHBOLT else "ibp-gnn[dgl]"

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
        assert "in another environment: pip install 'ibp-gnn[graphbolt]'" in found["GraphBolt"].fix


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
    assert found["DGL"].severity == "note" and found["DGL"].fix == f"pip install '{EXTRA}'"
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
    assert found["DGL"].fix == f"pip install networkx (or all that DGL needs: pip install '{EXTRA}')"


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


@pytest.mark.parametrize(
    ("code", "timeout", "error"),
    [
        ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", 60, "the process crashed: SIGSEGV"),
        ("import time; time.sleep(60)", 2, "no answer within 2 s"),
        ("import os; os._exit(3)", 60, "the process ended with status 3"),
        ("raise OSError('libcu.so: cannot open')", 60, "OSError: libcu.so: cannot open"),
    ],
)
def test_a_package_that_breaks_the_process(tmp_path, monkeypatch, code, timeout, error):
    (tmp_path / "dgl").mkdir()
    (tmp_path / "dgl/__init__.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    facts = probes.ask("dgl", timeout)
    assert error in facts["error"] and facts["missing"] is None
    check = on_gpu_machine({"dgl": facts})["DGL"]
    assert check.severity == "warning" and error in check.found and "dgl==2.1.0" in check.fix


# A machine with a GPU where all is well, as facts; the tests below change one thing.
H200 = machine.Gpu("NVIDIA H200", "580.65.06", (5, 5), (16, 16))
GPU_MACHINE = machine.Machine(
    python="3.12.3",
    system="Linux x86_64",
    executable="/usr/bin/python3",
    gpus=(H200,),
    gpus_from="nvidia-smi",
    memory_lock_bytes=None,
    nvcc=("/usr/local/cuda/bin/nvcc", "13.0"),
    cpu_path_wanted=None,
    visible_devices=None,
)
DEVICE = {"name": "NVIDIA H200", "capability": [9, 0], "free_bytes": 139 << 30, "total_bytes": 140 << 30, "error": None}
NOTHING = {"error": None, "missing": None}
GPU_FACTS: dict[str, dict[str, Any]] = {
    "torch": {**NOTHING, "version": "2.11.0+cu130", "cuda": "13.0", "hip": None, "numpy_error": None},
    "cuda": {**NOTHING, "devices": [DEVICE], "reason": None},
    "cpu_extension": {**NOTHING, "path": "avx2"},
    "cuda_extension": {**NOTHING, "architectures": "80-real,86-real,89-real,90-real,100-real,120"},
    "round_trip": {**NOTHING, "gpu": "ok", "pin": "ok"},
    "dgl": {
        **NOTHING,
        "version": "2.1.0",
        "graphbolt_native": False,
        "graphbolt_error": None,
        "cuda_error": "DGLError",
    },
    "pyg": {**NOTHING, "version": "2.8.1", "native_sampler": False},
}
VERSIONS = {
    "dgl": "2.1.0",
    "ibp-gnn": "0.1.0",
    "numpy": "2.4.6",
    "ogb": "1.3.6",
    "pandas": "3.1.1",
    "torch": "2.11.0+cu130",
    "torch-geometric": "2.8.1",
    "torchdata": "0.9.0",
}
NO_TORCH = {"error": "ModuleNotFoundError: No module named 'torch'", "missing": "torch"}


def on_gpu_machine(
    facts: dict[str, Any], versions: dict[str, str | None] | None = None, **changed: Any
) -> dict[str, Check]:
    """facts, versions, changed: what differs from the machine where all is well."""
    merged = copy.deepcopy(GPU_FACTS)
    for probe, change in facts.items():
        merged[probe] = change if change.get("error") else merged[probe] | change
    checks = advise(dataclasses.replace(GPU_MACHINE, **changed), merged, VERSIONS | (versions or {}))
    return {check.name: check for check in checks}


def test_gpu_machine_where_all_is_well():
    checks = on_gpu_machine({})
    assert {check.name for check in checks.values() if check.severity != "ok"} == {"GraphBolt"}
    assert checks["PCIe link"].found == "NVIDIA H200: gen 5 x16 now, at most gen 5 x16"
    assert checks["CUDA device"].found == "NVIDIA H200, compute capability 9.0"
    assert checks["GPU memory"].found == "139.0 GiB of 140.0 GiB free"
    assert doctor.exit_status(list(checks.values())) == 0


OLD_TORCH = {"version": "2.2.1", "cuda": None}


@pytest.mark.parametrize(
    ("name", "severity", "fix", "facts", "versions", "changed"),
    [
        ("torch", "error", "pip install 'torch>=2.2'", {"torch": {"version": "2.1.2"}}, {}, {}),
        ("torch", "error", "--force-reinstall torch", {"torch": {"error": "OSError: x", "missing": None}}, {}, {}),
        ("numpy", "error", "pip install 'numpy<2' 'pandas<3'",
         {"torch": {**OLD_TORCH, "numpy_error": "RuntimeError: Numpy is not available"}}, {}, {}),
        ("numpy", "error", "pip install numpy", {}, {"numpy": None}, {}),
        ("numpy", "error", "pip install 'numpy<2' 'pandas<3'", {"torch": OLD_TORCH}, {"numpy": None}, {}),
        ("CUDA device", "warning", "pip install --force-reinstall torch==2.11.0",
         {"torch": {"version": "2.11.0+cpu", "cuda": None}, "cuda": {"devices": [], "reason": "x"}}, {}, {}),
        ("CUDA device", "warning", "update the driver to one for CUDA 13.0",
         {"cuda": {"devices": [], "reason": "the driver is too old"}}, {}, {}),
        ("CUDA device", "warning", "unset CUDA_VISIBLE_DEVICES",
         {"cuda": {"devices": [], "reason": "no GPUs"}}, {}, {"visible_devices": ""}),
        ("CUDA device", "warning", "sm_90",
         {"cuda": {"devices": [{**DEVICE, "error": "no kernel image is available"}]}}, {}, {}),
        ("CUDA device", "warning", "nvidia-smi", {"cuda": {"error": "it crashed", "missing": None}}, {}, {}),
        ("NVIDIA driver", "warning", "install NVIDIA's driver",
         {}, {}, {"gpus": (dataclasses.replace(H200, driver=None),)}),
        ("CUDA extension", "warning", "IBP_CUDA=ON pip install",
         {"cuda_extension": {"error": "ModuleNotFoundError", "missing": "ibp_gnn._cuda"}}, {}, {}),
        ("CUDA extension", "warning", "install the CUDA toolkit",
         {"cuda_extension": {"error": "ModuleNotFoundError", "missing": "ibp_gnn._cuda"}}, {}, {"nvcc": None}),
        ("CUDA extension", "note", None,
         {"cuda_extension": {"error": "ModuleNotFoundError", "missing": "ibp_gnn._cuda"}}, {}, {"gpus": ()}),
        ("architectures", "warning", "IBP_CUDA_ARCHITECTURES=90",
         {"cuda_extension": {"architectures": "100-real"}}, {}, {}),
        ("architectures", "note", "IBP_CUDA_ARCHITECTURES=90", {"cuda_extension": {"architectures": "80"}}, {}, {}),
        ("GPU memory", "warning", "nvidia-smi", {"cuda": {"devices": [{**DEVICE, "free_bytes": 1 << 20}]}}, {}, {}),
        ("pinned memory", "warning", "ulimit -l unlimited",
         {"round_trip": {"pin": "RuntimeError: out of memory"}}, {}, {"memory_lock_bytes": 65536}),
        ("PCIe link", "warning", "slot", {}, {}, {"gpus": (dataclasses.replace(H200, pcie_width=(8, 16)),)}),
        ("PCIe link", "ok", None, {}, {}, {"gpus": (dataclasses.replace(H200, pcie_generation=(1, 5)),)}),
        ("PCIe link", "note", None, {}, {}, {"gpus": (dataclasses.replace(H200, pcie_width=(None, None)),)}),
        ("round trip", "error", "report it", {"round_trip": {"error": "other bits", "missing": None}}, {}, {}),
        ("DGL", "warning", "pip install PyYAML", {"dgl": {"error": "ImportError: no yaml", "missing": "yaml"}}, {}, {}),
        ("DGL", "warning", "export DGLBACKEND=pytorch",
         {"dgl": {"error": "ImportError: want pytorch. Set DGLBACKEND=pytorch", "missing": None}}, {}, {}),
        ("DGL", "note", None, {"torch": NO_TORCH, "dgl": NO_TORCH}, {}, {}),
        ("DGL", "note", "with Python 3.12: pip install 'ibp-gnn[dgl]'",
         {"dgl": {"error": "ModuleNotFoundError", "missing": "dgl"}}, {"dgl": None}, {"python": "3.13.0"}),
        ("GraphBolt", "warning", "pip install 'ibp-gnn[graphbolt]'",
         {"torch": OLD_TORCH, "dgl": {"graphbolt_error": "ImportError: no torchdata"}}, {}, {}),
        ("torchdata", "warning", "pip install torchdata==0.9.0", {}, {"torchdata": "0.10.1"}, {}),
        ("torchdata", "warning", "pip install torchdata==0.7.1", {"torch": OLD_TORCH}, {"torchdata": "0.11.0"}, {}),
        ("torchdata", "warning", "pip install torchdata==0.9.0", {}, {"torchdata": None}, {}),
        ("torchdata", "note", None, {}, {"torchdata": None, "dgl": None}, {}),
        ("PyG", "note", "pip install 'ibp-gnn[pyg]'",
         {"pyg": {"error": "ModuleNotFoundError", "missing": "torch_geometric"}}, {"torch-geometric": None}, {}),
        ("PyG", "warning", "pip install 'ibp-gnn[pyg]'",
         {"pyg": {"error": "the process crashed: SIGABRT", "missing": None}}, {}, {}),
        ("ogb", "note", "pip install 'ibp-gnn[ogb]'", {}, {"ogb": None}, {}),
    ],
)  # fmt: skip
def test_advice(name, severity, fix, facts, versions, changed):
    check = on_gpu_machine(facts, versions, **changed)[name]
    assert check.severity == severity, check
    assert check.fix is None if fix is None else fix in (check.fix or ""), check


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


@pytest.mark.parametrize(
    ("architectures", "capability", "how"),
    [
        ("80-real,86-real,89-real,90-real,100-real,120", (9, 0), "code"),
        ("80-real,86-real,89-real,90-real,100-real,120", (12, 1), "code"),
        ("80-real,86-real", (8, 7), "code"),
        ("86-real", (8, 0), None),
        ("80-real,90-real", (10, 0), None),
        ("90-real,90-virtual", (10, 0), "ptx"),
        ("120", (12, 0), "code"),
        ("90a-real", (9, 0), "code"),
        ("90a", (10, 0), None),
        ("80", (7, 5), None),
        ("native", (9, 0), None),
        ("", (9, 0), None),
    ],
)
def test_which_devices_a_build_runs_on(architectures, capability, how):
    assert runs_on(architectures, capability) == how


def test_what_nvidia_smi_prints():
    text = "NVIDIA H200, 580.65.06, 5, 5, 16, 16\nTesla T4, 470.1, [N/A], 3, [N/A], 16\n\nnonsense\n"
    assert machine.parse_smi(text) == (
        machine.Gpu("NVIDIA H200", "580.65.06", (5, 5), (16, 16)),
        machine.Gpu("Tesla T4", "470.1", (None, 3), (None, 16)),
    )


def test_gpus_in_sysfs(tmp_path):
    def write(path: str, text: str) -> None:
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text + "\n")

    assert machine.read_sysfs(tmp_path) == ()
    gpu = "bus/pci/devices/0000:01:00.0"
    write(f"{gpu}/vendor", "0x10de")
    write(f"{gpu}/class", "0x030200")
    write(f"{gpu}/current_link_speed", "2.5 GT/s PCIe")
    write(f"{gpu}/max_link_speed", "32.0 GT/s PCIe")
    write(f"{gpu}/current_link_width", "0")
    write(f"{gpu}/max_link_width", "16")
    write("bus/pci/devices/0000:01:00.1/vendor", "0x10de")
    write("bus/pci/devices/0000:01:00.1/class", "0x040300")  # its sound
    write("bus/pci/devices/0000:02:00.0/vendor", "0x8086")
    write("bus/pci/devices/0000:02:00.0/class", "0x030000")
    assert machine.read_sysfs(tmp_path) == (machine.Gpu("NVIDIA GPU at 0000:01:00.0", None, (1, 5), (None, 16)),)
    write("module/nvidia/version", "580.65.06")
    assert machine.read_sysfs(tmp_path)[0].driver == "580.65.06"


@pytest.mark.cuda
def test_on_a_gpu():
    checks = {check.name: check for check in doctor.diagnose()}
    for name in ("CUDA device", "CUDA extension", "architectures", "round trip", "pinned memory"):
        assert checks[name].severity == "ok", checks[name]
    assert "on the GPU" in checks["round trip"].found and "256 MiB can be page-locked" in checks["pinned memory"].found

"""What the doctor makes of facts."""

from __future__ import annotations

import dataclasses

import pytest
from gpu_machine import DEVICE, H200, NO_TORCH, on_gpu_machine

from ibp_gnn._install import install_command
from ibp_gnn.command import doctor
from ibp_gnn.command.doctor.advice import runs_on


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
        ("DGL", "note", "with Python 3.12: " + install_command("dgl"),
         {"dgl": {"error": "ModuleNotFoundError", "missing": "dgl"}}, {"dgl": None}, {"python": "3.13.0"}),
        ("GraphBolt", "warning", install_command("graphbolt"),
         {"torch": OLD_TORCH, "dgl": {"graphbolt_error": "ImportError: no torchdata"}}, {}, {}),
        ("torchdata", "warning", "pip install torchdata==0.9.0", {}, {"torchdata": "0.10.1"}, {}),
        ("torchdata", "warning", "pip install torchdata==0.7.1", {"torch": OLD_TORCH}, {"torchdata": "0.11.0"}, {}),
        ("torchdata", "warning", "pip install torchdata==0.9.0", {}, {"torchdata": None}, {}),
        ("torchdata", "note", None, {}, {"torchdata": None, "dgl": None}, {}),
        ("PyG", "note", install_command("pyg"),
         {"pyg": {"error": "ModuleNotFoundError", "missing": "torch_geometric"}}, {"torch-geometric": None}, {}),
        ("PyG", "warning", install_command("pyg"),
         {"pyg": {"error": "the process crashed: SIGABRT", "missing": None}}, {}, {}),
        ("ogb", "note", install_command("ogb"), {}, {"ogb": None}, {}),
    ],
)  # fmt: skip
def test_advice(name, severity, fix, facts, versions, changed):
    check = on_gpu_machine(facts, versions, **changed)[name]
    assert check.severity == severity, check
    assert check.fix is None if fix is None else fix in (check.fix or ""), check


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

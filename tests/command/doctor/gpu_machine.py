"""A machine with a GPU where all is well, as facts, for tests that change one thing."""

from __future__ import annotations

import copy
import dataclasses
from typing import Any

from ibp_gnn.command.doctor import machine
from ibp_gnn.command.doctor.advice import Check, advise

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

"""What the doctor sees of the machine without importing anything: GPUs, driver, PCIe links, nvcc, memory limit."""

from __future__ import annotations

import csv
import dataclasses
import os
import platform
import re
import resource
import shutil
import subprocess
import sys
from pathlib import Path

_SMI_FIELDS = (
    "name",
    "driver_version",
    "pcie.link.gen.current",
    "pcie.link.gen.max",
    "pcie.link.width.current",
    "pcie.link.width.max",
)
_NVIDIA_VENDOR = "0x10de"
_DISPLAY_CLASSES = ("0x0300", "0x0302")
# The PCIe generation by the link speed in GT/s, as sysfs gives it.
_GENERATIONS = {2.5: 1, 5.0: 2, 8.0: 3, 16.0: 4, 32.0: 5, 64.0: 6}


@dataclasses.dataclass(frozen=True)
class Gpu:
    """One NVIDIA GPU that the system shows; None = the system does not say. pcie_*: (now, at most)."""

    name: str
    driver: str | None
    pcie_generation: tuple[int | None, int | None]
    pcie_width: tuple[int | None, int | None]


@dataclasses.dataclass(frozen=True)
class Machine:
    """gpus_from: who listed the GPUs. memory_lock_bytes: `ulimit -l`, None = unlimited. nvcc: path and version, None if
    it does not say one."""

    python: str
    system: str
    executable: str
    gpus: tuple[Gpu, ...]
    gpus_from: str
    memory_lock_bytes: int | None
    nvcc: tuple[str, str | None] | None
    cpu_path_wanted: str | None
    visible_devices: str | None


def look() -> Machine:
    gpus, gpus_from = _gpus()
    limit = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
    return Machine(
        python=platform.python_version(),
        system=f"{platform.system()} {platform.machine()}",
        executable=sys.executable,
        gpus=gpus,
        gpus_from=gpus_from,
        memory_lock_bytes=None if limit == resource.RLIM_INFINITY else limit,
        nvcc=_nvcc(),
        cpu_path_wanted=os.environ.get("IBP_GNN_CPU"),
        visible_devices=os.environ.get("CUDA_VISIBLE_DEVICES"),
    )


def _gpus() -> tuple[tuple[Gpu, ...], str]:
    text = _output_of("nvidia-smi", f"--query-gpu={','.join(_SMI_FIELDS)}", "--format=csv,noheader,nounits")
    if text is not None and (gpus := parse_smi(text)):
        return gpus, "nvidia-smi"
    return read_sysfs(Path("/sys")), "sysfs"


def parse_smi(text: str) -> tuple[Gpu, ...]:
    """text: what nvidia-smi prints for _SMI_FIELDS, one line a GPU."""
    gpus = []
    for row in csv.reader(text.splitlines(), skipinitialspace=True):
        if len(row) == len(_SMI_FIELDS):
            name, driver, *link = row
            generation, generation_max, width, width_max = map(_number, link)
            gpus.append(Gpu(name, driver, (generation, generation_max), (width, width_max)))
    return tuple(gpus)


def read_sysfs(sys_folder: Path) -> tuple[Gpu, ...]:
    """The same from the kernel's files, for systems without nvidia-smi. sys_folder: /sys."""
    driver = _read(sys_folder / "module/nvidia/version")
    gpus = []
    for device in sorted((sys_folder / "bus/pci/devices").glob("*")):
        if _read(device / "vendor") == _NVIDIA_VENDOR and (_read(device / "class") or "")[:6] in _DISPLAY_CLASSES:
            links = [_link(device, which) for which in ("current", "max")]
            generations, widths = zip(*links, strict=True)
            gpus.append(Gpu(f"NVIDIA GPU at {device.name}", driver, generations, widths))
    return tuple(gpus)


def _link(device: Path, which: str) -> tuple[int | None, int | None]:
    """PCIe generation and width; the kernel writes "Unknown" and 0 for what it does not know."""
    speed = re.match(r"[\d.]+", _read(device / f"{which}_link_speed") or "")
    generation = _GENERATIONS.get(float(speed[0])) if speed else None
    return generation, _number(_read(device / f"{which}_link_width") or "")


def _nvcc() -> tuple[str, str | None] | None:
    """CUDACXX goes first, as in the build."""
    path = os.environ.get("CUDACXX") or shutil.which("nvcc")
    if not path:
        return None
    found = re.search(r"release (\d+\.\d+)", _output_of(path, "--version") or "")
    return path, found[1] if found else None


def _output_of(*command: str) -> str | None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=30)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout if done.returncode == 0 else None


def _read(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError):
        return None


def _number(text: str) -> int | None:
    return int(text) if text.isdecimal() and text != "0" else None

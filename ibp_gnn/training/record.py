"""The record of a run: what was run, on what, and what came out, as one JSON file."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import tempfile
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import torch

from .. import __version__
from ..config import ConfigError


def versions() -> dict[str, str | None]:
    """Versions of everything that can change a result."""
    return {
        # Of the code that runs: an installed package may be another one.
        "ibp_gnn": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "dgl": _installed("dgl"),
        "torch_geometric": _installed("torch-geometric"),
        "numpy": np.__version__,
    }


def hardware(device: torch.device) -> dict[str, Any]:
    """The processor, the cores that this process may use, and the GPU if `device` is one."""
    return {
        "cpu": _cpu_model(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "torch_threads": torch.get_num_threads(),
        "gpu": torch.cuda.get_device_name(device) if device.type == "cuda" else None,
    }


def git_commit(folder: Path) -> str | None:
    """Commit of the checkout that holds `folder`, with `-dirty` if tracked files differ; None if none. A copy of the
    files without their history can be told by IBP_GNN_COMMIT in the environment."""
    if given := os.environ.get("IBP_GNN_COMMIT"):
        return given
    command = ["git", "describe", "--always", "--dirty", "--exclude=*", "--abbrev=40"]
    try:
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=30)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip() or None if done.returncode == 0 else None


def prepare(path: str | Path, setting: str = "log.json") -> Path:
    """Whether a file can be written, in a folder that is there or in a new one of such a folder, which `make_folder`
    makes once there is something to write. Called before the run: a bad path must not cost a whole training.

    setting: which one has the path. Raises ConfigError if no file can be written there.
    """
    path = Path(path)
    if path.is_dir():
        raise ConfigError(f"{setting}: want a file, got the folder {path}")
    folder = path.parent if path.parent.exists() else path.parent.parent
    if not folder.exists():
        raise ConfigError(f"{setting}: want a file in a folder that exists, or in a new one of it, got {path}")
    try:
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise ConfigError(f"{setting}: cannot write {path}: {error.strerror or error}") from error
    return path


def make_folder(path: str | Path) -> None:
    """Of a file that `prepare` took."""
    Path(path).parent.mkdir(exist_ok=True)


def write(path: Path, record: dict[str, Any]) -> None:
    """Write the record; a reader never sees half of it."""
    make_folder(path)
    _partial(path).write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    _partial(path).replace(path)


def _installed(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _partial(path: Path) -> Path:
    return path.with_name(path.name + ".partial")


def _cpu_model() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()

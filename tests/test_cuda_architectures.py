"""csrc/cuda_architectures.cmake: what the CUDA extension is compiled for."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parent.parent / "csrc" / "cuda_architectures.cmake"
# CMake is where the package was built, or came with the extra `dev`; a wheel can be tested without it.
CMAKE = shutil.which("cmake", path=os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]))
NO_GPU = "80-real;90", "no GPU found; IBP_CUDA_ARCHITECTURES names others"

pytestmark = pytest.mark.skipif(CMAKE is None, reason="there is no CMake")


@pytest.fixture
def choose(tmp_path):
    """choose(wanted, version, smi) -> the architectures and where they come from, with an nvcc that knows 75 to 90 and
    103, and an nvidia-smi that runs this shell code (None: there is none)."""

    def choose(wanted: str = "", version: str = "13.0", smi: str | None = None) -> tuple[str, ...]:
        nvcc = executable(tmp_path / "nvcc", "for a in 75 80 86 90 103; do echo compute_$a; done")
        if smi is not None:
            executable(tmp_path / "nvidia-smi", smi)
        program = tmp_path / "program.cmake"
        program.write_text(
            f'include("{SCRIPT}")\n'
            f'ibp_choose_architectures("{wanted}" "{nvcc}" "{version}" architectures why)\n'
            'message("${architectures}")\nmessage("${why}")\n'
        )
        command = [str(CMAKE), "-P", str(program)]
        result = subprocess.run(command, env={"PATH": str(tmp_path)}, capture_output=True, text=True, timeout=60)
        assert result.returncode == 0, result.stderr
        return tuple(result.stderr.splitlines())

    return choose


def executable(path: Path, shell_code: str) -> Path:
    path.write_text(f"#!/bin/sh\n{shell_code}\n")
    path.chmod(0o755)
    return path


@pytest.mark.parametrize(
    ("capabilities", "architectures"),
    [
        ("9.0", "90"),
        ("9.0 9.0 9.0", "90"),
        ("10.3 8.0 9.0 8.0", "80-real;90-real;103"),
        ("7.5 6.1", "75"),
        ("12.0 8.6", "86"),
    ],
)
def test_the_gpus_that_are_here(choose, capabilities, architectures):
    """Each once, with PTX of the newest. One that nvcc does not know cannot be built for."""
    smi = "\n".join(f"echo {capability}" for capability in capabilities.split())
    assert choose(smi=smi) == (architectures, "the GPUs of this machine")


@pytest.mark.parametrize(
    "smi",
    [None, "exit 9", "echo 9.0; exit 6", "echo 'Field \"compute_cap\" is not a valid field to query.'", "echo [N/A]",
     "echo 1.0", "true"],
)  # fmt: skip
def test_no_gpu(choose, smi):
    """No driver, one that does not answer, one that is too old to say, a GPU that nvcc does not know."""
    assert choose(smi=smi) == NO_GPU


@pytest.mark.parametrize("wanted", ["90", "80;90", "80-real;120", "90a"])
def test_those_that_are_asked_for(choose, wanted):
    assert choose(wanted, smi="echo 8.0") == (wanted, "IBP_CUDA_ARCHITECTURES")


def test_all(choose):
    every = "80-real;86-real;89-real;90-real;100-real;120"
    for version, wanted in (("12.4", "80-real;86-real;89-real;90"), ("12.8", every), ("13.0", every)):
        assert choose("all", version, smi="echo 8.0") == (wanted, "all that are supported")

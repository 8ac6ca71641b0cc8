"""What is in a package, as far as that shows without a build. scripts/check_packages.sh builds, and checks the rest."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from ibp_gnn import _native

REPOSITORY = Path(__file__).resolve().parents[2]
BUILD_SDIST = "from scikit_build_core.build import build_sdist; build_sdist({folder!r})"
# The C and C++ libraries, which every Linux has. Without torch's, one build serves all versions of it.
SYSTEM_LIBRARIES = {
    "ld-linux-aarch64.so.1",
    "ld-linux-x86-64.so.2",
    "libc.so.6",
    "libdl.so.2",
    "libgcc_s.so.1",
    "libm.so.6",
    "libpthread.so.0",
    "librt.so.1",
    "libstdc++.so.6",
}


def files_of(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


def test_the_sdist_holds_what_a_wheel_is_built_from_and_no_more(tmp_path: Path) -> None:
    pytest.importorskip("scikit_build_core", reason="scikit-build-core is not installed; the extra `dev` has it")
    source = tmp_path / "source"
    source.mkdir()
    for name in ("LICENSE", "README.md", "pyproject.toml"):
        shutil.copy(REPOSITORY / name, source)
    compiled = shutil.ignore_patterns("*.so", "__pycache__", "_csrc.sha256")
    for name in ("csrc", "ibp_gnn"):
        shutil.copytree(REPOSITORY / name, source / name, ignore=compiled)
    wanted = files_of(source) | {"PKG-INFO"}
    assert {"csrc/CMakeLists.txt", "csrc/extension.map", "ibp_gnn/datasets/data/wordnet.npz"} < wanted

    others = ("ibp_gnn/_cpu.so", "ibp_gnn/_csrc.sha256", "ibp_gnn/codec/__pycache__/codec.cpython-311.pyc")
    for name in (*others, ".ci/run", "docs/gpu.md", "notes.txt", "scripts/results/gather.json", "tests/csrc/a.h"):
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        (source / name).touch()
    command = [sys.executable, "-c", BUILD_SDIST.format(folder=str(tmp_path / "dist"))]
    done = subprocess.run(command, cwd=source, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    (sdist,) = (tmp_path / "dist").iterdir()
    with tarfile.open(sdist) as archive:
        assert {name.partition("/")[2] for name in archive.getnames()} == wanted


@pytest.mark.skipif(shutil.which("readelf") is None, reason="readelf is not installed; GNU binutils has it")
def test_compiled_files_link_system_libraries_alone() -> None:
    files = sorted(Path(_native.cpu.__file__).parent.glob("_c*.so"))
    assert Path(_native.cpu.__file__) in files
    for file in files:
        done = subprocess.run(["readelf", "--dynamic", "--wide", file], capture_output=True, text=True, check=True)
        lines = [line for line in done.stdout.splitlines() if "(NEEDED)" in line]
        libraries = {line.partition("[")[2].rstrip("]") for line in lines}
        assert libraries and libraries <= SYSTEM_LIBRARIES, file

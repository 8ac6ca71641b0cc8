"""The package in a source tree without compiled files: it takes the installed ones, if they are of the same sources."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

import ibp_gnn
from ibp_gnn import _extension, _native

REPOSITORY = Path(__file__).resolve().parents[1]
PACKAGE = Path(ibp_gnn.__file__).parent
LOAD = "from ibp_gnn import _extension; print(_extension.__file__); print(_extension.load('_cpu').__file__)"


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A source tree as it is cloned: nothing is compiled."""
    folder = tmp_path / "source"
    compiled = shutil.ignore_patterns("*.so", "__pycache__", "_csrc.sha256")
    shutil.copytree(PACKAGE, folder / "ibp_gnn", ignore=compiled)
    shutil.copytree(REPOSITORY / "csrc", folder / "csrc")
    return folder


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """A folder of installed packages, with ours as built from the sources that are here."""
    folder = tmp_path / "site"
    (folder / "ibp_gnn").mkdir(parents=True)
    shutil.copy(_native.cpu.__file__, folder / "ibp_gnn")
    (folder / "ibp_gnn" / "_csrc.sha256").write_text(_extension.source_list(REPOSITORY / "csrc"))
    return folder


def run(source: Path, site: Path | None, code: str) -> subprocess.CompletedProcess[str]:
    """python -c CODE in the source tree, with the site folder and torch in the search path, but no other ibp_gnn."""
    others = source.parent / "others"
    others.mkdir(exist_ok=True)
    for folder in {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}:
        for entry in Path(folder).iterdir():
            if not entry.name.startswith("ibp_gnn") and not (others / entry.name).exists():
                (others / entry.name).symlink_to(entry)
    path = os.pathsep.join(str(folder) for folder in (site, others) if folder is not None)
    hidden = ("PYTHONSAFEPATH", "PYTHONPATH")
    environment = {name: value for name, value in os.environ.items() if name not in hidden}
    command = [sys.executable, "-S", "-c", f"import sys; sys.path[:0] = ['']; {code}"]
    return subprocess.run(
        command, cwd=source, env=environment | {"PYTHONPATH": path}, capture_output=True, text=True, timeout=120
    )


def test_the_installed_extension_serves_in_the_source_tree(source: Path, site: Path) -> None:
    done = run(source, site, f"{LOAD}; import ibp_gnn; ibp_gnn.CompressedFeatureStore")
    assert done.returncode == 0, done.stderr
    package, extension = done.stdout.splitlines()
    assert Path(package) == source / "ibp_gnn/_extension.py"
    assert Path(extension) == site / "ibp_gnn" / Path(_native.cpu.__file__).name


def test_the_installed_cuda_extension_serves_too(source: Path, site: Path) -> None:
    """Any module of that name will do: what is tested is where it is looked for."""
    (site / "ibp_gnn/_cuda.py").write_text("ARCHITECTURES = 'made up'")
    done = run(source, site, "from ibp_gnn import _extension; print(_extension.load('_cuda').ARCHITECTURES)")
    assert done.stdout == "made up\n", done.stderr


@pytest.mark.parametrize("change", ["edited", "added", "removed", "no list"])
def test_one_of_other_sources_is_refused(source: Path, site: Path, change: str) -> None:
    bits = source / "csrc/core/bits.h"
    if change == "edited":
        bits.write_text(bits.read_text() + "// one more line\n")
    elif change == "added":
        (source / "csrc/core/other.h").touch()
    elif change == "removed":
        bits.unlink()
    else:
        (site / "ibp_gnn/_csrc.sha256").unlink()
    done = run(source, site, LOAD)
    named = {"added": "core/other.h", "no list": "CMakeLists.txt"}.get(change, "core/bits.h")
    assert done.returncode == 1
    message = done.stderr.splitlines()[-1]
    assert f"want it built from the sources in {source / 'csrc'}" in message
    assert f"({named} differs); run `pip install .` in the source tree" in message


def test_nothing_installed(source: Path) -> None:
    done = run(source, None, "import ibp_gnn; ibp_gnn.Codec")
    assert done.returncode == 1
    assert "build it with `pip install .` in the source tree" in done.stderr.splitlines()[-1]


@pytest.mark.skipif(not (PACKAGE / "_csrc.sha256").exists(), reason="the package was not installed")
def test_the_build_lists_its_sources() -> None:
    assert (PACKAGE / "_csrc.sha256").read_text() == _extension.source_list(REPOSITORY / "csrc")

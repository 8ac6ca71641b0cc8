"""What errors say of how to install: the package is on no index."""

from __future__ import annotations

import importlib.metadata
import json
from pathlib import Path

import pytest

from ibp_gnn import _install
from ibp_gnn._install import install_command


class Installed:
    def __init__(self, url: str | None) -> None:
        self.url = url

    def read_text(self, name: str) -> str | None:
        assert name == "direct_url.json"
        return None if self.url is None else json.dumps({"url": self.url})


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Not in a source tree."""
    monkeypatch.setattr(_install, "_SOURCES", tmp_path / "pyproject.toml")


def test_in_the_sources(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    sources = tmp_path / "pyproject.toml"
    sources.touch()
    monkeypatch.setattr(_install, "_SOURCES", sources)
    assert install_command("pyg") == "pip install '.[pyg]' in the sources of ibp_gnn"


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize("url", ["file:///home/me/ibp_gnn", None])
def test_installed_from_the_sources(monkeypatch: pytest.MonkeyPatch, url: str | None) -> None:
    monkeypatch.setattr(importlib.metadata, "distribution", lambda name: Installed(url))
    assert install_command("dgl") == "pip install '.[dgl]' in the sources of ibp_gnn"


@pytest.mark.usefixtures("installed")
def test_installed_from_a_wheel(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    wheel = tmp_path / "with space" / "ibp_gnn-0.1.0-cp311-cp311-linux_x86_64.whl"
    monkeypatch.setattr(importlib.metadata, "distribution", lambda name: Installed(wheel.as_uri()))
    assert install_command("pyg") == f"pip install '{wheel.name}[pyg]'", "it is gone"
    wheel.parent.mkdir()
    wheel.touch()
    assert install_command("pyg") == f"pip install '{wheel}[pyg]'"


@pytest.mark.usefixtures("installed")
def test_not_installed_at_all(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> Installed:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "distribution", missing)
    assert install_command("ogb") == "pip install '.[ogb]' in the sources of ibp_gnn"


def test_nothing_names_an_index() -> None:
    """Every message and document, and each extra that one names is there."""
    repository = Path(__file__).parents[1]
    extras = (repository / "pyproject.toml").read_text(encoding="utf-8")
    package = Path(_install.__file__).parent
    for path in [*package.rglob("*.py"), repository / "README.md", *(repository / "docs").rglob("*.md")]:
        text = path.read_text(encoding="utf-8")
        assert "'ibp-gnn[" not in text and "pip install ibp" not in text, path
    for extra in ("dgl", "graphbolt", "pyg", "ogb"):
        assert f"\n{extra} = [" in extras

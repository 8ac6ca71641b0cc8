"""`from PACKAGE import NAME` says why a name is missing."""

from __future__ import annotations

import sys

import pytest

from ibp_gnn._lazy import MissingNames


def test_it_raises_the_reason_for_public_names_of_its_package() -> None:
    finder = MissingNames("some_package", {"attach": "some_package.attach: DGL is not installed"}.get)
    with pytest.raises(ImportError, match="some_package.attach: DGL is not installed") as error:
        finder.find_spec("some_package.attach", [])
    assert error.value.name == "some_package.attach"
    for other in ("some_package.other", "another.attach", "attach", "some_package.attach.more"):
        assert finder.find_spec(other, []) is None


def test_it_is_installed_once_and_last(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    before = len(sys.meta_path)
    for _ in range(2):
        finder = MissingNames("some_package", lambda name: None)
        finder.install()
        assert sys.meta_path[-1] is finder and len(sys.meta_path) == before + 1

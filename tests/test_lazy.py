"""Names of a package are imported on first use, and `from PACKAGE import NAME` says why one is missing."""

from __future__ import annotations

import json.decoder
import sys

import pytest

from ibp_gnn._lazy import MissingNames, import_on_use


def test_a_name_is_imported_once_and_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(json, "JSONDecodeError", raising=False)
    get = import_on_use("json", {"JSONDecodeError": ".decoder"})
    assert get("JSONDecodeError") is json.decoder.JSONDecodeError
    assert vars(json)["JSONDecodeError"] is json.decoder.JSONDecodeError
    with pytest.raises(AttributeError, match="module 'json' has no attribute 'other'"):
        get("other")


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

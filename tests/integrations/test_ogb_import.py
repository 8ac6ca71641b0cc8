"""ogb's version check is out of reach within, and everything is as before afterwards."""

from __future__ import annotations

import sys
from types import ModuleType

import pytest

from ibp_gnn.integrations.ogb_import import without_version_check


@pytest.mark.parametrize("imported", [False, True])
def test_the_package_cannot_be_imported_within(imported: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("outdated")
    monkeypatch.setitem(sys.modules, "outdated", module)
    if not imported:
        del sys.modules["outdated"]
    with pytest.raises(KeyError):
        with without_version_check():
            with pytest.raises(ImportError):
                import outdated  # noqa: F401
            raise KeyError
    assert sys.modules.get("outdated") is (module if imported else None)
    assert ("outdated" in sys.modules) == imported

"""How this package is installed again with one of its extras: it is on no index."""

from __future__ import annotations

import importlib.metadata
import json
from pathlib import Path
from urllib.parse import unquote, urlparse

_SOURCES = Path(__file__).parents[1] / "pyproject.toml"  # in a source tree


def install_command(extra: str) -> str:
    """What to run, for messages. extra: a name of pyproject.toml's optional-dependencies."""
    wheel = None if _SOURCES.is_file() else _wheel()
    return f"pip install '.[{extra}]' in the sources of ibp_gnn" if wheel is None else f"pip install '{wheel}[{extra}]'"


def _wheel() -> str | None:
    """The wheel that this was installed from: its path, or its name alone where it is gone. None: the sources."""
    try:
        said = importlib.metadata.distribution("ibp-gnn").read_text("direct_url.json")
    except importlib.metadata.PackageNotFoundError:
        return None
    url = urlparse(json.loads(said)["url"]) if said else None
    if url is None or not url.path.endswith(".whl"):
        return None
    path = Path(unquote(url.path))
    return str(path) if url.scheme == "file" and path.exists() else path.name

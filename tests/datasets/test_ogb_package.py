"""ogb without its habits: no question on stdin, no version check, no file that runs code."""

from __future__ import annotations

import importlib.util
import io
import re
import shutil
import socket
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from ibp_gnn._install import install_command
from ibp_gnn.datasets import DatasetError, load_dataset, ogb_package

if importlib.util.find_spec("ogb") is None:
    pytest.skip("ogb is not installed", allow_module_level=True)

import ogb_folders as folders
from ogb_checks import check_homogeneous

pytestmark = pytest.mark.usefixtures("no_questions")

LOADS_SAFELY = hasattr(torch.serialization, "add_safe_globals")  # torch 2.4


class FakeServer:
    """Stands in for ogb's urllib: an archive, said to have `gigabytes`."""

    def __init__(self, content: bytes, gigabytes: float) -> None:
        self._content, self._length = content, int(gigabytes * 2**30)
        self.timeouts: list[float | None] = []

    def urlopen(self, url: str) -> FakeServer:
        self.timeouts.append(socket.getdefaulttimeout())
        self._file = io.BytesIO(self._content)
        return self

    def info(self) -> dict[str, Any]:
        return {"Content-Length": self._length}

    def read(self, size: int) -> bytes:
        return self._file.read(size)


@pytest.fixture
def arxiv_archive(tmp_path: Path) -> bytes:
    folders.write_text_homogeneous(tmp_path / "source" / "arxiv")
    shutil.make_archive(str(tmp_path / "arxiv"), "zip", tmp_path / "source")
    return (tmp_path / "arxiv.zip").read_bytes()


def serve(monkeypatch: pytest.MonkeyPatch, content: bytes, gigabytes: float) -> FakeServer:
    server = FakeServer(content, gigabytes)
    monkeypatch.setattr(ogb_package.import_ogb("ogb.utils.url"), "ur", server)
    return server


def test_download(tmp_path: Path, arxiv_archive: bytes, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    server = serve(monkeypatch, arxiv_archive, 0.01)
    check_homogeneous(load_dataset("ogbn-arxiv", root=tmp_path / "root"), "ogbn-arxiv")
    assert [path.name for path in (tmp_path / "root").iterdir()] == ["ogbn_arxiv"]
    assert server.timeouts == [30, 30] and socket.getdefaulttimeout() is None
    assert capsys.readouterr().out == "", "ogb's chatter belongs on stderr"


def test_large_download(tmp_path: Path, arxiv_archive: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    serve(monkeypatch, arxiv_archive, 1.5)
    with pytest.raises(DatasetError, match=r"ogbn_arxiv does not exist, and ogb asks: 'This will download 1.50GB. .*"):
        load_dataset("ogbn-arxiv", root=tmp_path / "root")
    assert not (tmp_path / "root").exists()
    assert not hasattr(ogb_package.import_ogb("ogb.utils.url"), "input")
    dataset = load_dataset("ogbn-arxiv", root=tmp_path / "root", allow_large_download=True)
    check_homogeneous(dataset, "ogbn-arxiv")


def test_no_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(host: object, *_: object, **__: object) -> object:
        raise socket.gaierror(-2, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", fail)
    with pytest.raises(DatasetError, match="ogbn_products: no such folder, and downloading http.*Name or service not"):
        load_dataset("ogbn-products", root=tmp_path)


def test_something_is_where_the_archive_would_be_unpacked(tmp_path: Path) -> None:
    (tmp_path / "arxiv").mkdir()
    with pytest.raises(DatasetError, match="but that exists; move it away"):
        load_dataset("ogbn-arxiv", root=tmp_path)


def test_importing_ogb_checks_no_version() -> None:
    code = """
import sys, ibp_gnn
from ibp_gnn.datasets import ogb_package
from ibp_gnn.integrations.dgl_compat import import_dgl
try:
    import_dgl()  # imports ogb
except ImportError:
    pass
assert ogb_package.import_ogb("ogb.version").check_outdated is None
assert "outdated" not in sys.modules
"""
    subprocess.run([sys.executable, "-W", "ignore", "-c", code], check=True)


def test_missing_ogb_names_the_pip_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ogb", None)
    monkeypatch.delitem(sys.modules, "ogb.nodeproppred", raising=False)
    with pytest.raises(ImportError, match=re.escape(install_command("ogb"))):
        load_dataset("ogbn-arxiv", root="dataset")


def test_torch_load_is_as_it_was(tmp_path: Path) -> None:
    torch.save({"ids": np.arange(3), "mean": np.float32(0.5), "names": np.array(["a"])}, tmp_path / "numbers.pt")
    before = list(allowed_globals())
    content = ogb_package.load_torch_file(tmp_path / "numbers.pt")
    assert content["ids"].tolist() == [0, 1, 2] and content["mean"] == 0.5 and content["names"].tolist() == ["a"]
    assert sorted(map(repr, allowed_globals())) == sorted(map(repr, before))


def renamed(path: Path, old: bytes, new: bytes) -> Path:
    """A file of torch.save that names other globals."""
    result = path.with_name("renamed.pt")
    with zipfile.ZipFile(path) as source, zipfile.ZipFile(result, "w") as target:
        for name in source.namelist():
            content = source.read(name)
            target.writestr(name, content.replace(old, new) if name.endswith("data.pkl") else content)
    return result


def test_files_of_numpy_1_and_2(tmp_path: Path) -> None:
    torch.save({"ids": np.arange(3), "mean": np.float32(0.5)}, tmp_path / "numbers.pt")
    names = b"numpy._core.", b"numpy.core."
    mine, other = names if hasattr(np, "_core") else names[::-1]
    path = renamed(tmp_path / "numbers.pt", mine, other)
    if not LOADS_SAFELY and not hasattr(np, "_core"):
        pytest.skip("this torch imports what a file names, and this NumPy has no other name")
    content = ogb_package.load_torch_file(path)
    assert content["ids"].tolist() == [0, 1, 2] and content["mean"] == np.float32(0.5)


@pytest.mark.skipif(not hasattr(torch.serialization, "safe_globals"), reason="no such context manager before torch 2.5")
def test_what_the_user_allowed_stays_allowed(tmp_path: Path) -> None:
    torch.save(np.arange(3), tmp_path / "numbers.pt")
    with torch.serialization.safe_globals([np.ndarray]):
        ogb_package.load_torch_file(tmp_path / "numbers.pt")
        assert np.ndarray in allowed_globals()
    assert np.ndarray not in allowed_globals()


@pytest.mark.skipif(not LOADS_SAFELY, reason="torch.load trusts files")
def test_a_file_with_code_is_refused(submission: Path) -> None:
    class Code:
        def __reduce__(self) -> Any:
            return pytest.fail, ("ran",)

    torch.save({"version": Code()}, submission / "meta_dict.pt")
    with pytest.raises(DatasetError, match=r"meta_dict.pt: want a file that ogb wrote .*Unsupported global"):
        load_dataset("ogb-folder", root=submission)


@pytest.mark.skipif(not LOADS_SAFELY, reason="torch.load trusts files")
def test_files_are_never_loaded_in_full_where_there_is_another_way(tmp_path: Path, monkeypatch: Any) -> None:
    """Whatever this torch does when it is not told."""
    load, told = torch.load, []

    def spy(*arguments: Any, **options: Any) -> Any:
        told.append(options.get("weights_only"))
        return load(*arguments, **options)

    monkeypatch.setattr(torch, "load", spy)
    torch.save({"ids": np.arange(3)}, tmp_path / "ids.pt")
    ogb_package.load_torch_file(tmp_path / "ids.pt")
    assert told == [True]


def allowed_globals() -> list[Any]:
    return torch.serialization.get_safe_globals() if hasattr(torch.serialization, "get_safe_globals") else []


def test_a_truncated_torch_file(submission: Path) -> None:
    path = submission / "meta_dict.pt"
    path.write_bytes(path.read_bytes()[:-30])
    assert not zipfile.is_zipfile(path)
    with pytest.raises(DatasetError, match="meta_dict.pt: want a file that ogb wrote with torch.save"):
        load_dataset("ogb-folder", root=submission)

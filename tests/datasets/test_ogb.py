"""OGB data sets by name and from local folders: right arrays, no copy of the features, no question on stdin."""

from __future__ import annotations

import importlib.util
import io
import shutil
import socket
import subprocess
import sys
import warnings
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from ibp_gnn.datasets import DatasetError, HeteroNodeDataset, NodeDataset, load_dataset, ogb_files, ogb_package

if importlib.util.find_spec("ogb") is None:
    pytest.skip("ogb is not installed", allow_module_level=True)

import ogb_folders as folders

pytestmark = pytest.mark.usefixtures("no_questions")

LOADS_SAFELY = hasattr(torch.serialization, "add_safe_globals")  # torch 2.4


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Submission folders of DatasetSaver; not to be changed."""
    base = tmp_path_factory.mktemp("saved")
    return {
        "homogeneous": folders.save_homogeneous(base / "homogeneous"),
        "hetero": folders.save_hetero(base / "hetero"),
    }


@pytest.fixture
def submission(saved: dict[str, Path], tmp_path: Path) -> Path:
    """A homogeneous one of your own, not where it was written."""
    return Path(shutil.copytree(saved["homogeneous"], tmp_path / "moved"))


def check_homogeneous(dataset: NodeDataset | HeteroNodeDataset, name: str) -> None:
    assert isinstance(dataset, NodeDataset) and not dataset.synthetic
    assert (dataset.name, dataset.num_nodes) == (name, folders.NUM_NODES)
    np.testing.assert_array_equal(dataset.features.numpy().view(np.uint32), folders.rows().view(np.uint32))
    np.testing.assert_array_equal(torch.stack([dataset.src, dataset.dst]).numpy(), folders.edge_index())
    check_targets(dataset)


def check_hetero(dataset: NodeDataset | HeteroNodeDataset, name: str) -> None:
    assert isinstance(dataset, HeteroNodeDataset)
    assert (dataset.name, dataset.target, dict(dataset.num_nodes_of)) == (name, "paper", folders.NUM_NODES_OF)
    assert list(dataset.features) == ["paper"]
    np.testing.assert_array_equal(dataset.features["paper"].numpy().view(np.uint32), folders.rows().view(np.uint32))
    assert dataset.edges.keys() == folders.HETERO_EDGES.keys()
    for edge_type, edges in folders.HETERO_EDGES.items():
        np.testing.assert_array_equal(torch.stack(dataset.edges[edge_type]).numpy(), edges)
    check_targets(dataset)


def check_targets(dataset: NodeDataset | HeteroNodeDataset) -> None:
    np.testing.assert_array_equal(dataset.labels.numpy(), folders.labels()[:, 0])
    ids = (dataset.train_ids, dataset.val_ids, dataset.test_ids)
    for found, wanted in zip(ids, folders.split().values(), strict=True):
        np.testing.assert_array_equal(found.numpy(), wanted)


def test_folder_of_dataset_saver(saved: dict[str, Path], tmp_path: Path) -> None:
    moved = shutil.copytree(saved["homogeneous"], tmp_path / "moved")
    for _ in range(2):  # unpacks the features, finds them unpacked
        check_homogeneous(load_dataset("ogb-folder", root=moved), "ogbn-small")
    assert [path.name for path in (moved / "small" / "processed" / "ibp_gnn").iterdir()] == ["node_feat.npy"]


def test_hetero_folder_of_dataset_saver(saved: dict[str, Path]) -> None:
    check_hetero(load_dataset("ogb-folder", root=saved["hetero"]), "ogbn-small")


@pytest.mark.parametrize("name", ["ogbn-arxiv", "ogbn-mag"])
def test_text_files_are_parsed_once(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    write, check = (
        (folders.write_text_hetero, check_hetero)
        if name == "ogbn-mag"
        else (folders.write_text_homogeneous, check_homogeneous)
    )
    folder = tmp_path / name.replace("-", "_")
    write(folder)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        check(load_dataset(name, root=tmp_path), name)
    assert not [warning for warning in caught if "writ" in str(warning.message)]
    with monkeypatch.context() as patch:
        for parse in ("_parse", "_parse_hetero"):
            patch.delattr(ogb_files, parse)
        check(load_dataset(name, root=tmp_path), name)
    # Another raw file: parsed anew.
    part = sorted(folder.rglob("node-label.csv.gz"))[0]
    folders.write_csv(part, [[0]] * folders.NUM_NODES)
    assert not load_dataset(name, root=tmp_path).labels.any()


def test_text_files_are_parsed_by_two_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One begins to write what it parsed; another parses and writes all of it; then the first one goes on."""
    folder = tmp_path / "ogbn_arxiv"
    folders.write_text_homogeneous(folder)
    save, inner = np.save, []

    def hooked(*arguments: Any) -> None:
        if not inner:
            inner.append(None)
            inner[0] = load_dataset("ogbn-arxiv", root=tmp_path)
        save(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(np, "save", hooked)
        check_homogeneous(load_dataset("ogbn-arxiv", root=tmp_path), "ogbn-arxiv")
    check_homogeneous(inner[0], "ogbn-arxiv")
    check_homogeneous(load_dataset("ogbn-arxiv", root=tmp_path), "ogbn-arxiv")
    assert [path.name for path in (folder / "processed").iterdir()] == ["ibp_gnn"]


def test_products_has_both_directions(tmp_path: Path) -> None:
    folders.write_text_homogeneous(tmp_path / "ogbn_products")
    shutil.move(tmp_path / "ogbn_products" / "split" / "time", tmp_path / "ogbn_products" / "split" / "sales_ranking")
    dataset = load_dataset("ogbn-products", root=tmp_path)
    src, dst = folders.edge_index()
    assert sorted(zip(dataset.src.tolist(), dataset.dst.tolist(), strict=True)) == sorted(
        [*zip(src, dst, strict=True), *zip(dst, src, strict=True)]
    )


def test_papers100m_is_mapped_where_it_lies(tmp_path: Path, saved: dict[str, Path]) -> None:
    """Features as np.savez wrote them, split as text, labels that are NaN where there are none."""
    folder = tmp_path / "ogbn_papers100M"
    shutil.copytree(saved["homogeneous"] / "small" / "raw", folder / "raw")
    (folder / "RELEASE_v1.txt").touch()
    with np.load(folder / "raw" / "data.npz") as arrays:
        np.savez(folder / "raw" / "data.npz", **dict(arrays))
    parts = folder / "split" / "time"
    parts.mkdir(parents=True)
    for part, ids in folders.split().items():
        folders.write_csv(parts / f"{part}.csv.gz", ids[:, None])
    numbers = folders.labels().astype(np.float32)
    used = np.concatenate([ids[:50] for ids in folders.split().values()])
    unused = np.setdiff1d(np.arange(folders.NUM_NODES), np.concatenate(list(folders.split().values())))
    numbers[unused] = np.nan
    np.savez(folder / "raw" / "node-label.npz", node_label=numbers)
    dataset = load_dataset("ogbn-papers100M", root=tmp_path)
    check_homogeneous(dataset, "ogbn-papers100M")
    assert not (folder / "processed").exists()
    assert (dataset.labels[used] >= 0).all()


def test_reverse_edges(saved: dict[str, Path]) -> None:
    dataset = load_dataset("ogb-folder", root=saved["homogeneous"], reverse_edges=True)
    src, dst = folders.edge_index()
    np.testing.assert_array_equal(dataset.src.numpy(), np.concatenate([src, dst]))
    np.testing.assert_array_equal(dataset.dst.numpy(), np.concatenate([dst, src]))
    hetero = load_dataset("ogb-folder", root=saved["hetero"], reverse_edges=True)
    assert len(hetero.edges) == 6
    assert torch.equal(hetero.edges["paper", "rev_writes", "author"][0], hetero.edges["author", "writes", "paper"][1])


# ---- what goes wrong ----


def test_a_folder_without_meta_dict(tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match="want a folder that ogb's DatasetSaver wrote, with meta_dict.pt in it"):
        load_dataset("ogb-folder", root=tmp_path)


def test_a_meta_dict_without_keys(submission: Path) -> None:
    torch.save({"version": 1, "download_name": "small"}, submission / "meta_dict.pt")
    with pytest.raises(DatasetError, match="want a dict with .*got none with .*'num classes'"):
        load_dataset("ogb-folder", root=submission)


def test_a_meta_dict_that_points_elsewhere(submission: Path) -> None:
    meta = ogb_package.load_torch_file(submission / "meta_dict.pt")
    torch.save({**meta, "download_name": "../../small"}, submission / "meta_dict.pt")
    with pytest.raises(DatasetError, match="want a folder's name as download_name"):
        load_dataset("ogb-folder", root=submission)


@pytest.mark.parametrize(
    ("missing", "message"),
    [
        ("RELEASE_v1.txt", r"want RELEASE_v1.txt in it, .*got no RELEASE file"),
        ("raw/data.npz", r"raw/data.npz: no such file"),
        ("raw/node-label.npz", r"want .*node-label.npz, got no such file"),
        ("split", "want the folder of the split"),
    ],
)
def test_missing_files(submission: Path, missing: str, message: str) -> None:
    path = submission / "small" / missing
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    with pytest.raises(DatasetError, match=message):
        load_dataset("ogb-folder", root=submission)
    assert (submission / "small").is_dir()


def test_another_release(tmp_path: Path) -> None:
    folders.write_text_homogeneous(tmp_path / "ogbn_mag")
    with pytest.raises(DatasetError, match=r"want RELEASE_v2.txt in it, .*got \['RELEASE_v1.txt'\]"):
        load_dataset("ogbn-mag", root=tmp_path)


@pytest.mark.parametrize("length", [0, 100, -1])
def test_damaged_files(submission: Path, length: int) -> None:
    path = submission / "small" / "raw" / "data.npz"
    path.write_bytes(path.read_bytes()[:length])
    with pytest.raises(DatasetError, match="want the files of an OGB data set; reading them failed"):
        load_dataset("ogb-folder", root=submission)


def test_no_features(tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match="want node features, got a data set without"):
        load_dataset("ogb-folder", root=folders.save_homogeneous(tmp_path, node_feat=None))


def test_a_split_with_ids_that_do_not_exist(submission: Path) -> None:
    path = submission / "small" / "split" / "random" / "split_dict.pt"
    torch.save({**folders.split(), "valid": np.array([3, folders.NUM_NODES])}, path)
    with pytest.raises(DatasetError, match=r"val_ids: want values in \[0, 400\), got 400"):
        load_dataset("ogb-folder", root=submission)
    torch.save({"train": np.arange(3)}, path)
    with pytest.raises(DatasetError, match=r"want a split into train, valid, test, got \['train'\]"):
        load_dataset("ogb-folder", root=submission)


def test_regression_and_several_tasks(submission: Path) -> None:
    meta = ogb_package.load_torch_file(submission / "meta_dict.pt")
    for changed, got in (({"task type": "regression"}, "1 of regression"), ({"num tasks": 112}, "112 of multi")):
        torch.save({**meta, **changed}, submission / "meta_dict.pt")
        with pytest.raises(DatasetError, match=f"want one task, of classification, got {got}"):
            load_dataset("ogb-folder", root=submission)


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


# ---- ogb without its habits ----


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
    with pytest.raises(ImportError, match=r"pip install 'ibp-gnn\[ogb\]'"):
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

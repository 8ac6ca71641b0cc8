"""Partitions with compressed features."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("dgl")

from distdgl_parts import NODES, partition, rows_with_overflow

import ibp_gnn
from ibp_gnn import CompressedFeatureStore
from ibp_gnn.integrations import distdgl_partitions
from ibp_gnn.integrations.dgl_compat import import_dgl
from ibp_gnn.integrations.distdgl_format import layouts, read_config

dgl = import_dgl()
compress_partitions = ibp_gnn.distdgl.compress_partitions


def test_what_is_written(tmp_path: Path) -> None:
    rows = rows_with_overflow()
    path = partition(tmp_path, rows, 3)
    before = {file: file.read_bytes() for file in tmp_path.rglob("*") if file.is_file()}
    new_path = compress_partitions(path, ["feat"], progress=False)
    assert new_path == tmp_path / "small.ibp.json"
    assert all(file.read_bytes() == content for file, content in before.items()), "what was there stays"
    assert not list(tmp_path.rglob("*.partial"))
    old, new = json.loads(path.read_text()), json.loads(new_path.read_text())
    layout = layouts(new)["_N", "feat"]
    assert (layout.num_rows, layout.row_bytes) == (NODES, 33 * 4) and 0 < layout.slot_bytes < layout.row_bytes
    assert 0 < layout.piece_bytes < layout.row_bytes
    assert new.keys() - old.keys() == {"ibp_gnn"} and new["node_map"] == old["node_map"]
    with CompressedFeatureStore.load(tmp_path / layout.codec) as codec_file:
        codec = codec_file.codec
    assert (codec.dtype, codec.row_shape) == (torch.float32, (33,))
    total = codec.nbytes
    for number in range(3):
        raw = dgl.data.utils.load_tensors(str(tmp_path / old[f"part-{number}"]["node_feats"]))
        tensors = dgl.data.utils.load_tensors(str(tmp_path / new[f"part-{number}"]["node_feats"]))
        assert set(tensors) == {"_N/label", "_N/feat.slots", "_N/feat.overflow"}
        assert torch.equal(tensors["_N/label"], raw["_N/label"])
        for name, width in (("slots", layout.slot_bytes + 1), ("overflow", layout.piece_bytes)):
            tensor = tensors[f"_N/feat.{name}"]
            assert tensor.shape == (len(raw["_N/feat"]), width) and tensor.dtype == torch.uint8
            total += tensor.numel()
    assert total == layout.nbytes < rows.numel() * 4


def test_many_chunks_are_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = partition(tmp_path, rows_with_overflow())
    first = compress_partitions(path, ["feat"], progress=False)
    files = [*tmp_path.rglob("*.ibp.dgl"), first]
    whole = [file.read_bytes() for file in files]
    monkeypatch.setattr(distdgl_partitions, "_CHUNK_BYTES", 33 * 4 * 7)
    compress_partitions(path, ["feat"], progress=False)
    assert [file.read_bytes() for file in files] == whole


def test_no_config_names_files_of_two_calls(tmp_path: Path) -> None:
    path = partition(tmp_path, rows_with_overflow())
    new_path = compress_partitions(path, ["feat"], codec="dict", progress=False)
    with pytest.raises(ValueError, match="codec"):  # nothing was written
        compress_partitions(path, ["feat"], codec="zip", progress=False)
    assert new_path.exists()
    (tmp_path / "part1" / "node_feat.ibp.dgl.partial").mkdir()  # the second partition cannot be written
    with pytest.raises(dgl.DGLError):
        compress_partitions(path, ["feat"], codec="ibp", progress=False)
    assert not new_path.exists()


def test_a_fitted_codec(tmp_path: Path) -> None:
    path = partition(tmp_path, rows_with_overflow())
    codec = ibp_gnn.Codec.fit(rows_with_overflow(), codec="ibp")
    new_path = compress_partitions(path, ["feat"], codec=codec, progress=False)
    with CompressedFeatureStore.load(tmp_path / layouts(read_config(new_path))["_N", "feat"].codec) as store:
        assert store.codec.kind == "ibp"


def test_no_overflow_takes_no_tensor(tmp_path: Path) -> None:
    path = partition(tmp_path, torch.zeros(NODES, 16))
    config = read_config(compress_partitions(path, ["feat"], progress=False))
    assert layouts(config)["_N", "feat"].piece_bytes == 0
    tensors = dgl.data.utils.load_tensors(str(tmp_path / config["part-0"]["node_feats"]))
    assert set(tensors) == {"_N/label", "_N/feat.slots"}


def test_heterographs_name_types(tmp_path: Path) -> None:
    edges = {("a", "to", "b"): (torch.randint(40, (90,)), torch.randint(70, (90,)))}
    graph = dgl.heterograph(edges, num_nodes_dict={"a": 40, "b": 70})
    graph.nodes["a"].data["x"], graph.nodes["b"].data["x"] = torch.zeros(40, 8), torch.ones(70, 4)
    dgl.distributed.partition_graph(graph, "two", 2, str(tmp_path), part_method="random")
    with pytest.raises(ValueError, match=r"features: want names by node type, of \['a', 'b'\], got \['x'\]"):
        compress_partitions(tmp_path / "two.json", ["x"])
    with pytest.raises(ValueError, match=r"features: want node types of \['a', 'b'\], got \['c'\]"):
        compress_partitions(tmp_path / "two.json", {"c": ["x"]})
    found = layouts(read_config(compress_partitions(tmp_path / "two.json", {"a": ["x"]}, progress=False)))
    assert list(found) == [("a", "x")] and found["a", "x"].num_rows == 40


@pytest.mark.parametrize(
    ("features", "codec", "error", "message"),
    [
        (["none"], "auto", ValueError, r"features: want some of \['_N/feat', '_N/label'\], got \['_N/none'\] in "),
        ([], "auto", ValueError, "features: want at least one, got none"),
        ("feat", "auto", TypeError, "features: want a list of names, got 'feat'"),
        (["feat"], 3, TypeError, "codec: want a name or a Codec, got int"),
        (["feat"], "zip", ValueError, "codec"),
    ],
)
def test_bad_arguments_change_nothing(
    tmp_path: Path, features: Any, codec: Any, error: type[Exception], message: str
) -> None:
    path = partition(tmp_path, rows_with_overflow())
    before = set(tmp_path.rglob("*"))
    with pytest.raises(error, match=message):
        compress_partitions(path, features, codec=codec, progress=False)
    assert set(tmp_path.rglob("*")) == before


def test_compressed_ones_are_not_compressed_again(tmp_path: Path) -> None:
    path = compress_partitions(partition(tmp_path, rows_with_overflow()), ["feat"], progress=False)
    with pytest.raises(ValueError, match="part_config: want one with uncompressed features"):
        compress_partitions(path, ["label"])

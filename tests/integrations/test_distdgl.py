"""Compressed node features of a DistGraph, as a client reads them."""

from __future__ import annotations

import threading
from pathlib import Path

import numpy as np
import pytest
import torch

pytest.importorskip("dgl")

from distdgl_parts import NODES, PartGraph, attached, partition, rows_with_overflow
from update_rows import raw

import ibp_gnn
from ibp_gnn import FormatError
from ibp_gnn.integrations.dgl_compat import import_dgl
from ibp_gnn.testing import assert_bitwise_equal

dgl = import_dgl()
DTYPES = [torch.float32, torch.float16, torch.float64, torch.int32, torch.int64, torch.uint8]
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.cuda)]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("num_parts", [1, 3])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_exact_bits(tmp_path: Path, dtype: torch.dtype, num_parts: int, device: str) -> None:
    feature, rows = attached(tmp_path, rows_with_overflow(dtype), num_parts)
    assert feature.shape == (NODES, 33) and feature.dtype == dtype and len(feature) == NODES
    assert isinstance(feature, ibp_gnn.RowSource)
    ids = torch.cat([torch.randperm(NODES), torch.tensor([5, 5, 0, NODES - 1])])
    assert_bitwise_equal(feature[ids], rows[ids])
    got = feature.gather(ids.to(torch.int32), device=device)
    assert got.device.type == device
    assert_bitwise_equal(got.cpu(), rows[ids])
    out = torch.empty(3, 33, dtype=dtype, device=device)
    assert feature.gather(ids[:3], device=device, out=out) is out
    assert_bitwise_equal(out.cpu(), rows[ids[:3]])
    assert feature[ids[:0]].shape == (0, 33)


@pytest.mark.parametrize("rows", [raw(NODES), torch.zeros(NODES, 33), raw(NODES).reshape(NODES, 3, 11)])
def test_all_overflow_or_none(tmp_path: Path, rows: torch.Tensor) -> None:
    feature, renumbered = attached(tmp_path, rows)
    assert_bitwise_equal(feature[torch.arange(NODES)], renumbered)


def test_a_partition_where_every_second_row_overflows(tmp_path: Path) -> None:
    """Others have few: pieces are as long as that one needs."""
    rows = rows_with_overflow()
    rows[::2] = raw(NODES // 2)
    codec = ibp_gnn.Codec.fit(rows_with_overflow())
    feature, renumbered = attached(tmp_path, rows, 4, codec=codec)
    assert_bitwise_equal(feature[torch.arange(NODES)], renumbered)


@pytest.fixture(scope="module")
def standalone(tmp_path_factory: pytest.TempPathFactory) -> None:
    """DGL's mode of one process, with one partition and no server."""
    path = tmp_path_factory.mktemp("standalone") / "ip_config.txt"
    path.write_text("127.0.0.1\n")
    dgl.distributed.initialize(str(path))


@pytest.mark.usefixtures("standalone")
def test_a_heterograph(tmp_path: Path) -> None:
    """Two types with features of one name, one of them compressed."""
    edges = {("a", "to", "b"): (torch.randint(NODES, (900,)), torch.randint(70, (900,)))}
    graph = dgl.heterograph(edges, num_nodes_dict={"a": NODES, "b": 70})
    rows = rows_with_overflow()
    graph.nodes["a"].data["x"], graph.nodes["b"].data["x"] = rows, torch.ones(70, 4)
    graph.nodes["a"].data["id"] = torch.arange(NODES)
    dgl.distributed.partition_graph(graph, "types", 1, str(tmp_path), part_method="random")
    config = ibp_gnn.distdgl.compress_partitions(tmp_path / "types.json", {"a": ["x"]}, progress=False)
    found = ibp_gnn.distdgl.attach(dgl.distributed.DistGraph("types", part_config=str(config)), config)
    ids = torch.randperm(NODES)
    assert_bitwise_equal(found.nodes["a"].data["x"][ids], rows[found.nodes["a"].data["id"][ids]])
    assert_bitwise_equal(found.nodes["b"].data["x"][torch.arange(70)], torch.ones(70, 4))
    assert set(found.nodes["a"].data) == {"x", "id"} and set(found.nodes["b"].data) == {"x"}


@pytest.mark.usefixtures("standalone")
def test_a_graph_in_one_process(tmp_path: Path) -> None:
    """With DGL's loader."""
    rows = rows_with_overflow()
    path = partition(tmp_path, rows, 1, name="standalone")
    config = ibp_gnn.distdgl.compress_partitions(path, ["feat"], progress=False)
    graph = ibp_gnn.distdgl.attach(dgl.distributed.DistGraph("standalone", part_config=str(config)), config)
    assert set(graph.ndata) == {"feat", "label"} and "shape=(600, 33)" in repr(graph.ndata)
    sampler = dgl.dataloading.NeighborSampler([3, 3])
    loader = dgl.dataloading.DistNodeDataLoader(graph, torch.arange(NODES), sampler, batch_size=100)
    for input_nodes, _, _ in loader:
        assert_bitwise_equal(graph.ndata["feat"][input_nodes], rows[graph.ndata["label"][input_nodes]])
    with pytest.raises(ValueError, match=r"dist_graph: want servers with the partitions of .*, got features \['feat'"):
        ibp_gnn.distdgl.attach(graph, config)


def test_what_is_counted(tmp_path: Path) -> None:
    feature, _ = attached(tmp_path, rows_with_overflow(), 2, here=1)
    here = int(feature._first_id[1])
    layout = feature.layout
    fits = feature.pull(torch.arange(NODES)).is_compressed()
    feature.reset_stats()
    ids = torch.arange(here - 50, here + 70)
    feature[ids]
    overflows = ~fits[ids]
    width, of_overflow = layout.slot_bytes + 1, layout.pieces_per_row * layout.piece_bytes
    stats = feature.stats()
    assert stats == ibp_gnn.distdgl.PullStats(
        rows=120,
        pulled_bytes=120 * width + int(overflows.sum()) * of_overflow,
        network_bytes=50 * width + int(overflows[:50].sum()) * of_overflow,
        raw_bytes=120 * 33 * 4,
    )
    assert stats.savings == 1 - stats.pulled_bytes / stats.raw_bytes and ibp_gnn.distdgl.PullStats().savings == 0
    assert 0 < feature.savings < 1 and feature.nbytes == layout.nbytes
    assert repr(feature).startswith("CompressedDistTensor('feat', [600, 33] torch.float32, savings=")


def test_bad_ids(tmp_path: Path) -> None:
    feature, rows = attached(tmp_path, rows_with_overflow())
    for bad in (-1, NODES):
        with pytest.raises(IndexError, match=f"want 0 <= id < {NODES}, got {bad}"):
            feature[torch.tensor([0, bad])]
    with pytest.raises(TypeError, match="ids: want int32 or int64, got torch.float32"):
        feature.gather(torch.tensor([0.5]))
    with pytest.raises(ValueError, match="out"):
        feature.gather(torch.tensor([0]), out=torch.empty(2, 33))
    assert_bitwise_equal(feature[[3, 4]], rows[3:5])  # as a DistTensor takes them
    assert_bitwise_equal(feature[np.array([3, 4])], rows[3:5])


def test_damage_is_never_wrong_rows(tmp_path: Path) -> None:
    feature, _ = attached(tmp_path, rows_with_overflow())
    slots = feature._slots.rows
    raw_id = int(torch.nonzero(slots[:, -1] == 0)[0])
    slots[raw_id, :4] = 255
    with pytest.raises(FormatError, match=f"feat: row {raw_id} is damaged: overflow index"):
        feature[torch.tensor([0, raw_id])]
    feature._overflow = None
    other = int(torch.nonzero(slots[:, -1] == 0)[0])
    with pytest.raises(FormatError, match="damaged"):
        feature[torch.tensor([other])]


def test_configs_that_do_not_fit(tmp_path: Path) -> None:
    path = partition(tmp_path, rows_with_overflow())
    config = ibp_gnn.distdgl.compress_partitions(path, ["feat"], progress=False)
    with pytest.raises(ValueError, match="part_config: want one of compress_partitions"):
        ibp_gnn.distdgl.attach(PartGraph(path), path)
    with pytest.raises(ValueError, match="dist_graph: want servers with the partitions of"):
        ibp_gnn.distdgl.attach(PartGraph(path), config)
    graph = PartGraph(config)
    del graph.ndata["feat.overflow"]
    with pytest.raises(ValueError, match="dist_graph: want servers with the partitions of"):
        ibp_gnn.distdgl.attach(graph, config)
    assert "feat.slots" in graph.ndata
    graph = PartGraph(config)
    graph.ndata["feat.slots"].shape = (NODES, 7)
    with pytest.raises(ValueError, match=r"feat: want slots \[600, \d+\] uint8, got \[600, 7\]"):
        ibp_gnn.distdgl.attach(graph, config)
    (tmp_path / "small._N.feat.ibp").write_bytes(b"IBPSTORE")
    with pytest.raises(FormatError):
        ibp_gnn.distdgl.attach(PartGraph(config), config)


def test_several_threads(tmp_path: Path) -> None:
    feature, rows = attached(tmp_path, rows_with_overflow())
    failures: list[BaseException] = []

    def read(seed: int) -> None:
        try:
            generator = torch.Generator().manual_seed(seed)
            for _ in range(20):
                ids = torch.randint(NODES, (50,), generator=generator)
                assert_bitwise_equal(feature[ids], rows[ids])
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=read, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == [] and feature.stats().rows == 4 * 20 * 50

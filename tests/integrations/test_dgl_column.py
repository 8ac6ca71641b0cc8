"""What `g.ndata["feat"]` of an attached feature reads, what it refuses, and what DGL makes of it."""

from __future__ import annotations

import copy
import pickle
import warnings
from collections.abc import Callable
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from exact_sources import CountingSource, TensorSource

dgl = pytest.importorskip("dgl")

from dgl import function  # noqa: E402

from ibp_gnn import CompressedFeatureStore  # noqa: E402
from ibp_gnn.integrations.dgl_classic import attach, detach, fetch  # noqa: E402
from ibp_gnn.integrations.feature_tensor import FeatureTensor  # noqa: E402
from ibp_gnn.testing import assert_bitwise_equal  # noqa: E402

pytestmark = pytest.mark.filterwarnings(
    "ignore:.*CPU affinity.*",  # a hint of DGL's loader
    "ignore:.*multi-threaded, use of fork.*:DeprecationWarning",  # Python 3.12
)

N, E, DIM = 60, 200, 6


def values(num_rows: int, seed: int) -> torch.Tensor:
    return torch.randn(num_rows, DIM, generator=torch.Generator().manual_seed(seed))


def graph() -> dgl.DGLGraph:
    src, dst = torch.randint(0, N, (2, E), generator=torch.Generator().manual_seed(1))
    return dgl.graph((src, dst), num_nodes=N)


class Attached:
    """A graph with an attached node feature "feat" and edge feature "w", and one with the same as tensors."""

    def __init__(self) -> None:
        self.x, self.w = values(N, 0), values(E, 2)
        self.nodes, self.edges = CountingSource(TensorSource(self.x)), CountingSource(TensorSource(self.w))
        self.g, self.plain = graph(), graph()
        attach(self.g, "feat", self.nodes)
        attach(self.g, "w", self.edges, etype="_E")
        self.plain.ndata["feat"], self.plain.edata["w"] = self.x.clone(), self.w.clone()

    @property
    def rows(self) -> int:
        return self.nodes.rows + self.edges.rows


@pytest.fixture
def attached() -> Attached:
    return Attached()


# ---- what is read

PARTS: dict[str, Callable[[dgl.DGLGraph], dgl.DGLGraph]] = {
    "whole": lambda g: g,
    "large": lambda g: g.subgraph(torch.arange(N - 1, 5, -1)),
    "small": lambda g: g.subgraph(torch.arange(3, 9)),
    "edges": lambda g: g.edge_subgraph(torch.arange(5, 25), relabel_nodes=False),
    "block": lambda g: dgl.to_block(dgl.in_subgraph(g, [1, 2]), [1, 2]),
    "clone": lambda g: g.clone(),
    "int32": lambda g: g.int().subgraph(torch.arange(3, 40, dtype=torch.int32)),
    "half": dgl.to_half,
    "pickle": lambda g: pickle.loads(pickle.dumps(g)),
    "pickle_small": lambda g: pickle.loads(pickle.dumps(g.subgraph([5, 1]))),
    "deepcopy": copy.deepcopy,
}


@pytest.mark.parametrize("name", PARTS)
def test_metadata_and_membership_read_nothing(attached: Attached, name: str) -> None:
    ours, plain = PARTS[name](attached.g), PARTS[name](attached.plain)
    before = attached.rows
    for got, want in ((ours.srcdata, plain.srcdata), (ours.edata, plain.edata)):
        for key in ("feat", "w"):
            assert (key in got) == (key in want)
        key = "feat" if got is ours.srcdata or "feat" in got else "w"
        x, y = got[key], want[key]
        assert (x.shape, x.dtype, x.device, x.ndim, len(x)) == (y.shape, y.dtype, y.device, y.ndim, len(y))
        assert (x.dim(), x.size(0), x.numel(), x.is_floating_point()) == (y.dim(), y.size(0), y.numel(), True)
        assert isinstance(x, torch.Tensor) and x.stride() == y.stride() and not x.requires_grad
    assert attached.rows == before


@pytest.mark.parametrize("name", PARTS)
def test_an_index_reads_its_rows_alone(attached: Attached, name: str) -> None:
    g, plain = PARTS[name](attached.g), PARTS[name](attached.plain)
    source = attached.nodes if "pickle" not in name else detach(pickle.loads(pickle.dumps(g)), "feat")
    for key, rows in ((1, 1), (-1, 1), (slice(0, 2), 2), ([1, 0], 2), (torch.tensor([1, 1]), 2), (np.array([-2]), 1)):
        before = attached.nodes.rows
        got = g.srcdata["feat"][key]
        assert_bitwise_equal(got, plain.srcdata["feat"][key])
        assert type(got) is torch.Tensor
        if source is attached.nodes:
            assert attached.nodes.rows - before == rows
    mask = torch.arange(g.num_src_nodes()) % 2 == 0
    assert_bitwise_equal(g.srcdata["feat"][mask], plain.srcdata["feat"][mask])


def test_features_of_a_heterograph() -> None:
    g = dgl.heterograph({("a", "r", "b"): ([0, 1], [1, 0]), ("b", "s", "a"): ([0], [1])})
    a, b, r = torch.randn(2, 3), torch.randn(2, 5), torch.randn(2, 1)
    sources = [CountingSource(TensorSource(x)) for x in (a, b, r)]
    attach(g, "h", sources[0], "a"), attach(g, "h", sources[1], "b"), attach(g, "q", sources[2], etype="r")
    assert {ntype: x.shape[1] for ntype, x in g.ndata["h"].items()} == {"a": 3, "b": 5}
    assert "h" in g.nodes["a"].data and "q" in g.edges["r"].data and g.edges["r"].data["q"].shape == (2, 1)
    assert [source.rows for source in sources] == [0, 0, 0]
    assert_bitwise_equal(g.ndata["h"]["b"][1], b[1])
    assert_bitwise_equal(g.edges["a", "r", "b"].data["q"][[1, 0]], r[[1, 0]])
    assert [source.rows for source in sources] == [0, 1, 2]


def test_all_rows_of_a_held_tensor_are_decoded_once(attached: Attached) -> None:
    x = attached.g.ndata["feat"]
    for _ in range(3):
        assert_bitwise_equal(dgl.nn.SumPooling()(attached.g, x), dgl.nn.SumPooling()(attached.plain, attached.x))
        attached.g.update_all(function.copy_u("feat", "m"), function.sum("m", "h"))
    assert attached.nodes.fetches.count(N) == 4  # x once, each update_all once


def test_a_held_tensor_outlives_its_feature(attached: Attached) -> None:
    x = attached.g.ndata["feat"]
    attached.g.nodes[[3]].data["feat"] = torch.zeros(1, DIM)  # the column is an ordinary one from here on
    assert_bitwise_equal(x[3], attached.x[3])
    assert_bitwise_equal(x + 0, attached.x + 0)
    assert not attached.g.ndata["feat"][3].any()
    y = attached.plain.ndata["feat"]
    attached.plain.ndata.pop("feat")
    assert_bitwise_equal(y, attached.x)


def test_rows_decoded_in_inference_mode_can_be_trained_with(attached: Attached) -> None:
    sub = attached.g.subgraph([1, 2])
    with torch.inference_mode():
        sub.ndata["feat"].sum()
        held = attached.g.ndata["feat"][:5]
    linear = torch.nn.Linear(DIM, 1)
    (linear(sub.ndata["feat"]).sum() + linear(held).sum()).backward()
    assert linear.weight.grad is not None


def test_torchs_default_device_does_not_matter(attached: Attached) -> None:
    small = attached.g.subgraph([1, 2])
    with torch.device("meta"):
        for got, want in (
            (attached.g.ndata["feat"].clone(), attached.x),
            (attached.g.ndata["feat"][2:4], attached.x[2:4]),
            (small.ndata["feat"].contiguous(), attached.x[1:3]),
        ):
            assert got.device.type == "cpu"
            assert_bitwise_equal(got.numpy(), want.numpy())


def test_rows_that_were_decoded_travel_between_processes() -> None:
    attached = Attached()
    small = attached.g.subgraph([4, 1])
    small.ndata["feat"].sum()
    sent = bytes(ForkingPickler.dumps(small))
    x = attached.x
    del attached, small  # as in a process that does not have the source
    assert_bitwise_equal(pickle.loads(sent).ndata["feat"], x[[4, 1]])


class HugeSource:
    """[1000, 250001] float32 without memory: 1.000004 GB."""

    shape, dtype = (1000, 250_001), torch.float32

    def gather(self, ids: torch.Tensor, *, device: Any = None, out: Any = None) -> torch.Tensor:
        return torch.zeros(1, 1).expand(len(ids), self.shape[1])


def test_one_warning_when_more_than_a_gigabyte_is_decoded() -> None:
    g = dgl.graph(([0], [1]), num_nodes=1000)
    attach(g, "feat", HugeSource())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert g.ndata["feat"].shape[1] == 250_001 and "feat" in g.ndata and g.ndata["feat"][:9].shape[0] == 9
        repr(g.ndata["feat"]), str(g)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for sub in (g, g.clone(), g.subgraph(torch.arange(1000))):
            sub.ndata["feat"].expand(1000, 250_001)
    ours = [warning for warning in caught if "attached feature" in str(warning.message)]
    assert len(ours) == 1 and "ibp_gnn.fetch" in str(ours[0].message) and "1.0 GB" in str(ours[0].message)
    assert ours[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        attach(dgl.graph(([0], [1]), num_nodes=999), "feat", TensorSource(torch.zeros(999, 1)))
        g.subgraph(torch.arange(999)).ndata["feat"].expand(999, 250_001)


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_features_on_a_gpu(attached: Attached) -> None:
    frame = attached.g._node_frames[0].to(torch.device("cuda"))  # as graph.to("cuda") with a CUDA build of DGL
    x = frame["feat"]
    assert x.is_cuda and x.device.index is not None and attached.rows == 0
    assert_bitwise_equal(x[torch.tensor([3, 1])], attached.x[[3, 1]].cuda())
    assert_bitwise_equal(x[torch.tensor([3, 1], device="cuda")], attached.x[[3, 1]].cuda())
    assert attached.rows == 4
    small = frame.subframe(torch.tensor([5, 0], device="cuda"))
    assert_bitwise_equal(small["feat"] * 1, attached.x[[5, 0]].cuda())
    small.record_stream(torch.cuda.Stream())
    with pytest.raises(RuntimeError, match=r"store\.update"):
        small["feat"].mul_(2)
    assert_bitwise_equal(x.to("cuda", torch.float64), attached.x.cuda().double())


# ---- writes


def _setitem(g: dgl.DGLGraph) -> None:
    g.srcdata["feat"][:1] = 0


def _augmented(g: dgl.DGLGraph) -> None:
    g.srcdata["feat"] += 1


def _held(g: dgl.DGLGraph) -> None:
    x = g.srcdata["feat"]
    x /= 2


WRITES: dict[str, Callable[[dgl.DGLGraph], Any]] = {
    "mul_": lambda g: g.srcdata["feat"].mul_(2),
    "setitem": _setitem,
    "+=": _augmented,
    "/=": _held,
    "out": lambda g: torch.add(g.srcdata["feat"].clone(), 1, out=g.srcdata["feat"]),
    "copy_": lambda g: g.srcdata["feat"].copy_(g.srcdata["feat"] * 2),
    "data": lambda g: g.srcdata["feat"].data.zero_(),
    "requires_grad_": lambda g: g.srcdata["feat"].requires_grad_(),
    "assigned": lambda g: (g.srcdata.update({"h": g.srcdata["feat"]}), g.srcdata["h"].zero_()),
}


@pytest.mark.parametrize("name", WRITES)
@pytest.mark.parametrize("part", PARTS)
def test_writes_are_refused_whatever_the_size(attached: Attached, part: str, name: str) -> None:
    for read_before in (False, True):
        g, plain = PARTS[part](attached.g), PARTS[part](attached.plain)
        if read_before:
            g.srcdata["feat"].sum()
        with pytest.raises(RuntimeError, match=r"want a tensor that can be written to.* store\.update\(ids, rows\)"):
            WRITES[name](g)
        assert_bitwise_equal(g.srcdata["feat"], plain.srcdata["feat"])
    assert_bitwise_equal(attached.g.ndata["feat"], attached.x)


def test_writes_to_what_was_read_stay_there(attached: Attached) -> None:
    for g in (attached.g, attached.g.subgraph(torch.arange(6))):
        n = g.num_nodes()
        for read in (
            lambda x: x.view(-1),
            lambda x: x.view(-1).data,
            lambda x: x.contiguous().data,
            lambda x: x[2:5].data,
            lambda x: next(iter(x)).data,
            torch.from_dlpack,
            lambda x: x.numpy(),
            lambda x: x[1:3].numpy(),
            lambda x: x.clone(),
        ):
            own = read(g.ndata["feat"])
            own *= 0
            assert_bitwise_equal(g.ndata["feat"], attached.x[:n])


def test_feature_mask_is_refused(attached: Attached) -> None:
    for transform in (
        dgl.transforms.FeatMask(p=1.0, node_feat_names=["feat"]),
        dgl.transforms.FeatMask(p=1.0, edge_feat_names=["w"]),
    ):
        with pytest.raises(RuntimeError, match=r"store\.update"):
            transform(attached.g)
    attached.g.ndata["feat"] = attached.g.ndata["feat"].clone()  # as the message says
    assert not dgl.transforms.FeatMask(p=1.0, node_feat_names=["feat"])(attached.g).ndata["feat"].any()


def test_an_update_is_seen_by_the_next_read() -> None:
    x = values(N, 0)
    g, store = graph(), CompressedFeatureStore.build(x, progress=False, pin=False)
    attach(g, "feat", store)
    held = g.ndata["feat"]
    store.update(torch.tensor([2]), torch.full((1, DIM), 7.0))
    x[2] = 7
    for got in (held, g.ndata["feat"]):
        assert_bitwise_equal(got[:3], x[:3])
        assert_bitwise_equal(got, x)
    store.update(torch.tensor([2]), torch.full((1, DIM), 8.0))
    assert_bitwise_equal(held, x)  # decoded before
    x[2] = 8
    assert_bitwise_equal(g.ndata["feat"], x)


# ---- what DGL makes of it: the same as of tensors


def _assigned(g: dgl.DGLGraph) -> dgl.DGLGraph:
    g.ndata["h"], g.edata["v"] = g.ndata["feat"], g.edata["w"]
    return g


def _saved(g: dgl.DGLGraph, folder: Path) -> dgl.DGLGraph:
    dgl.save_graphs(str(folder / "g.bin"), [g])
    return dgl.load_graphs(str(folder / "g.bin"))[0][0]


def _user_defined(g: dgl.DGLGraph) -> dgl.DGLGraph:
    g.apply_edges(lambda edges: {"d": edges.src["feat"] - edges.dst["feat"] + edges.data["w"]})
    g.apply_nodes(lambda nodes: {"t": nodes.data["feat"] * 2})
    g.update_all(
        lambda edges: {"m": edges.src["feat"] * edges.data["w"]},
        lambda nodes: {"h": nodes.mailbox["m"].sum(1) + nodes.data["feat"]},
    )
    return g


def _messages(g: dgl.DGLGraph) -> dgl.DGLGraph:
    g.apply_edges(function.u_dot_v("feat", "feat", "s"))
    g.apply_edges(function.u_add_v("feat", "feat", "t"))
    g.update_all(function.u_mul_e("feat", "w", "m"), function.mean("m", "h"))
    g.pull(torch.arange(5), function.copy_u("feat", "m"), function.max("m", "p"))
    g.send_and_recv(torch.arange(5), function.copy_e("w", "m"), function.sum("m", "q"))
    return g


def _scope(g: dgl.DGLGraph) -> list[torch.Tensor]:
    with g.local_scope():
        g.ndata["feat"] = g.ndata["feat"] * 2
        inside = g.ndata["feat"]
    return [inside, g.ndata["feat"]]


def _layer(make: Callable[[], torch.nn.Module], *more: str) -> Callable[[dgl.DGLGraph], list[torch.Tensor | None]]:
    """The output of a layer, and the gradients of its parameters."""

    def run(g: dgl.DGLGraph) -> list[torch.Tensor | None]:
        torch.manual_seed(0)
        layer = make()
        out = layer(g, g.ndata["feat"], *(g.edata[key] for key in more))
        out = out if isinstance(out, torch.Tensor) else out[0]
        if out.requires_grad:
            out.sum().backward()
        return [out.detach(), *(parameter.grad for parameter in layer.parameters())]

    return run


NN, T = dgl.nn, dgl.transforms
OPERATIONS: dict[str, Callable[[dgl.DGLGraph], Any]] = {
    "assigned": _assigned,
    "assigned_pickle": lambda g: pickle.loads(pickle.dumps(_assigned(g))),
    "assigned_deepcopy": lambda g: copy.deepcopy(_assigned(g)),
    "assigned_subgraph": lambda g: _assigned(g).subgraph([1, 2, 3]),
    "assigned_batch": lambda g: dgl.batch([_assigned(g), _assigned(g)]),
    "assigned_half": lambda g: dgl.to_half(_assigned(g)),
    "assigned_block": lambda g: dgl.to_block(_assigned(g)),
    "assigned_add_nodes": lambda g: dgl.add_nodes(_assigned(g), 2, {"h": torch.ones(2, DIM)}),
    "assigned_user_defined": lambda g: _user_defined(_assigned(g)),
    "update_of_views": lambda g: (lambda h: (h.ndata.update(g.ndata), h)[1])(graph()),
    "items": lambda g: dict(g.ndata.items()),
    "pop": lambda g: g.ndata.pop("feat"),
    "repr": lambda g: repr(g),
    "scope": _scope,
    "user_defined": _user_defined,
    "messages": _messages,
    "batch": lambda g: dgl.unbatch(dgl.batch([g, g.clone()])),
    "slice_batch": lambda g: dgl.slice_batch(dgl.batch([g, g]), 1),
    "graph_loader": lambda g: list(dgl.dataloading.GraphDataLoader([g, g], batch_size=2))[0],
    "readout": lambda g: [
        dgl.sum_nodes(g, "feat"),
        dgl.mean_edges(g, "w"),
        dgl.softmax_nodes(g, "feat"),
        dgl.topk_nodes(g, "feat", 3, sortby=0),
    ],
    "ops": lambda g: [
        dgl.ops.copy_u_sum(g, g.ndata["feat"]),
        dgl.ops.u_mul_e_sum(g, g.ndata["feat"], g.edata["w"]),
        dgl.ops.edge_softmax(g, g.edata["w"]),
        dgl.ops.segment_reduce(torch.tensor([20, 40]), g.ndata["feat"]),
        dgl.ops.gather_mm(g.ndata["feat"], torch.ones(2, DIM, 3), idx_b=torch.arange(N) % 2),
    ],
    "filter": lambda g: g.filter_nodes(lambda nodes: nodes.data["feat"][:, 0] > 0),
    "knn": lambda g: torch.stack(dgl.knn_graph(g.ndata["feat"], 3).edges()),
    "networkx": lambda g: [d["feat"] for _, d in g.to_networkx(node_attrs=["feat"]).nodes(data=True)],
    "line_graph": lambda g: dgl.line_graph(g, shared=True),
    "add_reverse_edges": lambda g: dgl.add_reverse_edges(g, copy_edata=True),
    "add_self_loop": lambda g: dgl.add_self_loop(g, fill_data="sum"),
    "to_simple": lambda g: dgl.to_simple(g, copy_ndata=True, copy_edata=True, aggregator="sum"),
    "reorder": lambda g: dgl.reorder_graph(g, "custom", permute_config={"nodes_perm": list(range(N - 1, -1, -1))}),
    "storage": lambda g: _assigned(g).get_node_storage("h").fetch(torch.tensor([1, 2]), "cpu"),
    "fetch": lambda g: fetch(_assigned(g), "h", torch.tensor([1, 2])),
    "compose": T.Compose([T.AddSelfLoop(), T.RowFeatNormalizer(node_feat_names=["feat"]), T.ToSimple()]),
    "normalize": T.RowFeatNormalizer(subtract_min=True, node_feat_names=["feat"], edge_feat_names=["w"]),
    "sign": T.SIGNDiffusion(2, in_feat_name="feat", diffuse_op="raw"),
    "shuffle": T.NodeShuffle(),
    "drop_node": T.DropNode(0.3),
    "levi": lambda g: T.ToLevi()(g).nodes["node"].data["feat"],
    "GraphConv": _layer(lambda: NN.GraphConv(DIM, 4, allow_zero_in_degree=True)),
    "SAGEConv": _layer(lambda: NN.SAGEConv(DIM, 4, "mean")),
    "GATConv": _layer(lambda: NN.GATConv(DIM, 4, 2, allow_zero_in_degree=True)),
    "GINConv": _layer(lambda: NN.GINConv(torch.nn.Linear(DIM, 3), "max")),
    "SGConv": _layer(lambda: NN.SGConv(DIM, 3, k=2, allow_zero_in_degree=True)),
    "EdgeConv": _layer(lambda: NN.EdgeConv(DIM, 3, allow_zero_in_degree=True)),
    "APPNPConv": _layer(lambda: NN.APPNPConv(2, 0.5)),
    "NNConv": _layer(lambda: NN.NNConv(DIM, 3, torch.nn.Linear(DIM, 3 * DIM), "mean"), "w"),
    "GINEConv": _layer(lambda: NN.GINEConv(), "w"),
    "SortPooling": lambda g: NN.SortPooling(3)(g, g.ndata["feat"]),
}


def assert_same(got: Any, want: Any) -> None:
    if isinstance(want, dgl.DGLGraph):
        assert_same(got.edges(), want.edges())
        for ours, theirs in zip(
            got._node_frames + got._edge_frames, want._node_frames + want._edge_frames, strict=True
        ):
            assert_same(dict(ours), dict(theirs))
    elif isinstance(want, torch.Tensor):
        assert_bitwise_equal(got.detach(), want.detach())
    elif isinstance(want, dict):
        assert got.keys() == want.keys()
        assert_same(list(got.values()), list(want.values()))
    elif isinstance(want, (list, tuple)):
        assert len(got) == len(want)
        for pair in zip(got, want, strict=True):
            assert_same(*pair)
    else:
        assert got == want


@pytest.mark.parametrize("name", [*OPERATIONS, "save", "assigned_save"])
def test_operation(attached: Attached, name: str, tmp_path: Path) -> None:
    saves = {"save": lambda g: _saved(g, tmp_path), "assigned_save": lambda g: _saved(_assigned(g), tmp_path)}
    results = []
    for g in (attached.g, attached.plain):
        torch.manual_seed(0), np.random.seed(0), dgl.seed(0)
        results.append((OPERATIONS | saves)[name](g))
    assert_same(*results)


def test_an_assigned_feature_stays_compressed(attached: Attached) -> None:
    g = _assigned(attached.g)
    sampler = dgl.dataloading.NeighborSampler([2], prefetch_node_feats=["h"])
    rows = 0
    for nodes, _, blocks in dgl.dataloading.DataLoader(g, torch.arange(4), sampler, batch_size=2):
        assert_bitwise_equal(blocks[0].srcdata["h"], attached.x[nodes])
        rows += len(nodes)
    assert isinstance(g.ndata["h"], FeatureTensor) and attached.nodes.rows == rows


# ---- dtypes that DGL has no name for, and loader workers

UNNAMED = [getattr(torch, name) for name in ("float8_e5m2", "float8_e4m3fn", "uint16") if hasattr(torch, name)]


class BytesSource:
    """Rows [50, 4] of any dtype, also of one that torch can neither index nor pickle."""

    def __init__(self, dtype: torch.dtype) -> None:
        self.bytes = torch.randint(0, 255, (50, 4 * dtype.itemsize), dtype=torch.uint8)
        self.shape, self.dtype = (50, 4), dtype

    def gather(self, ids: torch.Tensor, *, device: Any = None, out: Any = None) -> torch.Tensor:
        return self.bytes[ids.long()].view(self.dtype)


def _bytes(x: torch.Tensor) -> torch.Tensor:
    return x.contiguous().view(torch.uint8)


class ReadInWorker(dgl.dataloading.NeighborSampler):
    """Leaves an ordinary feature of the same dtype in the block, made where it samples."""

    def sample(self, g: dgl.DGLGraph, seeds: torch.Tensor, exclude_eids: Any = None) -> Any:
        nodes, seeds, blocks = super().sample(g, seeds, exclude_eids)
        blocks[0].srcdata["copy"] = fetch(g, "feat", nodes)
        return nodes, seeds, blocks


SAMPLERS: dict[str, Callable[[], dgl.dataloading.Sampler]] = {
    "prefetch": lambda: dgl.dataloading.NeighborSampler([2], prefetch_node_feats=["feat"]),
    "lazy": lambda: dgl.dataloading.NeighborSampler([2]),
    "in_worker": lambda: ReadInWorker([2]),
}


def _check_loader(dtype: torch.dtype, sampler: str, num_workers: int, context: str | None = None) -> None:
    source = BytesSource(dtype)
    g = attach(dgl.graph((torch.arange(50), torch.arange(50).roll(1))), "feat", source)
    # It used to wait for ever. This limit is much more than it takes.
    options = {"timeout": 60, "multiprocessing_context": context} if num_workers else {}
    batches = dgl.dataloading.DataLoader(
        g, torch.arange(10), SAMPLERS[sampler](), batch_size=5, num_workers=num_workers, **options
    )
    for nodes, _, blocks in batches:
        rows = blocks[0].srcdata["copy" if sampler == "in_worker" else "feat"]
        assert rows.dtype == dtype
        assert_bitwise_equal(_bytes(rows), source.bytes[nodes])


@pytest.mark.parametrize("dtype", UNNAMED, ids=str)
@pytest.mark.parametrize("sampler", SAMPLERS)
@pytest.mark.parametrize("num_workers", [0, 1])
def test_loader_with_a_dtype_that_dgl_cannot_name(dtype: torch.dtype, sampler: str, num_workers: int) -> None:
    _check_loader(dtype, sampler, num_workers, "fork")


def test_loader_with_a_dtype_that_dgl_cannot_name_and_spawned_workers() -> None:
    _check_loader(torch.float8_e5m2, "prefetch", 1, "spawn")


@pytest.mark.parametrize("dtype", [*UNNAMED, torch.float32, torch.bool], ids=str)
def test_pickle_of_any_dtype(dtype: torch.dtype) -> None:
    source = BytesSource(dtype)
    g = attach(dgl.graph((torch.arange(50), torch.arange(50))), "feat", source)
    for ours, want in ((g, source.bytes), (g.subgraph(torch.tensor([4, 9])), source.bytes[[4, 9]])):
        rows = pickle.loads(pickle.dumps(ours)).ndata["feat"]
        assert rows.dtype == dtype
        assert_bitwise_equal(_bytes(rows), want)

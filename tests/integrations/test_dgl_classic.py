"""Features attached to a DGLGraph give the rows of the tensor, bit for bit, and decode no others."""

from __future__ import annotations

import copy
import multiprocessing
import pickle
from collections.abc import Callable, Iterator
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any

import pytest
import torch
from exact_sources import CountingSource, TensorSource

dgl = pytest.importorskip("dgl")

import ibp_gnn  # noqa: E402
from ibp_gnn.integrations import dgl_classic  # noqa: E402
from ibp_gnn.integrations.dgl_classic import attach, detach, fetch  # noqa: E402

pytestmark = pytest.mark.filterwarnings(
    "ignore:.*CPU affinity.*",  # a hint of DGL's loader
    "ignore:.*multi-threaded, use of fork.*:DeprecationWarning",  # Python 3.12
)

NUM_NODES, NUM_EDGES, DIM, EDGE_DIM = 3000, 12000, 12, 3
SEEDS = torch.arange(0, 300, 2)  # 2 batches of 75
MakeSource = Callable[..., CountingSource]


def features(num_rows: int, *row_shape: int, seed: int = 0) -> torch.Tensor:
    """Random float32 rows, some with values that arithmetic or == would lose."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(num_rows, *row_shape, generator=generator)
    special = torch.tensor([0.0, -0.0, float("inf"), float("-inf"), float("nan"), 1e-42])
    where = torch.rand(x.shape, generator=generator) < 0.1
    x[where] = special[torch.randint(0, len(special), (int(where.sum()),), generator=generator)]
    return x


def assert_same_bits(got: torch.Tensor, want: torch.Tensor) -> None:
    assert (got.dtype, got.shape, got.device) == (want.dtype, want.shape, want.device)
    assert torch.equal(got.contiguous().view(torch.uint8), want.contiguous().view(torch.uint8))


def graph(idtype: torch.dtype = torch.int64) -> dgl.DGLGraph:
    generator = torch.Generator().manual_seed(1)
    src, dst = torch.randint(0, NUM_NODES, (2, NUM_EDGES), generator=generator)
    return dgl.graph((src, dst), num_nodes=NUM_NODES, idtype=idtype)


def hetero_graph() -> dgl.DGLGraph:
    generator = torch.Generator().manual_seed(2)
    user, item = torch.randint(0, 200, (2, 3000), generator=generator)
    edges = {("user", "buys", "item"): (user, item), ("item", "sold", "user"): (item, user)}
    edges["user", "knows", "user"] = (user, user.flip(0))
    return dgl.heterograph(edges, num_nodes_dict={"user": 400, "item": 200})


class Attached:
    """A graph with the node feature "feat" and the edge feature "weight" attached, and the tensors behind."""

    def __init__(self, make_source: MakeSource, idtype: torch.dtype = torch.int64, **kwargs: Any) -> None:
        self.x, self.w = features(NUM_NODES, DIM), features(NUM_EDGES, EDGE_DIM, seed=3)
        self.nodes, self.edges = make_source(self.x, **kwargs), make_source(self.w, **kwargs)
        self.g = graph(idtype)
        attach(self.g, "feat", self.nodes)
        attach(self.g, "weight", self.edges, etype="_E")

    def plain(self) -> dgl.DGLGraph:
        """The same graph with ordinary tensors."""
        g = graph(self.g.idtype)
        g.ndata["feat"], g.edata["weight"] = self.x, self.w
        return g


@pytest.fixture
def attached(make_source: MakeSource) -> Attached:
    return Attached(make_source)


def neighbor_sampler(prefetch: bool = True) -> dgl.dataloading.Sampler:
    if not prefetch:
        return dgl.dataloading.NeighborSampler([3, 3])
    return dgl.dataloading.NeighborSampler([3, 3], prefetch_node_feats=["feat"], prefetch_edge_feats=["weight"])


def loader(g: dgl.DGLGraph, seeds: Any, sampler: dgl.dataloading.Sampler, **kwargs: Any) -> dgl.dataloading.DataLoader:
    kwargs = {"batch_size": 75} | kwargs
    if kwargs.get("num_workers"):
        kwargs.setdefault("multiprocessing_context", "fork")
    return dgl.dataloading.DataLoader(g, seeds, sampler, **kwargs)


def check_batches(attached: Attached, batches: Iterator[Any]) -> tuple[int, int]:
    """Check the features of every block; return the number of node rows and edge rows that they needed."""
    node_rows = edge_rows = 0
    for input_nodes, _, blocks in batches:
        assert_same_bits(blocks[0].srcdata["feat"], attached.x[input_nodes.long()])
        assert_same_bits(blocks[0].srcdata["feat"], attached.x[input_nodes.long()])  # a second read
        node_rows += len(input_nodes)
        for block in blocks:
            edge_ids = block.edata[dgl.EID].long()
            assert_same_bits(block.edata["weight"], attached.w[edge_ids])
            edge_rows += len(edge_ids)
    assert node_rows > 0 and edge_rows > 0
    return node_rows, edge_rows


# ---- DataLoader


def unpicklable(x: torch.Tensor) -> CountingSource:
    """For the tests that start new interpreters, which are slow: one kind of source will do."""
    return CountingSource(TensorSource(x), picklable=False)


@pytest.mark.parametrize("prefetch", [True, False], ids=["prefetch", "lazy"])
@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("idtype", [torch.int64, torch.int32])
def test_loader(make_source: MakeSource, prefetch: bool, num_workers: int, idtype: torch.dtype) -> None:
    attached = Attached(make_source, idtype)
    seeds = SEEDS.to(idtype)
    batches = loader(attached.g, seeds, neighbor_sampler(prefetch), num_workers=num_workers)
    needed = check_batches(attached, batches)
    # This process decoded what the batches needed, once, and no more.
    assert (attached.nodes.rows, attached.edges.rows) == needed
    assert len(attached.nodes.fetches) == 2
    assert attached.nodes.id_dtypes == {idtype}


def test_loader_with_spawned_workers_does_not_pickle_the_source() -> None:
    attached = Attached(unpicklable)
    batches = loader(attached.g, SEEDS, neighbor_sampler(), num_workers=2, multiprocessing_context="spawn")
    assert (attached.nodes.rows, attached.edges.rows) == (0, 0)
    assert check_batches(attached, batches) == (attached.nodes.rows, attached.edges.rows)


@pytest.mark.parametrize("context", ["spawn", "forkserver"])
def test_loader_with_spawned_workers_without_prefetch(context: str) -> None:
    attached = Attached(unpicklable)
    batches = loader(
        attached.g, SEEDS, neighbor_sampler(prefetch=False), num_workers=1, multiprocessing_context=context
    )
    assert check_batches(attached, batches) == (attached.nodes.rows, attached.edges.rows)


class ReadInWorker(dgl.dataloading.NeighborSampler):
    """Reads the features while it samples, so in the worker where there is one."""

    def sample(self, g: dgl.DGLGraph, seeds: torch.Tensor, exclude_eids: Any = None) -> Any:
        input_nodes, output_nodes, blocks = super().sample(g, seeds, exclude_eids)
        blocks[0].srcdata["copy"] = blocks[0].srcdata["feat"].clone()
        return input_nodes, fetch(g, "feat", input_nodes), blocks


def test_forked_worker_can_decode(attached: Attached) -> None:
    for nodes, copied, blocks in loader(attached.g, SEEDS, ReadInWorker([3]), num_workers=2):
        for rows in (copied, blocks[0].srcdata["copy"], blocks[0].srcdata["feat"]):
            assert_same_bits(rows, attached.x[nodes])
    assert attached.nodes.rows == 0  # in this process


def test_spawned_worker_that_decodes_says_why_it_cannot() -> None:
    attached = Attached(unpicklable)
    sampler = ReadInWorker([3])
    batches = iter(loader(attached.g, SEEDS, sampler, num_workers=1, multiprocessing_context="spawn"))
    with pytest.raises(RuntimeError, match="rows of this feature are not in process .* prefetch_node_feats"):
        next(batches)
    batches.dataloader_it._shutdown_workers()  # now, not whenever the traceback is collected


def test_loader_over_a_subgraph(attached: Attached) -> None:
    ids = torch.randperm(NUM_NODES, generator=torch.Generator().manual_seed(5))[:1200]
    sub = attached.g.subgraph(ids)
    for num_workers in (0, 2):
        attached.nodes.fetches.clear()
        rows = 0
        for input_nodes, _, blocks in loader(sub, torch.arange(150), neighbor_sampler(), num_workers=num_workers):
            assert_same_bits(blocks[0].srcdata["feat"], attached.x[ids[input_nodes]])
            rows += len(input_nodes)
        assert attached.nodes.rows == rows


def test_parent_read_while_workers_sample(attached: Attached) -> None:
    # The worker composes the block's index with the subgraph's. Here the subgraph's column has changed since.
    ids = torch.randperm(NUM_NODES, generator=torch.Generator().manual_seed(5))[:1200]
    sub = attached.g.subgraph(ids)
    batches = iter(loader(sub, torch.arange(150), neighbor_sampler(prefetch=False), num_workers=1))
    assert_same_bits(sub.ndata["feat"], attached.x[ids])
    for input_nodes, _, blocks in batches:
        assert_same_bits(blocks[0].srcdata["feat"], attached.x[ids[input_nodes]])


@pytest.mark.parametrize("num_workers", [0, 2])
def test_loader_on_a_heterograph(make_source: MakeSource, num_workers: int) -> None:
    g = hetero_graph()
    x = {"user": features(400, 8), "item": features(200, 4, 2)}
    w = {"buys": features(3000, 2), "knows": features(3000)}
    sources = {name: make_source(rows) for name, rows in (x | w).items()}
    for ntype in x:
        attach(g, "feat", sources[ntype], ntype)
    attach(g, "weight", sources["buys"], etype="buys")
    attach(g, "weight", sources["knows"], etype=("user", "knows", "user"))
    sampler = dgl.dataloading.NeighborSampler(
        [2, 2],
        prefetch_node_feats={"user": ["feat"], "item": ["feat"]},
        prefetch_edge_feats={("user", "buys", "item"): ["weight"], ("user", "knows", "user"): ["weight"]},
    )
    needed = dict.fromkeys(sources, 0)
    seeds = {"user": torch.arange(30), "item": torch.arange(30)}
    for input_nodes, _, blocks in loader(g, seeds, sampler, batch_size=20, num_workers=num_workers):
        for ntype, rows in x.items():
            assert_same_bits(blocks[0].srcnodes[ntype].data["feat"], rows[input_nodes[ntype]])
            needed[ntype] += len(input_nodes[ntype])
        for block in blocks:
            for etype, rows in w.items():
                edge_ids = block.edges[etype].data[dgl.EID]
                assert_same_bits(block.edges[etype].data["weight"], rows[edge_ids])
                needed[etype] += len(edge_ids)
    assert {name: source.rows for name, source in sources.items()} == needed


def test_edge_prediction_sampler(attached: Attached) -> None:
    sampler = dgl.dataloading.as_edge_prediction_sampler(
        neighbor_sampler(), negative_sampler=dgl.dataloading.negative_sampler.Uniform(1)
    )
    batches = loader(attached.g, torch.arange(120), sampler, batch_size=40)
    needed = check_batches(attached, ((nodes, None, blocks) for nodes, _, _, blocks in batches))
    assert (attached.nodes.rows, attached.edges.rows) == needed


@pytest.mark.parametrize("name", ["SAINT", "ShaDow"])
def test_subgraph_samplers(attached: Attached, name: str) -> None:
    torch.manual_seed(0)
    prefetch = {"prefetch_ndata": ["feat"], "prefetch_edata": ["weight"]}
    if name == "SAINT":
        sampler = dgl.dataloading.SAINTSampler("node", 300, **prefetch)
        batches = list(loader(attached.g, torch.arange(3), sampler, batch_size=1))
    else:
        sampler = dgl.dataloading.ShaDowKHopSampler([3], prefetch_node_feats=["feat"], prefetch_edge_feats=["weight"])
        batches = [batch[2] for batch in loader(attached.g, SEEDS, sampler)]
    for sub in batches:
        assert_same_bits(sub.ndata["feat"], attached.x[sub.ndata[dgl.NID]])
        assert_same_bits(sub.edata["weight"], attached.w[sub.edata[dgl.EID]])
    assert attached.nodes.rows == sum(sub.num_nodes() for sub in batches)
    assert attached.edges.rows == sum(sub.num_edges() for sub in batches)


def test_custom_lazy_feature_name(attached: Attached) -> None:
    class Sampler(dgl.dataloading.NeighborSampler):
        def sample(self, g: dgl.DGLGraph, seeds: torch.Tensor, exclude_eids: Any = None) -> Any:
            nodes, seeds, blocks = super().sample(g, seeds, exclude_eids)
            blocks[0].srcdata["h"] = dgl.LazyFeature("feat")
            return nodes, seeds, blocks

    for nodes, _, blocks in loader(attached.g, SEEDS, Sampler([3])):
        assert_same_bits(blocks[0].srcdata["h"], attached.x[nodes])


# ---- operations on graphs: whatever DGL does to a tensor feature, it does to ours


def add_weighted_edges(g: dgl.DGLGraph) -> dgl.DGLGraph:
    g.add_edges([0, 1], [2, 3], {"weight": torch.ones(2, EDGE_DIM)})
    return g


def write_rows(g: dgl.DGLGraph) -> dgl.DGLGraph:
    g.nodes[[3, 5]].data["feat"] = torch.zeros(2, DIM)
    return g


def compute(g: dgl.DGLGraph) -> dgl.DGLGraph:
    g.update_all(dgl.function.u_mul_e("feat", "s", "m"), dgl.function.max("m", "h"))
    return g


def reassign(g: dgl.DGLGraph) -> dgl.DGLGraph:
    g.ndata["feat"] = g.ndata["feat"].neg()
    return g


def save_and_load(g: dgl.DGLGraph, folder: Path) -> dgl.DGLGraph:
    file = str(folder / "graph.bin")
    dgl.save_graphs(file, [g])
    return dgl.load_graphs(file)[0][0]


def seeded(g: dgl.DGLGraph) -> dgl.DGLGraph:
    dgl.seed(0)  # sampling, also of all neighbours, gives edges in an order that depends on it
    return g


SOME = torch.tensor([7, 0, 2999, 7, 300])
LAZY_OPERATIONS: dict[str, Callable[[dgl.DGLGraph], dgl.DGLGraph]] = {
    "clone": lambda g: g.clone(),
    "local_var": lambda g: g.local_var(),
    "copy": copy.copy,
    "to_int": lambda g: g.int(),
    "to_int_and_back": lambda g: g.int().long(),
    "to_cpu": lambda g: g.to("cpu"),
    "formats": lambda g: g.formats(["csc"]),
    "subgraph": lambda g: g.subgraph(SOME.unique()),
    "subgraph_by_mask": lambda g: g.subgraph(torch.arange(NUM_NODES) % 7 == 0),
    "subgraph_int32": lambda g: g.int().subgraph(SOME.unique().int()),
    "subgraph_of_subgraph": lambda g: g.subgraph(torch.arange(5, 2500)).subgraph(torch.arange(100, 0, -1)),
    "edge_subgraph": lambda g: g.edge_subgraph(torch.arange(0, 500, 3)),
    "edge_subgraph_all_nodes": lambda g: g.edge_subgraph(torch.arange(400), relabel_nodes=False),
    "in_subgraph": lambda g: dgl.in_subgraph(g, SOME.unique()),
    "khop_in_subgraph": lambda g: dgl.khop_in_subgraph(g, SOME[:2], k=1)[0],
    "sample_neighbors": lambda g: dgl.sampling.sample_neighbors(g, SOME.unique(), -1),
    "to_block": lambda g: dgl.to_block(dgl.in_subgraph(g, SOME.unique()), SOME.unique()),
    "remove_nodes": lambda g: dgl.remove_nodes(g, SOME.unique()),
    "remove_edges": lambda g: dgl.remove_edges(g, torch.arange(9)),
    "to_bidirected": lambda g: dgl.to_bidirected(g, copy_ndata=True),
    "to_simple": lambda g: dgl.to_simple(g, copy_edata=True),
    "reorder": lambda g: dgl.reorder_graph(g, "rcmk"),
    "to_half": dgl.to_half,
    "to_bfloat16": dgl.transforms.functional.to_bfloat16,
    "to_double": dgl.to_double,
    "to_half_and_back": lambda g: dgl.to_float(dgl.to_half(g)),
    "to_half_of_subgraph_and_back": lambda g: dgl.to_float(dgl.to_half(g.subgraph(SOME.unique()))),
    "edge_type_subgraph": lambda g: g.edge_type_subgraph(["_E"]),
    "pin_state": lambda g: g.unpin_memory_(),
}
READING_OPERATIONS: dict[str, Callable[[dgl.DGLGraph], dgl.DGLGraph]] = {
    "deepcopy": copy.deepcopy,
    "pickle": lambda g: pickle.loads(pickle.dumps(g)),
    "pickle_subgraph": lambda g: pickle.loads(pickle.dumps(g.subgraph(SOME.unique()))),
    "pickle_large_subgraph": lambda g: pickle.loads(pickle.dumps(g.subgraph(torch.arange(2000, 0, -1)))),
    "pickle_half": lambda g: pickle.loads(pickle.dumps(dgl.to_half(g))),
    "multiprocessing_pickle": lambda g: pickle.loads(ForkingPickler.dumps(g.subgraph(SOME.unique()))),
    "reverse": lambda g: dgl.reverse(g, copy_edata=True),
    "add_nodes": lambda g: dgl.add_nodes(g, 3),
    "add_nodes_with_rows": lambda g: dgl.add_nodes(g, 2, {"feat": torch.ones(2, DIM)}),
    "add_edges": add_weighted_edges,
    "add_self_loop": dgl.add_self_loop,
    "batch": lambda g: dgl.batch([g, g.clone()]),
    "merge": lambda g: dgl.merge([g, g.clone()]),
    "to_homogeneous": lambda g: dgl.to_homogeneous(g, ndata=["feat"], edata=["weight"]),
    "materialize_data": lambda g: g.subgraph(SOME.unique()).materialize_data(),
    "update_all": compute,
    "reassign": reassign,
    "write_rows": write_rows,
    "feature_transform": dgl.RowFeatNormalizer(node_feat_names=["feat"]),
}


def assert_same_frames(got: dgl.DGLGraph, want: dgl.DGLGraph) -> None:
    for ours, theirs in ((got._node_frames, want._node_frames), (got._edge_frames, want._edge_frames)):
        assert len(ours) == len(theirs)
        for frame, reference in zip(ours, theirs, strict=True):
            assert set(frame) == set(reference) and frame.schemes == reference.schemes
            assert frame.num_rows == reference.num_rows
            for key in reference:
                assert len(frame._columns[key]) == len(reference._columns[key])
                assert frame._columns[key].dtype == reference._columns[key].dtype
                assert_same_bits(frame[key], reference[key])


@pytest.mark.parametrize("name", LAZY_OPERATIONS)
def test_lazy_operation(attached: Attached, name: str) -> None:
    got, want = (LAZY_OPERATIONS[name](seeded(g)) for g in (attached.g, attached.plain()))
    assert (attached.nodes.rows, attached.edges.rows) == (0, 0), "rows were decoded before anyone read them"
    assert_same_frames(got, want)
    assert_same_frames(attached.g, attached.plain())  # the original is as it was


@pytest.mark.parametrize("name", READING_OPERATIONS)
def test_reading_operation(make_source: MakeSource, name: str) -> None:
    x = features(NUM_NODES, DIM).nan_to_num(0.5, 2.0, -2.0)  # these operations compute
    w = features(NUM_EDGES, EDGE_DIM, seed=3)
    ours, theirs = graph(), graph()
    attach(ours, "feat", make_source(x))
    attach(ours, "weight", make_source(w), etype="_E")
    theirs.ndata["feat"], theirs.edata["weight"] = x.clone(), w.clone()
    for g in (ours, theirs):
        g.edata["s"] = torch.arange(NUM_EDGES, dtype=torch.float32)[:, None]
    got, want = (READING_OPERATIONS[name](seeded(g)) for g in (ours, theirs))
    assert_same_frames(got, want)


def test_save_and_load_graphs(attached: Attached, tmp_path: Path) -> None:
    assert_same_frames(save_and_load(attached.g, tmp_path), attached.plain())


def test_heterograph_operations(make_source: MakeSource) -> None:
    x, w = features(200, 4), features(3000, 2)
    ours, theirs = hetero_graph(), hetero_graph()
    attach(ours, "feat", make_source(x), "item")
    attach(ours, "weight", make_source(w), etype="sold")
    theirs.nodes["item"].data["feat"], theirs.edges["sold"].data["weight"] = x, w
    for operation in (
        lambda g: g["item", "sold", "user"],
        lambda g: g.node_type_subgraph(["item", "user"]),
        lambda g: g.edge_type_subgraph(["sold"]),
        lambda g: g.subgraph({"item": torch.arange(9, 0, -1), "user": torch.arange(300)}),
        lambda g: g.edge_subgraph({"sold": torch.arange(50)}),
        lambda g: dgl.to_block(g, {"user": torch.arange(400), "item": torch.arange(200)}),
    ):
        assert_same_frames(operation(ours), operation(theirs))


def test_rows_that_are_not_vectors(make_source: MakeSource) -> None:
    for x in (features(NUM_NODES), features(NUM_NODES, 2, 3)):
        g = attach(graph(), "feat", make_source(x))
        assert_same_bits(g.ndata["feat"], x)
        assert_same_bits(g.subgraph(SOME.unique()).ndata["feat"], x[SOME.unique()])
        assert g.node_attr_schemes()["feat"].shape == x.shape[1:]


def test_half_is_prefetched_as_half(attached: Attached) -> None:
    g = dgl.to_half(attached.g)
    sampler = dgl.dataloading.NeighborSampler([3], prefetch_node_feats=["feat"])
    for nodes, _, blocks in loader(g, SEEDS, sampler):
        got, want = blocks[0].srcdata["feat"], attached.x.half()[nodes]
        assert got.dtype == torch.half and torch.equal(got.nan_to_num(7), want.nan_to_num(7))


def test_no_copy_of_most_rows_is_kept(attached: Attached) -> None:
    whole, most, few = attached.g, attached.g.subgraph(range(1501)), attached.g.subgraph(range(1500))
    for g, kept in ((whole, False), (most, False), (few, True)):
        for _ in range(2):
            assert_same_bits(g.ndata["feat"], attached.x[: g.num_nodes()])
        assert (g._node_frames[0]._columns["feat"].kept.get() is not None) == kept
    assert attached.nodes.fetches == [3000, 3000, 1501, 1501, 1500]


def test_printing_decodes_nothing(attached: Attached) -> None:
    assert "'feat': Scheme(shape=(12,), dtype=torch.float32)" in str(attached.g)
    assert "feat" in attached.g.ndata and "weight" in attached.g.edata
    assert repr(attached.g._node_frames[0]._columns["feat"]).startswith("SourceColumn(rows=3000")
    assert attached.nodes.rows == 0


def test_devices(attached: Attached) -> None:
    # The "meta" device stands for a GPU: DGL's wheel knows none.
    meta = torch.device("meta")
    frame = attached.g._node_frames[0]
    moved = frame.to(meta, non_blocking=True)
    assert attached.nodes.rows == 0
    assert moved["feat"].device == meta
    assert moved.subframe(SOME)._columns["feat"].data.device == meta
    assert frame._columns["feat"].fetch(SOME, meta).device == meta
    assert frame["feat"].device.type == "cpu"
    column = frame._columns["feat"]
    column.pin_memory_(), column.unpin_memory_(), column.record_stream(None)
    assert_same_bits(column[SOME], attached.x[SOME])


# ---- processes and pickles


def test_multiprocessing_gets_a_token_and_pickle_gets_the_rows(make_source: MakeSource) -> None:
    attached = Attached(make_source, picklable=False)
    sent = bytes(ForkingPickler.dumps(attached.g._node_frames[0]))
    assert len(sent) < 4000  # the rows are 144,000 bytes
    assert detach(pickle.loads(ForkingPickler.dumps(attached.g)), "feat") is attached.nodes
    with pytest.raises(pickle.PicklingError, match="must not be pickled"):
        pickle.dumps(attached.g)

    attached = Attached(make_source)
    again = pickle.loads(pickle.dumps((attached.g, attached.g.subgraph(range(2000)))))
    source = detach(again[0], "feat")
    assert source is not attached.nodes and source is detach(again[1], "feat")
    assert_same_bits(source.gather(SOME), attached.x[SOME])


def test_token_of_a_source_that_is_gone() -> None:
    attached = Attached(lambda x: CountingSource(TensorSource(x)))
    sent = bytes(ForkingPickler.dumps(attached.g))
    del attached
    g = pickle.loads(sent)
    for read in (
        lambda: g.ndata["feat"][SOME],
        lambda: g.ndata["feat"].sum(),
        lambda: fetch(g, "feat", SOME),
        lambda: detach(g, "feat"),
        lambda: pickle.dumps(g),
    ):
        with pytest.raises(RuntimeError, match=r"call ibp_gnn.attach in this process"):
            read()
    x = features(NUM_NODES, DIM)
    attach(g, "feat", TensorSource(x))  # what the message says
    assert_same_bits(fetch(g, "feat", SOME), x[SOME])


def _sum_of_rows(g: dgl.DGLGraph, queue: Any) -> None:
    queue.put(fetch(g, "feat", SOME).view(torch.int32).sum().item())


def test_forked_process_reads_the_same_rows(attached: Attached) -> None:
    context = multiprocessing.get_context("fork")
    queue = context.SimpleQueue()
    process = context.Process(target=_sum_of_rows, args=(attached.g, queue))
    process.start()
    assert queue.get() == attached.x[SOME].view(torch.int32).sum().item()
    process.join()


# ---- attach, detach, fetch


def test_fetch(attached: Attached) -> None:
    for ids in (SOME, SOME.int(), SOME[:0]):
        assert_same_bits(fetch(attached.g, "feat", ids), attached.x[ids.long()])
        assert_same_bits(fetch(attached.g, "weight", ids, etype="_E"), attached.w[ids.long()])
    assert attached.nodes.fetches == attached.edges.fetches == [5, 5, 0]
    sub = attached.g.subgraph(torch.arange(900, 400, -1))
    assert_same_bits(fetch(sub, "feat", torch.tensor([0, 499, 3])), attached.x[[900, 401, 897]])
    assert attached.nodes.fetches[-1] == 3  # of a subgraph, too, only what was asked for
    assert fetch(attached.g, "feat", SOME, device="meta").device.type == "meta"


@pytest.mark.skipif(not hasattr(torch.compiler, "is_compiling"), reason="torch.compile breaks the graph there")
def test_fetch_inside_of_torch_compile() -> None:
    x = features(NUM_NODES, DIM)
    g = attach(graph(), "feat", ibp_gnn.CompressedFeatureStore.build(x, progress=False))
    compiled = torch.compile(lambda ids: (fetch(g, "feat", ids), ids + 1), fullgraph=True, backend="aot_eager")
    for ids in (SOME, SOME[:1]):
        assert_same_bits(compiled(ids)[0], x[ids])


def test_fetch_of_an_ordinary_tensor(attached: Attached) -> None:
    g = attached.plain()
    assert_same_bits(fetch(g, "feat", SOME.int()), attached.x[SOME])
    assert_same_bits(fetch(g, "weight", SOME, etype=("_N", "_E", "_N"), device="cpu"), attached.w[SOME])
    assert fetch(g, "feat", SOME, device="meta").device.type == "meta"


def test_attach_to_a_device(make_source: MakeSource) -> None:
    # As with a CPU-only DGL and a GPU: the loader's device is the CPU, the blocks' too, not the rows'.
    attached = attach(graph(), "feat", make_source(features(NUM_NODES, DIM)), device="meta")
    sampler = dgl.dataloading.NeighborSampler([3], prefetch_node_feats=["feat"])
    sent, pickled = ForkingPickler.dumps(attached), pickle.dumps(attached)
    for g in (attached, attached.clone(), pickle.loads(sent), pickle.loads(pickled)):
        for nodes, _, blocks in loader(g, SEEDS, sampler):
            assert blocks[0].device.type == "cpu"
            assert blocks[0].srcdata["feat"].device.type == "meta"
            assert blocks[0].srcdata["feat"].shape == (len(nodes), DIM)
        assert fetch(g, "feat", SOME).device.type == "meta"
        assert fetch(g, "feat", SOME, device="cpu").device.type == "cpu"
        assert g.ndata["feat"].device.type == "cpu"  # what DGL computes with


def test_attach_replaces_and_detach_returns(make_source: MakeSource) -> None:
    g, x = graph(), features(NUM_NODES, DIM)
    g.ndata["feat"] = torch.zeros(NUM_NODES, 1)
    source, other = make_source(x), make_source(x)
    assert attach(g, "feat", source) is g
    assert_same_bits(g.ndata["feat"], x)
    attach(g, "feat", other)
    assert detach(g.subgraph(SOME.unique()), "feat") is other
    assert detach(g, "feat") is other
    assert "feat" not in g.ndata
    g.ndata["feat"] = x
    attach(g, "w", make_source(features(NUM_EDGES)), etype="_E")
    assert detach(g, "w", etype="_E").shape == (NUM_EDGES,)


def test_attach_to_a_block(attached: Attached) -> None:
    block = dgl.to_block(dgl.in_subgraph(attached.g, SOME.unique()), SOME.unique())
    n = block.num_src_nodes()
    h = features(n, 5)
    attach(block, "h", TensorSource(h), "SRC/_N")
    assert_same_bits(block.srcdata["h"], h)
    assert "h" not in block.dstdata
    assert_same_bits(fetch(block, "h", torch.tensor([2, 0]), ntype="SRC/_N"), h[[2, 0]])
    for ntype in (None, "_N"):
        with pytest.raises(ValueError, match=r"want one of \['SRC/_N', 'DST/_N'\], got"):
            attach(block, "h", TensorSource(h), ntype)


def test_public_names() -> None:
    assert (ibp_gnn.attach, ibp_gnn.detach, ibp_gnn.fetch) == (attach, detach, fetch)
    assert set(dgl_classic.__all__) == {"SourceColumn", "attach", "detach", "fetch"}


SOURCE = TensorSource(torch.zeros(NUM_NODES, 2))


def _attach_twice_the_types() -> None:
    attach(graph(), "feat", SOURCE, ntype="_N", etype="_E")


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: attach(graph(), "f", TensorSource(torch.zeros(7, 2))), ValueError, "want 3000 rows.* got 7"),
        (lambda: attach(graph(), "f", SOURCE, etype="_E"), ValueError, "want 12000 rows.* got 3000"),
        (lambda: attach(graph(), "f", torch.zeros(NUM_NODES, 2)), TypeError, "RowSource.* got a tensor"),
        (lambda: attach(graph(), "f", TensorSource), TypeError, "RowSource.* got the class TensorSource"),
        (lambda: attach(graph(), "f", [1, 2]), TypeError, "RowSource.* got list"),
        (lambda: attach(graph(), "f", TensorSource(torch.tensor(1.0))), ValueError, "got \\(\\)"),
        (lambda: attach(graph(), 5, SOURCE), TypeError, "want a str, got int"),
        (lambda: attach(torch.zeros(3), "f", SOURCE), TypeError, "want a DGLGraph, got Tensor"),
        (_attach_twice_the_types, ValueError, "ntype or etype, got both"),
        (lambda: attach(graph(), "f", SOURCE, "user"), ValueError, r"want one of \['_N'\], got 'user'"),
        (lambda: attach(hetero_graph(), "f", SOURCE), ValueError, r"\['item', 'user'\], got None"),
        (lambda: attach(hetero_graph(), "f", SOURCE, "shop"), ValueError, r"\['item', 'user'\], got 'shop'"),
        (lambda: attach(hetero_graph(), "f", SOURCE, etype="likes"), ValueError, "'knows'.* got 'likes'"),
        (lambda: attach(hetero_graph(), "f", SOURCE, etype=["buys"]), ValueError, r"got \['buys'\]"),
        (lambda: fetch(graph(), "f", SOME), KeyError, r"no feature 'f' .*'_N'; there are: \[\]"),
        (lambda: fetch(hetero_graph(), "f", SOME, ntype="item"), KeyError, "no feature 'f' .*'item'"),
        (lambda: detach(graph(), "f"), KeyError, "no feature 'f'"),
    ],
)
def test_errors(call: Callable[[], Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        call()


def test_errors_of_fetch(attached: Attached) -> None:
    attached.g.ndata["label"] = torch.arange(NUM_NODES)
    with pytest.raises(KeyError, match=r"there are: \['feat', 'label'\]"):
        fetch(attached.g, "x", SOME)
    with pytest.raises(KeyError, match="'label' .* is an ordinary tensor"):
        detach(attached.g, "label")
    attached.g.ndata["lazy"] = dgl.LazyFeature("feat")
    with pytest.raises(KeyError, match="placeholder"):
        fetch(attached.g, "lazy", SOME)
    for key in ("feat", "label"):
        for bad in ([0, 1], SOME.float(), SOME[None], SOME.bool(), SOME[0]):
            with pytest.raises(TypeError, match="ids: want an int32 or int64 tensor of shape"):
                fetch(attached.g, key, bad)
        for bad in (NUM_NODES, -1):
            with pytest.raises(IndexError):
                fetch(attached.g, key, torch.tensor([0, bad]))


def test_ambiguous_edge_type() -> None:
    g = dgl.heterograph({("a", "r", "b"): ([0], [0]), ("b", "r", "a"): ([0], [0])})
    with pytest.raises(ValueError, match=r"want one of .*\('a', 'r', 'b'\).* got 'r'"):
        attach(g, "w", TensorSource(torch.zeros(1, 1)), etype="r")
    attach(g, "w", TensorSource(torch.ones(1, 1)), etype=("b", "r", "a"))
    assert "w" not in g.edges["a", "r", "b"].data and "w" in g.edges["b", "r", "a"].data


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_rows_on_a_gpu_for_a_cpu_graph(attached: Attached) -> None:
    assert_same_bits(fetch(attached.g, "feat", SOME, device="cuda:0"), attached.x[SOME].to("cuda:0"))
    attach(attached.g, "feat", attached.nodes, device="cuda:0")
    sampler = dgl.dataloading.NeighborSampler([3], prefetch_node_feats=["feat"])
    for nodes, _, blocks in loader(attached.g, SEEDS, sampler, num_workers=2):
        assert_same_bits(blocks[0].srcdata["feat"], attached.x[nodes].to("cuda:0"))


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_gpu_that_is_not_there() -> None:
    with pytest.raises(
        RuntimeError, match="device: want one that torch can use, got cuda.*Without a GPU: device='cpu'"
    ):
        attach(graph(), "feat", SOURCE, device="cuda")

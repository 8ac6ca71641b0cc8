"""Whatever torch's global defaults are, the same bits come out, and the defaults are as before."""

from __future__ import annotations

import ast
import contextlib
import importlib.util
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

import ibp_gnn
from ibp_gnn import Codec, CompressedFeatureStore
from ibp_gnn.command.analysis import analyze
from ibp_gnn.datasets import load_dataset
from ibp_gnn.gpu import hotness
from ibp_gnn.gpu.budget import plan_caches
from ibp_gnn.store import order
from ibp_gnn.testing import assert_bitwise_equal
from ibp_gnn.training.store_builder import StoreBuilder

N = 600
RANDOM = torch.Generator().manual_seed(0)
FLOATS = torch.randn(N, 24, generator=RANDOM) * 0.1
FLOATS[::50] = torch.randint(-(2**31), 2**31 - 1, FLOATS[::50].shape, generator=RANDOM, dtype=torch.int32).view(
    torch.float32
)  # these overflow
IDS = torch.randint(0, N, (N,), generator=RANDOM)
NEW_IDS, NEW_ROWS = torch.arange(0, N, 7), torch.randn(-(-N // 7), 24, generator=RANDOM)
EDGES = torch.randint(0, N, (2, 4000), generator=RANDOM)
HOTNESS = torch.rand(N, generator=RANDOM)
ORDER = torch.randperm(N, generator=RANDOM)

Step = Callable[[Path], list[torch.Tensor]]
STEPS: dict[str, Step] = {}


def step(function: Step) -> Step:
    """function: takes an empty folder, returns CPU tensors."""
    STEPS[function.__name__] = function
    return function


def build(rows: torch.Tensor = FLOATS, **options) -> CompressedFeatureStore:
    return CompressedFeatureStore.build(rows, pin=False, progress=False, **options)


def content(store: CompressedFeatureStore) -> list[torch.Tensor]:
    rows = store.rows
    return [rows.slots, rows.bitmask, rows.overflow, store.gather(IDS)]


@step
def fit_and_compress(_: Path) -> list[torch.Tensor]:
    out = []
    for rows in (FLOATS, FLOATS.double(), FLOATS.bfloat16(), (FLOATS * 100).to(torch.int16), FLOATS > 0):
        for name in ("dict", "ibp"):
            codec = Codec.fit(rows, codec=name)
            packed = codec.compress(rows)
            out += [packed.slots, packed.bitmask, packed.overflow, codec.decompress(packed, IDS), codec.measure(rows)]
            part = packed.select(IDS)
            out += [part.slots, part.bitmask, part.overflow]
    return out


@step
def build_in_memory(_: Path) -> list[torch.Tensor]:
    array = build(FLOATS.numpy())
    return [part for options in ({}, {"layout": "inplace"}, {"order": ORDER}) for part in content(build(**options))] + [
        array.gather(IDS.numpy())
    ]


@step
def save_and_load(folder: Path) -> list[torch.Tensor]:
    path, out = folder / "x.ibp", []
    build(order=ORDER).save(path)
    for options in ({}, {"mmap": False}, {"verify": "read"}):
        with CompressedFeatureStore.load(path, pin=False, **options) as store:
            out += [part.clone() for part in content(store)]
    return [*out, torch.from_numpy(np.fromfile(path, np.uint8))]


@step
def build_a_file(folder: Path) -> list[torch.Tensor]:
    from ibp_gnn.command.cli import main

    np.save(folder / "x.npy", FLOATS.numpy())
    assert main(["build", str(folder / "x.npy"), str(folder / "x.ibp")]) == 0
    assert main(["verify", str(folder / "x.ibp")]) == 0
    return [torch.from_numpy(np.fromfile(folder / "x.ibp", np.uint8))]


@step
def build_in_parts(_: Path) -> list[torch.Tensor]:
    builder = StoreBuilder(N, FLOATS[:100], pin=False)
    for part in FLOATS.split(250):
        builder.append(part)
    return content(builder.finish())


@step
def update(folder: Path) -> list[torch.Tensor]:
    store = build()
    store.update(NEW_IDS, NEW_ROWS)
    store.update(NEW_IDS[:5].to(torch.int32), FLOATS[:5])
    return [store.gather(IDS), *content(update_made_outside(folder))]


def update_made_outside(folder: Path) -> CompressedFeatureStore:
    """A store from before the defaults changed."""
    store = CompressedFeatureStore.load(folder.parent / "before.ibp", mmap=False, pin=False)
    store.update(NEW_IDS, NEW_ROWS)
    return store


@step
def policies(_: Path) -> list[torch.Tensor]:
    src, dst = EDGES
    return [
        hotness.degree(src, N),
        hotness.presample([IDS, (NEW_IDS, None)], N),
        hotness.reverse_pagerank(src, dst, N, NEW_IDS),
        hotness.reverse_pagerank(src, dst, N),
        order.hottest_first(HOTNESS, N),
        order.hottest_first(HOTNESS.tolist(), N),
        order.slots_of(ORDER, N),
    ]


@step
def budgets(_: Path) -> list[torch.Tensor]:
    stores = {"a": build(), "b": build(FLOATS.bfloat16(), order=ORDER)}
    out = []
    for scores in (None, {"a": HOTNESS, "b": HOTNESS.flip(0).numpy()}, {"a": HOTNESS.tolist(), "b": [1] * N}):
        for plan in plan_caches(stores, stores["a"].nbytes // 2, 2 * N, hotness=scores).values():
            out += [plan.ids, torch.from_numpy(np.array([plan.nbytes, plan.is_prefix]))]
    return out


@step
def analyses(_: Path) -> list[torch.Tensor]:
    out = []
    for rows in (FLOATS, FLOATS.half(), (FLOATS * 100).to(torch.int32), (FLOATS * 100).to(torch.uint8)):
        found = analyze(rows, max_rows=400)
        bound = found.bound
        figures = [bound.bits_per_value, bound.bias_bits, *(report.savings for report in found.reports)]
        out += [torch.from_numpy(np.array(figures)), torch.from_numpy(found.bit_agreement)]
        out += [torch.from_numpy(bound.exponent_bits), torch.from_numpy(bound.mantissa_bits)]
    return out


@step
def datasets(folder: Path) -> list[torch.Tensor]:
    np.save(folder / "real.npy", FLOATS.numpy())
    data = load_dataset("synthetic-products", features=str(folder / "real.npy"), scale=0.0002)
    return [data.src, data.dst, torch.as_tensor(data.features, device="cpu"), data.labels, data.train_ids]


@step
def dgl_graphs(_: Path) -> list[torch.Tensor]:
    ibp_gnn.attach(GRAPH, "feat", build())
    out = [ibp_gnn.fetch(GRAPH, "feat", IDS), GRAPH.ndata["feat"][IDS]]
    ibp_gnn.detach(GRAPH, "feat")
    return out


@step
def graphbolt_features(_: Path) -> list[torch.Tensor]:
    features = ibp_gnn.GraphBoltFeatureStore({("node", None, "feat"): FLOATS, ("node", None, "y"): NEW_IDS.numpy()})
    features.update("node", None, "feat", NEW_ROWS, NEW_IDS)
    return [
        features.read("node", None, "feat", IDS),
        features.read("node", None, "feat"),
        features.read("node", None, "y"),
    ]


@step
def pyg_features(_: Path) -> list[torch.Tensor]:
    features = ibp_gnn.pyg.PyGFeatureStore({("a", "x"): FLOATS, ("b", "y"): NEW_IDS.numpy()})

    def get(group: str, name: str, index: object) -> torch.Tensor:
        return features.get_tensor(group_name=group, attr_name=name, index=index)

    return [*(get("a", "x", index) for index in (None, IDS, slice(3, 9), 4)), get("b", "y", None)]


@step
def pyg_sampler(_: Path) -> list[torch.Tensor]:
    from torch_geometric.sampler import NodeSamplerInput

    torch.manual_seed(0)
    sampler = ibp_gnn.pyg.NeighborSampler(PYG_GRAPH, [3, 2])
    found = sampler.sample_from_nodes(NodeSamplerInput(None, NEW_IDS))
    return [found.node, found.row, found.col]


if importlib.util.find_spec("dgl") is None:
    for name in ("dgl_graphs", "graphbolt_features"):
        del STEPS[name]
else:
    from ibp_gnn.integrations.dgl_compat import import_dgl

    GRAPH = import_dgl().graph((EDGES[0], EDGES[1]), num_nodes=N)
if importlib.util.find_spec("torch_geometric") is None:
    for name in ("pyg_features", "pyg_sampler"):
        del STEPS[name]
else:
    from torch_geometric.data import Data

    PYG_GRAPH = Data(edge_index=EDGES, num_nodes=N)


@contextlib.contextmanager
def changed_for_a_while(name: str) -> Iterator[None]:
    if name == "device":
        torch.set_default_device("meta")
        try:
            yield
        finally:
            torch.set_default_device(None)
    elif name == "dtype":
        torch.set_default_dtype(torch.float64)
        try:
            yield
        finally:
            torch.set_default_dtype(torch.float32)
    elif name == "deterministic":
        torch.use_deterministic_algorithms(True)
        try:
            yield
        finally:
            torch.use_deterministic_algorithms(False)
    elif name == "threads":
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            yield
        finally:
            torch.set_num_threads(threads)
    else:
        with {"no_grad": torch.no_grad, "inference": torch.inference_mode}[name]():
            yield


DEFAULTS = ("device", "dtype", "no_grad", "inference", "deterministic", "threads")


def defaults() -> tuple:
    """What they are now."""
    new = torch.empty(0)
    flags = torch.are_deterministic_algorithms_enabled(), torch.utils.deterministic.fill_uninitialized_memory
    modes = torch.is_grad_enabled(), torch.is_inference_mode_enabled()
    return new.device, new.dtype, *flags, *modes, torch.get_num_threads()


_expected: dict[str, list[torch.Tensor]] = {}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """An empty one, beside a store file from before the defaults changed."""
    build().save(tmp_path / "before.ibp")
    (tmp_path / "empty").mkdir()
    return tmp_path / "empty"


@pytest.mark.parametrize("default", DEFAULTS)
@pytest.mark.parametrize("name", STEPS)
def test_the_same_bits(name: str, default: str, folder: Path) -> None:
    if name not in _expected:
        (folder.parent / "expected").mkdir()
        _expected[name] = STEPS[name](folder.parent / "expected")
    with changed_for_a_while(default):
        before = defaults()
        got = STEPS[name](folder)
        assert defaults() == before
    assert len(got) == len(_expected[name]) > 0
    for mine, expected in zip(got, _expected[name], strict=True):
        assert_bitwise_equal(mine, expected)


@pytest.mark.parametrize("made", ["built", "read", "updated"])
def test_what_inference_mode_made_can_be_updated(made: str, folder: Path) -> None:
    with torch.inference_mode():
        if made == "read":
            store = CompressedFeatureStore.load(folder.parent / "before.ibp", mmap=False, pin=False)
        else:
            store = build()
        if made == "updated":
            store.update(IDS[:1], NEW_ROWS[:1])
    store.update(NEW_IDS, NEW_ROWS)
    assert_bitwise_equal(store.gather(NEW_IDS), NEW_ROWS)


@pytest.mark.parametrize("default", DEFAULTS)
def test_save_after_an_update(default: str, folder: Path) -> None:
    with changed_for_a_while(default):
        update_made_outside(folder).save(folder / "x.ibp")
    rows = FLOATS.clone()
    rows[NEW_IDS] = NEW_ROWS
    with CompressedFeatureStore.load(folder / "x.ibp", pin=False) as store:
        assert_bitwise_equal(store.gather(torch.arange(N)), rows)


# --- that it stays so ---------------------------------------------------------------------------------------

# torch's functions that make a tensor on the default device, unless they are told another one.
FACTORIES = set(
    "arange as_tensor asarray empty empty_permuted empty_strided eye full linspace logspace ones rand randint randn "
    "randperm range scalar_tensor tensor tril_indices triu_indices vander zeros".split()
)


def test_every_new_tensor_is_told_its_device() -> None:
    package, found = Path(ibp_gnn.__file__).parent, []
    for path in sorted(package.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
                continue
            of_torch = isinstance(node.func.value, ast.Name) and node.func.value.id == "torch"
            if of_torch and node.func.attr in FACTORIES and "device" not in {word.arg for word in node.keywords}:
                found.append(f"{path.relative_to(package)}:{node.lineno}: {ast.unparse(node)}")
    assert not found, "tensors on torch's default device:\n" + "\n".join(found)

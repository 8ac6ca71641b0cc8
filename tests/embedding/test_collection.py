"""CompressedEmbeddingBagCollection: the bits of single bags, whatever form features have."""

from __future__ import annotations

from typing import NamedTuple

import pytest
import torch
from pool_cases import DTYPES, bags, table

import ibp_gnn
from ibp_gnn import CompressedEmbeddingBagCollection
from ibp_gnn.codec import pool_gpu
from ibp_gnn.testing import oracle_pool
from ibp_gnn.testing.bits import assert_bitwise_equal

pytestmark = pytest.mark.filterwarnings("ignore:capacity")
devices = pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.cuda)])
WIDTHS = {"user": 16, "item": 64, "tag": 32, "shop": 128, "word": 64}
NUM_BAGS = 90


def tables(dtype: torch.dtype = torch.float32) -> dict[str, torch.Tensor]:
    return {name: table(dtype, width, 400 + 50 * i, i) for i, (name, width) in enumerate(WIDTHS.items())}


def make(rows, **options) -> CompressedEmbeddingBagCollection:
    return CompressedEmbeddingBagCollection.from_pretrained(rows, progress=False, **options)


class Jagged(NamedTuple):
    """What is used of torchrec's KeyedJaggedTensor."""

    names: list[str]
    ids: torch.Tensor
    starts: torch.Tensor
    of_ids: torch.Tensor | None

    def keys(self):
        return self.names

    def values(self):
        return self.ids

    def offsets(self):
        return self.starts

    def lengths(self):
        return self.starts.diff()

    def weights_or_none(self):
        return self.of_ids

    def to(self, device):
        weights = None if self.of_ids is None else self.of_ids.to(device)
        return Jagged(self.names, self.ids.to(device), self.starts.to(device), weights)


def draw(rows, names=None, weights=None, seed=0) -> tuple[Jagged, dict[str, torch.Tensor]]:
    """Features and what is expected of them with mode "sum"."""
    names = list(names or rows)
    cases = {
        name: bags(len(rows[name]), NUM_BAGS, seed + i, long_bags=i % 2, weights=weights)
        for i, name in enumerate(names)
    }
    starts, first = [], 0
    for case in cases.values():
        starts.append(case.offsets + first)
        first += len(case.ids)
    starts.append(torch.tensor([first]))
    of_ids = None if weights is None else torch.cat([case.weights for case in cases.values()])
    jagged = Jagged(names, torch.cat([case.ids for case in cases.values()]), torch.cat(starts), of_ids)
    expected = {
        name: oracle_pool.pool(rows[name], case.ids, case.bounds(), mode="sum", weights=case.weights)
        for name, case in cases.items()
    }
    return jagged, expected


def check(got, expected) -> None:
    for name, values in got.items():
        assert_bitwise_equal(values.contiguous(), expected[name])


@devices
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("weights", [None, torch.float32], ids=str)
def test_keyed_jagged(device, dtype, weights):
    rows = tables(dtype)
    collection = make(rows, device=device)
    order = ["tag", "word", "extra", "user", "shop", "item"]
    jagged, expected = draw({**rows, "extra": rows["tag"]}, order, weights)
    for given in (jagged, jagged.to(device)):
        got = collection(given)
        assert list(got) == list(rows)
        check(got, expected)
    collection.check()


@devices
@pytest.mark.parametrize("small", [True, False])
def test_caches_under_one_limit(device, small, monkeypatch):
    if device == "cpu":
        pytest.skip("caches are on GPUs")
    monkeypatch.setattr(pool_gpu, "STAGE_MIN_IDS", 1)
    monkeypatch.setattr(pool_gpu, "STAGE_BELOW_CACHED", 1.0 if small else 0.0)
    rows = tables()
    hotness = {name: torch.rand(len(of)) * (10 if name == "item" else 1) for name, of in rows.items()}
    collection = make(rows, capacity="150 rows" if small else 0.5, hotness=hotness)
    cached = sum(getattr(one.source, "num_cached", 0) for one in collection.tables.values())
    assert cached == 150 if small else cached > 500
    for seed in range(3):
        jagged, expected = draw(rows, seed=seed)
        check(collection(jagged.to("cuda")), expected)
    stats = collection.stats()
    assert list(stats) == list(rows)
    counts = {name: 0 for name in rows}
    for seed in range(3):
        jagged, _ = draw(rows, seed=seed)
        for i, name in enumerate(rows):
            counts[name] += int(jagged.starts[(i + 1) * NUM_BAGS] - jagged.starts[i * NUM_BAGS])
    assert {name: one.hits + one.misses for name, one in stats.items()} == counts
    assert stats["item"].hits / counts["item"] >= stats["user"].hits / counts["user"]
    collection.reset_stats()
    assert all(one == ibp_gnn.GatherStats() for one in collection.stats().values())


@devices
def test_plain_tensors(device):
    rows = tables()
    collection = make(rows, mode={"user": "sum", "item": "mean", "tag": "max", "shop": "sum", "word": "mean"})
    collection.device = torch.device(device)
    features = {
        "user": torch.randint(0, 400, (7, 3)),
        "item": (torch.arange(20), torch.tensor([0, 0, 3, 3, 9, 20, 20])),
        "tag": torch.randint(0, 400, (7, 1)),
        "shop": torch.zeros(7, 0, dtype=torch.int64),
        "word": (torch.arange(9, dtype=torch.int32), torch.arange(7, dtype=torch.int32)),
    }
    got = collection(features)
    for name, mode in (("user", "sum"), ("item", "mean"), ("tag", "max"), ("shop", "sum"), ("word", "mean")):
        given = features[name] if isinstance(features[name], tuple) else (features[name],)
        alone = ibp_gnn.CompressedEmbeddingBag.from_pretrained(rows[name], mode=mode, progress=False)
        assert_bitwise_equal(got[name].contiguous(), alone(*given))
    even = {name: torch.randint(0, 400, (5, 4)) for name in rows}
    check(
        make(rows, device=device)(even),
        {
            name: oracle_pool.pool(rows[name], ids.view(-1), torch.arange(6) * 4, mode="sum")
            for name, ids in even.items()
        },
    )


@devices
def test_weights_of_plain_tensors(device):
    rows = {name: tables()[name] for name in ("user", "tag")}
    collection = make(rows, device=device)
    ids, offsets, weights = torch.arange(8), torch.tensor([0, 3]), torch.randn(8)
    got = collection({"user": (ids, offsets, weights), "tag": (ids, offsets, weights)})
    bounds = torch.tensor([0, 3, 8])
    check(got, {name: oracle_pool.pool(of, ids, bounds, mode="sum", weights=weights) for name, of in rows.items()})


@devices
def test_features_of_several_tables(device):
    rows = {name: table(torch.float32, 8 * (i + 1), 400, i) for i, name in enumerate(("a", "b"))}
    collection = make(rows, features={"a": ["x", "y"], "b": ["x"]}, device=device)
    assert collection.embedding_names == ("x@a", "y", "x@b")
    ids = {"x": torch.randint(0, 400, (6, 300)), "y": torch.randint(0, 400, (6, 300))}
    got = collection(ids)
    for name, (feature, of) in {"x@a": ("x", "a"), "y": ("y", "a"), "x@b": ("x", "b")}.items():
        expected = oracle_pool.pool(rows[of], ids[feature].view(-1), torch.arange(7) * 300, mode="sum")
        assert_bitwise_equal(got[name].contiguous(), expected)


@pytest.mark.cuda
@pytest.mark.parametrize("where", ["cpu", "cuda"])
def test_prefetch(where, monkeypatch):
    monkeypatch.setattr(pool_gpu, "STAGE_MIN_IDS", 1)
    rows = tables()
    collection = make(rows, capacity=0.1)
    batches = [(jagged.to(where), expected) for jagged, expected in (draw(rows, seed=seed) for seed in range(5))]
    collection.prefetch(batches[0][0])
    for at, (jagged, expected) in enumerate(batches):
        got = collection(jagged)
        collection.prefetch(batches[(at + 1) % 5][0])
        check(got, expected)
    # Prefetched for other features, or before an update: what is right comes out.
    check(collection(batches[3][0]), batches[3][1])
    collection.prefetch(batches[1][0])
    new = table(torch.float32, 64, 450, 77)
    collection.update("item", torch.arange(450), new)
    jagged, expected = batches[1]
    ids = jagged.ids.cpu()[int(jagged.starts[NUM_BAGS]) : int(jagged.starts[2 * NUM_BAGS])]
    bounds = jagged.starts.cpu()[NUM_BAGS : 2 * NUM_BAGS + 1] - jagged.starts.cpu()[NUM_BAGS]
    expected = {**expected, "item": oracle_pool.pool(new, ids, bounds, mode="sum")}
    check(collection(jagged), expected)
    # Prefetched, then written over.
    collection.prefetch(jagged)
    jagged.ids.zero_()
    rows["item"] = new
    expected = {}
    for i, name in enumerate(rows):
        bounds = jagged.starts.cpu()[i * NUM_BAGS : (i + 1) * NUM_BAGS + 1]
        zeros = torch.zeros(int(bounds[-1] - bounds[0]), dtype=torch.int64)
        expected[name] = oracle_pool.pool(rows[name], zeros, bounds - bounds[0], mode="sum")
    check(collection(jagged), expected)


def test_prefetch_on_the_cpu_does_nothing():
    rows = tables()
    collection = make(rows)
    jagged, expected = draw(rows)
    collection.prefetch(jagged)
    check(collection(jagged), expected)


@devices
def test_update_state_and_dense(device):
    rows = tables()
    collection = make(rows, device=device)
    rows["tag"][5:9] = 1.5
    collection.update("tag", torch.arange(5, 9), rows["tag"][5:9])
    for name, dense in collection.to_dense().items():
        assert_bitwise_equal(dense, rows[name])
    state = collection.state_dict()
    assert set(state) == {f"tables.{name}._extra_state" for name in rows}
    other = make(tables(), device=device)
    jagged, expected = draw(rows)
    other(jagged)
    other.load_state_dict(state)
    check(other(jagged), expected)
    with pytest.raises(KeyError, match="table: want one of"):
        collection.update("nobody", torch.arange(1), rows["tag"][:1])
    collection.close()
    collection.close()


def test_bad_input():
    rows = tables()
    collection = make(rows)
    jagged, _ = draw(rows)
    with pytest.raises(KeyError, match="want 'user' among them"):
        collection({"item": torch.zeros(1, 1, dtype=torch.int64)})
    bad = jagged.ids.clone()
    bad[3] = 400
    with pytest.raises(IndexError, match="want 0 <= id < 400, got 400"):
        collection(jagged._replace(ids=bad))
    with pytest.raises(NotImplementedError, match="weights: want mode 'sum'"):
        make(rows, mode="mean")(jagged._replace(of_ids=torch.ones(len(jagged.ids))))
    with pytest.raises(ValueError, match="tables: want one dtype"):
        make({"a": torch.zeros(3, 8), "b": torch.zeros(3, 8).half()})
    with pytest.raises(ValueError, match="tables: want at least 1"):
        make({})
    with pytest.raises(TypeError, match="tables: want a mapping"):
        make([torch.zeros(3, 8)])
    with pytest.raises(ValueError, match="hotness: want the names of tables"):
        make(rows, hotness={"user": torch.ones(400)})
    with pytest.raises(ValueError, match="mode: want the names of tables"):
        make(rows, mode={"user": "sum"})
    with pytest.raises(ValueError, match="mode: want one of sum, mean, max, got 'min'"):
        make(rows, mode="min")
    with pytest.raises(ValueError, match=r"tables\['a'\]: want a table that is not trained.*freeze.*update"):
        make({"a": torch.nn.EmbeddingBag(5, 8)})


class _Config(NamedTuple):
    name: str
    feature_names: list[str]
    pooling: str


class _Collection(torch.nn.Module):
    """What is used of torchrec's EmbeddingBagCollection."""

    def __init__(self, train: bool) -> None:
        super().__init__()
        bags = {"a": torch.nn.EmbeddingBag(50, 8, mode="sum"), "b": torch.nn.EmbeddingBag(60, 16, mode="mean")}
        self.embedding_bags = torch.nn.ModuleDict(bags).requires_grad_(train)

    def embedding_bag_configs(self):
        return [_Config("a", ["x"], "SUM"), _Config("b", ["y"], "MEAN")]


def test_a_collection_of_torchrecs_form():
    given = _Collection(False)
    collection = make(given)
    ids = torch.randint(0, 50, (4, 3))
    got = collection({"x": ids, "y": ids})
    for name, values in zip("xy", given.embedding_bags.values(), strict=True):
        assert torch.allclose(got[name], values(ids), rtol=1e-6, atol=1e-6)
    with pytest.raises(ValueError, match="not trained"):
        make(_Collection(True))


def test_torchrec_itself():
    """For torch 2.13: pip install --no-deps torchrec==1.8.0 fbgemm-gpu-cpu==1.8.0 tensordict pyvers pyre-extensions
    typing-inspect."""
    try:
        import torchrec
    except (ImportError, OSError) as error:  # fbgemm's libraries are each of one version of torch
        pytest.skip(f"torchrec cannot be imported: {error}")
    config = torchrec.EmbeddingBagConfig
    given = torchrec.EmbeddingBagCollection(
        tables=[
            config(name="t1", embedding_dim=8, num_embeddings=100, feature_names=["f1", "f2"]),
            config(
                name="t2",
                embedding_dim=16,
                num_embeddings=90,
                feature_names=["f1"],
                pooling=torchrec.PoolingType.MEAN,
            ),
        ]
    ).requires_grad_(False)
    features = torchrec.KeyedJaggedTensor.from_lengths_sync(
        keys=["f2", "f1"], values=torch.randint(0, 90, (11,)), lengths=torch.tensor([2, 0, 3, 1, 5, 0])
    )
    expected, got = given(features), make(given)(features)
    assert isinstance(got, torchrec.KeyedTensor)
    assert got.keys() == expected.keys() and got.length_per_key() == expected.length_per_key()
    assert torch.allclose(got.values(), expected.values(), rtol=1e-6, atol=1e-6)
    weighted = torchrec.EmbeddingBagCollection(given.embedding_bag_configs()[:1], is_weighted=True).requires_grad_(
        False
    )
    features = torchrec.KeyedJaggedTensor(features.keys(), features.values(), torch.randn(11), features.lengths())
    assert torch.allclose(make(weighted)(features).values(), weighted(features).values(), rtol=1e-5, atol=1e-5)

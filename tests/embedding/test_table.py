from __future__ import annotations

import pytest
import torch
from pool_cases import table

from ibp_gnn import CompressedFeatureStore, FormatError
from ibp_gnn.embedding.table import Table, check_frozen, open_store
from ibp_gnn.testing.bits import assert_bitwise_equal

HOW = {"codec": "auto", "pin": "auto", "progress": False}


def make(rows, capacity=None, hotness=None, device=None) -> Table:
    return Table.open(rows, capacity=capacity, hotness=hotness, device=device, **HOW)


def opened(rows, **options):
    return open_store(rows, **{"hotness": None, "name": "table", **HOW, **options})


def test_trained_tables_are_refused_with_the_way_out():
    for trained in (torch.nn.Embedding(5, 4), torch.nn.EmbeddingBag(5, 4), torch.zeros(5, 4, requires_grad=True)):
        with pytest.raises(ValueError, match="not trained.*Freeze it first.*update"):
            make(trained)
    check_frozen(True)
    for wrong in (False, None, 1):
        with pytest.raises(ValueError, match="freeze: want True"):
            check_frozen(wrong)


@pytest.mark.parametrize(
    ("rows", "error", "message"),
    [
        (torch.zeros(5), ValueError, "got 1 dimensions"),
        (torch.zeros(5, 2, 2), ValueError, "got 3 dimensions"),
        (torch.zeros(5, 4, dtype=torch.float64), TypeError, "want float32, float16 or bfloat16, got torch.float64"),
        (torch.zeros(5, 4, dtype=torch.int64), TypeError, "got torch.int64"),
        (torch.nn.ReLU(), TypeError, "want a module with a weight"),
        (3, TypeError, "want a torch.Tensor"),
    ],
)
def test_other_tables_are_refused(rows, error, message):
    with pytest.raises(error, match=message):
        make(rows)


def test_max_norm_is_refused():
    module = torch.nn.Embedding(5, 4, max_norm=1.0)
    module.weight.requires_grad_(False)
    with pytest.raises(ValueError, match="max_norm=None"):
        make(module)


def test_stores_of_other_rows_are_refused():
    for rows in (torch.zeros(5), torch.zeros(5, 4, dtype=torch.int32)):
        with pytest.raises(ValueError, match=r"want \[num_embeddings, embedding_dim\] float32"):
            opened(
                CompressedFeatureStore.build(rows.view(5, -1) if rows.ndim > 1 else rows.view(5, 1, 1), progress=False)
            )


def test_hotness_orders_the_store():
    rows = table(torch.float32, 8, 50)
    store = opened(rows, hotness=torch.arange(50))
    assert store.slot_of is not None and store.slot_of.tolist() == list(range(49, -1, -1))
    assert_bitwise_equal(store.gather(torch.arange(50)), rows)
    with pytest.raises(ValueError, match=r"hotness: want shape \[50\]"):
        opened(rows, hotness=torch.arange(49))


def test_state():
    rows = table(torch.bfloat16, 8, 50)
    one, two = make(rows), make(torch.zeros_like(rows))
    two.load_state_dict(one.state_dict())
    assert_bitwise_equal(two.to_dense(None), rows)
    two.store.update(torch.tensor([0]), rows[1:2])
    assert_bitwise_equal(one.to_dense("cpu"), rows)


def test_other_states_are_refused_and_change_nothing():
    rows = table(torch.bfloat16, 8, 50)
    one = make(rows)
    state = one.get_extra_state()
    damaged = state.clone()
    damaged[len(state) // 2] ^= 1
    with pytest.raises(FormatError):
        one.set_extra_state(damaged)
    for wrong in (state.float(), state.view(1, -1), "state"):
        with pytest.raises(ValueError, match="state of a table: want the bytes of a store file"):
            one.set_extra_state(wrong)
    for other in (rows[:49], rows[:, :4], rows.half()):
        with pytest.raises(ValueError, match="state of a table: want rows of"):
            one.set_extra_state(make(other).get_extra_state())
    assert_bitwise_equal(one.to_dense(None), rows)


@pytest.mark.cuda
def test_state_of_a_cache():
    rows = table(torch.float32, 64, 900)
    one = make(torch.zeros_like(rows), "300 rows", torch.arange(900))
    one.load_state_dict(make(rows).state_dict())
    assert one.cache_device == torch.device("cuda", 0) and one.source.num_cached == 300
    assert_bitwise_equal(one.to_dense("cuda"), rows)
    assert "CompressedGPUCache" in repr(one)


@pytest.mark.cuda
def test_a_store_is_cached_by_hotness():
    rows = table(torch.float32, 64, 900)
    store = CompressedFeatureStore.build(rows, progress=False)
    one = make(store, "100 rows", torch.arange(900))
    one.source.gather(torch.arange(800, 900), device="cuda")
    assert one.stats().hits == 100
    assert one.gather_on(torch.device("cuda", 0)) is one.source.gather_on(torch.device("cuda", 0))


def test_no_gpu_no_cache():
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    with pytest.raises(RuntimeError, match="torch.cuda.is_available"):
        make(table(torch.float32, 8, 50), "1GB")
    assert make(table(torch.float32, 8, 50)).cache_device is None

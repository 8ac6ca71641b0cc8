from __future__ import annotations

import pytest
import torch
from pool_cases import DTYPES, table

from ibp_gnn import CompressedEmbedding, CompressedFeatureStore
from ibp_gnn.testing.bits import assert_bitwise_equal

devices = pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.cuda)])


def make(rows, **options):
    return CompressedEmbedding.from_pretrained(rows, progress=False, **options)


@devices
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("ids_dtype", [torch.int32, torch.int64])
def test_bits_of_the_table(device, dtype, ids_dtype):
    rows = table(dtype, 20, 500)
    embedding = make(rows, device=device)
    ids = torch.randint(0, 500, (3, 4, 5)).to(ids_dtype)
    for given in (ids, ids[:, :0], ids[0, 0, 0], ids.transpose(0, 2)):
        assert_bitwise_equal(embedding(given), torch.nn.functional.embedding(given, rows))


@pytest.mark.cuda
def test_a_cache_and_ids_on_both_devices():
    rows = table(torch.float32, 64, 3000)
    embedding = make(rows, capacity="40%", hotness=torch.arange(3000).flip(0))
    ids = torch.randint(0, 3000, (50, 50))
    for given in (ids, ids.cuda()):
        assert_bitwise_equal(embedding(given), rows[ids])
    stats = embedding.stats()
    assert stats.hits + stats.misses == 5000 and stats.hits > 0
    embedding(torch.tensor([3000], device="cuda"))
    with pytest.raises(IndexError, match="got 3000"):
        embedding.check()
    assert_bitwise_equal(embedding.to_dense("cuda"), rows)


def test_modules_files_and_stores():
    module = torch.nn.Embedding(100, 8, padding_idx=4)
    module.weight.requires_grad_(False)
    assert torch.equal(make(module)(torch.arange(100)), module(torch.arange(100)))
    assert torch.equal(make(module.weight.numpy())(torch.arange(100)), module.weight)
    store = CompressedFeatureStore.build(module.weight, progress=False)
    assert torch.equal(make(store)(torch.arange(100)), module.weight)


def test_a_file(tmp_path):
    rows = table(torch.bfloat16, 8, 100)
    embedding = make(rows, padding_idx=-1)
    embedding.save(tmp_path / "table.ibp")
    again = make(tmp_path / "table.ibp")
    assert_bitwise_equal(again(torch.arange(100)), rows)
    again.update(torch.tensor([3]), rows[5:6])
    assert_bitwise_equal(again(torch.tensor([3])), rows[5:6])
    assert embedding.padding_idx == 99 and again.padding_idx is None
    assert (embedding.num_embeddings, embedding.embedding_dim, embedding.dtype) == (100, 8, torch.bfloat16)
    assert embedding.nbytes > 0 and "100, 8, padding_idx=99" in repr(embedding)


def test_bad_input():
    embedding = make(table(torch.float32, 8, 100))
    with pytest.raises(IndexError, match="want 0 <= id < 100, got 100 at position 1"):
        embedding(torch.tensor([1, 100]))
    with pytest.raises(RuntimeError, match="input: want int32 or int64, got torch.float32"):
        embedding(torch.ones(2))
    with pytest.raises(TypeError, match="input: want a tensor, got list"):
        embedding([1])
    with pytest.raises(ValueError, match="freeze: want True, got False.*update"):
        make(table(torch.float32, 8, 100), freeze=False)


def test_closed():
    embedding = make(table(torch.float32, 8, 100))
    embedding.close()
    embedding.close()
    with pytest.raises(ValueError, match="closed"):
        embedding(torch.tensor([1]))

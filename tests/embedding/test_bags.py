from __future__ import annotations

import pytest
import torch

from ibp_gnn.embedding.bags import as_bags, check_mode, padding_id


def make(input, offsets=None, weights=None, **options):
    how = {"mode": "sum", "dtype": torch.float16, "num_rows": 10, **options}
    return as_bags(input, offsets, weights, **how)


def test_two_dimensions():
    bags = make(torch.arange(6, dtype=torch.int32).view(2, 3))
    assert bags.ids.tolist() == [0, 1, 2, 3, 4, 5] and bags.ids.dtype == torch.int32
    assert (bags.offsets, bags.bag_ids, bags.num_bags, bags.weights) == (None, 3, 2, None)
    turned = make(torch.arange(6).view(3, 2).T)
    assert turned.ids.tolist() == [0, 2, 4, 1, 3, 5] and turned.ids.is_contiguous()


def test_offsets():
    ids, offsets = torch.arange(6), torch.tensor([0, 2, 6])
    assert make(ids, offsets).num_bags == 3
    assert make(ids, offsets, include_last_offset=True).num_bags == 2
    assert make(ids[:0], offsets[:0]).num_bags == 0
    assert make(ids[:0], offsets[:1]).bounds().tolist() == [0, 0]
    assert make(ids[::2], torch.tensor([0])).ids.tolist() == [0, 2, 4]


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_weights_become_float32(dtype):
    weights = torch.arange(6, dtype=dtype).view(2, 3)
    bags = make(torch.arange(6).view(2, 3), None, weights)
    assert bags.weights is not None and bags.weights.dtype == torch.float32
    assert bags.weights.tolist() == [0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.int64])
def test_other_weights_are_refused(dtype):
    with pytest.raises(RuntimeError, match="per_sample_weights: want torch.float16 like the table"):
        make(torch.arange(2).view(1, 2), None, torch.ones(1, 2).to(dtype))


def test_padding():
    assert padding_id(None, 5) == -1
    assert [padding_id(at, 5) for at in (0, 4, -1, -5)] == [0, 4, 4, 0]
    for wrong in (1.0, True, "1"):
        with pytest.raises(TypeError, match="padding_idx: want an int or None"):
            padding_id(wrong, 5)


def test_modes():
    for mode in ("sum", "mean", "max"):
        check_mode(mode)
    with pytest.raises(ValueError, match="mode: want one of sum, mean, max, got 'add'"):
        check_mode("add")


@pytest.mark.cuda
def test_devices_have_to_be_one():
    ids, offsets = torch.arange(4), torch.tensor([0])
    with pytest.raises(RuntimeError, match="offsets: want them on cuda:0, where input is, got cpu"):
        make(ids.cuda(), offsets)
    with pytest.raises(RuntimeError, match="per_sample_weights: want them on cuda:0"):
        make(ids.cuda(), offsets.cuda(), torch.ones(4))
    assert make(ids.cuda() + 100, offsets.cuda() + 100).num_bags == 1  # what is on a GPU is not looked at

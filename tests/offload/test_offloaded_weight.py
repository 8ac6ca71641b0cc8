from __future__ import annotations

import copy
import io

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from ibp_gnn.offload.decoder import CpuDecoder
from ibp_gnn.offload.offloaded_weight import OffloadedWeight
from ibp_gnn.offload.weight import compress_weight
from ibp_gnn.testing import assert_bitwise_equal

WANT = torch.randn(96, 64, generator=torch.Generator().manual_seed(0)).bfloat16()


def make(by_row: bool = True, want: torch.Tensor = WANT) -> OffloadedWeight:
    weight = compress_weight(want, by_row=by_row, device=torch.device("cpu"))
    return OffloadedWeight(
        decoder=CpuDecoder([weight]), number=0, name="lin.weight", shape=want.shape, dtype=want.dtype, by_row=by_row
    )


def test_it_is_described_without_being_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    weight = make()
    monkeypatch.setattr(CpuDecoder, "copy", lambda *_: pytest.fail("decoded"))
    monkeypatch.setattr(CpuDecoder, "lend", lambda *_: pytest.fail("decoded"))
    assert weight.shape == WANT.shape and weight.dtype == WANT.dtype and weight.device == WANT.device
    assert weight.size(1) == 64 and weight.dim() == 2 and weight.numel() == WANT.numel() and len(weight) == 96
    assert weight.nbytes == WANT.nbytes and weight.is_floating_point() and not weight.requires_grad
    assert not weight.is_meta and weight.is_cpu and not weight.is_cuda and weight.detach() is weight
    assert isinstance(weight, nn.Parameter) and "lin.weight" in repr(weight) and weight.is_contiguous()
    assert weight in {weight}


def test_operations_get_its_values() -> None:
    weight, x = make(), torch.randn(5, 64).bfloat16()
    with torch.no_grad():
        assert_bitwise_equal(F.linear(x, weight), F.linear(x, WANT))
        assert_bitwise_equal(x @ weight.t(), x @ WANT.t())
        assert_bitwise_equal(torch.matmul(x, weight.T), torch.matmul(x, WANT.T))
        assert_bitwise_equal(weight + 1, WANT + 1)
        assert_bitwise_equal(weight[3:7, 1], WANT[3:7, 1])
        assert_bitwise_equal(weight.float(), WANT.float())
        assert_bitwise_equal(weight.data, WANT)
        assert weight.sum().item() == WANT.sum().item()
        assert_bitwise_equal(torch.stack([weight, weight]), torch.stack([WANT, WANT]))


def test_results_do_not_change_when_another_weight_is_decoded() -> None:
    both = [WANT, (3 * WANT.float()).bfloat16()]
    decoder = CpuDecoder([compress_weight(one, by_row=False, device=torch.device("cpu")) for one in both])
    first, second = (
        OffloadedWeight(decoder=decoder, number=at, name="w", shape=(96, 64), dtype=torch.bfloat16, by_row=False)
        for at in range(2)
    )
    kept = [first.t(), first.view(-1), first[0], first.data, first.contiguous(), first.decoded()]
    wanted = [WANT.t(), WANT.view(-1), WANT[0], WANT, WANT, WANT]
    F.linear(torch.ones(1, 64).bfloat16(), second)
    for got, want in zip(kept, wanted, strict=True):
        assert_bitwise_equal(got, want)


@pytest.mark.parametrize("by_row", [True, False])
def test_embedding(by_row: bool) -> None:
    weight, ids = make(by_row), torch.tensor([[0, 95, 3], [3, 3, 1]])
    assert_bitwise_equal(F.embedding(ids, weight), WANT[ids])
    assert_bitwise_equal(F.embedding(ids.int(), weight, padding_idx=3), WANT[ids])
    assert F.embedding(ids[:0], weight).shape == (0, 3, 64)
    if by_row:
        for bad in (96, -1):
            with pytest.raises(IndexError, match=f"got {bad}"):
                F.embedding(torch.tensor([0, bad]), weight)
        with pytest.raises(RuntimeError, match="max_norm"):
            F.embedding(ids, weight, max_norm=1.0)


@pytest.mark.parametrize(
    "write",
    [
        lambda weight: weight.add_(1),
        lambda weight: weight.copy_(WANT),
        lambda weight: weight.__setitem__(0, 1),
        lambda weight: torch.add(WANT, 1, out=weight),
        lambda weight: weight.__iadd__(1),
        lambda weight: setattr(weight, "data", WANT),
    ],
)
def test_writing_is_an_error(write: object) -> None:
    weight = make()
    with torch.no_grad(), pytest.raises(RuntimeError, match="read only"):
        write(weight)  # type: ignore[operator]
    assert_bitwise_equal(weight.decoded(), WANT)


def test_a_backward_pass_is_an_error_at_once() -> None:
    x = torch.ones(2, 64, dtype=torch.bfloat16, requires_grad=True)
    with pytest.raises(RuntimeError, match="lin.weight: want inference"):
        F.linear(x, make())
    with torch.no_grad():
        assert_bitwise_equal(F.linear(x, make()), F.linear(x, WANT))


def test_copies_are_plain() -> None:
    weight = make()
    copied = copy.deepcopy(nn.ParameterList([weight]))[0]
    assert type(copied) is nn.Parameter and torch.equal(copied, WANT)
    file = io.BytesIO()
    torch.save(weight, file)
    file.seek(0)
    assert_bitwise_equal(torch.load(file, weights_only=True), WANT)


def test_an_error_in_the_operation_leaves_it_usable() -> None:
    weight = make()
    for _ in range(2):
        with torch.no_grad(), pytest.raises(RuntimeError, match="shapes"):
            F.linear(torch.ones(2, 63).bfloat16(), weight)
    assert_bitwise_equal(F.linear(torch.ones(2, 64).bfloat16(), weight), F.linear(torch.ones(2, 64).bfloat16(), WANT))

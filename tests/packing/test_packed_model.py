"""PackedLinear and pack_model."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn

from ibp_gnn.packing import PackedLinear, pack_fp8, pack_model


def linear(bias: bool = True, dtype: torch.dtype = torch.float32) -> nn.Linear:
    torch.manual_seed(0)
    return nn.Linear(96, 24, bias=bias, dtype=dtype).eval()


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("format", ["fp16", "e4m3", "e5m2"])
def test_as_the_module_with_unpacked_weights(format: Any, bias: bool, device: torch.device) -> None:
    module = linear(bias).to(device)
    packed = PackedLinear.from_linear(module, format)
    rounded = copy.deepcopy(module)
    rounded.weight.data = packed.weight.unpack()
    for shape in ((96,), (5, 96), (2, 3, 96)):
        x = torch.randn(shape, device=device)
        with torch.no_grad():
            assert torch.allclose(packed(x), rounded(x), atol=1e-5)
            assert not torch.equal(packed(x), module(x)), "LOSSY"


def test_its_state(device: torch.device) -> None:
    packed = PackedLinear.from_linear(linear().to(device), "e4m3")
    other = PackedLinear.from_linear(nn.Linear(96, 24, device=device), "e4m3")
    other.load_state_dict(packed.state_dict())
    x = torch.randn(96, device=device)
    assert torch.equal(other(x), packed(x))
    half = copy.deepcopy(packed).to(torch.float16)  # the bias; the scale of rows stays what it is
    assert half.weight.scale is not None and packed.weight.scale is not None
    assert torch.equal(half.weight.scale, packed.weight.scale)
    assert half(x.half()).dtype == torch.float16
    assert list(packed.parameters()) == [] and not packed.training


def test_text_says_lossy() -> None:
    assert "LOSSY" in repr(PackedLinear.from_linear(linear(), "e5m2"))


def test_arguments_of_the_module() -> None:
    with pytest.raises(TypeError, match="linear: want a torch.nn.Linear, got Conv1d"):
        PackedLinear.from_linear(nn.Conv1d(2, 2, 1))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="format: want 'e4m3' or 'e5m2', got 'e3m4'"):
        PackedLinear.from_linear(linear(), "e3m4")  # type: ignore[arg-type]
    weight = pack_fp8(torch.ones(3, 4))
    with pytest.raises(ValueError, match=r"bias: want \[3\] on cpu, got \[4\] on cpu"):
        PackedLinear(weight, torch.ones(4))
    with pytest.raises(TypeError, match="w: want a PackedTensor"):
        PackedLinear(torch.ones(3, 4))  # type: ignore[arg-type]


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(50, 96)
        self.attention = nn.MultiheadAttention(96, 2, batch_first=True)
        self.layers = nn.ModuleList([nn.Linear(96, 96), nn.Linear(96, 96)])
        self.shared = self.layers[0]
        self.head = nn.Linear(96, 50, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.embedding(ids)
        x = x + self.attention(x, x, x, need_weights=False)[0]
        for layer in self.layers:
            x = torch.relu(layer(x))
        return self.head(self.shared(x))


def test_a_model(device: torch.device) -> None:
    torch.manual_seed(0)
    model = Model().eval().to(device)
    ids = torch.arange(20, device=device).view(2, 10)
    with torch.no_grad():
        wanted = model(ids)
        assert pack_model(model, "e4m3", skip=("head",), progress=False) is model
        got = model(ids)
    assert isinstance(model.layers[1], PackedLinear) and isinstance(model.head, nn.Linear)
    assert model.shared is model.layers[0], "what is shared stays so"
    assert type(model.attention.out_proj).__name__ == "NonDynamicallyQuantizableLinear"
    assert 0 < float((got - wanted).norm() / wanted.norm()) < 0.1


def test_a_bare_module() -> None:
    module = linear()
    assert isinstance(pack_model(module, progress=False), PackedLinear)
    assert pack_model(module, skip=("",), progress=False) is module


def test_errors_leave_the_model_as_it_is() -> None:
    model = Model().eval()
    with pytest.raises(ValueError, match="skip: want names of nn.Linear modules of the model, got 'attention'"):
        pack_model(model, skip=("attention",), progress=False)
    with pytest.raises(ValueError, match="format: want"):
        pack_model(model, "fp4", progress=False)  # type: ignore[arg-type]
    assert isinstance(model.head, nn.Linear)
    model.layers[1].train()
    with pytest.raises(ValueError, match="model: want eval mode, got layers.1 in training mode"):
        pack_model(model, progress=False)
    with pytest.raises(TypeError, match="model: want a torch.nn.Module, got list"):
        pack_model([], progress=False)  # type: ignore[arg-type]

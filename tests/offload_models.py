"""Models to offload, without transformers and with it."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.cuda)]


class Decoder(nn.Module):
    """An embedding, layers with a norm and two projections, and a head, tied or not; weights of 128 KiB and more."""

    def __init__(self, *, tied: bool = False, layers: int = 3, width: int = 256, dtype: torch.dtype = torch.bfloat16):
        super().__init__()
        self.embed = nn.Embedding(1000, width, dtype=dtype)
        self.norms = nn.ModuleList(nn.LayerNorm(width, dtype=dtype) for _ in range(layers))
        self.ups = nn.ModuleList(nn.Linear(width, 2 * width, dtype=dtype) for _ in range(layers))
        self.downs = nn.ModuleList(nn.Linear(2 * width, width, bias=False, dtype=dtype) for _ in range(layers))
        self.head = nn.Linear(width, 1000, bias=False, dtype=dtype)
        self.register_buffer("scale", torch.full((1,), 1.5, dtype=dtype))
        if tied:
            self.head.weight = self.embed.weight

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.embed(ids) * self.scale
        for norm, up, down in zip(self.norms, self.ups, self.downs, strict=True):
            x = x + down(torch.nn.functional.silu(up(norm(x))))
        return self.head(x)


def make_decoder(**options: Any) -> Decoder:
    torch.manual_seed(3)
    model = Decoder(**options).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 2:
                parameter.normal_(0, 0.02)
    return model


def on_device(model: nn.Module, device: str) -> nn.Module:
    """A copy there, to compare with."""
    return copy.deepcopy(model).to(device)


def some_ids(device: str = "cpu", shape: tuple[int, ...] = (2, 17)) -> torch.Tensor:
    return torch.randint(1000, shape, generator=torch.Generator().manual_seed(5)).to(device)


def budget_for(model: nn.Module, share: float, prefetch: int = 2) -> int:
    """GPU memory with which a share of the weights stays on the GPU, compressed, and the rest is streamed."""
    sizes = [module.weight.nbytes for module in model.modules() if isinstance(module, nn.Linear)]
    rest = sum(parameter.nbytes for parameter in model.parameters() if parameter.ndim == 1)
    buffers = max(sizes) + (1 << 14) + (prefetch + 1) * round(0.75 * max(sizes))
    return rest + buffers + round(share * 0.7 * sum(sizes))


def llama(**options: Any) -> Any:
    """A small random LlamaForCausalLM of transformers, bfloat16."""
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    settings = dict(
        vocab_size=1000,
        hidden_size=256,
        intermediate_size=512,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        eos_token_id=None,
        pad_token_id=0,
    )
    config = transformers.LlamaConfig(**(settings | options))
    return transformers.LlamaForCausalLM(config).to(torch.bfloat16).eval()

"""Models of the benchmark: Llama's shape, random weights with the exponents of trained ones."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch

_DEVIATION = 0.02
_VALUES_AT_ONCE = 1 << 27


@dataclasses.dataclass(frozen=True)
class Shape:
    """As in transformers' LlamaConfig; all bfloat16."""

    name: str
    hidden: int
    intermediate: int
    layers: int
    heads: int
    kv_heads: int
    vocab: int


def llama_config(shape: Shape) -> Any:
    from transformers import LlamaConfig

    return LlamaConfig(
        vocab_size=shape.vocab,
        hidden_size=shape.hidden,
        intermediate_size=shape.intermediate,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.kv_heads,
        max_position_embeddings=1 << 20,
        tie_word_embeddings=False,
        dtype="bfloat16",
    )


def make_model(shape: Shape, device: torch.device, seed: int) -> torch.nn.Module:
    """In CPU memory, in eval mode; the GPU makes the random numbers. The same for the same seed."""
    from accelerate import init_empty_weights
    from transformers import LlamaForCausalLM

    with init_empty_weights(include_buffers=False):
        model = LlamaForCausalLM(llama_config(shape))
    generator = torch.Generator(device).manual_seed(seed)
    for name, parameter in list(model.named_parameters()):
        values = torch.empty(parameter.shape, dtype=torch.bfloat16)
        if values.ndim == 1:
            values.fill_(1)
        else:
            for part in values.view(-1).split(_VALUES_AT_ONCE):
                made = torch.empty(len(part), dtype=torch.bfloat16, device=device)
                part.copy_(made.normal_(0, _DEVIATION, generator=generator))
        owner, _, key = name.rpartition(".")
        model.get_submodule(owner)._parameters[key] = torch.nn.Parameter(values, requires_grad=False)
    return model.eval()
